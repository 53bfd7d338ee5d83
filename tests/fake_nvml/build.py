"""Builds the stand-in for the NVIDIA driver library with the C compiler of the machine."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"


def build(folder: Path, *, missing: Sequence[str] = ()) -> Path:
    """Compile the library into `folder` and return that folder, for LD_LIBRARY_PATH.

    The symbols in `missing` are kept out of the dynamic symbol table, as in a driver that is too old for them.
    Raises CalledProcessError if the compiler fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    exports = folder / "exports.map"
    hidden = "".join(f" {symbol};" for symbol in missing)
    exports.write_text(f"{{ global: nvml*; local:{hidden} *; }};\n")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    linking = [f"-Wl,-soname,{LIBRARY}", f"-Wl,--version-script={exports}"]
    subprocess.run(["cc", *flags, *linking, "-o", str(folder / LIBRARY), str(SOURCE)], check=True)
    return folder


def main() -> None:
    """Build from the command line and print the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--missing", action="append", default=[], metavar="SYMBOL", help="leave this symbol out")
    arguments = parser.parse_args()
    print(build(arguments.folder, missing=arguments.missing))  # noqa: T201  # the result of the command


if __name__ == "__main__":
    main()
