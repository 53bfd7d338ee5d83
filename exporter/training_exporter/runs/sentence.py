"""One plain sentence about a run, with the numbers that decide, for a person."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from training_exporter.runs.verdict import QUIET_SECONDS, Facts, Judgement, is_training_level

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


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the sentence may mention besides the facts. None = unknown."""

    phase_seconds: float | None = None
    last_phase_seconds: float | None = None  # how long the last one of this kind took
    wall_shift_seconds: float = 0.0
    step: int | None = None
    steps_target: int | None = None
    utilization: float | None = None  # 0-1, mean of the run's GPUs
    bytes_per_second: float | None = None
    child_cores: float | None = None
    reason: str | None = None  # of an end
    weak: tuple[str, ...] = ()
    newest_signal: str | None = None


def sentence(facts: Facts, judgement: Judgement, numbers: Numbers) -> str:
    """For example: Validating for 12 min, the last took 25 min: GPUs at 0 %, reading and writing 4.2 MB/s; ..."""
    state = judgement.state
    if state in ("finished", "failed", "ended", "absent"):
        return _end(state, numbers)
    work, idle = _work(numbers), _idle(facts)
    words = {
        "degraded": f"Degraded: {_CAUSES.get(judgement.cause, '')}; {idle}",
        "stalled": f"Stalled ({judgement.cause}): {idle}, {_CAUSES.get(judgement.cause, '')}; {work}",
        "no_progress": f"No progress for {_duration(facts.no_progress_seconds)} although something moves: {work}",
        "unknown": f"Cannot tell: {idle}, but {', '.join(sorted(facts.blind))} cannot be read",
        "quiet": f"Quiet while {facts.phase}: {_pause(facts)}; {work}{_deadline(facts, numbers)}",
    }
    return words.get(state, f"{_phase(facts, numbers)}: {work}{_deadline(facts, numbers)}") + "."


def _end(state: str, numbers: Numbers) -> str:
    words = {
        "finished": "Finished: the log shows the end of the training",
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
    if facts.phase == "training" and numbers.step is not None:
        target = "" if numbers.steps_target is None else f" of {numbers.steps_target}"
        words += f" (step {numbers.step}{target})"
    if is_training_level(facts) and (facts.no_progress_seconds or 0.0) > facts.progress_budget_seconds:
        words += f", log silent for {_duration(facts.no_progress_seconds)}"
    return words


def _pause(facts: Facts) -> str:
    return "a rank waits at a terminal" if facts.waiting else _idle(facts)


def _idle(facts: Facts) -> str:
    return f"no sign of life for {_duration(facts.idle_seconds)}"


def _work(numbers: Numbers) -> str:
    words = []
    if numbers.utilization is not None:
        words.append(f"GPUs at {numbers.utilization * 100:.0f} %")
    if numbers.bytes_per_second is not None:
        words.append(f"reading and writing {_rate(numbers.bytes_per_second)}")
    if numbers.child_cores is not None and numbers.child_cores >= 0.05:
        words.append(f"children use {numbers.child_cores:.1f} cores")
    words.extend(numbers.weak)
    return ", ".join(words) or "nothing is known of GPUs and processes"


def _deadline(facts: Facts, numbers: Numbers) -> str:
    if facts.idle_seconds is None or not facts.processes_seen:
        return ""
    left = facts.idle_budget_seconds - facts.idle_seconds
    if left <= 0.0:
        return ""
    wall = facts.now_seconds + numbers.wall_shift_seconds + left
    page = datetime.fromtimestamp(wall, timezone.utc).astimezone().strftime("%H:%M")
    return f"; would page at {page}" + (" if it fell silent now" if facts.idle_seconds <= QUIET_SECONDS else "")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    if seconds < 7200.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"


def _rate(bytes_per_second: float) -> str:
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_second >= size:
            return f"{bytes_per_second / size:.1f} {unit}"
    return f"{bytes_per_second:.0f} B/s"
