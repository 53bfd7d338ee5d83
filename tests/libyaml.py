"""Runs a Python program with LibYAML in place of PyYAML's own parser and emitter: PROGRAM ARGUMENT...

The judge of the scenarios writes megabytes of YAML for each of them, which takes PyYAML alone longer than Python
needs for all the rest.
"""

from __future__ import annotations

import runpy
import sys

import yaml


def main() -> None:
    """Run the program as if it had been started itself."""
    yaml.SafeDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # type: ignore[misc]
    yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # type: ignore[misc]
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
