#!/usr/bin/env python3
"""Writes the dashboards from the exporter's own metrics and states; `--check` only says whether they are up to date."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from boards import fleet, node, run
from boards.panels import Json

FOLDER = Path(__file__).parent / "dashboards"
BOARDS = {"fleet.json": fleet.build, "run.json": run.build, "node.json": node.build}


def text_of(board: Json) -> str:
    """A dashboard as it is committed: stable under regeneration."""
    return json.dumps(board, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> int:
    """Write all dashboards, or with `--check` name those that are not up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    texts = {name: text_of(build()) for name, build in BOARDS.items()}
    stale = [name for name, text in texts.items() if not _is_fresh(FOLDER / name, text)]
    if check:
        sys.stderr.writelines(
            f"grafana/dashboards/{name} is not up to date: run grafana/generate.py\n" for name in stale
        )
        return 1 if stale else 0
    for name in stale:
        (FOLDER / name).write_text(texts[name], encoding="utf-8")
    return 0


def _is_fresh(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
