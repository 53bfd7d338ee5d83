"""A node by hand: every second a test may change what GPUs, processes and the log of one run do, then let time pass."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from training_exporter.config import Budgets, Config, Match, RunConfig
from training_exporter.model import (
    DiscoveredRun,
    GpuDevice,
    GpuProcess,
    GpuSample,
    Health,
    LogBatch,
    LogEvent,
    Observation,
    OutputTarget,
    ProcessRecord,
    ProcessTable,
    Rank,
    Report,
    SourceName,
    XidEvent,
)
from training_exporter.runs.node import Node
from training_exporter.runs.view import GpuView, NodeView, RunView

START_SECONDS = 1_700_000_000.0
RUN = "job"
HOST = "node-a"
WORKING = Health(success=True)
FAILING = Health(success=False, error="no answer")


def record(pid: int, **changes: Any) -> ProcessRecord:
    """A process that rests; `changes` as in ProcessRecord."""
    base = ProcessRecord(
        pid=pid,
        start_ticks=pid * 10,
        start_seconds=START_SECONDS - 5.0,
        parent_pid=1,
        session_id=pid,
        name="python3",
        cpu_seconds=0.0,
        read_bytes=0,
        written_bytes=0,
        storage_read_bytes=0,
        storage_written_bytes=0,
        major_faults=0,
        context_switches=0,
    )
    return replace(base, **changes)


def discovered(
    ranks: Iterable[ProcessRecord] = (), launcher: ProcessRecord | None = None, **changes: Any
) -> DiscoveredRun:
    """A run with these ranks, numbered in their order."""
    numbered = tuple(Rank(number, number, process) for number, process in enumerate(ranks))
    base = DiscoveredRun(RUN, "torchrun", "train.py", launcher_process=launcher, ranks=numbered)
    return replace(base, **changes)


def sample(time_seconds: float, gpu: str = "0", **changes: Any) -> GpuSample:
    """One sample of a GPU at rest; `changes` as in GpuSample."""
    base = GpuSample(
        time_seconds,
        GpuDevice(gpu, f"GPU-{gpu}"),
        utilization_ratio=0.0,
        memory_utilization_ratio=0.0,
        power_watts=60.0,
        memory_used_bytes=10 << 30,
        memory_total_bytes=80 << 30,
    )
    return replace(base, **changes)


def event(kind: str, phase: str = "train", **changes: Any) -> LogEvent:
    """One record of a log; `changes` as in LogEvent."""
    return LogEvent(1, 1, kind, phase, **changes)  # type: ignore[arg-type]


def step(number: int, total: int | None = None, **changes: Any) -> LogEvent:
    """A training step record."""
    return event("train_step", step=number, step_total=total, split="train", **changes)


@dataclass
class Load:
    """What one rank and its GPU do in a second."""

    utilization: float = 0.0
    memory_utilization: float = 0.0
    watts: float = 60.0
    memory_bytes: int | None = 10 << 30
    cores: float = 0.0
    child_cores: float = 0.0
    read_bytes: float = 0.0
    faults: float = 0.0
    state: str = "sleeping"
    gone: bool = False
    lost: bool = False
    wait_channel: str | None = None


REST = Load()
TRAINS = Load(utilization=0.98, memory_utilization=0.45, watts=370.0, cores=1.05, state="running")
SPINS = Load(utilization=1.0, memory_utilization=0.0, watts=92.0, cores=1.0, state="running")


@dataclass
class World:
    """One node with one configured run under a torchrun. Change `loads`, then `pass_time`."""

    ranks: int = 2
    config: Config = field(
        default_factory=lambda: Config(runs=(RunConfig(RUN, match=Match(cmdline="train.py")),)),
    )
    memory: Mapping[str, Any] | None = None
    now: float = START_SECONDS
    generation: int = 0  # of the worker set
    attempt: int = 0  # of the launcher
    launcher: bool = True
    outsiders: dict[str, int] = field(default_factory=dict)  # gpu -> PID of a process outside the run
    ghosts: dict[str, int] = field(default_factory=dict)  # gpu -> PID that the driver lists and nobody has
    blind: set[SourceName] = field(default_factory=set)
    oom_kills: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    outputs: tuple[OutputTarget, ...] = ()

    def __post_init__(self) -> None:
        self.loads = [replace(REST) for _ in range(self.ranks)]
        self.node = Node(self.config, HOST, self.memory)
        self.view: NodeView = self.node.observe(Observation(self.now))
        self._cpu: dict[int, float] = {}
        self._read: dict[int, float] = {}
        self._faults: dict[int, float] = {}
        self._births: dict[int, float] = {}
        self._xids: list[tuple[str, int]] = []
        self._wobble = 0

    @property
    def run(self) -> RunView:
        """The picture of the run."""
        return next(run for run in self.view.runs if run.name == RUN)

    @property
    def state(self) -> tuple[str, str]:
        """State and cause of the run."""
        return self.run.verdict.state, self.run.verdict.cause

    def gpu(self, label: str = "0") -> GpuView:
        """The picture of one GPU."""
        return next(gpu for gpu in self.view.gpus if gpu.device.gpu == label)

    def all(self, load: Load, **changes: Any) -> None:
        """Every rank does this from now on."""
        self.loads = [replace(load, **changes) for _ in range(self.ranks)]

    def xid(self, gpu: str, number: int) -> None:
        """The driver reports an error with the next sample."""
        self._xids.append((gpu, number))

    def pass_time(
        self, seconds: float, *events: LogEvent, every: float = 0.0, first: int = 1, tick: float | None = None
    ) -> None:
        """Let time pass. `events` are read at once; `every` prints a step with a number from `first`.

        Long stretches are seen every 5 s only, which the sources may do too and the judgement must bear.
        """
        self.say(*events)
        began, number = self.now, first
        if tick is None:
            tick = 5.0 if seconds >= 300.0 and seconds % 5.0 == 0.0 and not every else 1.0
        for _ in range(round(seconds / tick)):
            self.now += tick
            batches: list[LogBatch] = []
            if every and (self.now - began) % every == 0:
                batches.append(self.batch(step(number)))
                number += 1
            self._observe(tick, batches)

    def say(self, *events: LogEvent, novel: bool = False, restored: bool = False) -> None:
        """The log prints this now."""
        if events or novel:
            batch = replace(self.batch(*events), novel=novel, restored=restored)
            self.view = self.node.observe(Observation(self.now, logs=Report((batch,), WORKING)))

    def batch(self, *events: LogEvent) -> LogBatch:
        """One batch of the run's log at this moment."""
        stamped = tuple(replace(entry, time_seconds=self.now) for entry in events)
        return LogBatch(RUN, self.now, stamped, lines=max(1, len(events)), bytes=80, files=("/log",), last_line="x")

    def end(self, *events: LogEvent) -> None:
        """Launcher and ranks are gone."""
        self.say(*events)
        self.launcher = False
        self.all(REST, gone=True, memory_bytes=0)

    def start_again(self) -> None:
        """The same command is started again."""
        self.attempt += 1
        self.generation += 1
        self.launcher = True
        self.all(REST)

    def restart_exporter(self, seconds: float = 5.0) -> None:
        """The exporter is down for so long and comes back with what it remembered, which went through JSON."""
        memory = json.loads(json.dumps(self.node.remember()))
        self._advance(seconds)
        self.now += seconds
        self.node = Node(self.config, HOST, memory)
        self.view = self.node.observe(Observation(self.now))

    def _observe(self, tick: float, batches: list[LogBatch]) -> None:
        self._advance(tick)
        self.view = self.node.observe(
            Observation(
                self.now,
                gpu=self._report("gpu", self._samples()),
                processes=self._report("processes", self._table()),
                logs=self._report("logs", tuple(batches)) if batches or "logs" in self.blind else None,
            )
        )
        self._xids.clear()

    def _report(self, source: SourceName, data: Any) -> Report[Any]:
        return Report(None, FAILING) if source in self.blind else Report(data, WORKING)

    def _advance(self, seconds: float) -> None:
        for number, load in enumerate(self.loads):
            if load.gone:
                continue
            self._cpu[self._pid(number)] = self._cpu.get(self._pid(number), 0.0) + load.cores * seconds
            self._cpu[self._child(number)] = self._cpu.get(self._child(number), 0.0) + load.child_cores * seconds
            self._read[self._pid(number)] = self._read.get(self._pid(number), 0.0) + load.read_bytes * seconds
            self._faults[self._pid(number)] = self._faults.get(self._pid(number), 0.0) + load.faults * seconds

    def _pid(self, number: int) -> int:
        return 1000 + 100 * self.generation + number

    def _child(self, number: int) -> int:
        return self._pid(number) + 50

    def _table(self) -> ProcessTable:
        parent = 500 + self.attempt
        records = [record(pid, name="intruder", command=("./intruder",)) for pid in self.outsiders.values()]
        if self.launcher:
            command = ("python3", "/usr/bin/torchrun", "train.py")
            records.append(record(parent, name="torchrun", command=command, start_seconds=self._start(parent)))
        for number, load in enumerate(self.loads):
            if not load.gone:
                records += self._rank(number, load, parent)
        return ProcessTable(self.now, {entry.pid: entry for entry in records}, oom_kills=self.oom_kills)

    def _start(self, pid: int) -> float:
        return self._births.setdefault(pid, self.now - 1.0 if self.generation else START_SECONDS - 5.0)

    def _rank(self, number: int, load: Load, parent: int) -> list[ProcessRecord]:
        pid = self._pid(number)
        environment = {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "WORLD_SIZE": str(self.ranks),
            **self.environment,
        }
        rank = record(
            pid,
            parent_pid=parent,
            command=("python3", "-u", "train.py"),
            environment=environment,
            start_seconds=self._start(pid),
            state=load.state,
            cpu_seconds=self._cpu.get(pid, 0.0),
            read_bytes=int(self._read.get(pid, 0.0)),
            major_faults=int(self._faults.get(pid, 0.0)),
            wait_channel=load.wait_channel,
            outputs=self.outputs,
        )
        child = record(
            self._child(number),
            parent_pid=pid,
            name="ptxas",
            command=("ptxas", "-v"),
            start_seconds=self._start(pid),
            cpu_seconds=self._cpu.get(self._child(number), 0.0),
        )
        return [rank, child]

    def _samples(self) -> tuple[GpuSample, ...]:
        # idle power never stands quite still
        self._wobble = (self._wobble + 1) % 2
        return tuple(self._sample(number, load) for number, load in enumerate(self.loads))

    def _sample(self, number: int, load: Load) -> GpuSample:
        label = str(number)
        if load.lost:
            return GpuSample(self.now, GpuDevice(label, f"GPU-{label}"), lost=True)
        processes = []
        if not load.gone and load.memory_bytes is not None:
            processes.append(GpuProcess(self._pid(number), load.memory_bytes))
        strangers = (self.outsiders.get(label), self.ghosts.get(label))
        processes.extend(GpuProcess(pid, 20 << 30) for pid in strangers if pid is not None)
        return sample(
            self.now,
            label,
            utilization_ratio=load.utilization,
            memory_utilization_ratio=load.memory_utilization,
            power_watts=load.watts + 0.5 * self._wobble,
            memory_used_bytes=sum(process.memory_bytes or 0 for process in processes),
            processes=tuple(processes),
            xids=tuple(XidEvent(number, self.now) for gpu, number in self._xids if gpu == label),
        )


def with_budgets(**seconds: float) -> Config:
    """The configuration of `World` with these budgets."""
    return Config(runs=(RunConfig(RUN, match=Match(cmdline="train.py"), budgets=Budgets(**seconds)),))
