"""Python stacks of the ranks by py-spy, which stops nothing with --nonblocking; equal ones folded."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from training_exporter import redact

TIMEOUT_SECONDS = 15.0
CAP_SYS_PTRACE = 19  # linux/capability.h

_THREAD = re.compile(r"^Thread \S+ \((?P<state>[^)]*)\)(?:: \"(?P<name>[^\"]*)\")?$")


@dataclass(frozen=True, slots=True)
class Stack:
    """Ranks that stand at the same place. `frames` are innermost first; empty if `error` says why."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    error: str | None = None


Dump = Callable[[int], str]


def dump(pid: int) -> str:
    """What py-spy prints for one process. Raises OSError with the reason why it cannot, and what would help."""
    beside = Path(sys.executable).parent  # a virtual environment need not be activated
    program = shutil.which("py-spy", path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if program is None:
        raise FileNotFoundError("py-spy is not installed: pip install 'training-exporter[stacks]'")
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(  # noqa: S603 (no shell, a number as argument)
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"py-spy gave no answer within {TIMEOUT_SECONDS:g} s") from error
    if done.returncode != 0:
        raise OSError(_reason(done.stderr, pid))
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


def _reason(message: str, pid: int) -> str:
    words = " ".join(message.split()) or "py-spy failed without a word"
    if "ermission" in words or "EPERM" in words:
        return f"not permitted: {missing_right(_rights(pid))}"
    return words[:300]


@dataclass(frozen=True, slots=True)
class Rights:
    """What decides whether this process may look into another one (ptrace(2), "Ptrace access mode checking")."""

    owner: int | None  # user ID of the other process; None if it is gone
    own: int
    may_trace: bool  # CAP_SYS_PTRACE is in force
    ptrace_scope: int  # kernel.yama.ptrace_scope; 0 without Yama


def missing_right(rights: Rights) -> str:
    """What is in the way and how it is had."""
    if rights.ptrace_scope >= 3:
        return "kernel.yama.ptrace_scope is 3: no process may be looked into before the next boot"
    if rights.may_trace:
        return "CAP_SYS_PTRACE is here and does not suffice: the process is in another user namespace or protected"
    if rights.own == 0:
        return "root without CAP_SYS_PTRACE, as in a container: start it with --cap-add SYS_PTRACE"
    if rights.owner is not None and rights.owner != rights.own:
        return f"the process belongs to user {rights.owner}: run as that user, or with CAP_SYS_PTRACE (sudo)"
    if rights.ptrace_scope:
        return f"kernel.yama.ptrace_scope is {rights.ptrace_scope}: run with CAP_SYS_PTRACE (sudo)"
    return "CAP_SYS_PTRACE is missing (sudo)"


def _rights(pid: int) -> Rights:
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        owner = None
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):
        scope = 0
    capabilities = re.search(r"^CapEff:\s*(\S+)$", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    may_trace = capabilities is not None and bool(int(capabilities[1], 16) >> CAP_SYS_PTRACE & 1)
    return Rights(owner, os.geteuid(), may_trace, scope)
