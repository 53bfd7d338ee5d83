"""The judgement of one node: takes what the sources said, gives one picture of all runs and GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from training_exporter.config import Config, RunConfig
from training_exporter.model import (
    SOURCES,
    CheckpointTarget,
    DiscoveredRun,
    GpuSample,
    Health,
    LogBatch,
    LogTarget,
    Observation,
    ProcessTable,
    Report,
    SourceName,
    T,
)
from training_exporter.runs.discovery import Discovery
from training_exporter.runs.gpus import GpuTracker
from training_exporter.runs.memory import GAP_SECONDS, Recollection, remember
from training_exporter.runs.occupancy import Occupancy, Occupants
from training_exporter.runs.picture import SETTLE_SECONDS, Surroundings, view_of
from training_exporter.runs.roles import is_uncounted
from training_exporter.runs.run import REMEMBERED_SECONDS, GpuContext, Run
from training_exporter.runs.verdict import CODES
from training_exporter.runs.view import NodeView, RunView, Verdict

# One GPU may hang in its driver while the others answer: its last sample is withdrawn when the call that should have
# given the next one is past its deadline (5 s), begun up to a second after it; one more for a late tick.
SAMPLE_SECONDS = 7.0


class Node:
    """All runs and GPUs of one node. Call `observe` about once a second; everything else reads what it left."""

    def __init__(self, config: Config, host: str, memory: Mapping[str, Any] | None = None) -> None:
        self._discovery = Discovery(config, host)
        self._recollection = Recollection(memory)
        self._gpus: dict[str, GpuTracker] = {}
        self._runs: dict[str, Run] = {}
        self._occupants = Occupants()
        self._occupancy: dict[str, Occupancy] = {}
        self._discovered: tuple[DiscoveredRun, ...] = ()
        self._table: ProcessTable | None = None
        self._health: dict[SourceName, Health] = {}
        self._failed: dict[SourceName, float] = {}  # when each source last failed
        self._owner = self._recollection.owners  # gpu -> the run that its training power was learnt from
        self._renewed: set[str] = set()  # GPUs not seen yet whose worker set was replaced
        self._started: float | None = None
        self._oom_kills: int | None = None
        self._now: float | None = self._recollection.time_seconds
        self._shift = 0.0
        self.reconfigure(config)
        for name in self._recollection.run_names():
            run = self._new_run(name)
            if self._recollection.restore_run(run):
                self._runs[name] = run

    def reconfigure(self, config: Config) -> None:
        """Take another configuration from the next observation on; nothing that was learnt is lost."""
        self._config = config
        self._discovery.reconfigure(config)
        self._configured: dict[str, RunConfig] = {run.name: run for run in config.runs}
        for name, run in self._runs.items():
            run.config = self._configured.get(name)

    def observe(self, observation: Observation) -> NodeView:
        """Take one observation and judge. A report that is None brought nothing new."""
        now = observation.time_seconds
        self._shift = observation.wall_shift_seconds
        self._note_gap(now)
        self._now = now
        samples = self._news("gpu", observation.gpu)
        table = self._news("processes", observation.processes)
        if samples is not None:
            self._take_samples(samples)
        self._withdraw_silent(now)
        if table is not None:
            self._take_table(table)
        if samples is not None or table is not None:
            newest = [tracker.sample for tracker in self._gpus.values() if tracker.sample is not None]
            self._occupancy = self._occupants.observe(newest, self._discovered, self._table, now)
            context = GpuContext(self._gpus, self._occupancy)
            for run in self._runs.values():
                run.observe_gpus(context, now)
        for batch in self._news("logs", observation.logs) or ():
            if self._is_known(batch.run):
                self._take_batch(batch)
        for listing in self._news("checkpoints", observation.checkpoints) or ():
            if self._is_known(listing.target.run):
                self._run(listing.target.run).observe_checkpoints(listing)
        self._forget(now)
        return self._picture(now)

    def log_targets(self) -> tuple[LogTarget, ...]:
        """The logs to follow, and what is read like one: of the runs here, of those just ended, the configured ones."""
        return tuple(
            dict.fromkeys(
                target for run in self._followed() for target in (*run.log_targets, *run.error_files, *run.event_files)
            )
        )

    def checkpoint_targets(self) -> tuple[CheckpointTarget, ...]:
        """The checkpoint directories to look at, likewise."""
        return tuple(dict.fromkeys(target for run in self._followed() for target in run.checkpoint_targets))

    def gpu_pids(self) -> frozenset[int]:
        """Every process that the driver lists, so that the process source looks at them too."""
        return frozenset(
            process.pid
            for tracker in self._gpus.values()
            if tracker.sample is not None
            for process in tracker.sample.processes or ()
        )

    def remember(self) -> dict[str, Any]:
        """What survives a restart of the exporter: JSON-able, versioned, wall-clock times."""
        memory = remember(self._now or 0.0, self._shift, self._runs, self._gpus)
        memory["owners"] = self._owner
        memory["gpus"] = {**self._recollection.gpus, **memory["gpus"]}  # those that were not seen again yet
        return memory

    def _news(self, source: SourceName, report: Report[T] | None) -> T | None:
        """The data of a report, after its health was noted; a source that fails withdraws what it said."""
        if report is None:
            return None
        self._health[source] = report.health
        if report.data is None and not report.health.success:
            if source == "gpu":
                for tracker in self._gpus.values():
                    tracker.blind()
            elif source == "processes":
                self._table = None
                for run in self._runs.values():
                    run.host.forget_rates()
        return report.data

    def _withdraw_silent(self, now: float) -> None:
        """A GPU that gives no more samples is not known."""
        for tracker in self._gpus.values():
            if tracker.sample is not None and now - tracker.sample.time_seconds > SAMPLE_SECONDS:
                tracker.blind()

    def _note_gap(self, now: float) -> None:
        """After a gap in the watching every run is watched anew."""
        if self._now is not None and now - self._now > GAP_SECONDS:
            for run in self._runs.values():
                if run.watched_since is not None:
                    run.watched_since = now

    def _run(self, name: str) -> Run:
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = self._new_run(name)
        return run

    def _new_run(self, name: str) -> Run:
        return Run(name, self._configured.get(name), is_uncounted)

    def _take_samples(self, samples: Iterable[GpuSample]) -> None:
        for sample in samples:
            label = sample.device.gpu
            tracker = self._gpus.get(label)
            if tracker is None or tracker.device.uuid != sample.device.uuid:
                tracker = self._gpus[label] = self._recollection.gpu(sample.device)
                if label in self._renewed:
                    self._renewed.discard(label)
                    tracker.new_worker_set()
            there = self._occupancy.get(label, Occupancy())
            alone = len(there.runs) == 1 and not there.outsider and not sample.device.mig
            if alone and self._owner.setdefault(label, there.runs[0]) != there.runs[0]:
                self._owner[label] = there.runs[0]
                tracker.new_worker_set()
            tracker.observe(sample, holds_memory=alone and _holds_memory(sample, there), trains=alone)

    def _take_table(self, table: ProcessTable) -> None:
        self._table = table
        newest = tuple(tracker.sample for tracker in self._gpus.values() if tracker.sample is not None)
        self._discovered = self._discovery.discover(table, newest)
        context_pids = self.gpu_pids()
        found = set()
        for discovered in self._discovered:
            if discovered.launcher_process is None and not discovered.ranks:
                continue  # configured, and not here: only its files are followed
            found.add(discovered.name)
            run = self._run(discovered.name)
            if run.observe_processes(discovered, table.time_seconds, context_pids):
                for label in run.gpu_labels:
                    if label in self._gpus:
                        self._gpus[label].new_worker_set()
                    else:
                        self._renewed.add(label)
        for name, run in self._runs.items():
            if name not in found and "processes" in run.gave:
                run.vanish(table.time_seconds)
        self._note_oom(table)

    def _note_oom(self, table: ProcessTable) -> None:
        before, self._oom_kills = self._oom_kills, table.oom_kills
        if before is not None and table.oom_kills is not None and table.oom_kills > before:
            for run in self._runs.values():
                run.oom_seconds = table.time_seconds

    def _take_batch(self, batch: LogBatch) -> None:
        run = self._run(batch.run)
        stepped = run.observe_log(batch)
        for label in run.gpu_labels:
            if label in self._gpus and stepped:
                self._gpus[label].train.confirm()
            elif label in self._gpus and run.phase.name != "training":
                self._gpus[label].train.discard()

    def _is_known(self, name: str) -> bool:
        """Files may still be read of a run that was forgotten meanwhile."""
        return name in self._runs or name in self._configured

    def _followed(self) -> list[DiscoveredRun]:
        ended = [run.discovered for run in self._runs.values() if run.discovered is not None and not run.present]
        return [*self._discovered, *ended]

    def _forget(self, now: float) -> None:
        """Drop runs that ended an hour ago, and occupants that never showed that they train, at once."""
        for name, run in list(self._runs.items()):
            if run.end_seconds is None:
                continue
            if run.hidden or now - run.end_seconds > REMEMBERED_SECONDS:
                del self._runs[name]

    def _surroundings(self, now: float) -> Surroundings:
        if self._started is None:
            self._started = now
        age = now - self._started
        restored = bool(self._recollection.run_names())
        return Surroundings(
            now=now,
            wall_shift_seconds=self._shift,
            failed_seconds=self._failed,
            # one that is switched off never answers: it is blind only as long as it may still be starting
            silent=frozenset(SOURCES if age < GAP_SECONDS else ()) - frozenset(self._health),
            running=frozenset(self._health),
            settling=restored and age < SETTLE_SECONDS,
            gpus=GpuContext(self._gpus, self._occupancy),
        )

    def _picture(self, now: float) -> NodeView:
        self._failed.update((source, now) for source, health in self._health.items() if not health.success)
        around = self._surroundings(now)
        runs = [view_of(run, around) for run in self._runs.values() if not run.hidden]
        shown = {run.name for run in runs}
        runs.extend(_absent(run) for run in self._config.runs if run.expected and run.match and run.name not in shown)
        healthy = self._health.get("gpu")
        gpus = sorted(self._gpus.values(), key=lambda tracker: tracker.device.gpu)
        return NodeView(
            time_seconds=now,
            wall_shift_seconds=self._shift,
            runs=tuple(runs),
            gpus=tuple(
                tracker.view(self._occupancy.get(tracker.device.gpu, Occupancy()).unowned_bytes)
                for tracker in gpus
                if tracker.lost or (healthy is not None and healthy.success)
            ),
            health=dict(self._health),
        )


def _holds_memory(sample: GpuSample, there: Occupancy) -> bool:
    if there.by_process:
        return any(size > 0 for size in there.memory_by_pid.values())
    return bool(sample.memory_used_bytes)  # whose it is cannot be told, so it is the bound run's


def _absent(config: RunConfig) -> RunView:
    sentence = "Absent: the run is expected on this node and is not here."
    return RunView(
        name=config.name,
        launcher="",
        script="",
        job_id="",
        node_rank="",
        paging=config.page,
        alive=False,
        verdict=Verdict("absent", CODES["absent"], since_seconds=None, sentence=sentence),
        processes=dict.fromkeys(("launcher", "worker", "loader", "other"), 0),
    )
