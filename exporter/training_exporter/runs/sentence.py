"""One plain sentence about a run, with the numbers that decide, for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from training_exporter.runs.activity import RATE_SECONDS
from training_exporter.runs.verdict import (
    QUIET_SECONDS,
    STOPPED_SECONDS,
    STORAGE_SECONDS,
    Facts,
    Judgement,
    is_training_level,
    seconds_to_stall,
)
from training_exporter.words import duration, percent, size

# Children that use less are no evidence.
LEAST_CORES = 0.05

_CAUSES = {
    "stopped": "a rank is stopped by a signal",
    "storage": "a process hangs in an uninterruptible read or write",
    "collective": "GPUs spin without working, as in a collective that never completes",
    "host": "the GPUs rest and the processes do nothing",
    "rank": "a rank is dead under a living launcher",
    "gpu": "a GPU of the run is lost",
    "loss": "the loss is not finite",
    "memory": "the GPU memory of a living rank is gone",
}


# What moved lately speaks for a run, the strongest kind first: GPUs and processes follow with their numbers.
_PROGRESS = ("step", "validation", "checkpoint", "log")
_BY_COUNT = "the last step in the log is the last of all"
_LIVING = ("starting", "training", "validating", "checkpointing", "quiet", "unknown")


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the sentence may mention besides the facts. None = unknown."""

    phase_seconds: float | None = None
    last_phase_seconds: float | None = None  # how long the last one of this kind took
    wall_shift_seconds: float = 0.0
    ages_seconds: Mapping[str, float] = field(default_factory=dict)  # of the newest move, by signal
    step: int | None = None
    steps_target: int | None = None
    validation_ratio: float | None = None  # 0-1, of the bar of a running validation
    utilization: float | None = None  # 0-1, mean of the run's GPUs
    bytes_per_second: float | None = None
    child_cores: float | None = None
    reason: str | None = None  # of an end
    by_count: bool = False  # the end is known from the last step alone
    weak: tuple[str, ...] = ()

    def lately(self, signal: str) -> bool:
        """Whether it moved in this phase, and so lately that the run is not quiet."""
        age = self.ages_seconds.get(signal)
        if age is None or (self.phase_seconds is not None and age > self.phase_seconds):
            return False
        return age <= QUIET_SECONDS


def sentence(facts: Facts, judgement: Judgement, numbers: Numbers) -> str:
    """For example: Validating for 12 min, the last took 25 min: 48 % validated, 2 s ago, GPUs at 0 %; ..."""
    state = judgement.state
    if state in ("finished", "failed", "ended", "absent"):
        return _end(state, numbers)
    if state in _LIVING and not (facts.gpu_seen or facts.log_seen or facts.checkpoints_seen):
        return "Cannot tell: its processes exist, and nothing of its GPUs, log and checkpoints can be seen."
    work, idle = _work(numbers), _idle(facts)
    last = f"the last sign of life was {_duration(facts.idle_seconds)} ago"
    words = {
        "degraded": f"Degraded: {_CAUSES.get(judgement.cause, '')}; {last}",
        "stalled": f"Stalled ({judgement.cause}): {idle}, {_CAUSES.get(judgement.cause, '')}; {work}",
        "no_progress": f"No progress for {_duration(facts.no_progress_seconds)} although something moves: {work}",
        "unknown": f"Cannot tell: {idle}, but {', '.join(sorted(facts.blind))} cannot be read",
        "quiet": f"Quiet while {facts.phase}: {_pause(facts)}; {work}{_deadline(facts, numbers)}",
    }
    return words.get(state, f"{_phase(facts, numbers)}: {work}{_deadline(facts, numbers)}") + "."


def _end(state: str, numbers: Numbers) -> str:
    words = {
        "finished": f"Finished: {_BY_COUNT if numbers.by_count else 'the log shows the end of the training'}",
        "failed": "Failed: no process is left",
        "ended": "Ended: no process is left",
        "absent": "Absent: the run is expected on this node and is not here",
    }[state]
    if state in ("failed", "ended") and numbers.reason:
        return f"{words} ({numbers.reason})."
    return f"{words}, and what was seen last does not say why." if state == "ended" else f"{words}."


def _phase(facts: Facts, numbers: Numbers) -> str:
    words = f"{facts.phase.capitalize()} for {_duration(numbers.phase_seconds)}"
    if numbers.last_phase_seconds is not None:
        words += f", the last took {_duration(numbers.last_phase_seconds)}"
    if facts.phase == "training" and not numbers.lately("step") and (step := _step(numbers)):
        words += f" ({step})"
    if is_training_level(facts) and (facts.no_progress_seconds or 0.0) > facts.progress_budget_seconds:
        words += f", log silent for {_duration(facts.no_progress_seconds)}"
    return words


def _pause(facts: Facts) -> str:
    if facts.waiting:
        return "a rank waits at a terminal"
    if facts.stopped_seconds >= STOPPED_SECONDS:
        return f"{_CAUSES['stopped']}, {_idle(facts)}"
    return f"{_CAUSES['storage']}, {_idle(facts)}" if facts.disk_sleep_seconds >= STORAGE_SECONDS else _idle(facts)


def _idle(facts: Facts) -> str:
    return f"no sign of life for {_duration(facts.idle_seconds)}"


def _work(numbers: Numbers) -> str:
    words = [*_progress(numbers), *_gpus(numbers)]
    if not numbers.lately("step"):
        words += _host(numbers)
    if not words and numbers.bytes_per_second is not None:
        words.append(_io(numbers.bytes_per_second))
    if not any(map(numbers.lately, (*_PROGRESS, "gpu"))):
        words.extend(numbers.weak)
    return ", ".join(words) or "nothing is known of GPUs and processes"


def _progress(numbers: Numbers) -> Iterator[str]:
    """The strongest kind of progress that was seen lately."""
    signal = next(filter(numbers.lately, _PROGRESS), None)
    if signal is None:
        return
    what = {"step": _step(numbers), "checkpoint": "a checkpoint grew", "log": "a new log line"}.get(signal)
    if signal == "validation":
        ratio = numbers.validation_ratio
        what = "a validation result" if ratio is None else f"{percent(ratio)} validated"
    yield f"{what or 'a step'}, {duration(numbers.ages_seconds[signal])} ago"


def _step(numbers: Numbers) -> str | None:
    if numbers.step is None:
        return None
    return f"step {numbers.step:,}" + ("" if numbers.steps_target is None else f" of {numbers.steps_target:,}")


def _gpus(numbers: Numbers) -> Iterator[str]:
    verb = "work" if numbers.lately("gpu") else ""
    if numbers.utilization is not None:
        yield f"GPUs {verb} at {percent(numbers.utilization)}".replace("  ", " ")
    elif verb:
        yield "GPUs work"


def _host(numbers: Numbers) -> Iterator[str]:
    if numbers.lately("io") and numbers.bytes_per_second is not None:
        yield _io(numbers.bytes_per_second)
    if numbers.lately("cpu"):
        cores = numbers.child_cores or 0.0
        yield f"children use {cores:.1f} cores" if cores >= LEAST_CORES else "a rank computes"


def _io(bytes_per_second: float) -> str:
    return f"reading and writing {size(bytes_per_second)}/s over {RATE_SECONDS:.0f} s"


def _deadline(facts: Facts, numbers: Numbers) -> str:
    if facts.idle_seconds is None or not facts.processes_seen or not (facts.gpu_seen or facts.log_seen):
        return ""
    left = seconds_to_stall(
        facts.idle_seconds, facts.idle_budget_seconds, facts.stopped_seconds, facts.disk_sleep_seconds
    )
    if left <= 0.0:
        return ""
    wall = facts.now_seconds + numbers.wall_shift_seconds + left
    page = datetime.fromtimestamp(wall, timezone.utc).astimezone().strftime("%H:%M")
    return f"; would page at {page}" + (" if it fell silent now" if facts.idle_seconds <= QUIET_SECONDS else "")


def _duration(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else duration(seconds)
