"""One stream of one log: bytes in, events out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from training_exporter.logs import envelope
from training_exporter.logs.blocks import Assembler
from training_exporter.logs.heads import take_head
from training_exporter.logs.lexer import lex, mask
from training_exporter.logs.names import normalise
from training_exporter.logs.novelty import Novelty
from training_exporter.logs.patterns import MAX_TEXT as MAX_PATTERN_TEXT
from training_exporter.logs.patterns import compile_patterns
from training_exporter.logs.plan import Plan, Record
from training_exporter.logs.split import Splitter
from training_exporter.logs.tracker import Tracker
from training_exporter.logs.understand import statements, understand
from training_exporter.model import LogEvent

MAX_SHAPES = 4096
QUIET_LINES = 40  # after a line of class suspect or fatal: what follows belongs to it
MAX_TEXT = 16 * 1024  # characters of a line that are understood; longer ones are data


class LogParser:
    """Understands one stream: a file, or one container stream of it.

    The events do not depend on how the bytes are cut into chunks. `lines` counts line feeds, as `wc -l` does;
    `redraws` counts pieces of a line printed over another with a carriage return.
    """

    def __init__(self, patterns: Sequence[str] = (), novelty: Novelty | None = None) -> None:
        self._patterns = compile_patterns(patterns)
        self._splitter = Splitter()
        self._unwrapper = envelope.Unwrapper()
        self._tracker = Tracker()
        self._assembler = Assembler(self._joined)
        self._shapes: dict[tuple[str, ...], Plan] = {}
        self._joined_shapes: dict[tuple[str, ...], Plan] = {}
        self._novelty = Novelty() if novelty is None else novelty
        self._lines_before = 0
        self._last_seconds = 0.0
        self.last_line: str | None = None
        self._novel = False
        self._quiet_line = 0

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

    def take_novel(self) -> bool:
        """Whether a line since the last question was news to the run; asking clears it."""
        novel, self._novel = self._novel, False
        return novel

    def feed(self, data: bytes, time_seconds: float) -> list[LogEvent]:
        """The events that are complete with these bytes."""
        return self._pieces(self._splitter.feed(data), time_seconds)

    def idle(self, now_seconds: float) -> list[LogEvent]:
        """The events of blocks that are over because nothing followed for two seconds."""
        return self._emit(self._assembler.idle(now_seconds)) if self._assembler.open else []

    def close(self) -> list[LogEvent]:
        """The events of what is left; the stream is over."""
        events = self._pieces(self._splitter.close(), self._last_seconds)
        events += self._emit(self._assembler.close())
        return events

    def restart(self) -> list[LogEvent]:
        """The stream begins anew (rotation, truncation): what is left unfinished is over, line numbers start at 1."""
        events = self.close()
        kept = self._splitter
        self._splitter = Splitter()
        self._splitter.bytes, self._splitter.redraws = kept.bytes, kept.redraws
        self._splitter.dropped_bytes = kept.dropped_bytes
        self._lines_before += kept.lines
        return events

    def _pieces(self, pieces: Iterable[tuple[int, str]], time_seconds: float) -> list[LogEvent]:
        self._last_seconds = time_seconds
        events: list[LogEvent] = []
        for line, raw in pieces:
            for text in self._unwrapper.unwrap(raw):
                self._line(text, line, time_seconds, events)
        return events

    def _line(self, text: str, line: int, time_seconds: float, events: list[LogEvent]) -> None:
        text = text[:MAX_TEXT].rstrip()
        if text:
            self.last_line = text
        plan, tokens = self._plan(text)
        if self._patterns and self._user(text, line, time_seconds, events):
            plan = replace(plan, drafts=tuple(draft for draft in plan.drafts if draft.kind != "record"))
        self._novel |= self._news(plan, tokens, line, time_seconds)
        record = Record(plan, tokens, line, line, time_seconds, text)
        if self._assembler.open or plan.opens or plan.columns or "results for" in text or "Task:" in text:
            events += self._emit(self._assembler.add(record))
        elif plan.drafts:
            self._append(record, events)

    def _news(self, plan: Plan, tokens: list[str], line: int, time_seconds: float) -> bool:
        """Whether a line is progress by being new. The lines of a traceback or an error summary never are."""
        if plan.quiet:
            if plan.trouble:
                self._quiet_line = line + QUIET_LINES
            return False
        if any(draft.kind == "record" for draft in plan.drafts):
            self._quiet_line = 0
        if line <= self._quiet_line:
            return False
        if self._novelty.new_mask(plan.novelty):
            return True
        counts = not plan.drafts or any(
            draft.kind == "bar" and draft.role in ("setup", "other") for draft in plan.drafts
        )
        return counts and self._novelty.advanced(plan.novelty, tokens, time_seconds)

    def _plan(self, text: str) -> tuple[Plan, list[str]]:
        key, tokens = lex(text)
        plan = self._shapes.get(key)
        if plan is not None and not any(":" not in tokens[index] for index in plan.times):
            return plan, tokens
        plan, keep = understand(key, tokens, mask(key, tokens))
        if keep:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = plan
        return plan, tokens

    def _joined(self, text: str) -> tuple[Plan, list[str]]:
        key, tokens = lex(text[: 4 * MAX_TEXT])
        plan = self._joined_shapes.get(key)
        if plan is None:
            head = take_head(mask(key, tokens))
            plan = Plan(drafts=tuple(d for d in statements(head, tokens) if d.kind == "record"), rank=head.rank)
            if len(self._joined_shapes) >= MAX_SHAPES:
                self._joined_shapes.clear()
            self._joined_shapes[key] = plan
        return plan, tokens

    def _emit(self, records: Iterable[Record]) -> list[LogEvent]:
        events: list[LogEvent] = []
        for record in records:
            self._append(record, events)
        return events

    def _append(self, record: Record, events: list[LogEvent]) -> None:
        try:
            events += self._tracker.events(record)
        except (ValueError, OverflowError):
            # a time where this shape had a number before: understood afresh, and not remembered
            plan, _ = understand(*self._afresh(record))
            try:
                events += self._tracker.events(
                    Record(plan, record.tokens, record.line, record.end_line, record.time_seconds)
                )
            except (ValueError, OverflowError):
                return

    def _afresh(self, record: Record) -> tuple[tuple[str, ...], list[str], str]:
        key, tokens = lex(record.text)
        return key, tokens, mask(key, tokens)

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
