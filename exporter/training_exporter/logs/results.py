"""Remembers the last results, to tell a new result from one that is printed again."""

from __future__ import annotations

import math
from collections.abc import Mapping

MAX_NAMES = 512
_DIGITS = 2e-3  # a value printed again with fewer digits differs by less


class Results:
    """Last value by split and name. Bounded: when full, all is forgotten, and a repetition counts once more."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}

    def repeats(self, split: str, metrics: Mapping[str, float]) -> bool:
        """Whether every value is the last one of its name."""
        return all(self._same(self._last.get((split, name)), number) for name, number in metrics.items())

    def note(self, split: str, metrics: Mapping[str, float]) -> None:
        """Remember what was reported."""
        if len(self._last) >= MAX_NAMES:
            self._last.clear()
        self._last.update({(split, name): number for name, number in metrics.items()})

    @staticmethod
    def _same(before: float | None, now: float) -> bool:
        if before is None:
            return False
        return math.isclose(before, now, rel_tol=_DIGITS) or (math.isnan(before) and math.isnan(now))
