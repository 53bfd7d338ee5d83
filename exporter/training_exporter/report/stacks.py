"""Python stacks of the ranks by py-spy, which stops nothing with --nonblocking; equal ones folded."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from training_exporter import redact

TIMEOUT_SECONDS = 15.0

_THREAD = re.compile(r"^Thread \S+ \((?P<state>[^)]*)\)(?:: \"(?P<name>[^\"]*)\")?$")


class StacksError(Exception):
    """No stack can be had at all; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Ranks that stand at the same place. `frames` are innermost first; empty if `error` says why."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    error: str | None = None


Dump = Callable[[int], str]


def dump(pid: int) -> str:
    """What py-spy prints for one process. Raises StacksError, or OSError with py-spy's reason."""
    program = shutil.which("py-spy")
    if program is None:
        raise StacksError("py-spy is not installed: pip install 'training-exporter[stacks]'")
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(  # noqa: S603 (no shell, a number as argument)
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"py-spy gave no answer within {TIMEOUT_SECONDS:g} s") from error
    if done.returncode != 0:
        raise OSError(_reason(done.stderr))
    return done.stdout


def collect(ranks: Iterable[tuple[int, int]], dump: Dump = dump) -> tuple[Stack, ...]:
    """Stacks of (rank, pid) pairs: those of few ranks first, because the odd one out holds up the others."""
    folded: dict[tuple[tuple[str, ...], str | None], list[int]] = {}
    for rank, pid in ranks:
        try:
            key: tuple[tuple[str, ...], str | None] = (main_thread(dump(pid)), None)
        except OSError as error:
            key = ((), str(error))
        folded.setdefault(key, []).append(rank)
    stacks = [Stack(tuple(found), frames, error) for (frames, error), found in folded.items()]
    return tuple(sorted(stacks, key=lambda stack: (len(stack.ranks), stack.ranks)))


def main_thread(text: str) -> tuple[str, ...]:
    """Frames of the main thread, or of the first one, innermost first."""
    threads: list[tuple[bool, list[str]]] = []
    for line in text.splitlines():
        if found := _THREAD.match(line):
            threads.append((found["name"] == "MainThread", []))
        elif threads and line.startswith("    "):
            threads[-1][1].append(line.strip())
    frames = next((frames for main, frames in threads if main), threads[0][1] if threads else [])
    return tuple(frames)


def lines(stacks: Sequence[Stack]) -> Iterator[str]:
    """The stacks as text."""
    for stack in stacks:
        noun = "rank" if len(stack.ranks) == 1 else "ranks"
        yield f"  stack of {noun} {', '.join(map(str, stack.ranks))}:"
        if stack.error is not None:
            yield f"    cannot be read: {redact.printable(stack.error)}"
        elif not stack.frames:
            yield "    no Python frame"
        yield from (f"    {redact.printable(frame)}" for frame in stack.frames)


def _reason(message: str) -> str:
    words = " ".join(message.split()) or "py-spy failed without a word"
    if "ermission" in words:
        return "not permitted: run as the owner of the ranks with ptrace allowed, or with CAP_SYS_PTRACE (sudo)"
    return words[:300]
