"""What the log of a run says about its counters: steps, epochs, validations, losses, and the phase it announces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from training_exporter.model import LogBatch, LogEvent, LogPhase
from training_exporter.runs.epochs import EpochBase
from training_exporter.runs.metric_values import MetricValues

BEGINS = ("val_begin", "val_progress", "checkpoint_begin", "checkpoint_progress")
ANNOUNCED: Mapping[str, str] = {"train": "training", "validation": "validating", "checkpoint": "checkpointing"}
# A counter that falls under half of what it was began anew (an epoch, a resumed run); a smaller step back is another
# rank that prints late.
RESTART_SHARE = 0.5
# A line that looks like the end is none when the training goes on: so many steps behind it. A last redraw of a bar, or
# a summary printed again, is not as many.
GOES_ON_STEPS = 3


class Counter:
    """A counter as the log prints it: it may repeat, begin anew with each epoch, or come from several ranks."""

    __slots__ = ("_behind", "last", "returns")

    def __init__(self, last: int | None = None, *, returns: bool = False) -> None:
        self.last = last
        self.returns = returns  # was seen to begin anew behind its target: it counts the steps of an epoch
        self._behind: int | None = None

    def advance(self, value: int, *, anew: bool = False) -> int:
        """By how much the counter advanced, 0 when it did not; `anew`: its epoch is another."""
        if self.last is None:
            self.last = value
            return 1
        steps = value - self.last
        if steps > 0:
            self.last, self._behind = value, None
            return steps
        if steps == 0:
            return 0
        behind, self._behind = self._behind, value
        if anew or value < RESTART_SHARE * self.last or (behind is not None and value > behind):
            self.last, self._behind = value, None
            return 1
        return 0


@dataclass(slots=True)
class Moves:
    """What one batch moved."""

    step: bool = False
    steps: int = 0  # by how many the counter advanced
    validation: bool = False
    log: bool = False
    results: int = 0  # validations that ended with a result
    first_step: bool = False  # a step that is done was read
    goes_on: bool = False  # what had been taken for the end of the training was none
    phases: tuple[str, ...] = ()  # announced, in order: training, validating, result, checkpointing, checkpointed, done


class LogProgress:
    """The counters of one run over its current attempt; metric values and totals over its whole life."""

    def __init__(self) -> None:
        self.steps_target: int | None = None
        self.epoch: float | None = None
        self.epochs_target: float | None = None
        self.steps_total: int | None = None
        self.validations_total = 0
        self.nonfinite_streak: int | None = None
        self.metrics = MetricValues()
        self.validation_ratio: float | None = None  # of the bar of a running validation
        self.step_read = False
        self.shown = False  # a step, validation, epoch or end was ever read
        self.done = False
        self.farthest: tuple[float, int] | None = None  # (epoch, step) of this worker set
        self._end_step: int | None = None  # where the end marker was read
        self._steps_after_end = 0
        self._epochs = EpochBase()
        self._counters: dict[str, Counter] = {}
        self._bars: dict[str, int] = {}
        self._log_phase: LogPhase | None = None
        self._result_open = True  # the next result is one of a new validation
        self._begun = False  # a validation was announced, or its bar seen, and gave no result yet
        self._last_loss: Mapping[str, float] = {}
        self._restoring = False

    @property
    def step(self) -> int | None:
        """The step as last printed: that of the step records, else of the training bar."""
        return None if (counter := self._stepping()) is None else counter.last

    @property
    def at_target(self) -> bool:
        """Whether the last step was the last of all, by what the log said of steps and epochs."""
        counter = self._stepping()
        if counter is None or not self._is_full(counter):
            return False
        if self.epoch is None or self.epochs_target is None:
            return not counter.returns  # the last of an epoch, and nobody says of which
        return self.epoch >= self.epochs_target - 1

    def observe(self, batch: LogBatch) -> Moves:
        """Take one batch. A restored one sets values, moves and counts nothing."""
        moves = Moves(log=batch.novel and not batch.restored)
        phases: list[str] = []
        self._restoring = batch.restored
        if batch.outlived:
            self.done = False
        for event in batch.events:
            self._take(event, moves, phases)
        told = [event for event in batch.events if event.metrics and event.event != "warning"]
        self.metrics.observe(told, counting=not batch.restored)
        moves.phases = tuple(phases)
        if batch.restored:
            return Moves(first_step=self.step_read, phases=moves.phases, goes_on=moves.goes_on)
        return moves

    def new_worker_set(self) -> None:
        """Another process prints now: its counters begin anew, from a checkpoint or from nothing."""
        self._counters = {}
        self._bars = {}
        self._log_phase = None
        self.nonfinite_streak = None if self.nonfinite_streak is None else 0
        self.step_read = False
        self.done = False
        self.farthest = None

    def _take(self, event: LogEvent, moves: Moves, phases: list[str]) -> None:
        kind = event.event
        if kind == "warning":
            return
        anew = self._note_epoch(event, moves)
        if kind in ("train_step", "progress", "train_summary") and not event.setup:
            self._take_step(event, moves, anew=anew)
        if kind in ("validation", "val_begin", "val_progress", "val_end"):
            self._take_validation(event, moves, phases)
        if kind == "checkpoint_saved":
            phases.append("checkpointed")
        self._note_phase(event, phases)
        if kind == "train_end" or event.outcome == "finished" or event.phase == "done":
            self._end()
            phases.append("done")
        if event.metrics and event.split in (None, "train"):
            self._note_loss(event)

    def _end(self) -> None:
        if not self.done:
            self._end_step, self._steps_after_end = self.step, 0
        self.done = self.shown = True

    def _note_going_on(self, event: LogEvent, moves: Moves) -> None:
        """A training that steps on behind its end marker was not at its end; an evaluation there does not step."""
        beyond = event.step is not None and self._end_step is not None and event.step > self._end_step
        if event.event != "train_step" or not (beyond or any(map(is_loss, event.metrics))):
            return
        self._steps_after_end += 1
        if self._steps_after_end >= GOES_ON_STEPS:
            self.done, moves.goes_on = False, True

    def _note_epoch(self, event: LogEvent, moves: Moves) -> bool:
        """Note epoch and target; True when the epoch is another than before."""
        if event.epoch_total is not None:
            self.epochs_target = event.epoch_total
        if event.setup:
            return False
        epoch = self._epochs.counted(event)
        if epoch is None:
            return False
        changed = self.epoch is not None and epoch != self.epoch
        if changed and epoch > (self.epoch or 0.0) and event.event in ("epoch_begin", "epoch_end"):
            moves.step = True
        if event.event in ("epoch_begin", "epoch_end"):
            self.shown = True
        self.epoch = epoch
        return changed

    def _take_step(self, event: LogEvent, moves: Moves, *, anew: bool) -> None:
        kind = event.event
        if kind == "progress":
            if event.phase == "validation" or event.split in ("val", "test"):
                self._take_bar(event, moves)
                return
            if event.phase != "train":
                return
        if event.step is None:
            if kind == "train_step" and (anew or event.metrics != self._last_loss):
                self._count(moves, 0, event)
            self._last_loss = event.metrics
            return
        if event.step_total is not None and kind != "train_summary":
            self.steps_target = event.step_total
        name = "progress" if kind == "progress" else "train_step"
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = Counter()
        counter.returns |= self._is_full(counter) and event.step < RESTART_SHARE * (counter.last or 0)
        steps = counter.advance(event.step, anew=anew)
        if steps == 0:
            return
        done = kind != "progress" or event.step > 0  # a bar at 0 has only been drawn
        self._count(moves, steps if name == self._primary() else 0, event, done=done)

    def _count(self, moves: Moves, steps: int, event: LogEvent, *, done: bool = True) -> None:
        if self.done:
            self._note_going_on(event, moves)
        moves.step = True
        moves.steps += steps
        self.steps_total = (self.steps_total or 0) + (0 if self._restoring else steps)
        if done:
            moves.first_step = True
            self.step_read = self.shown = True
            self._result_open = True
        if event.step is not None:
            reached = (self.epoch or 0.0, event.step)
            self.farthest = max(reached, self.farthest or reached)

    def _is_full(self, counter: Counter) -> bool:
        return counter.last is not None and self.steps_target is not None and counter.last >= self.steps_target - 1

    def _stepping(self) -> Counter | None:
        """The counter that speaks for the training: of the step records, else of the bar."""
        return self._counters.get(self._primary())

    def _primary(self) -> str:
        counter = self._counters.get("train_step")
        return "train_step" if counter is not None and counter.last is not None else "progress"

    def _take_validation(self, event: LogEvent, moves: Moves, phases: list[str]) -> None:
        self.shown = True
        kind = event.event
        self._begun |= kind in ("val_begin", "val_progress")
        if kind == "val_begin":
            self._result_open = True
            self._bars = {}
            self.validation_ratio = None
        elif kind == "val_progress":
            self._take_bar(event, moves)
        elif kind == "validation":
            moves.validation = True
            if self._result_open and not self._restoring:
                self.validations_total += 1
                moves.results += 1
            self._result_open = False
            if self._begun:
                phases.append("result")
            self._begun = False
        else:
            phases.append("validated")

    def _take_bar(self, event: LogEvent, moves: Moves) -> None:
        if event.step is None:
            return
        key = f"{event.rank}/{event.split}/{event.step_total}"
        last = self._bars.get(key)
        self._bars[key] = event.step
        if last is None or event.step != last:
            moves.validation = True
        if event.step_total:
            self.validation_ratio = min(1.0, event.step / event.step_total)

    def _note_phase(self, event: LogEvent, phases: list[str]) -> None:
        """Follow begin events, and changes of the parser's phase: a repeated one undoes nothing known otherwise."""
        changed, self._log_phase = event.phase != self._log_phase, event.phase
        kind = event.event
        if kind in ("val_end", "checkpoint_saved", "validation"):
            return  # an end; and of a result without a begin nobody knows when that validation began
        if kind == "val_progress" and event.step is not None and event.step == event.step_total:
            return  # the last redraw of a bar often comes after the end
        begins = kind in BEGINS and event.phase != "train"  # a save beside the training begins nothing
        if (changed or begins) and event.phase in ANNOUNCED:
            phases.append(ANNOUNCED[event.phase])

    def _note_loss(self, event: LogEvent) -> None:
        if self._restoring or (self.nonfinite_streak == 0 and all(map(math.isfinite, event.metrics.values()))):
            return
        losses = [value for name, value in event.metrics.items() if is_loss(name)]
        if not losses:
            return
        if all(math.isfinite(value) for value in losses):
            self.nonfinite_streak = 0
        else:
            self.nonfinite_streak = (self.nonfinite_streak or 0) + 1

    def remember(self, shift_seconds: float) -> dict[str, Any]:
        return {
            "counters": {name: counter.last for name, counter in self._counters.items()},
            "returning": sorted(name for name, counter in self._counters.items() if counter.returns),
            "bars": self._bars,
            "steps_target": self.steps_target,
            "steps_total": self.steps_total,
            "epoch": self.epoch,
            "epochs_target": self.epochs_target,
            "epochs_from_zero": sorted(self._epochs.from_zero),
            "epochs_from_one": sorted(self._epochs.from_one),
            "validations_total": self.validations_total,
            "streak": self.nonfinite_streak,
            "step_read": self.step_read,
            "shown": self.shown,
            "done": self.done,
            "farthest": self.farthest,
            **self.metrics.remember(shift_seconds),
        }

    def restore(self, memory: Mapping[str, Any]) -> None:
        returning = memory.get("returning", ())
        self._counters = {name: Counter(last, returns=name in returning) for name, last in memory["counters"].items()}
        self._bars = dict(memory["bars"])
        self.steps_target = memory["steps_target"]
        self.steps_total = memory["steps_total"]
        self.epoch = memory["epoch"]
        self.epochs_target = memory["epochs_target"]
        self._epochs = EpochBase(memory.get("epochs_from_zero", ()), memory.get("epochs_from_one", ()))
        self.validations_total = int(memory["validations_total"])
        self.nonfinite_streak = memory["streak"]
        self.step_read = bool(memory["step_read"])
        self.shown = bool(memory["shown"])
        self.done = bool(memory["done"])
        self._end_step = self.step if self.done else None
        farthest = memory["farthest"]
        self.farthest = None if farthest is None else (float(farthest[0]), int(farthest[1]))
        self.metrics.restore(memory)


@lru_cache(maxsize=1024)
def is_loss(name: str) -> bool:
    """Whether a normalised metric name is a loss; a loss scale is none."""
    return "loss" in name and "scale" not in name
