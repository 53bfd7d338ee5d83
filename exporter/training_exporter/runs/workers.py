"""The worker set of a run on this node: which ranks are up, in what state, for how long, and when it was replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training_exporter.model import PROCESS_STATES, DiscoveredRun, ProcessRecord, ProcessState
from training_exporter.runs.view import RankView

# torchrun's agent polls its workers every 0.1 s and ends the others itself; a minute is grace enough.
RANK_DOWN_SECONDS = 60.0

Key = tuple[int, int]


@dataclass(slots=True)
class _Rank:
    """One rank of the current worker set, present or not."""

    rank: int
    local_rank: int
    key: Key
    process: ProcessRecord | None = None
    gpu: str | None = None
    missing_since: float | None = None  # dead, zombie or gone
    cpu_seconds: float | None = None

    def lose(self, time_seconds: float) -> None:
        """It is missing now; the moment when that began stays."""
        if self.missing_since is None:
            self.missing_since = time_seconds


@dataclass(slots=True)
class _Unbroken:
    """A process in one state without a break: since when, and the counters that would betray a break."""

    state: ProcessState
    since: float
    switches: int | None
    faults: int | None


class WorkerSet:
    """The ranks that one launcher runs at a time; a set ends when a rank number gets a new process."""

    def __init__(self) -> None:
        self.launcher_key: Key | None = None
        self.launcher_alive = False
        self.start_seconds: float | None = None
        self.set_start_seconds: float | None = None  # of the youngest worker set
        self.present = False  # a living launcher or rank
        self._ranks: dict[int, _Rank] = {}
        self._unbroken: dict[Key, _Unbroken] = {}
        self._time_seconds = 0.0

    def observe(self, run: DiscoveredRun, time_seconds: float) -> bool:
        """Take one table; True when the worker set was replaced (the very first one replaces nothing)."""
        self._time_seconds = time_seconds
        launcher = run.launcher_process
        replaced = self._is_replaced(run)
        if replaced:
            self._ranks = {}
            self.start_seconds = self.set_start_seconds = None
        self.launcher_alive = launcher is not None and launcher.state != "zombie"
        if launcher is not None:
            self.launcher_key = launcher.key
        self._note_ranks(run, time_seconds)
        self._note_starts(run, launcher)
        self._note_states(run, time_seconds)
        self.present = self.launcher_alive or any(rank.process.state != "zombie" for rank in run.ranks)
        return replaced

    def vanish(self, time_seconds: float) -> None:
        """The table shows nothing of the run any more."""
        self._time_seconds = time_seconds
        self.present = self.launcher_alive = False
        self._unbroken = {}
        for rank in self._ranks.values():
            rank.process = None
            rank.lose(time_seconds)

    def down(self) -> list[_Rank]:
        """Ranks that were dead, zombie or gone for a minute under a living launcher."""
        if not self.launcher_alive:
            return []
        return [rank for rank in self._ranks.values() if self._is_down(rank)]

    def gpus(self) -> dict[int, str]:
        """GPU label by rank, as last known."""
        return {number: rank.gpu for number, rank in self._ranks.items() if rank.gpu is not None}

    def living(self) -> list[tuple[int, str | None, ProcessRecord]]:
        """(rank, gpu, process) of the ranks that live."""
        return [
            (number, rank.gpu, rank.process)
            for number, rank in self._ranks.items()
            if rank.process is not None and rank.missing_since is None
        ]

    def longest(self, state: ProcessState) -> float:
        """Seconds of the longest unbroken `state` of a process now; 0 when none is in it."""
        times = [self._time_seconds - entry.since for entry in self._unbroken.values() if entry.state == state]
        return max(times, default=0.0)

    def views(self) -> tuple[RankView, ...]:
        views = []
        for number, rank in sorted(self._ranks.items()):
            process = rank.process
            views.append(
                RankView(
                    rank=number,
                    local_rank=rank.local_rank,
                    gpu=rank.gpu,
                    up=not (self.launcher_alive and self._is_down(rank)),
                    pid=None if process is None else process.pid,
                    state=None if process is None else process.state,
                    cpu_seconds_total=rank.cpu_seconds,
                    wait_channel=None if process is None else process.wait_channel,
                )
            )
        return tuple(views)

    def remember(self, shift_seconds: float) -> dict[str, Any]:
        return {
            "launcher": self.launcher_key,
            "start": None if self.start_seconds is None else self.start_seconds + shift_seconds,
            "set_start": None if self.set_start_seconds is None else self.set_start_seconds + shift_seconds,
            "ranks": [
                {
                    "rank": rank.rank,
                    "local_rank": rank.local_rank,
                    "key": rank.key,
                    "gpu": rank.gpu,
                    "missing_since": None if rank.missing_since is None else rank.missing_since + shift_seconds,
                }
                for rank in self._ranks.values()
            ],
        }

    def restore(self, memory: Mapping[str, Any]) -> None:
        self.launcher_key = None if memory["launcher"] is None else _key(memory["launcher"])
        self.start_seconds = memory["start"]
        self.set_start_seconds = memory["set_start"]
        for entry in memory["ranks"]:
            missing = entry["missing_since"]
            self._ranks[int(entry["rank"])] = _Rank(
                int(entry["rank"]),
                int(entry["local_rank"]),
                _key(entry["key"]),
                gpu=entry["gpu"],
                missing_since=None if missing is None else float(missing),
            )

    def _is_down(self, rank: _Rank) -> bool:
        return rank.missing_since is not None and self._time_seconds - rank.missing_since >= RANK_DOWN_SECONDS

    def _is_replaced(self, run: DiscoveredRun) -> bool:
        launcher = run.launcher_process
        if launcher is not None and self.launcher_key is not None and launcher.key != self.launcher_key:
            return True
        known = self._ranks
        return any(rank.rank in known and known[rank.rank].key != rank.process.key for rank in run.ranks)

    def _note_ranks(self, run: DiscoveredRun, time_seconds: float) -> None:
        found = set()
        for rank in run.ranks:
            found.add(rank.rank)
            entry = self._ranks.get(rank.rank)
            if entry is None:
                entry = self._ranks[rank.rank] = _Rank(rank.rank, rank.local_rank, rank.process.key)
            entry.process = rank.process
            entry.gpu = run.gpus.get(rank.rank, entry.gpu)
            if rank.process.cpu_seconds is not None:
                entry.cpu_seconds = rank.process.cpu_seconds
            if rank.process.state == "zombie":
                entry.lose(time_seconds)
            else:
                entry.missing_since = None
        for number, entry in self._ranks.items():
            if number not in found:
                entry.process = None
                entry.lose(time_seconds)

    def _note_starts(self, run: DiscoveredRun, launcher: ProcessRecord | None) -> None:
        starts = [rank.process.start_seconds for rank in run.ranks]
        if self.start_seconds is None:
            first = [launcher.start_seconds] if launcher is not None else starts
            self.start_seconds = min(first, default=None)
        if self.set_start_seconds is None:
            self.set_start_seconds = min(starts, default=None)

    def _note_states(self, run: DiscoveredRun, time_seconds: float) -> None:
        """Ranks and their loaders; a launcher that is stopped stops nothing by itself."""
        unbroken: dict[Key, _Unbroken] = {}
        for process in (*(rank.process for rank in run.ranks), *run.loaders):
            state = process.state
            if state not in ("disk_sleep", "stopped"):
                continue
            old = self._unbroken.get(process.key)
            switches, faults = process.context_switches, process.major_faults
            if old is not None and old.state == state and old.switches == switches and old.faults == faults:
                unbroken[process.key] = old
            else:
                unbroken[process.key] = _Unbroken(state, time_seconds, switches, faults)
        self._unbroken = unbroken


def process_states(run: DiscoveredRun) -> dict[str, int]:
    """How many of launcher and workers are in each state; every state is there, 0 included."""
    counts: dict[str, int] = dict.fromkeys(PROCESS_STATES, 0)
    processes = {rank.process.key: rank.process for rank in run.ranks}
    if run.launcher_process is not None:
        processes[run.launcher_process.key] = run.launcher_process
    for process in processes.values():
        counts[process.state] += 1
    return counts


def _key(value: Any) -> Key:  # noqa: ANN401 - a list out of a JSON file
    pid, ticks = value
    return int(pid), int(ticks)
