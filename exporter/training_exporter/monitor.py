"""The running whole: sources in their own workers, one tick a second that turns what they said into the view."""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from training_exporter.logs import RunLogs, side_targets
from training_exporter.model import GpuSample, Health, LogBatch, LogTarget, Observation, Report, SourceName
from training_exporter.runs.discovery import environment_keys, interesting
from training_exporter.runs.node import Node
from training_exporter.runs.view import NodeView
from training_exporter.sources.checkpoints import CheckpointSource
from training_exporter.sources.gpu import GpuSource
from training_exporter.sources.nvml import NvmlDriver
from training_exporter.sources.processes import ProcessSource
from training_exporter.sources.tail import TailSource
from training_exporter.state import StateFile
from training_exporter.worker import Worker

if TYPE_CHECKING:
    from training_exporter.clock import Clock
    from training_exporter.config import Config
    from training_exporter.options import ServeOptions

T = TypeVar("T")

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
SAVE_SECONDS = 30.0
WAITING_BYTES = 1 << 20  # of log whose events the tick has not taken yet; an event is several times its line
RECALL_SECONDS = 5.0
# The tick does no I/O, so one that is this late means that the machine was suspended or the thread is gone.
HEALTHY_SECONDS = 60.0

PROCESS_SECONDS, PROCESS_DEADLINE_SECONDS = 2.0, 10.0
LOG_SECONDS, LOG_DEADLINE_SECONDS = 1.0, 10.0
CHECKPOINT_SECONDS, CHECKPOINT_DEADLINE_SECONDS = 5.0, 30.0
STATE_DEADLINE_SECONDS = 30.0


class _News(Generic[T]):
    """Hands on each answer of a worker once, and its failure as long as it lasts."""

    def __init__(self, worker: Worker[T]) -> None:
        self.worker = worker
        self._seen = 0

    def take(self) -> Report[T] | None:
        sequence, report = self.worker.latest()
        if sequence == self._seen and report.health.success:
            return None
        if sequence == 0 and not report.health.stuck:
            return None
        self._seen = sequence
        return report


class LogReader:
    """Tails and understands in the log worker's thread; batches wait here until the tick takes them."""

    def __init__(
        self,
        tail: TailSource,
        clock: Clock,
        patterns: Mapping[str, tuple[str, ...]],
        *,
        hurry: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `hurry` when nothing more is read until the batches are taken."""
        self._tail = tail
        self._hurry = hurry
        self._clock = clock
        self._logs = RunLogs(patterns)
        self._patterns: Mapping[str, tuple[str, ...]] | None = None  # to be taken over in the worker's thread
        self._runs: frozenset[str] = frozenset()
        self._followed: frozenset[str] = frozenset()
        self._batches: deque[LogBatch] = deque()
        self._full = False

    def follow(self, targets: Sequence[LogTarget]) -> None:
        """Read these logs from now on, and forget runs that have none any more."""
        self._tail.follow(targets)
        self._followed = frozenset(target.run for target in targets)

    def reconfigure(self, patterns: Mapping[str, tuple[str, ...]]) -> None:
        """Understand with other patterns from the next read on."""
        self._patterns = patterns

    def collect(self) -> None:
        """Read what is new and understand it."""
        patterns, self._patterns = self._patterns, None
        if patterns is not None:
            self._logs.reconfigure(patterns)
        followed = self._followed
        for run in self._runs - followed:
            self._logs.forget(run)
        self._runs = followed
        self._full = sum(batch.bytes for batch in tuple(self._batches)) >= WAITING_BYTES
        if self._full:
            self._hurry()
            return  # what is not read yet is safer in the file
        chunks = self._tail.collect()
        self._batches.extend(self._logs.consume(chunks, self._clock.now()))

    def drain(self) -> tuple[LogBatch, ...]:
        """All batches since the drain before, oldest first."""
        taken = []
        while self._batches:
            taken.append(self._batches.popleft())
        return tuple(taken)

    @property
    def full(self) -> bool:
        """Whether the last collect read nothing, because batches were waiting."""
        return self._full


class Monitor:
    """Owns the workers and the node's judgement. `view` is the newest picture; reading it never waits."""

    def __init__(self, config: Config, options: ServeOptions, clock: Clock) -> None:
        self._clock = clock
        self._collectors = options.collectors
        self._stop = threading.Event()
        self._due = threading.Event()  # the next tick before its time
        self._thread: threading.Thread | None = None
        self._ticked_seconds = clock.now()
        self._tick_failing = False
        self._silent: frozenset[str] = frozenset()
        self._lock = threading.Lock()  # tick against reconfigure; never held during I/O

        self._state = StateFile(options.state_directory) if options.state_directory else None
        self._node = Node(config, socket.gethostname(), _recall(self._state) if self._state else None)
        self._view = self._node.observe(Observation(clock.now(), clock.wall_shift()))

        self._gpu = GpuSource(NvmlDriver(), clock)
        self._process_source = ProcessSource(
            clock,
            procfs=str(options.procfs),
            interesting=partial(interesting, config=config),
            environment_keys=environment_keys(config),
        )
        self._reader = LogReader(TailSource(clock, wake=self._wake_logs), clock, _patterns(config), hurry=self._due.set)
        self._checkpoint_source = CheckpointSource(clock)
        self._log_worker: Worker[None] = self._worker("logs", self._reader.collect, LOG_SECONDS, LOG_DEADLINE_SECONDS)
        self._processes = _News(
            self._worker("processes", self._process_source.collect, PROCESS_SECONDS, PROCESS_DEADLINE_SECONDS)
        )
        self._checkpoints = _News(
            self._worker(
                "checkpoints", self._checkpoint_source.collect, CHECKPOINT_SECONDS, CHECKPOINT_DEADLINE_SECONDS
            )
        )
        self._saver: Worker[None] = self._worker("state", self._save, SAVE_SECONDS, STATE_DEADLINE_SECONDS)

    def _worker(
        self, name: str, collect: Callable[[], Any], interval_seconds: float, deadline_seconds: float
    ) -> Worker[Any]:
        return Worker(
            name, collect, interval_seconds=interval_seconds, deadline_seconds=deadline_seconds, clock=self._clock
        )

    def start(self) -> None:
        """Start the sources and the tick; returns at once, whatever hangs."""
        self._start_sources()
        self._thread = threading.Thread(target=self._run, name="tick", daemon=True)
        self._thread.start()

    def _start_sources(self) -> None:
        if "gpu" in self._collectors:
            self._gpu.start()
        for worker in self._workers():
            worker.start()
        if self._state:
            self._saver.start()

    def stop(self) -> None:
        """Ask everything to end and keep what was learnt; never waits for a source."""
        self._stop.set()
        self._due.set()
        self._gpu.stop()
        for worker in self._workers():
            worker.stop()
        self._saver.stop()
        if self._state:
            # in a thread of its own with a short wait, because the state directory may hang too
            last = threading.Thread(target=self._save, name="last-save", daemon=True)
            last.start()
            last.join(timeout=1.0)

    def view(self) -> NodeView:
        """The newest picture, with the sources' health of this moment.

        Without a tick for a minute there is no data any more: a frozen exporter must not look like a frozen run.
        """
        view = self._view
        if not self.healthy():
            view = NodeView(self._clock.now(), self._clock.wall_shift())
        return dataclasses.replace(view, health=self._health())

    def ready(self) -> bool:
        """Whether every enabled source has answered or failed once."""
        health = self._health()
        return all(_heard(health[name]) for name in self._collectors)

    def healthy(self) -> bool:
        """Whether the tick runs; never depends on a source."""
        return self._clock.now() - self._ticked_seconds < HEALTHY_SECONDS

    def reload(self, config: Config) -> None:
        """Take over a checked configuration."""
        with self._lock:
            self._node.reconfigure(config)
        self._process_source.reconfigure(partial(interesting, config=config), environment_keys(config))
        self._reader.reconfigure(_patterns(config))

    def tick(self) -> None:
        """One observation of the node; does no I/O."""
        now = self._clock.now()
        observation = Observation(
            time_seconds=now,
            wall_shift_seconds=self._clock.wall_shift(),
            gpu=self._gpu_report(),
            processes=self._processes.take(),
            logs=self._log_report(),
            checkpoints=self._checkpoints.take(),
        )
        with self._lock:
            self._view = self._node.observe(observation)
        checkpoints = self._node.checkpoint_targets()
        self._reader.follow((*self._node.log_targets(), *side_targets(checkpoints)))
        self._checkpoint_source.watch(checkpoints)
        self._process_source.gpu_pids(self._node.gpu_pids())
        self._ticked_seconds = now

    def _wake_logs(self) -> None:
        self._log_worker.wake()

    def _gpu_report(self) -> Report[tuple[GpuSample, ...]] | None:
        if "gpu" not in self._collectors:
            return None
        report = self._gpu.drain()
        # one that was only just asked has not failed
        return report if report.health.success or _heard(report.health) else None

    def _log_report(self) -> Report[tuple[LogBatch, ...]] | None:
        batches = self._reader.drain()
        if self._reader.full:
            self._wake_logs()
        sequence, report = self._log_worker.latest()
        if batches:
            return Report(batches, report.health)
        unheard = sequence == 0 and not report.health.stuck
        return None if report.health.success or unheard else Report(None, report.health)

    def _workers(self) -> list[Worker[Any]]:
        named: dict[SourceName, Worker[Any]] = {
            "processes": self._processes.worker,
            "logs": self._log_worker,
            "checkpoints": self._checkpoints.worker,
        }
        return [worker for name, worker in named.items() if name in self._collectors]

    def _health(self) -> dict[SourceName, Health]:
        health: dict[SourceName, Health] = {}
        if "gpu" in self._collectors:
            health["gpu"] = self._gpu.health()
        for worker in self._workers():
            health[worker.name] = worker.latest()[1].health  # type: ignore[index]  # workers are named by source
        if "checkpoints" in health and self._checkpoint_source.stuck:  # each directory has a thread of its own
            health["checkpoints"] = dataclasses.replace(health["checkpoints"], stuck=True)
        return health

    def _save(self) -> None:
        if self._state:
            with self._lock:
                memory = self._node.remember()
            self._state.save(memory)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.tick()
            except Exception:
                # a fault of ours must not freeze the page unseen: the log says it once, /-/healthy turns after a minute
                if not self._tick_failing:
                    logger.exception("the judgement failed; the last picture stays until it works again")
                self._tick_failing = True
            else:
                self._tick_failing = False
            self._note_silent()
            self._due.wait(TICK_SECONDS)
            self._due.clear()
            if not self._stop.is_set():
                self._start_sources()  # does nothing where they run

    def _note_silent(self) -> None:
        """Say once which source is past its deadline; of the GPUs their source says it, one by one."""
        silent: frozenset[str] = frozenset(
            name for name, health in self._health().items() if health.stuck and name != "gpu"
        )
        for source in sorted(silent - self._silent):
            logger.warning("source %s does not answer", source)
        for source in sorted(self._silent - silent):
            logger.info("source %s answers again", source)
        self._silent = silent


def _heard(health: Health) -> bool:
    """Whether a source has answered or failed once."""
    return health.duration_seconds is not None or health.error is not None


def _recall(state: StateFile) -> Mapping[str, Any] | None:
    """What was remembered, unless the state directory does not answer: then the exporter starts without."""
    answers: list[Mapping[str, Any]] = []
    reader = threading.Thread(target=lambda: answers.append(state.load()), name="recall", daemon=True)
    reader.start()
    reader.join(RECALL_SECONDS)
    if reader.is_alive():
        logger.warning("the state directory does not answer; starting without what was remembered")
    return answers[0] if answers and answers[0] else None


def _patterns(config: Config) -> dict[str, tuple[str, ...]]:
    return {run.name: run.metrics for run in config.runs}
