"""What the log of the run says: the lines of each segment, in the order in which they would be written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from training_exporter.model import LogTarget, TailChunk
from training_exporter.scenario.records import Counter, Line, Segment

RESTORE_BYTES = 2 << 20  # as the log source reads of a log that was there before


def render(line: Line, repetition: int, clock: str) -> str:
    """The text of a line at its `repetition`th saying (0 = the first). Raises what `str.format` raises."""
    return line.template.format(n=_integer(line.n, repetition), x=_number(line.x, repetition), clock=clock)


def times(line: Line, duration_seconds: float) -> list[float]:
    """Offsets from the segment's start at which the line is said.

    A single line is said even past the end of its segment; a repeated one ends with it, its end excluded.
    """
    if line.every_seconds is None:
        return [line.first_seconds]
    said: list[float] = []
    while (at := line.first_seconds + len(said) * line.every_seconds) < duration_seconds:
        said.append(at)
    return said


class LogFile:
    """The run's only log file: grows with the clock, and is read from where the reader stopped before.

    After `reopen` it is entered like one that was there before: at its end, with its last lines as a restored chunk.
    """

    def __init__(self, path: str, epoch_seconds: float) -> None:
        self.path = path
        self._epoch_seconds = epoch_seconds
        self._coming: list[tuple[float, str]] = []  # (seconds from the scenario's start, text), latest first
        self._unread: list[str] = []
        self._read: list[str] = []
        self._opened = False
        self._restored = False

    def enter(self, segment: Segment) -> None:
        """Queue what is said from this segment on."""
        duration = segment.end_seconds - segment.start_seconds
        said = [
            (segment.start_seconds + at, self._text(line, repetition, segment.start_seconds + at))
            for line in segment.lines
            for repetition, at in enumerate(times(line, duration))
        ]
        # sorted by time alone: what is said at the same moment keeps the order of the file
        self._coming = sorted([*reversed(self._coming), *said], key=lambda entry: entry[0])[::-1]

    def grow(self, at_seconds: float) -> None:
        """Append what is said up to and at `at_seconds`."""
        while self._coming and self._coming[-1][0] <= at_seconds:
            self._unread.append(self._coming.pop()[1])

    def reopen(self) -> None:
        """Another exporter will read it."""
        self._unread = [*self._read, *self._unread]
        self._read = []
        self._opened, self._restored = False, True

    def read(self, targets: Sequence[LogTarget], now: float) -> tuple[TailChunk, ...]:
        """The chunk since the last reading, when one of the targets is this file."""
        target = next((target for target in targets if target.path == self.path), None)
        if target is None or (self._opened and not self._unread):
            return ()
        opens = 0 if self._opened else 1
        data, restored = "".join(self._unread).encode(), self._restored
        self._read += self._unread
        self._unread.clear()
        self._opened, self._restored = True, False
        if restored and len(data) > RESTORE_BYTES:
            data = data[-RESTORE_BYTES:].partition(b"\n")[2]
        return (TailChunk(target.run, self.path, now, data, rank=target.rank, restored=restored, opens=opens),)

    def _text(self, line: Line, repetition: int, at_seconds: float) -> str:
        moment = datetime.fromtimestamp(self._epoch_seconds + at_seconds, tz=timezone.utc)
        return render(line, repetition, f"{moment:%H:%M:%S}") + ("\r" if line.carriage_return else "\n")


def _integer(counter: Counter | None, repetition: int) -> int | None:
    return None if counter is None else round(counter.start + repetition * counter.by)


def _number(counter: Counter | None, repetition: int) -> float | None:
    return None if counter is None else float(counter.start + repetition * counter.by)
