"""What one GPU did, second by second: busy, working or spinning, and what it drew against what it learnt."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from training_exporter.model import GpuDevice, GpuSample
from training_exporter.runs.power import IdlePower, TrainPower, effort_ratio
from training_exporter.runs.view import GpuView

# A kernel was resident for at least this share of the driver's window; NVML's own resolution is 1 %.
BUSY_RATIO = 0.05
# Work by power alone; a spin-wait in a collective reaches 0.15-0.2 of training power, a validation 0.3-0.8.
WORKING_EFFORT = 0.30
# Work by power together with memory traffic, which a waiting collective does not cause (mem-util 0 in the reports).
WORKING_EFFORT_WITH_MEMORY = 0.15
WORKING_MEMORY_RATIO = 0.02
# The signal `gpu`: at least 3 of the last 10 one-second samples worked.
WINDOW_SAMPLES = 10
WINDOW_WORKING = 3
WINDOW_SECONDS = 60.0  # samples further apart than that are no window
# A sample stands for the time since the one before, but never for longer than this: a late tick is not work.
LONGEST_SAMPLE_SECONDS = 5.0
MEAN_SAMPLES = 5  # of the exported ratios: a few seconds
MEAN_EFFORT_SECONDS = 150.0  # time constant of the slow means, about a 5 min average
HELD_SECONDS = 900.0  # a shorter blindness does not unsay them; in the rules, 5 min of samples and 10 min behind them
VARYING_WATTS = 3.0  # power that stays within this is unchanged


class GpuTracker:
    """One GPU (or MIG instance) of this node, from its first sample on."""

    def __init__(self, device: GpuDevice) -> None:
        self.device = device
        self.sample: GpuSample | None = None
        self.lost = False
        self.idle = IdlePower()
        self.train = TrainPower()
        self.busy_seconds = 0.0
        self.working_seconds = 0.0
        self.last_working_seconds: float | None = None
        self.xids: dict[int, int] = {}
        self.xid_last_seconds: float | None = None
        self.kernel_ran = False
        self.worked_at: float | None = None  # the newest sample that worked, if enough of the window did
        self.utilization: float | None = None  # 0-1, mean share of time with a resident kernel over the window
        self.mean_effort: float | None = None
        self.mean_working: float | None = None
        self._told_seconds: float | None = None  # when the means were of
        # time, utilisation, memory utilisation, watts, worked
        self._window: deque[tuple[float, float | None, float | None, float | None, bool]] = deque(maxlen=WINDOW_SAMPLES)

    def observe(self, sample: GpuSample, *, holds_memory: bool, trains: bool) -> None:
        """Take one sample. `holds_memory`: a run has its context here; `trains`: the run alone uses this GPU."""
        for event in sample.xids:
            self.xids[event.xid] = self.xids.get(event.xid, 0) + 1
            self.xid_last_seconds = max(event.time_seconds, self.xid_last_seconds or event.time_seconds)
        self.lost = sample.lost
        if sample.lost:
            self.blind()
            return
        self.device = sample.device
        before = self.sample
        elapsed = 0.0 if before is None else sample.time_seconds - before.time_seconds
        if elapsed < 0.0 or (before is not None and elapsed == 0.0):
            return  # read again: nothing new
        self._learn(sample, min(elapsed, LONGEST_SAMPLE_SECONDS), holds_memory=holds_memory, trains=trains)
        self._count(sample, min(elapsed, LONGEST_SAMPLE_SECONDS))
        self.sample = sample

    def blind(self) -> None:
        """No data any more: what was seen a moment ago says nothing about now. The means are held for a while."""
        self.sample = None
        self._window.clear()
        self.worked_at = self.utilization = None

    def held(self, now: float) -> bool:
        """Whether the slow means still say something of now."""
        return self._told_seconds is not None and now - self._told_seconds <= HELD_SECONDS

    def new_worker_set(self) -> None:
        """P_train was that of the work before; P_idle belongs to the device."""
        self.train.clear()
        self.kernel_ran = False
        self.mean_effort = self.mean_working = None

    def effort(self) -> float | None:
        """Mean effort over the last few seconds."""
        watts = _mean([entry[3] for entry in list(self._window)[-MEAN_SAMPLES:]])
        return effort_ratio(watts, self.idle.watts, self.train.watts)

    def power_varies(self) -> bool:
        watts = [entry[3] for entry in self._window if entry[3] is not None]
        return len(watts) >= WINDOW_WORKING and max(watts) - min(watts) > VARYING_WATTS

    def _learn(self, sample: GpuSample, seconds: float, *, holds_memory: bool, trains: bool) -> None:
        utilization, watts = sample.utilization_ratio, sample.power_watts
        if utilization is None or watts is None:
            return
        if utilization > 0.0 and holds_memory:
            self.kernel_ran = True
        self.idle.observe(sample.time_seconds, watts, at_rest=utilization == 0.0 and holds_memory and self.kernel_ran)
        if trains and seconds > 0.0:
            self.train.observe(watts, seconds)

    def _count(self, sample: GpuSample, seconds: float) -> None:
        effort = effort_ratio(sample.power_watts, self.idle.watts, self.train.watts)
        working = is_working(sample.utilization_ratio, sample.memory_utilization_ratio, effort)
        share = sample.utilization_ratio or 0.0
        self.busy_seconds += share * seconds
        if working:
            self.working_seconds += share * seconds
            self.last_working_seconds = sample.time_seconds
        window = self._window
        if window and sample.time_seconds - window[0][0] > WINDOW_SECONDS:
            window.clear()
        window.append(
            (
                sample.time_seconds,
                sample.utilization_ratio,
                sample.memory_utilization_ratio,
                sample.power_watts,
                working,
            )
        )
        worked = [entry[0] for entry in window if entry[4]]
        self.worked_at = worked[-1] if len(worked) >= WINDOW_WORKING else None
        self.utilization = _mean([entry[1] for entry in window])
        if not self.held(sample.time_seconds):
            self.mean_effort = self.mean_working = None
        self._told_seconds = sample.time_seconds
        keep = math.exp(-seconds / MEAN_EFFORT_SECONDS)
        self.mean_working = _blend(self.mean_working, share if working else 0.0, keep)
        if effort is None:
            self.mean_effort = None
        else:
            self.mean_effort = _blend(self.mean_effort, effort, keep)

    def view(self, unowned_memory_bytes: int | None) -> GpuView:
        """What is published; without a current sample only what does not go stale."""
        sample = self.sample
        if sample is None:
            return GpuView(
                device=self.device,
                lost=self.lost,
                xid_errors_total=dict(self.xids),
                xid_last_seconds=self.xid_last_seconds,
                last_working_seconds=self.last_working_seconds,
            )
        recent = list(self._window)[-MEAN_SAMPLES:]
        utilized = sample.utilization_ratio is not None
        return GpuView(
            device=self.device,
            lost=False,
            utilization_ratio=_mean([entry[1] for entry in recent]),
            memory_utilization_ratio=_mean([entry[2] for entry in recent]),
            busy_seconds_total=self.busy_seconds if utilized else None,
            working_seconds_total=self.working_seconds if utilized else None,
            power_watts=_mean([entry[3] for entry in recent]),
            power_limit_watts=sample.power_limit_watts,
            energy_joules_total=sample.energy_joules,
            effort_ratio=self.effort(),
            idle_watts=self.idle.watts,
            train_watts=self.train.watts,
            memory_used_bytes=sample.memory_used_bytes,
            memory_total_bytes=sample.memory_total_bytes,
            temperature_celsius=sample.temperature_celsius,
            sm_clock_hertz=sample.sm_clock_hertz,
            clock_events=_clock_events(sample),
            xid_errors_total=dict(self.xids),
            xid_last_seconds=self.xid_last_seconds,
            last_working_seconds=self.last_working_seconds,
            unowned_memory_bytes=unowned_memory_bytes,
        )

    def remember(self, shift_seconds: float) -> dict[str, Any]:
        last = self.last_working_seconds
        return {
            "idle": self.idle.remember(),
            "train": self.train.remember(),
            "kernel_ran": self.kernel_ran,
            "last_working": None if last is None else last + shift_seconds,
        }

    def restore(self, memory: Mapping[str, Any]) -> None:
        self.idle.restore(memory["idle"])
        self.train.restore(memory["train"])
        self.kernel_ran = bool(memory["kernel_ran"])
        last = memory["last_working"]
        self.last_working_seconds = None if last is None else float(last)


def is_working(utilization: float | None, memory_utilization: float | None, effort: float | None) -> bool:
    """Whether a sample shows work: ratios 0-1, None = unknown. A resident kernel alone is no work."""
    if utilization is None or utilization < BUSY_RATIO:
        return False
    if effort is None:
        # Neither power nor memory traffic known: a kernel is all there is to go by, and in doubt nobody is paged.
        return memory_utilization is None or memory_utilization >= WORKING_MEMORY_RATIO
    if effort >= WORKING_EFFORT:
        return True
    return effort >= WORKING_EFFORT_WITH_MEMORY and (memory_utilization or 0.0) >= WORKING_MEMORY_RATIO


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _blend(mean: float | None, value: float, keep: float) -> float:
    return value if mean is None else mean * keep + value * (1.0 - keep)


def _clock_events(sample: GpuSample) -> dict[str, bool]:
    if sample.clock_events is None:
        return {}
    return {reason: reason in sample.clock_events for reason in sample.clock_events_known | sample.clock_events}
