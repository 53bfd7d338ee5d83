"""How a run ended, told by what was seen before and at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training_exporter.model import LogEvent

OUTCOMES = ("finished", "failed", "cancelled", "unknown")

# The kernel counts an out-of-memory kill a moment before or after the process is seen to be gone.
OOM_SECONDS = 30.0
# Evidence that the run outlived, by steps that came this much later, is evidence of nothing.
SURVIVED_SECONDS = 60.0


class Evidence:
    """What speaks for each outcome of one attempt, and when it was first seen."""

    def __init__(self) -> None:
        self.finished_seconds: float | None = None
        self.failed_seconds: float | None = None
        self.cancelled_seconds: float | None = None
        self.reason: str | None = None  # for a person

    def observe(self, event: LogEvent) -> None:
        """Take what a record of the log says about the end."""
        if event.outcome == "finished":
            self.finished_seconds = self.finished_seconds or event.time_seconds
        elif event.outcome == "failed":
            self.failed(event.time_seconds, event.warning or event.text)
        elif event.outcome == "cancelled":
            if self.cancelled_seconds is None:
                self.cancelled_seconds = event.time_seconds
                self.reason = self.reason or event.reason or event.warning
        elif event.severity == "fatal":
            self.failed(event.time_seconds, event.warning)

    def failed(self, time_seconds: float, reason: str | None) -> None:
        if self.failed_seconds is None:
            self.failed_seconds = time_seconds
            self.reason = self.reason or reason

    def stepped(self, time_seconds: float) -> None:
        """A step advanced: the run outlived whatever was seen well before."""
        if self.failed_seconds is not None and time_seconds - self.failed_seconds > SURVIVED_SECONDS:
            self.failed_seconds = self.reason = None
        if self.cancelled_seconds is not None and time_seconds - self.cancelled_seconds > SURVIVED_SECONDS:
            self.cancelled_seconds = self.reason = None

    def goes_on(self) -> None:
        """The training stepped on behind its end marker: that was none."""
        self.finished_seconds = None

    def outcome(self, *, done: bool, at_target: bool) -> str:
        """The outcome of a run of which no process is left.

        `done`: an end marker was read; `at_target`: its last step was the last of all. The end marker wins, then
        what came first: a cancellation explains the failures after it, and a failure the signals that follow it.
        """
        if done or self.finished_seconds is not None:
            return "finished"
        failed, cancelled = self.failed_seconds, self.cancelled_seconds
        if cancelled is not None and (failed is None or cancelled <= failed):
            return "cancelled"
        if failed is not None:
            return "failed"
        return "finished" if at_target else "unknown"

    def remember(self, shift_seconds: float) -> dict[str, Any]:
        def wall(time: float | None) -> float | None:
            return None if time is None else time + shift_seconds

        return {
            "finished": wall(self.finished_seconds),
            "failed": wall(self.failed_seconds),
            "cancelled": wall(self.cancelled_seconds),
            "reason": self.reason,
        }

    def restore(self, memory: Mapping[str, Any]) -> None:
        self.finished_seconds = memory["finished"]
        self.failed_seconds = memory["failed"]
        self.cancelled_seconds = memory["cancelled"]
        self.reason = memory["reason"]
