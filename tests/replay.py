"""Answers like `training-exporter simulate` from what a session has played: FOLDER SCENARIO --json --openmetrics OUT.

The judge of the scenarios calls it in place of the command, so that no scenario is played twice.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def main(folder: str, scenario: str, *options: str) -> None:
    """Print the changes and copy the series."""
    file = Path(scenario)
    played = Path(folder) / f"{file.parent.name}-{file.stem}"
    sys.stdout.write(played.with_name(f"{played.name}.jsonl").read_text())
    shutil.copy(played.with_name(f"{played.name}.om"), options[options.index("--openmetrics") + 1])


if __name__ == "__main__":
    main(*sys.argv[1:])
