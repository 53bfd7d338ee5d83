"""Lines a second of the log part beside mtail, the cost of following, and memory: on the same log, in one run.

    scripts/install-bench-tools && .venv/bin/python bench/logs.py [--lines 1000000] [--rounds 7]

mtail runs one counter and two regular expressions; ours understands every line, or only follows the file and counts
them. Both read the log from its start, and both follow a file that grows. Lines are taken a second and a CPU second:
the worse ratio counts. The exit status is 1 where ours understands under half as many lines as mtail, counts under ten
times as many, costs over 1 % of a core at 100 lines a second, or grows by over 5 MiB. It takes a quarter of an hour
and 3 GiB below --directory.

Following is held to half of mtail's lines too; as many were not reached (0.6 to 0.8). Of the 18 us of CPU that a
followed line takes, 9 are its understanding, which alone is quicker than mtail, and 2 the state of its run. The rest is
the exporter around it: reading, the way from thread to thread, a judgement for each MiB, and the scrapes by which this
benchmark asks how far it is. A log that prints 100 lines a second is far from any of this.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import log_text
from log_followers import MTAIL, Follower, counted, mtail, mtail_command, ours, wait_until
from ratio import in_turns, show

Start = Callable[[Path, Path], AbstractContextManager[Follower]]

UNDERSTAND = """
import sys
from pathlib import Path
from training_exporter.logs import LogParser
from training_exporter.sources.tail_file import READ_BYTES
parser = LogParser()
events = 0
with Path(sys.argv[1]).open("rb") as file:
    while data := file.read(READ_BYTES):
        events += len(parser.feed(data, 0.0))
print(parser.lines, events)
"""
# The file appears once it is followed, so it is read from its start as the exporter reads it, and only counted.
COUNT = """
import os, sys
from training_exporter.clock import SystemClock
from training_exporter.model import LogTarget
from training_exporter.sources.tail import TailSource
path = sys.argv[1] + ".followed"
source = TailSource(SystemClock())
source.follow([LogTarget("bench", path)])
source.collect()
os.link(sys.argv[1], path)
lines, unread = 0, 1
while unread:
    for chunk in source.collect():
        lines += chunk.data.count(b"\\n")
        unread = chunk.unread_bytes
os.unlink(path)
print(lines)
"""
PATIENCE_SECONDS = 1800.0
PAUSE_SECONDS = 0.2  # between two questions how far a follower is
LEAST_UNDERSTOOD = 0.5
LEAST_COUNTED = 10.0
MOST_CORE = 0.01
MOST_GROWTH_BYTES = 5 << 20
LONG_LOG_BYTES = 2 << 30
LONG_LINE_BYTES = 200 << 20
SETTLED_BYTES = 256 << 20  # so much is read before memory is looked at
PACE_LINES = 100  # a second
PACE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Cost:
    """What reading a log took."""

    seconds: float
    cpu_seconds: float


def one_shot(command: list[str], lines: int) -> Cost:
    """Run a program that reads the log once and prints how many lines it saw."""
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, printed
    assert counted(printed) == lines, printed
    return Cost(time.monotonic() - began, usage.ru_utime + usage.ru_stime)


def follow(start: Start, folder: Path, log: Path, lines: int) -> Cost:
    """Append a log to a file that is followed; until every line was counted."""
    growing = folder / "growing.log"
    growing.write_bytes(b"")
    with start(folder, growing) as follower:
        wait_until("it follows", lambda: follower.lines() >= 0, seconds=60)
        before, began = follower.cpu_seconds(), time.monotonic()
        _append(growing, log, log.stat().st_size)
        _wait(follower, lines)
        return Cost(time.monotonic() - began, follower.cpu_seconds() - before)


def _wait(follower: Follower, lines: float, look: Callable[[], object] = lambda: None) -> None:
    began = time.monotonic()
    while follower.lines() < lines:
        assert time.monotonic() - began < PATIENCE_SECONDS
        look()
        time.sleep(PAUSE_SECONDS)


def _append(path: Path, source: Path, size: int) -> None:
    """The log again and again, up to a size."""
    with path.open("ab") as file:
        while size > 0:
            with source.open("rb") as log:
                while size > 0 and (data := log.read(min(size, 1 << 20))):
                    size -= file.write(data)


def paced(folder: Path, log: Path) -> dict[str, float]:
    """Share of a core at a steady pace, beyond what the same program costs at rest."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)[: PACE_LINES * PACE_SECONDS]
    with ExitStack() as stack:
        followers = {}
        for name, start in (("mtail", mtail), ("ours", ours)):
            for kind in ("at rest", "at a pace"):
                (folder / kind).mkdir(exist_ok=True)  # of its own, as a change in a directory wakes its followers
                (folder / kind / "growing.log").write_bytes(b"")
                followers[name, kind] = stack.enter_context(start(folder / kind, folder / kind / "growing.log"))
        for follower in followers.values():
            wait_until("it follows", lambda follower=follower: follower.lines() >= 0, seconds=60)
        time.sleep(5)  # each has looked for its files
        before = {key: follower.cpu_seconds() for key, follower in followers.items()}
        began = time.monotonic()
        with (folder / "at a pace/growing.log").open("a", encoding="utf-8") as file:
            for count, line in enumerate(lines, 1):
                file.write(line)
                file.flush()
                time.sleep(max(0.0, began + count / PACE_LINES - time.monotonic()))
        seconds = time.monotonic() - began
        spent = {key: (follower.cpu_seconds() - before[key]) / seconds for key, follower in followers.items()}
    return {name: spent[name, "at a pace"] - spent[name, "at rest"] for name in ("mtail", "ours")}


def growth(start: Start, folder: Path, log: Path) -> tuple[int, int]:
    """Bytes by which the resident memory grew over a long log, then over one long line."""
    growing = folder / "growing.log"
    growing.write_bytes(b"")
    with start(folder, growing) as follower:
        wait_until("it follows", lambda: follower.lines() >= 0, seconds=60)
        _append(growing, log, SETTLED_BYTES)
        _wait(follower, _lines(growing))
        resident: list[int] = [follower.resident_bytes()]

        def look() -> None:
            resident.append(follower.resident_bytes())

        _append(growing, log, LONG_LOG_BYTES - SETTLED_BYTES)
        total = _lines(growing)
        _wait(follower, total, look)
        long_log = max(resident) - resident[0]
        with growing.open("ab") as file:
            for _ in range(LONG_LINE_BYTES >> 20):
                file.write(b"loss: 0.25 " * ((1 << 20) // 11))
            file.write(b"\n")
        del resident[1:]
        _wait(follower, total + 1, look)
    growing.unlink()
    return long_log, max(resident) - resident[0]


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(data.count(b"\n") for data in iter(partial(file.read, 1 << 20), b""))


def worst_ratio(mine: Sequence[Cost], other: Sequence[Cost]) -> float:
    """How many times as many lines ours does, a second or a CPU second, whichever is less."""
    return min(
        median(getattr(cost, unit) for cost in other) / median(getattr(cost, unit) for cost in mine)
        for unit in ("seconds", "cpu_seconds")
    )


def speed(folder: Path, log: Path, lines: int, rounds: int) -> list[str]:
    """Print lines a second; returns what is too slow."""
    once = [*mtail_command(folder, log), "-one_shot", "-one_shot_format=prometheus"]
    costs = in_turns(
        {
            "mtail, once": partial(one_shot, once, lines),
            "ours, understanding": partial(one_shot, [sys.executable, "-c", UNDERSTAND, str(log)], lines),
            "ours, counting": partial(one_shot, [sys.executable, "-c", COUNT, str(log)], lines),
            "mtail, following": partial(follow, mtail, folder, log, lines),
            "ours, following": partial(follow, ours, folder, log, lines),
        },
        rounds,
    )
    for name, found in costs.items():
        show(name, [lines / cost.seconds for cost in found], "lines/s")
        show("", [lines / cost.cpu_seconds for cost in found], "lines/CPU s")
    once_peer, follow_peer = costs["mtail, once"], costs["mtail, following"]
    return [
        *_judge("understanding", worst_ratio(costs["ours, understanding"], once_peer), LEAST_UNDERSTOOD),
        *_judge("counting", worst_ratio(costs["ours, counting"], once_peer), LEAST_COUNTED),
        *_judge("following", worst_ratio(costs["ours, following"], follow_peer), LEAST_UNDERSTOOD),
    ]


def _judge(name: str, ratio: float, least: float) -> list[str]:
    print(f"{name}: {ratio:.2f} times the lines of mtail (at least {least})")
    return [name] if ratio < least else []


def measure(folder: Path, lines: int, rounds: int) -> list[str]:
    """Print everything; returns the names of what missed its bound."""
    log = folder / "training.log"
    log_text.write(log, lines)
    print(f"{lines} lines, {log.stat().st_size / lines:.0f} bytes a line")
    wrong = speed(folder, log, lines, rounds)
    for name, share in paced(folder, log).items():
        print(f"{name}: {100 * share:.2f} % of a core at {PACE_LINES} lines/s")
        wrong += ["pace"] if name == "ours" and share > MOST_CORE else []
    for name, start in (("mtail", mtail), ("ours", ours)):
        for kind, size in zip(("2 GiB of log", "a line of 200 MiB"), growth(start, folder, log), strict=True):
            print(f"{name}: {size / (1 << 20):.1f} MiB more memory over {kind}")
            wrong += [kind] if name == "ours" and size > MOST_GROWTH_BYTES else []
    return wrong


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--directory", type=Path, help="where the logs are written")
    arguments = parser.parse_args()
    if not MTAIL.exists():
        parser.error("mtail is missing: scripts/install-bench-tools")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        wrong = measure(Path(folder), arguments.lines, arguments.rounds)
    print("missed: " + ", ".join(wrong) if wrong else "all bounds are met")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
