"""Stand-ins that several test modules share: only time is faked."""

from __future__ import annotations


class FakeClock:
    """A clock that moves when the test says so."""

    def __init__(self, now_seconds: float = 1_700_000_000.0) -> None:
        self.now_seconds = now_seconds
        self.shift_seconds = 0.0

    def now(self) -> float:
        """Seconds on the steady scale."""
        return self.now_seconds

    def wall_shift(self) -> float:
        """Wall clock minus steady scale."""
        return self.shift_seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_seconds += seconds
