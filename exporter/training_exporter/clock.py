"""The exporter's time: steady, so that a jump of the wall clock moves no age."""

from __future__ import annotations

import time
from typing import Protocol

# A wall clock that is disciplined by NTP drifts below this; a larger difference is a jump (or a suspended machine).
JUMP_SECONDS = 1.0


class Clock(Protocol):
    """Where the time comes from; tests and the scenario player drive their own."""

    def now(self) -> float:
        """Seconds on the steady scale (see `model`)."""

    def wall_shift(self) -> float:
        """Wall clock minus steady scale, in seconds; changes only when the wall clock jumped."""


class SystemClock:
    """Unix time at start, advanced by CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._shift = 0.0

    def now(self) -> float:
        return time.monotonic() + self._offset

    def wall_shift(self) -> float:
        shift = time.time() - self.now()
        if abs(shift - self._shift) > JUMP_SECONDS:
            self._shift = shift
        return self._shift
