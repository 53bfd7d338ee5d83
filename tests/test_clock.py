"""`clock`: a jump of the wall clock moves no age."""

from __future__ import annotations

import time

import pytest

from training_exporter.clock import SystemClock


class TestSystemClock:
    def test_starts_at_the_wall_clock(self) -> None:
        """The steady scale begins as Unix time."""
        clock = SystemClock()
        assert clock.now() == pytest.approx(time.time(), abs=1)
        assert clock.wall_shift() == 0.0

    @pytest.mark.parametrize("jump_seconds", [3600.0, -3600.0])
    def test_a_jump_moves_the_shift_and_not_the_time(
        self, monkeypatch: pytest.MonkeyPatch, jump_seconds: float
    ) -> None:
        """Wall time stays now + shift through a jump by an hour either way."""
        clock = SystemClock()
        before = clock.now()
        wall = time.time
        monkeypatch.setattr(time, "time", lambda: wall() + jump_seconds)
        assert clock.wall_shift() == pytest.approx(jump_seconds, abs=1)
        assert clock.now() == pytest.approx(before, abs=1)

    def test_slewing_does_not_move_the_shift(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Small corrections would make every exported timestamp flicker."""
        clock = SystemClock()
        wall = time.time
        monkeypatch.setattr(time, "time", lambda: wall() + 0.4)
        assert clock.wall_shift() == 0.0
