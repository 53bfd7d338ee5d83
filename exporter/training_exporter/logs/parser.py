"""One stream of one log: bytes in, events out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from training_exporter.logs import envelope
from training_exporter.logs.blocks import IDLE_SECONDS, Assembler
from training_exporter.logs.names import normalise
from training_exporter.logs.novelty import Novelty
from training_exporter.logs.plan import Plan, Record
from training_exporter.logs.shapes import Shapes
from training_exporter.logs.split import Splitter
from training_exporter.logs.tracker import Tracker
from training_exporter.model import LogEvent
from training_exporter.patterns import MAX_TEXT as MAX_PATTERN_TEXT
from training_exporter.patterns import compile_patterns

QUIET_LINES = 40  # after a line of class suspect or fatal: what follows belongs to it
MAX_TEXT = 16 * 1024  # characters of a line that are understood; longer ones are data


class LogParser:
    """Understands one stream: a file, or one container stream of it.

    The events do not depend on how the bytes are cut into chunks. `lines` counts line feeds, as `wc -l` does;
    `redraws` counts pieces of a line printed over another with a carriage return.
    """

    def __init__(
        self, patterns: Sequence[str] = (), novelty: Novelty | None = None, shapes: Shapes | None = None
    ) -> None:
        self._patterns = compile_patterns(patterns)
        self._splitter = Splitter()
        self._unwrapper = envelope.Unwrapper()
        self._tracker = Tracker()
        self._shapes = Shapes() if shapes is None else shapes
        self._assembler = Assembler(self._shapes.joined)
        self._novelty = Novelty() if novelty is None else novelty
        self._lines_before = 0
        self._last_seconds = 0.0
        self._peeked = ""
        self.last_line: str | None = None
        self._novel = False
        self._quiet_line = 0
        self.failures = 0  # lines that could not be understood: counted and shown as any other
        self.failure: Exception | None = None  # why the last one could not

    @property
    def lines(self) -> int:
        return self._lines_before + self._splitter.lines

    @property
    def redraws(self) -> int:
        return self._splitter.redraws

    @property
    def bytes_read(self) -> int:
        return self._splitter.bytes

    @property
    def dropped_bytes(self) -> int:
        return self._splitter.dropped_bytes

    def use(self, patterns: Sequence[str]) -> None:
        """Search other patterns from the next line on; PatternError names a bad one."""
        self._patterns = compile_patterns(patterns)

    def take_novel(self) -> bool:
        """Whether a line since the last question was news to the run; asking clears it."""
        novel, self._novel = self._novel, False
        return novel

    def feed(self, data: bytes, time_seconds: float) -> list[LogEvent]:
        """The events that are complete with these bytes."""
        return self._pieces(self._splitter.feed(data), time_seconds)

    def idle(self, now_seconds: float) -> list[LogEvent]:
        """The events of blocks that nothing followed for two seconds, and of a bar that has stood as long."""
        events: list[LogEvent] = []
        if now_seconds - self._last_seconds >= IDLE_SECONDS:
            self._peek(events)
        if self._assembler.open:
            self._emit(self._assembler.idle(now_seconds), events)
        return events

    def _peek(self, events: list[LogEvent]) -> None:
        """Tqdm ends a bar only by drawing the next: the one that stands there now says how far it is."""
        if not 0 < self._splitter.held_bytes <= MAX_TEXT:
            return
        held = self._splitter.held
        if held == self._peeked:
            return
        self._peeked = held
        plan, tokens = self._shapes.plan(held)
        if plan.drafts and all(draft.kind == "bar" for draft in plan.drafts):
            line = self._splitter.lines + 1
            self._append(Record(plan, tokens, line, line, self._last_seconds, held), events)

    def close(self) -> list[LogEvent]:
        """The events of what is left; the stream is over."""
        events = self._pieces(self._splitter.close(), self._last_seconds)
        self._emit(self._assembler.close(), events)
        return events

    def restart(self) -> list[LogEvent]:
        """The stream begins anew (rotation, truncation): what is left unfinished is over, line numbers start at 1."""
        events = self.close()
        kept = self._splitter
        self._splitter = Splitter()
        self._splitter.bytes, self._splitter.redraws = kept.bytes, kept.redraws
        self._splitter.dropped_bytes = kept.dropped_bytes
        self._lines_before += kept.lines
        self._quiet_line = 0
        return events

    def _pieces(self, pieces: Iterable[tuple[int, str]], time_seconds: float) -> list[LogEvent]:
        self._last_seconds = time_seconds
        events: list[LogEvent] = []
        unwrap = self._unwrapper.unwrap
        for line, raw in pieces:
            for text in unwrap(raw):
                try:
                    self._line(text, line, time_seconds, events)
                except Exception as error:  # noqa: BLE001, PERF203 (one line must not stop a log: it is told)
                    self.failures, self.failure = self.failures + 1, error
                    self._assembler = Assembler(self._shapes.joined)
        return events

    def _line(self, text: str, line: int, time_seconds: float, events: list[LogEvent]) -> None:
        text = text.rstrip() if len(text) <= MAX_TEXT else text[:MAX_TEXT].rstrip()
        if not text and not self._assembler.open:
            return
        self.last_line = text or self.last_line
        plan, tokens = self._shapes.plan(text)
        assembler = self._assembler
        inside = assembler.open
        known = self._novelty.knows(plan.novelty)
        if plan.quick is not None and not inside and (known or plan.quiet) and not self._patterns:
            event = self._tracker.quick(plan.quick, tokens, line, time_seconds)
            if event is not None:  # nothing but the record itself is to be looked at
                self._quiet_line = 0
                events.append(event)
                return
        if self._patterns and self._user(text, line, time_seconds, events):
            plan = replace(plan, drafts=tuple(draft for draft in plan.drafts if draft.kind != "record"))
        if not known or plan.quiet or plan.counting or line <= self._quiet_line:
            self._novel |= self._news(plan, tokens, line, time_seconds)
        if plan.complaint:
            assembler.complain(line)
        if inside and assembler.goes_on(text, line, time_seconds):
            return
        record = Record(plan, tokens, line, line, time_seconds, text)
        if inside or plan.joins:
            self._emit(assembler.add(record), events)
        elif plan.drafts:
            self._append(record, events)

    def _news(self, plan: Plan, tokens: Sequence[str], line: int, time_seconds: float) -> bool:
        """Whether a line is progress by being new. The lines of a traceback or an error summary never are."""
        if plan.quiet:
            if plan.trouble:
                self._quiet_line = line + QUIET_LINES
            return False
        if line <= self._quiet_line:
            if not any(draft.kind == "record" for draft in plan.drafts):
                return False
            self._quiet_line = 0
        if self._novelty.new_mask(plan.novelty):
            return True
        return plan.counting and self._novelty.advanced(plan.novelty, tokens, time_seconds)

    def _emit(self, records: Iterable[Record], events: list[LogEvent]) -> None:
        for record in records:
            self._append(record, events)

    def _append(self, record: Record, events: list[LogEvent]) -> None:
        try:
            events += self._tracker.events(record)
        except (ValueError, OverflowError):  # a time where this shape had a number before
            plan, tokens = self._shapes.afresh(record.text)
            again = Record(plan, tokens, record.line, record.end_line, record.time_seconds, record.text)
            with suppress(ValueError, OverflowError):  # a number beyond all bounds: no value
                events += self._tracker.events(again)

    def _user(self, text: str, line: int, time_seconds: float, events: list[LogEvent]) -> bool:
        """Search the patterns of the configuration; whether one gave a metric, which is then all there is."""
        matched = False
        for pattern in self._patterns:
            for match in pattern.finditer(text[:MAX_PATTERN_TEXT]):
                name, split = normalise(match["name"])
                try:
                    number = float(match["value"].replace(",", ""))
                except ValueError:
                    continue
                if not name:
                    continue
                matched = True
                found = split or "val"
                event = "train_summary" if found == "train" else "validation"
                phase = self._tracker.phase
                events.append(LogEvent(line, line, event, phase, time_seconds, split=found, metrics={name: number}))
        return matched
