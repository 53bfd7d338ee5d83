"""What the process source would see: a launcher, its ranks, their loaders and children, and the neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from training_exporter.model import ProcessRecord, ProcessState, ProcessTable
from training_exporter.scenario.draws import Moment
from training_exporter.scenario.records import RankSegment, Segment
from training_exporter.scenario.spawn import COMPILER, INIT_PID, LOADER, Spawner

# A process that does something leaves the processor now and then; the number itself means nothing.
SWITCHES_PER_SECOND = 25
LAUNCHER_CORES = 0.01


class Process:
    """One living process with its counters."""

    def __init__(self, first: ProcessRecord) -> None:
        self._record = first
        self.state: ProcessState = first.state
        self._cpu_seconds = 0.0
        self._read_bytes = 0.0
        self._written_bytes = 0.0
        self._major_faults = 0.0
        self._switches = 0

    @property
    def pid(self) -> int:
        return self._record.pid

    def orphan(self) -> None:
        """Its parent ended."""
        self._record = replace(self._record, parent_pid=INIT_PID)

    def work(self, cores: float = 0.0, read: float = 0.0, written: float = 0.0, faults: float = 0.0) -> None:
        """One second of it; one that does nothing is not switched to either."""
        if cores or read or written or faults:
            self._cpu_seconds += cores
            self._read_bytes += read
            self._written_bytes += written
            self._major_faults += faults
            self._switches += SWITCHES_PER_SECOND

    def record(self) -> ProcessRecord:
        """Its record now; the same object as long as nothing changed."""
        old = self._record
        if self._switches != old.context_switches or self.state != old.state:
            self._record = replace(
                old,
                state=self.state,
                cpu_seconds=self._cpu_seconds,
                read_bytes=int(self._read_bytes),
                written_bytes=int(self._written_bytes),
                major_faults=int(self._major_faults),
                context_switches=self._switches,
                wait_channel="folio_wait_bit_common" if self.state == "disk_sleep" else None,
            )
        return self._record


class RankProcesses:
    """A rank with its loaders and other children."""

    def __init__(self, process: Process, spawner: Spawner) -> None:
        self.process = process
        self._spawner = spawner
        self._loader: Process | None = None
        self._children: dict[str, Process] = {}
        self._contexts: tuple[int, ...] = ()

    def advance(self, rank: RankSegment, moment: Moment, now: float) -> None:
        """One second of them. Loaders stay when they rest; other children live while the segment names them."""
        if rank.loader_cores.high and self._loader is None:
            self._loader = self._start(LOADER, now)
        if self._loader is None:
            self.process.work(moment.rank_cores, moment.read_bytes, moment.written_bytes, moment.faults)
        else:
            self.process.work(moment.rank_cores, 0.0, moment.written_bytes, moment.faults)
            self._help(self._loader, moment.loader_cores, moment.read_bytes)
        self._advance_children(rank, moment, now)

    def everybody(self) -> Iterator[Process]:
        """The rank first."""
        yield self.process
        if self._loader is not None:
            yield self._loader
        yield from self._children.values()

    def context_pids(self) -> tuple[int, ...]:
        """Who of them holds a context on the rank's GPU; a zombie holds none."""
        own = () if self.process.state == "zombie" else (self.process.pid,)
        return (*own, *self._contexts)

    def _advance_children(self, rank: RankSegment, moment: Moment, now: float) -> None:
        wanted = {
            f"{index} {child.name}": (child.name, cores)
            for index, (child, cores) in enumerate(zip(rank.children, moment.children_cores, strict=True))
        }
        if rank.other_cores.high:
            wanted[COMPILER] = (COMPILER, moment.other_cores)
        self._children = {key: self._children.get(key) or self._start(name, now) for key, (name, _) in wanted.items()}
        for key, (_, cores) in wanted.items():
            self._help(self._children[key], cores)
        holders = (f"{index} {child.name}" for index, child in enumerate(rank.children) if child.gpu)
        self._contexts = tuple(self._children[key].pid for key in holders)

    def _start(self, name: str, now: float) -> Process:
        return Process(self._spawner.helper(name, self.process.record(), now))

    @staticmethod
    def _help(process: Process, cores: float, read: float = 0.0) -> None:
        process.state = "running" if cores else "sleeping"
        process.work(cores, read)


class ProcessModel:
    """The processes of the node, second by second."""

    def __init__(self, spawner: Spawner, *, visible: bool) -> None:
        self._spawner = spawner
        self._visible = visible
        self._restarts = 0
        self._attempt = 0
        self._launcher: Process | None = None
        self._ranks: dict[int, RankProcesses] = {}
        self._neighbours: dict[int, Process] = {}

    def enter(self, segment: Segment, now: float) -> None:
        """Start and end processes as the new segment says."""
        if segment.attempt != self._attempt:
            self._attempt, self._restarts = segment.attempt, 0
            self._launcher = Process(self._spawner.launcher(now))
            self._ranks.clear()
        elif segment.restart:
            self._restarts += 1
            self._ranks.clear()
        for number, rank in enumerate(segment.ranks):
            self._set_state(number, rank, self._launcher, now)
        if not segment.launcher and self._launcher is not None:
            self._launcher = None
            for processes in self._ranks.values():
                processes.process.orphan()

    def advance(self, segment: Segment, moments: tuple[Moment, ...], now: float) -> None:
        """One second of everybody."""
        if self._launcher is not None:
            self._launcher.work(LAUNCHER_CORES)
        for number, processes in self._ranks.items():
            processes.advance(segment.ranks[number], moments[number], now)
        for number, moment in enumerate(moments):
            self._advance_neighbour(number, moment, now)

    def context_pids(self, number: int) -> tuple[int, ...]:
        """PIDs of the run that hold a context on the GPU of this rank."""
        return self._ranks[number].context_pids() if number in self._ranks else ()

    def neighbour_pid(self, number: int) -> int | None:
        """PID of the process outside the run that holds memory on this GPU."""
        return self._neighbours[number].pid if number in self._neighbours else None

    def alive(self, number: int) -> bool:
        """Whether this rank is more than a memory of its parent."""
        return number in self._ranks and self._ranks[number].process.state != "zombie"

    def table(self, now: float) -> ProcessTable:
        """Everything that is there now."""
        return ProcessTable(now, {process.pid: process.record() for process in self._everybody()}, oom_kills=0)

    def _everybody(self) -> Iterator[Process]:
        if self._visible:
            if self._launcher is not None:
                yield self._launcher
            for processes in self._ranks.values():
                yield from processes.everybody()
        yield from self._neighbours.values()

    def _set_state(self, number: int, rank: RankSegment, launcher: Process | None, now: float) -> None:
        if rank.process_state is None:
            self._ranks.pop(number, None)
            return
        if number not in self._ranks and launcher is not None:
            first = self._spawner.rank(number, launcher.record(), self._restarts, now)
            self._ranks[number] = RankProcesses(Process(first), self._spawner)
        if number in self._ranks:
            self._ranks[number].process.state = rank.process_state

    def _advance_neighbour(self, number: int, moment: Moment, now: float) -> None:
        if not moment.other_mib:
            self._neighbours.pop(number, None)
            return
        if number not in self._neighbours:
            self._neighbours[number] = Process(self._spawner.neighbour(now))
        self._neighbours[number].work(1.0)
