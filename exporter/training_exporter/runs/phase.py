"""Which phase a run is in, since when, and what its log and its GPUs say about where one ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from training_exporter.runs.budgets import PROGRESS_STARTING_SECONDS, Learner

PHASES = ("starting", "training", "validating", "checkpointing", "done")

# A run whose log shows no step has started once its GPUs worked this long.
WORKED_SECONDS = 300.0
# Many saves print only a begin: GPUs that work this long again, while no byte is written, have left it.
RESUMED_SECONDS = 60.0
# A save that no line announces: bytes grow while the GPUs rest and no step comes.
GROWTH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class PhaseFacts:
    """What a tick knows about the run apart from its log."""

    now: float
    worked_seconds: float  # the most that one GPU of the run worked, a counter
    last_worked_seconds: float | None
    last_step_seconds: float | None
    gpu_known: bool  # GPUs of the run alone are watched now
    growth_seconds: float | None  # when checkpoint bytes last grew
    saving: bool  # a checkpoint is in progress
    start_budget_seconds: float


class PhaseClock:
    """The phase of one run and its beginning; teaches the learner how long phases last."""

    def __init__(self, learner: Learner) -> None:
        self.name = "starting"
        self.start_seconds: float | None = None
        self._learner = learner
        self._worked_at_start: float | None = None
        self._inferred = False
        self._announced = "training"  # what the log said while the run was starting
        self._before = "training"  # the phase that a checkpoint interrupts
        self._resulted = False  # the validation has given a result: a checkpoint that follows is behind it

    def begin(self, now: float) -> None:
        """A new attempt or worker set starts."""
        self.name = "starting"
        self.start_seconds = now
        self._worked_at_start = None
        self._announced = self._before = "training"
        self._learner.begin("start", now)

    def announce(self, phases: Iterable[str], now: float) -> None:
        """Follow what the log announced, in its order."""
        for phase in phases:
            if phase == "done":
                self._enter("done", now)
            elif self.name == "starting":
                self._announced = self._target(phase) or self._announced
            elif self.name != "done":
                self._follow(phase, now)

    def go_on(self, now: float) -> None:
        """The training steps on: what was taken for its end was none."""
        if self.name == "done":
            self._enter("training", now)

    def step(self, now: float, *, first: bool) -> None:
        """A training step was read; `first`: one that is done, which ends the start."""
        if self.name == "starting":
            if first:
                self._enter("training", now)
        elif self.name != "done":
            self._enter("training", now)

    def replay(self, phases: Iterable[str], now: float, *, stepped: bool) -> None:
        """Take up where an existing log stands: a phase that is known keeps its beginning, and none is learnt."""
        scratch = PhaseClock(Learner())
        scratch.name, scratch.start_seconds = self.name, self.start_seconds
        scratch._announced, scratch._before = self._announced, self._before
        scratch.step(now, first=stepped)
        scratch.announce(phases, now)
        self._announced, self._before = scratch._announced, scratch._before
        if scratch.name != self.name:
            self._enter(scratch.name, now)
            for kind in ("validation", "checkpoint"):
                self._learner.abandon(kind)

    def tick(self, facts: PhaseFacts) -> None:
        if self.start_seconds is None:
            self.begin(facts.now)
        if self._worked_at_start is None or facts.worked_seconds < self._worked_at_start:
            self._worked_at_start = facts.worked_seconds
        worked = facts.worked_seconds - self._worked_at_start
        if self.name == "starting":
            self._leave_start(facts, worked)
        elif self.name == "checkpointing":
            self._leave_checkpoint(facts, worked)
        elif self.name in ("training", "validating") and _saves_silently(facts):
            self._before = self._interrupted()
            self._enter("checkpointing", facts.now)
            self._inferred = True

    def _follow(self, phase: str, now: float) -> None:
        if phase == "result":
            self._resulted = self.name == "validating"
        if phase == "checkpointing" and self.name != "checkpointing":
            self._before = self._interrupted()
        if phase == "validated" and self.name == "checkpointing":
            self._before = "training"
        target = self._target(phase)
        if target is not None:
            self._enter(target, now)

    def _interrupted(self) -> str:
        return "training" if self.name == "validating" and self._resulted else self.name

    def _target(self, phase: str) -> str | None:
        if phase == "result":
            return None  # more results may follow
        if phase == "validated":
            return "training" if self.name in ("validating", "starting") else None
        if phase == "checkpointed":
            if self.name == "starting":
                return "training"
            return self._before if self.name == "checkpointing" else None
        return phase

    def _enter(self, name: str, now: float) -> None:
        if name == self.name:
            return
        if self.name == "starting":
            self._learner.end("start", now)
        elif self.name == "validating":
            self._learner.end("validation", now)
        elif self.name == "checkpointing" and not self._inferred:
            self._learner.end("checkpoint", now)
        if name == "validating":
            self._learner.begin("validation", now)
        elif name == "checkpointing":
            self._learner.begin("checkpoint", now)
        if name != "training":
            self._learner.abandon("step")
        self.name = name
        self.start_seconds = now
        self._worked_at_start = None
        self._inferred = self._resulted = False

    def _leave_start(self, facts: PhaseFacts, worked: float) -> None:
        elapsed = 0.0 if self.start_seconds is None else facts.now - self.start_seconds
        # GPUs that are watched and never worked: still starting, as long as a start may go on with host work
        limit = PROGRESS_STARTING_SECONDS if facts.gpu_known else facts.start_budget_seconds
        if worked >= WORKED_SECONDS or elapsed >= max(limit, facts.start_budget_seconds):
            self._enter(self._announced, facts.now)

    def _leave_checkpoint(self, facts: PhaseFacts, worked: float) -> None:
        growing = facts.growth_seconds is not None and facts.now - facts.growth_seconds < RESUMED_SECONDS
        if growing:
            return
        if worked >= RESUMED_SECONDS or (self._inferred and not facts.saving):
            self._enter(self._before, facts.now)

    def remember(self, shift_seconds: float) -> dict[str, Any]:
        start = self.start_seconds
        return {
            "name": self.name,
            "start": None if start is None else start + shift_seconds,
            "announced": self._announced,
            "before": self._before,
            "inferred": self._inferred,
        }

    def restore(self, memory: Mapping[str, Any]) -> None:
        if memory["name"] not in PHASES:
            raise ValueError(f"unknown phase {memory['name']!r}")
        self.name = memory["name"]
        self.start_seconds = memory["start"]
        self._announced = memory["announced"]
        self._before = memory["before"]
        self._inferred = bool(memory["inferred"])


def _saves_silently(facts: PhaseFacts) -> bool:
    now = facts.now
    if not facts.saving or facts.growth_seconds is None or now - facts.growth_seconds > GROWTH_SECONDS:
        return False
    rests = facts.last_worked_seconds is None or now - facts.last_worked_seconds > GROWTH_SECONDS
    quiet = facts.last_step_seconds is None or now - facts.last_step_seconds > GROWTH_SECONDS
    return facts.gpu_known and rests and quiet
