"""Totals of a run's log: which messages count as what."""

from __future__ import annotations

from training_exporter.logs import RunLogs
from training_exporter.model import TailChunk
from training_exporter.runs.logbook import Logbook


def _read(text: str) -> Logbook:
    """The totals of one run after a text in its log."""
    book = Logbook()
    for batch in RunLogs().consume([TailChunk("r", "/a.log", 10.0, text.encode())], 10.0):
        book.observe(batch)
    return book


class TestValues:
    """A loss that is not finite, as a value and as a statement of the program."""

    def test_a_value_alone_is_suspect(self) -> None:
        """The training may get over it; three in a row are judged by the loss itself."""
        view = _read("step 5 loss nan\n").view()
        assert view is not None
        assert (view.messages_total["nan_loss", "suspect"], view.messages_total["nan_loss", "fatal"]) == (1, 0)
        assert view.last_message_seconds == {"suspect": 10.0}

    def test_what_the_program_says_of_it_is_fatal(self) -> None:
        """Also right behind the value."""
        view = _read("step 5 loss nan\nLoss became infinite or NaN at step 5!\n").view()
        assert view is not None
        assert (view.messages_total["nan_loss", "suspect"], view.messages_total["nan_loss", "fatal"]) == (1, 1)

    def test_both_are_exported_before_the_first(self) -> None:
        """So that the first one is an increase."""
        view = _read("hello\n").view()
        assert view is not None
        assert {("nan_loss", "suspect"), ("nan_loss", "fatal")} <= view.messages_total.keys()
