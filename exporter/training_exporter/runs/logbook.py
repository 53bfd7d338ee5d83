"""Totals of one run's log: lines, bytes, known messages, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training_exporter.logs.messages import NAMES
from training_exporter.model import LogBatch
from training_exporter.runs.view import LogView

# Suspect and fatal messages are there at 0 from the first readable log on, so that their first one is an increase.
KNOWN_MESSAGES: Mapping[tuple[str, str], int] = {
    (name, severity): 0 for name, severity in NAMES if severity != "benign"
}


class Logbook:
    """What was read of one run's logs, from the first batch that could be read on."""

    def __init__(self) -> None:
        self.seen = False  # something was readable once
        self.readable: bool | None = None  # as of the newest batch
        self.error: str | None = None
        self._lines = self._bytes = self._redraws = self._dropped = 0
        self._opens = self._rotations = self._truncations = 0
        self._unread = 0
        self._last_line_seconds: float | None = None
        self._last_line: str | None = None
        self._files: tuple[str, ...] = ()
        self._messages: dict[tuple[str, str], int] = dict(KNOWN_MESSAGES)
        self._last_message_seconds: dict[str, float] = {}

    def observe(self, batch: LogBatch) -> None:
        """Take one batch; a restored one only says that there is a log."""
        self.readable = batch.readable
        self.error = batch.error
        if not batch.readable:
            return
        if batch.files or batch.lines or batch.bytes or batch.events:
            self.seen = True
        self._files = batch.files or self._files
        self._last_line = batch.last_line if batch.last_line is not None else self._last_line
        self._unread = batch.unread_bytes
        self._opens += batch.opens
        self._rotations += batch.rotations
        self._truncations += batch.truncations
        if batch.restored:
            return
        self._lines += batch.lines
        self._bytes += batch.bytes
        self._redraws += batch.redraws
        self._dropped += batch.dropped_bytes
        if batch.lines or batch.redraws:
            self._last_line_seconds = batch.time_seconds
        self._count_messages(batch)

    def view(self) -> LogView | None:
        """None until a log could be read."""
        if not self.seen:
            return None
        return LogView(
            lines_total=self._lines,
            bytes_total=self._bytes,
            redraws_total=self._redraws,
            last_line_seconds=self._last_line_seconds,
            unread_bytes=self._unread,
            dropped_bytes_total=self._dropped,
            opens_total=self._opens,
            rotations_total=self._rotations,
            truncations_total=self._truncations,
            messages_total=dict(self._messages),
            last_message_seconds=dict(self._last_message_seconds),
            last_line=self._last_line,
            files=self._files,
        )

    def new_attempt(self) -> None:
        """The messages of the attempt before are no news about this one; the totals go on."""
        self._last_message_seconds = {}

    def remember(self, shift_seconds: float) -> dict[str, Any]:
        last = self._last_line_seconds
        return {
            "seen": self.seen,
            "last_line": None if last is None else last + shift_seconds,
            "last_message": {name: time + shift_seconds for name, time in self._last_message_seconds.items()},
        }

    def restore(self, memory: Mapping[str, Any]) -> None:
        self.seen = bool(memory["seen"])
        self._last_line_seconds = memory["last_line"]
        self._last_message_seconds = dict(memory["last_message"])

    def _count_messages(self, batch: LogBatch) -> None:
        for event in batch.events:
            if event.warning is None or event.severity is None:
                continue
            # one value that is not finite may be the last of its kind: the streak of the loss decides, not the message
            severity = "suspect" if event.by_value else event.severity
            key = (event.warning, severity)
            self._messages[key] = self._messages.get(key, 0) + 1
            self._last_message_seconds[severity] = batch.time_seconds
