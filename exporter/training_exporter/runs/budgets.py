"""How long a run may be idle, or without progress, before that is too long: per phase, and learnt from the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training_exporter.config import Budgets
from training_exporter.runs.quantiles import Histogram, Intervals

# The NCCL watchdog's default is 600 s too: a stall is found no later than a healthy watchdog would end it.
IDLE_SECONDS = (600.0, 1800.0)  # floor (and first value), ceiling
STEP_FACTOR = 5.0  # nvidia-resiliency-ext: 5 x the largest observed interval
PHASE_FACTOR = 3.0  # stalls.md section 5a
# First validations recompile; 17-30 min were seen with warm caches (pytorch/pytorch#108971).
FIRST_VALIDATION_SECONDS = 2700.0
VALIDATION_SECONDS = (900.0, 7200.0)
FIRST_CHECKPOINT_SECONDS = 900.0
CHECKPOINT_SECONDS = (600.0, 3600.0)
START_SECONDS = (1800.0, 7200.0)
WEAK_TRAINING_SECONDS = 1800.0
PROGRESS_SECONDS = 3600.0
PROGRESS_STARTING_SECONDS = 14400.0  # tokenising for hours (JIA-Lab-research/LongLoRA#45)
# Somebody sits at the terminal (input, pdb): a day.
WAITING_SECONDS = 86400.0

# Compilation, autotuning and caches being filled make the first ones longer than all that follow.
STEPS_SKIPPED = 2
# Progress that comes in bursts (a block of lines, a checkpoint growing) is one move.
BURST_SECONDS = 60.0
# Bin width of the logarithm of a step time: 2 %.
_LOG_WIDTH = 0.02

KINDS = ("step", "validation", "checkpoint", "start", "progress")


_COUNTED = "counted step"  # among what is open: the last move by a known number of steps


class Learner:
    """The completed intervals of one run, for its current worker set.

    An interval in which the run was found stalled is dropped as a whole (`spoil`).
    """

    def __init__(self) -> None:
        self._intervals = {kind: Intervals() for kind in KINDS}
        self._open: dict[str, float] = {}
        self._skipped = 0
        self._step_times = Histogram(_LOG_WIDTH)

    def typical(self, kind: str) -> float | None:
        """The 90th percentile in seconds of the last completed intervals; None until one is known."""
        return self._intervals[kind].typical()

    def last(self, kind: str) -> float | None:
        """The newest completed interval in seconds; None until one is known."""
        return self._intervals[kind].last()

    def step_seconds(self) -> float | None:
        """Median time of one step over the whole worker set."""
        value = self._step_times.quantile(0.5)
        return None if value is None else math.exp(value)

    def step(self, now: float, steps: int) -> bool:
        """The step counter advanced by `steps` (0 = unknown). True when the interval that ended was a usual one."""
        began = self._open.get("step")
        counted = self._open.get(_COUNTED)  # a bar between two lines moves, but says nothing of the steps
        self._open["step"] = now
        if steps > 0:
            self._open[_COUNTED] = now
        if began is None or now <= began:
            return False
        if self._skipped < STEPS_SKIPPED:
            self._skipped += 1
            return False
        self._intervals["step"].add(now - began)
        if steps > 0 and counted is not None:
            self._step_times.add(math.log((now - counted) / steps))
        return True

    def progress(self, now: float) -> None:
        """Something moved; moves less than a minute apart are one."""
        began = self._open.get("progress")
        self._open["progress"] = now
        if began is not None and now - began >= BURST_SECONDS:
            self._intervals["progress"].add(now - began)

    def begin(self, kind: str, now: float) -> None:
        self._open[kind] = now

    def end(self, kind: str, now: float) -> None:
        began = self._open.pop(kind, None)
        if began is not None and now > began:
            self._intervals[kind].add(now - began)

    def abandon(self, kind: str) -> None:
        """What began is no interval of its kind (another phase came between)."""
        self._open.pop(kind, None)
        if kind == "step":
            self._open.pop(_COUNTED, None)

    def spoil(self) -> None:
        """The run is stalled: nothing that is open now may teach a budget."""
        self._open.clear()

    def new_worker_set(self) -> None:
        """Drop what was learnt. Times of the start stay: no other worker set can teach them."""
        for kind in KINDS:
            if kind != "start":
                self._intervals[kind].clear()
        self._open.clear()
        self._skipped = 0
        self._step_times.clear()

    def remember(self, shift_seconds: float) -> dict[str, Any]:
        return {
            "intervals": {kind: intervals.remember() for kind, intervals in self._intervals.items()},
            "open": {kind: time + shift_seconds for kind, time in self._open.items()},
            "skipped": self._skipped,
            "step_times": self._step_times.remember(),
        }

    def restore(self, memory: Mapping[str, Any]) -> None:
        for kind, values in memory["intervals"].items():
            self._intervals[kind] = Intervals(values)
        # an outage of the exporter may hide any number of steps, so an open step interval is not taken up again
        self._open = {kind: float(time) for kind, time in memory["open"].items() if kind not in ("step", _COUNTED)}
        self._skipped = int(memory["skipped"])
        self._step_times.restore(memory["step_times"])


def idle_budget(configured: Budgets, learner: Learner) -> float:
    """Seconds that a run which was seen working may rest."""
    if configured.idle is not None:
        return configured.idle
    step = learner.typical("step")
    return IDLE_SECONDS[0] if step is None else _clamp(STEP_FACTOR * step, IDLE_SECONDS)


def phase_budget(phase: str, configured: Budgets, learner: Learner) -> float:
    """Seconds that a phase may last without a sign of life: the long budget."""
    if phase == "starting":
        return _long(configured.start, START_SECONDS[0], learner.typical("start"), START_SECONDS)
    if phase == "validating":
        typical = learner.typical("validation")
        return _long(configured.validation, FIRST_VALIDATION_SECONDS, typical, VALIDATION_SECONDS)
    if phase == "checkpointing":
        typical = learner.typical("checkpoint")
        return _long(configured.checkpoint, FIRST_CHECKPOINT_SECONDS, typical, CHECKPOINT_SECONDS)
    return idle_budget(configured, learner)


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides which budget applies."""

    phase: str
    seen_working: bool  # gpu, io or cpu activity in this phase, later than 20 s after it began
    weak_evidence: bool
    host_work: bool  # processes read, wrote or computed lately
    waiting: bool = False  # a rank reads from a terminal


def current_budgets(now: Situation, configured: Budgets, learner: Learner) -> tuple[float, float]:
    """(idle, progress) in seconds."""
    idle = idle_budget(configured, learner)
    long = phase_budget(now.phase, configured, learner)
    if now.phase in ("training", "done"):
        allowed = max(idle, WEAK_TRAINING_SECONDS) if now.weak_evidence and configured.idle is None else idle
    else:
        allowed = long if now.weak_evidence or not now.seen_working else idle
    progress = _progress_budget(now, configured, learner, long)
    if now.waiting:
        return max(allowed, WAITING_SECONDS), max(progress, WAITING_SECONDS)
    return allowed, progress


def _progress_budget(now: Situation, configured: Budgets, learner: Learner, long: float) -> float:
    if configured.progress is not None:
        return configured.progress
    if now.phase == "starting" and now.host_work:
        return PROGRESS_STARTING_SECONDS
    return max(PROGRESS_SECONDS, 2.0 * long, 3.0 * (learner.typical("progress") or 0.0))


def _long(configured: float | None, first: float, typical: float | None, limits: tuple[float, float]) -> float:
    if configured is not None:
        return configured
    return first if typical is None else _clamp(PHASE_FACTOR * typical, limits)


def _clamp(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])
