"""CPU of one look at a checkpoint directory as it fills up: ours against a walk that asks for every file, and `find`.

    .venv/bin/python bench/checkpoints.py [--rounds 15] [--files 10 1000 100000]

The files lie in folders of up to 1,000, one a checkpoint. All look in turns at the same directory, which is at rest but
for one file of the newest folder that grows, as while a checkpoint is written; ours must see that each time. The exit
status is 1 if ours costs more than a fifth of the walk where there are more files than ours looks at each time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from ratio import Comparison, in_turns, table

from training_exporter.clock import SystemClock
from training_exporter.model import CheckpointTarget
from training_exporter.sources.directory_scan import HOT_FILES, DirectoryScanner

SIZES = (10, 1_000, 100_000)
FILES_PER_FOLDER = 1_000
MOST = 0.2


def fill(directory: Path, files: int) -> Path:
    """Checkpoints of so many files together; the one of the newest that grows."""
    for number in range(0, files, FILES_PER_FOLDER):
        folder = directory / f"checkpoint-{number // FILES_PER_FOLDER + 1}"
        folder.mkdir(parents=True)
        for shard in range(min(FILES_PER_FOLDER, files - number)):
            (folder / f"shard-{shard:05d}.safetensors").touch()
    return folder / "shard-00000.safetensors"


def cost(look: Callable[[], object]) -> float:
    """CPU milliseconds of a call in this process, all threads."""
    before = time.process_time()
    look()
    return 1000 * (time.process_time() - before)


def walk(directory: Path) -> int:
    """Size of all files, each asked for."""
    size = 0
    for folder, _, names in os.walk(directory):
        size += sum(os.lstat(f"{folder}/{name}").st_size for name in names)
    return size


def find(directory: Path) -> float:
    """CPU milliseconds of `find` that prints size and time of every file."""
    command = ["find", str(directory), "-type", "f", "-printf", "%s %T@\\n"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return 1000 * (usage.ru_utime + usage.ru_stime)


def measure(files: int, rounds: int) -> tuple[dict[str, list[float]], float]:
    """CPU milliseconds of each kind of look, round by round, and of our first."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        grows = fill(directory, files)
        scanner = DirectoryScanner(CheckpointTarget("bench", name), SystemClock())
        first = cost(scanner.scan)
        cost(scanner.scan)  # a folder is known when it was seen twice under the same time
        written = 0

        def ours() -> float:
            nonlocal written
            written += 1
            with grows.open("ab") as file:
                file.write(b"x")
            before = time.process_time()
            (listing,) = scanner.scan()
            took = 1000 * (time.process_time() - before)
            path = str(grows.relative_to(directory))
            assert [entry.bytes for entry in listing.entries if entry.path == path] == [written]
            return took

        cases = {"ours": ours, "walk": lambda: cost(lambda: walk(directory)), "find": lambda: find(directory)}
        return in_turns(cases, rounds), first


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="(%(default)s)")
    parser.add_argument("--files", type=int, nargs="+", default=SIZES)
    parser.add_argument("--quick", action="store_true", help="small directories, three rounds")
    arguments = parser.parse_args()
    sizes, rounds = ((10, 1_000), 3) if arguments.quick else (sorted(arguments.files), arguments.rounds)
    rows, notes, curve = [], [], {}
    for files in sizes:
        costs, first = measure(files, rounds)
        bound = MOST if files > HOT_FILES else None  # fewer are all asked for, every time
        rows.append(Comparison(f"{files} files: walk with a stat of each", costs["ours"], costs["walk"], "ms", bound))
        rows.append(Comparison(f"{files} files: find", costs["ours"], costs["find"], "ms"))
        curve[files] = costs["ours"]
        notes.append(f"{files:7} files: our first look {first:.1f} ms")
    for fewer, more in pairwise(sizes):
        rows.append(Comparison(f"ours: {more} files over {fewer}", curve[more], curve[fewer], "ms"))
    print(table(rows, "the other"))
    print("\n" + "\n".join(notes))
    return int(not all(row.met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
