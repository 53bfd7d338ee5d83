"""The recent past of each run in a bounded ring, for rates and the band of the status page."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from training_exporter.runs.view import NodeView, RunView

STEP_SECONDS = 10.0
KEPT_MOMENTS = 360  # an hour at the default step
MOST_RUNS = 64
RATE_SECONDS = 60.0
LONGEST_GAP_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Moment:
    """What is kept of a run at one time; totals are counters, None where unknown."""

    time_seconds: float
    state: str
    lines: float | None
    read_bytes: float | None
    written_bytes: float | None
    cpu_seconds: float | None
    working_seconds: float | None  # summed over the run's GPUs
    gpu_count: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Means over the last minute or so; None where unknown or too young."""

    lines_per_second: float | None = None
    read_bytes_per_second: float | None = None
    written_bytes_per_second: float | None = None
    cpu_cores: float | None = None
    gpu_working_ratio: float | None = None
    seconds: float | None = None  # that they are taken over


class History:
    """Moments per run, at most one each `step_seconds`; a run that left the view is forgotten."""

    def __init__(self, step_seconds: float = STEP_SECONDS) -> None:
        self._step_seconds = step_seconds
        self._moments: dict[str, deque[Moment]] = {}

    def add(self, view: NodeView) -> None:
        """Take note of the view, unless the last one is younger than a step."""
        working = {gpu.device.gpu: gpu.working_seconds_total for gpu in view.gpus}
        names = {run.name for run in view.runs}
        self._moments = {name: kept for name, kept in self._moments.items() if name in names}
        for run in view.runs[:MOST_RUNS]:
            kept = self._moments.setdefault(run.name, deque(maxlen=KEPT_MOMENTS))
            if not kept or view.time_seconds - kept[-1].time_seconds >= self._step_seconds:
                kept.append(_moment(run, view.time_seconds, working))

    def moments(self, run: str) -> tuple[Moment, ...]:
        """The kept moments of a run, oldest first."""
        return tuple(self._moments.get(run, ()))

    def rates(self, run: str) -> Rates:
        """What a run did per second over the last minute."""
        kept = self.moments(run)
        if len(kept) < 2:
            return Rates()
        last = kept[-1]
        recent = [moment for moment in kept[:-1] if last.time_seconds - moment.time_seconds <= RATE_SECONDS]
        return between(recent[0] if recent else kept[-2], last)


def between(first: Moment, last: Moment) -> Rates:
    """What a run did per second from one moment to another; nothing over a gap in which the machine slept."""
    seconds = last.time_seconds - first.time_seconds
    if not 0 < seconds <= LONGEST_GAP_SECONDS:
        return Rates()
    working = _rate(first.working_seconds, last.working_seconds, seconds * max(1, last.gpu_count))
    return Rates(
        lines_per_second=_rate(first.lines, last.lines, seconds),
        read_bytes_per_second=_rate(first.read_bytes, last.read_bytes, seconds),
        written_bytes_per_second=_rate(first.written_bytes, last.written_bytes, seconds),
        cpu_cores=_rate(first.cpu_seconds, last.cpu_seconds, seconds),
        gpu_working_ratio=None if working is None else min(1.0, working),
        seconds=seconds,
    )


def _moment(run: RunView, now_seconds: float, working: Mapping[str, float | None]) -> Moment:
    known = [seconds for gpu in run.gpus if (seconds := working.get(gpu)) is not None]
    return Moment(
        time_seconds=now_seconds,
        state=run.verdict.state,
        lines=None if run.log is None else run.log.lines_total,
        read_bytes=run.read_bytes_total,
        written_bytes=run.written_bytes_total,
        cpu_seconds=sum(run.cpu_seconds_total.values()) if run.cpu_seconds_total else None,
        working_seconds=sum(known) if known else None,
        gpu_count=len(known),
    )


def _rate(first: float | None, last: float | None, seconds: float) -> float | None:
    # a total that fell began anew, and says nothing about this window
    if first is None or last is None or last < first:
        return None
    return (last - first) / seconds
