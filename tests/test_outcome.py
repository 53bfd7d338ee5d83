"""`runs.outcome`: how a run ended, by what was seen first."""

from __future__ import annotations

import pytest

from nodes import event
from training_exporter.model import LogEvent
from training_exporter.runs.outcome import Evidence

FATAL = {"severity": "fatal", "warning": "cuda_oom"}


def evidence(*events: LogEvent) -> Evidence:
    """What these records say, in their order."""
    seen = Evidence()
    for entry in events:
        seen.observe(entry)
    return seen


class TestEvidence:
    @pytest.mark.parametrize(
        ("order", "outcome"),
        [
            (("cancelled", "failed"), "cancelled"),
            (("failed", "cancelled"), "failed"),
            (("failed", "finished"), "finished"),
            (("finished", "cancelled"), "finished"),
            (("cancelled",), "cancelled"),
            ((), "unknown"),
        ],
    )
    def test_the_end_marker_wins_then_what_came_first(self, order: tuple[str, ...], outcome: str) -> None:
        """A cancellation explains the failures after it, a failure the signals that follow it."""
        events = [event("warning", outcome=word, time_seconds=float(n)) for n, word in enumerate(order, start=1)]
        assert evidence(*events).outcome(done=False, at_target=False) == outcome

    def test_a_fatal_message_is_a_failure(self) -> None:
        """Also when the parser draws no conclusion."""
        assert evidence(event("warning", time_seconds=5.0, **FATAL)).outcome(done=False, at_target=False) == "failed"

    def test_a_benign_or_suspect_one_is_nothing(self) -> None:
        """Warnings at the end of a log are common."""
        events = [event("warning", severity=severity, warning="x") for severity in ("benign", "suspect")]
        assert evidence(*events).outcome(done=False, at_target=False) == "unknown"

    def test_the_last_step_counts_when_nothing_else_speaks(self) -> None:
        """And not against a failure."""
        failed = evidence(event("warning", time_seconds=5.0, **FATAL))
        assert (Evidence().outcome(done=False, at_target=True), failed.outcome(done=False, at_target=True)) == (
            "finished",
            "failed",
        )

    @pytest.mark.parametrize(("later", "outcome"), [(300.0, "unknown"), (20.0, "failed")])
    def test_steps_that_come_well_after_it_undo_it(self, later: float, outcome: str) -> None:
        """The other ranks may print a step in the seconds that the launcher needs to end them."""
        seen = evidence(event("warning", time_seconds=100.0, **FATAL))
        seen.stepped(100.0 + later)
        assert seen.outcome(done=False, at_target=False) == outcome

    def test_an_end_that_the_training_went_on_behind_is_none(self) -> None:
        """A run that is gone later was not finished by it."""
        seen = evidence(event("train_end", "done", time_seconds=5.0, outcome="finished"))
        seen.goes_on()
        assert seen.outcome(done=False, at_target=False) == "unknown"

    def test_is_remembered(self) -> None:
        """With the reason, in wall time."""
        seen, again = evidence(event("warning", time_seconds=100.0, **FATAL)), Evidence()
        again.restore(seen.remember(7.0))
        assert (again.failed_seconds, again.reason) == (107.0, "cuda_oom")
