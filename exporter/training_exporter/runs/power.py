"""What one GPU draws at rest and while it trains, learnt from the run itself, and the effort between the two.

Fractions of the power limit mislead (an idle K80 draws 72 of 149 W), so both ends are measured per GPU; the story of
a spin-wait is a power of 0.15-0.2 of training (research: NVIDIA-NeMo/Speech#9291).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from training_exporter.runs.quantiles import Histogram

# Below this distance of the two learnt powers a light model cannot be told from rest (stalls.md section 5c).
MINIMUM_RANGE_WATTS = 40.0
# Rest is steady; a validation at 0 % utilisation that draws 197-279 W is not, and must not be learnt as rest.
STEADY_WATTS = 3.0
STEADY_SECONDS = 10.0
# Seconds of power while the step advanced, before its median is trusted.
CONFIRMED_SECONDS = 60.0
# Minutes of work before the 90th percentile of minute means stands in for a step that is never printed.
MINUTES_NEEDED = 5.0
MEMORY_SECONDS = 7200.0  # weight of the past in P_idle: two hours of rest


class IdlePower:
    """P_idle of one GPU: the median of steady power at zero utilisation with the run's context on it."""

    def __init__(self) -> None:
        self._steady: deque[tuple[float, float]] = deque()
        self._histogram = Histogram(1.0, limit=MEMORY_SECONDS)
        self.watts: float | None = None

    def observe(self, time_seconds: float, watts: float, *, at_rest: bool) -> None:
        """`at_rest`: nothing resident, the run holds memory here, and a kernel ran before."""
        steady = self._steady
        if not at_rest:
            steady.clear()
            return
        steady.append((time_seconds, watts))
        while time_seconds - steady[0][0] > STEADY_SECONDS:
            steady.popleft()
        # one sample a second: ten of them span nine seconds
        if time_seconds - steady[0][0] < STEADY_SECONDS - 1.0 or len(steady) < 5:
            return
        values = [value for _, value in steady]
        if max(values) - min(values) <= STEADY_WATTS:
            self._histogram.add(sum(values) / len(values))
            self.watts = self._histogram.quantile(0.5)

    def remember(self) -> list[list[float]]:
        return self._histogram.remember()

    def restore(self, pairs: list[list[float]]) -> None:
        self._histogram.restore(pairs)
        self.watts = self._histogram.quantile(0.5)


class TrainPower:
    """P_train of one GPU for one worker set: the median power while the step advanced.

    Where no step is printed, the 90th percentile of minute means stands in.
    """

    def __init__(self) -> None:
        self._confirmed = Histogram(1.0, limit=2 * MEMORY_SECONDS)
        self._pending = Histogram(1.0)
        self._minutes = Histogram(1.0)
        self._minute_sum = 0.0
        self._minute_weight = 0.0
        self.watts: float | None = None

    def observe(self, watts: float, seconds: float) -> None:
        """A sample that stands for `seconds`; it waits until a step confirms that it was training."""
        self._pending.add(watts, seconds)
        self._minute_sum += watts * seconds
        self._minute_weight += seconds
        if self._minute_weight >= 60.0:
            self._minutes.add(self._minute_sum / self._minute_weight)
            self._minute_sum = self._minute_weight = 0.0
            self._learn()

    def confirm(self) -> None:
        """The step advanced: what was drawn since the last one was training."""
        known = self._confirmed.weight >= CONFIRMED_SECONDS
        self._confirmed.merge(self._pending)
        self._pending.clear()
        if not known:
            self._learn()

    def discard(self) -> None:
        """What was drawn since the last step was something else."""
        self._pending.clear()

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    def remember(self) -> dict[str, Any]:
        return {"confirmed": self._confirmed.remember(), "minutes": self._minutes.remember()}

    def restore(self, memory: Mapping[str, Any]) -> None:
        self._confirmed.restore(memory["confirmed"])
        self._minutes.restore(memory["minutes"])
        self._learn()

    def _learn(self) -> None:
        if self._confirmed.weight >= CONFIRMED_SECONDS:
            self.watts = self._confirmed.quantile(0.5)
        elif self._minutes.weight >= MINUTES_NEEDED:
            self.watts = self._minutes.quantile(0.9)


def effort_ratio(watts: float | None, idle_watts: float | None, train_watts: float | None) -> float | None:
    """(P - P_idle) / (P_train - P_idle), not under 0; None until both ends are known and 40 W apart."""
    if watts is None or idle_watts is None or train_watts is None:
        return None
    span = train_watts - idle_watts
    if span < MINIMUM_RANGE_WATTS:
        return None
    return max(0.0, (watts - idle_watts) / span)
