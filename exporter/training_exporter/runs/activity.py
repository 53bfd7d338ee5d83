"""What the processes of a run did: bytes, page faults and cores, and which of it is a sign of life."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from training_exporter.model import DiscoveredRun, ProcessRecord

# Sums over the run's processes on the node, launcher and helpers apart (design: heuristic, Activity).
IO_BYTES_PER_SECOND = 64 * 1024
MAJOR_FAULTS_PER_SECOND = 16.0  # a reader of a memory map moves no byte counter
CHILD_CORES = 0.2
# One core of a rank at rest is a spin: collectives and cudaStreamSynchronize poll.
RANK_CORES = 1.2
WEAK_RANK_CORES = 0.5
# Rates are over this much time: shorter ones are jitter of 10 ms clock ticks, longer ones blur the end of a phase.
RATE_SECONDS = 10.0
LEAST_SECONDS = 5.0
# A gap in the samples longer than this is not spread over the window.
LONGEST_GAP_SECONDS = 60.0

ROLES = ("launcher", "worker", "loader", "other")


class Rate:
    """A rate per second over the last `RATE_SECONDS` of samples."""

    __slots__ = ("_amount", "_entries", "_seconds", "newest")

    def __init__(self) -> None:
        self._entries: deque[tuple[float, float]] = deque()
        self._amount = 0.0
        self._seconds = 0.0
        self.newest = 0.0  # amount of the last sample

    def add(self, amount: float, seconds: float) -> None:
        self._entries.append((amount, seconds))
        self._amount += amount
        self._seconds += seconds
        self.newest = amount
        while self._seconds - self._entries[0][1] >= RATE_SECONDS:
            old_amount, old_seconds = self._entries.popleft()
            self._amount -= old_amount
            self._seconds -= old_seconds

    def value(self) -> float:
        """Per second; 0 while less than `LEAST_SECONDS` were seen."""
        return max(0.0, self._amount) / self._seconds if self._seconds >= LEAST_SECONDS else 0.0

    def moved(self, least: float) -> bool:
        """Whether the rate is at least `least`, and the last sample was part of it."""
        return self.newest > 0.0 and self.value() >= least

    def clear(self) -> None:
        self._entries.clear()
        self._amount = self._seconds = self.newest = 0.0


@dataclass(slots=True)
class _Seen:
    """Counters of one process at the last sample that had it."""

    time: float
    name: str
    counted: bool
    cpu: float
    syscall_read: int
    syscall_written: int
    storage: int
    faults: int


@dataclass(slots=True)
class _Work:
    """What the counted processes did between two tables."""

    syscall: float = 0.0
    storage: float = 0.0
    faults: float = 0.0
    children: float = 0.0  # CPU seconds
    singles: dict[tuple[int, int], float] = field(default_factory=dict)  # CPU seconds of ranks and context holders


class HostWork:
    """The work of one run's processes on this node, from one process table to the next."""

    def __init__(self, uncounted: Callable[[ProcessRecord], bool]) -> None:
        self._uncounted = uncounted
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._time_seconds: float | None = None
        self._syscall = Rate()
        self._storage = Rate()
        self._faults = Rate()
        self._children = Rate()
        self._single: dict[tuple[int, int], Rate] = {}  # ranks, and children with a GPU context
        self.cpu_seconds = dict.fromkeys(ROLES, 0.0)
        self.roles_seen: set[str] = set()
        self.read_bytes: int | None = None
        self.written_bytes: int | None = None

    def observe(self, run: DiscoveredRun, time_seconds: float, context_pids: AbstractSet[int]) -> None:
        """Take one table. `context_pids`: processes that hold a GPU context."""
        before = self._time_seconds
        elapsed = None if before is None else time_seconds - before
        if elapsed is not None and elapsed <= 0.0:
            return
        if elapsed is not None and elapsed > LONGEST_GAP_SECONDS:
            self.forget_rates()
            elapsed = None
        self._time_seconds = time_seconds
        seen: dict[tuple[int, int], _Seen] = {}
        work = _Work()
        for role, process in _members(run):
            now = seen[process.key] = self._counters(process, time_seconds)
            cpu, read, written, stored, faulted, usable = self._since(process, now, before)
            self._add_totals(role, process, cpu, read, written)
            if not usable or role == "launcher" or not now.counted:
                continue
            work.syscall += read + written
            work.storage += stored
            work.faults += faulted
            if role == "worker" or process.pid in context_pids:
                work.singles[process.key] = cpu
            else:
                work.children += cpu
        for key, old in self._seen.items():
            # one that is missing for a moment must not be counted twice when it is back
            if key not in seen and time_seconds - old.time <= LONGEST_GAP_SECONDS:
                seen[key] = old
        self._seen = seen
        if elapsed is not None:
            self._add_rates(elapsed, work)

    def io_moved(self) -> bool:
        return (
            self._syscall.moved(IO_BYTES_PER_SECOND)
            or self._storage.moved(IO_BYTES_PER_SECOND)
            or self._faults.moved(MAJOR_FAULTS_PER_SECOND)
        )

    def cpu_moved(self) -> bool:
        if self._children.moved(CHILD_CORES):
            return True
        return any(rate.newest > 0.0 and rate.value() > RANK_CORES for rate in self._single.values())

    def cores(self, process: ProcessRecord) -> float:
        """Cores that a rank, or a child with a GPU context, uses now."""
        rate = self._single.get(process.key)
        return 0.0 if rate is None else rate.value()

    def io_bytes_per_second(self) -> float | None:
        """None as long as no process lets its counters be read."""
        return None if self.read_bytes is None else max(self._syscall.value(), self._storage.value())

    def child_cores(self) -> float:
        return self._children.value()

    def forget_rates(self) -> None:
        """Nothing was seen for a while: what comes next is no continuation."""
        for rate in (self._syscall, self._storage, self._faults, self._children):
            rate.clear()
        self._single.clear()

    def _counters(self, process: ProcessRecord, time_seconds: float) -> _Seen:
        old = self._seen.get(process.key)
        known = old is not None and old.name == process.name  # a fork is named before it becomes what it is
        return _Seen(
            time_seconds,
            process.name,
            old.counted if old is not None and known else not self._uncounted(process),
            process.cpu_seconds or 0.0,
            process.read_bytes or 0,
            process.written_bytes or 0,
            (process.storage_read_bytes or 0) + (process.storage_written_bytes or 0),
            process.major_faults or 0,
        )

    def _since(
        self, process: ProcessRecord, now: _Seen, before_seconds: float | None
    ) -> tuple[float, int, int, int, int, bool]:
        """What the process did since the last table, and whether that happened since then."""
        old = self._seen.get(process.key)
        if old is not None:
            return (
                max(0.0, now.cpu - old.cpu),
                max(0, now.syscall_read - old.syscall_read),
                max(0, now.syscall_written - old.syscall_written),
                max(0, now.storage - old.storage),
                max(0, now.faults - old.faults),
                True,
            )
        born = before_seconds is not None and process.start_seconds >= before_seconds - 1.0
        return now.cpu, now.syscall_read, now.syscall_written, now.storage, now.faults, born

    def _add_totals(self, role: str, process: ProcessRecord, cpu: float, read: int, written: int) -> None:
        if process.cpu_seconds is not None:
            self.cpu_seconds[role] += cpu
            self.roles_seen.add(role)
        if process.read_bytes is not None:
            self.read_bytes = (self.read_bytes or 0) + read
        if process.written_bytes is not None:
            self.written_bytes = (self.written_bytes or 0) + written

    def _add_rates(self, elapsed: float, work: _Work) -> None:
        self._syscall.add(work.syscall, elapsed)
        self._storage.add(work.storage, elapsed)
        self._faults.add(work.faults, elapsed)
        self._children.add(work.children, elapsed)
        for key in [key for key in self._single if key not in work.singles]:
            del self._single[key]
        for key, cpu in work.singles.items():
            self._single.setdefault(key, Rate()).add(cpu, elapsed)


def _members(run: DiscoveredRun) -> Iterable[tuple[str, ProcessRecord]]:
    launcher = run.launcher_process
    # where rank 0 starts the others itself, it is judged as the rank that it is
    if launcher is not None and all(rank.process.key != launcher.key for rank in run.ranks):
        yield "launcher", launcher
    for rank in run.ranks:
        yield "worker", rank.process
    for process in run.loaders:
        yield "loader", process
    for process in run.others:
        yield "other", process
