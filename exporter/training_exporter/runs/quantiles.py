"""Small summaries of a stream of numbers: a histogram with quantiles, and the last few intervals."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable


class Histogram:
    """Weights of values in bins of equal width; the quantiles are exact to one bin.

    `limit` bounds the total weight: past it every bin is halved, so that the old counts less than the new.
    """

    __slots__ = ("_bins", "_limit", "_width", "weight")

    def __init__(self, width: float, limit: float = math.inf) -> None:
        self._width = width
        self._limit = limit
        self._bins: dict[int, float] = {}
        self.weight = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        key = round(value / self._width)
        self._bins[key] = self._bins.get(key, 0.0) + weight
        self.weight += weight
        if self.weight > self._limit:
            self._halve()

    def merge(self, other: Histogram) -> None:
        """Add all that `other`, of the same width, has counted."""
        for key, weight in other._bins.items():
            self._bins[key] = self._bins.get(key, 0.0) + weight
        self.weight += other.weight
        if self.weight > self._limit:
            self._halve()

    def clear(self) -> None:
        self._bins.clear()
        self.weight = 0.0

    def quantile(self, share: float) -> float | None:
        """The smallest value with at least `share` (0-1) of the weight at or below it; None while empty."""
        passed = 0.0
        for key in sorted(self._bins):
            passed += self._bins[key]
            if passed >= share * self.weight - 1e-9:
                return key * self._width
        return None

    def remember(self) -> list[list[float]]:
        return [[key, weight] for key, weight in sorted(self._bins.items())]

    def restore(self, pairs: Iterable[Iterable[float]]) -> None:
        self.clear()
        for key, weight in pairs:
            self._bins[int(key)] = float(weight)
            self.weight += float(weight)

    def _halve(self) -> None:
        self._bins = {key: weight / 2 for key, weight in self._bins.items()}
        self.weight = sum(self._bins.values())


class Intervals:
    """The last completed intervals of one kind, in seconds."""

    __slots__ = ("_seconds",)

    # Newest 20: about what nvidia-resiliency-ext and Megatron-LM ask for (16) before they trust an own timeout.
    KEPT = 20

    def __init__(self, seconds: Iterable[float] = ()) -> None:
        self._seconds: deque[float] = deque((float(value) for value in seconds), maxlen=self.KEPT)

    def __len__(self) -> int:
        return len(self._seconds)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def clear(self) -> None:
        self._seconds.clear()

    def last(self) -> float | None:
        """The newest in seconds; None while there is none."""
        return self._seconds[-1] if self._seconds else None

    def typical(self) -> float | None:
        """The 90th percentile (nearest rank) in seconds; None while there is none."""
        if not self._seconds:
            return None
        return sorted(self._seconds)[math.ceil(0.9 * len(self._seconds)) - 1]

    def remember(self) -> list[float]:
        return [round(value, 3) for value in self._seconds]
