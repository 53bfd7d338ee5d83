"""Plays a scenario: what all sources of the node would say, one observation a second on a virtual clock."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from training_exporter.config import Config, Match, RunConfig
from training_exporter.logs import RunLogs
from training_exporter.model import CheckpointTarget, Health, LogBatch, LogTarget, Observation, Report, SourceName, T
from training_exporter.scenario.draws import Moment, drawer
from training_exporter.scenario.files import CheckpointDirectory
from training_exporter.scenario.gpus import GpuModel
from training_exporter.scenario.log_lines import LogFile
from training_exporter.scenario.processes import ProcessModel
from training_exporter.scenario.records import Scenario
from training_exporter.scenario.spawn import Spawner

EPOCH_SECONDS = 1773478800.0  # 2026-03-14 09:00 UTC: any fixed moment would do, this one makes the clock readable
HOST = "node-a"

# The rhythm of the sources, in seconds; that of the real ones, but that checkpoints are looked at half as often.
PROCESS_SECONDS = 2
CHECKPOINT_SECONDS = 10


class Player:
    """The node of a scenario. `second` is the number of the next observation, 0 = the start."""

    def __init__(self, scenario: Scenario, *, epoch_seconds: float = EPOCH_SECONDS) -> None:
        directory = f"/srv/training/{scenario.run.name}"
        log = None if "logs" in scenario.run.absent else f"{directory}/train.log"
        self.scenario = scenario
        self.second = 0
        self._epoch_seconds = epoch_seconds
        self._generator = random.Random(scenario.name)  # noqa: S311 - repeatable, not secret
        self._coming = list(reversed(scenario.segments))
        self._draws: tuple[Callable[[], Moment], ...] = ()
        spawner = Spawner(scenario.run, scenario.ranks, epoch_seconds=epoch_seconds, directory=directory, log=log)
        self._processes = ProcessModel(spawner, visible="processes" not in scenario.run.absent)
        self._gpus = GpuModel(scenario, self._processes)
        self._files = CheckpointDirectory(f"{directory}/output", epoch_seconds)
        self._log = LogFile(log, epoch_seconds) if log else None
        self._understanding = RunLogs({})
        self._segment = scenario.segments[0]
        self._health: dict[SourceName, Health] = {}
        self._enter(self.now)

    @property
    def now(self) -> float:
        """The virtual time of the next observation."""
        return self._epoch_seconds + self.second

    @property
    def ended(self) -> bool:
        """Whether the scenario has nothing more to say."""
        return self.second > self.scenario.duration_seconds

    @property
    def scraped(self) -> bool:
        """Whether the exporter can be reached in the second of the last observation."""
        return "exporter" not in self._segment.blind

    def config(self) -> Config:
        """The configuration that gives the run its name and budgets."""
        run = self.scenario.run
        match = None if "processes" in run.absent else Match(cmdline=re.escape(run.script))
        return Config(
            runs=(
                RunConfig(
                    name=run.name,
                    match=match,
                    logs=(self._log.path,) if self._log and match is None else (),
                    checkpoints=(self._files.path,) if match is None and "checkpoints" not in run.absent else (),
                    budgets=run.budgets,
                ),
            )
        )

    def skip(self) -> None:
        """Let a second pass that no exporter sees; the next one starts anew, and enters the log at its end."""
        self._pass_second()
        self.second += 1
        self._health.clear()
        self._understanding = RunLogs({})
        if self._log:
            self._log.reopen()

    def observe(self, logs: Sequence[LogTarget], checkpoints: Sequence[CheckpointTarget]) -> Observation:
        """What the sources say in this second, given what they are told to follow; then the clock moves on."""
        now = self.now
        moments = self._pass_second()
        observation = Observation(
            now,
            gpu=self._report("gpu", 1, lambda: self._gpus.sample(self._segment, moments, now)),
            processes=self._report("processes", PROCESS_SECONDS, lambda: self._processes.table(now)),
            logs=self._report("logs", 1, lambda: self._read_log(logs, now)),
            checkpoints=self._report("checkpoints", CHECKPOINT_SECONDS, lambda: self._files.list(checkpoints, now)),
        )
        self.second += 1
        return observation

    def _pass_second(self) -> tuple[Moment, ...]:
        while self.second >= self._segment.end_seconds and self._coming:
            self._enter(self.now)
        return self._live(float(self.second), self.now)

    def health(self) -> dict[SourceName, Health]:
        """How the sources fare, by the last call of each; that it had nothing new is no failure."""
        return dict(self._health)

    def _enter(self, now: float) -> None:
        self._segment = segment = self._coming.pop()
        self._draws = tuple(drawer(rank, self._generator) for rank in segment.ranks)
        self._processes.enter(segment, now)
        self._gpus.enter(segment)
        self._files.enter(segment)
        if self._log:
            self._log.enter(segment)

    def _live(self, at: float, now: float) -> tuple[Moment, ...]:
        # one second of the run, whoever looks at it
        moments = tuple(draw() for draw in self._draws)
        if not self._processes.alive(0):  # it is rank 0 who writes
            self._files.interrupt()
        if written := self._files.grow(at, now):
            moments = (moments[0]._replace(written_bytes=moments[0].written_bytes + written), *moments[1:])
        self._processes.advance(self._segment, moments, now)
        self._gpus.advance(moments)
        if self._log:
            self._log.grow(at)
        return moments

    def _read_log(self, targets: Sequence[LogTarget], now: float) -> tuple[LogBatch, ...] | None:
        chunks = self._log.read(targets, now) if self._log else ()
        return self._understanding.consume(chunks, now) if chunks else None

    def _report(self, source: SourceName, every_seconds: int, ask: Callable[[], T | None]) -> Report[T] | None:
        if self.second % every_seconds:
            return None
        if source in self._segment.blind or (source == "gpu" and "gpu" in self.scenario.run.absent):
            before = self._health.get(source)
            last = None if before is None else before.last_success_seconds
            self._health[source] = health = Health(success=False, last_success_seconds=last, error="blind")
            return Report(None, health)
        data = ask()
        self._health[source] = health = Health(success=True, duration_seconds=0.0, last_success_seconds=self.now)
        return None if data is None else Report(data, health)
