"""All log files of a run as one: chunks of many files in, one batch a run out."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TypeVar

from training_exporter.logs.novelty import Novelty
from training_exporter.logs.parser import LogParser
from training_exporter.logs.results import Results
from training_exporter.logs.shapes import Shapes
from training_exporter.logs.side_files import MAX_BYTES, SideFile, parser_for
from training_exporter.model import LogBatch, LogEvent, LogPhase, TailChunk

logger = logging.getLogger(__name__)

INCIDENT_SECONDS = 30.0  # lines of one message within this, from whatever rank, are one incident
LEAD_SILENT_SECONDS = 60.0  # after this another rank's steps are taken
MAX_INCIDENTS = 256  # message, class and outcome; the rules know some 60 messages
_TRAINS = frozenset({"train_begin", "epoch_begin", "train_step"})
_REPEATED = frozenset({"train_step", "progress", "val_progress"})
KEPT_STEPS = 64  # of a kind, of an existing log: more than any judgement of the last steps asks for
SLICE_BYTES = 64 * 1024
FAREWELL_STEPS = 10  # that other ranks print behind the failure of one, until their launcher ends them
MAX_FILES = 512  # of a kind and a run; the one that was silent longest is forgotten first


@dataclass(slots=True)
class _Log:
    parser: LogParser
    rank: int | None = None
    readable: bool = True
    unread_bytes: int = 0
    error: str | None = None
    failed: bool = False  # what could not be read of it was told


@dataclass(slots=True)
class _Side:
    parser: SideFile
    failed: bool = False  # likewise


F = TypeVar("F", _Log, _Side)


@dataclass(slots=True)
class _Growth:
    """What a run's files gave since the batch before."""

    events: list[LogEvent] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0
    redraws: int = 0
    dropped_bytes: int = 0
    opens: int = 0
    rotations: int = 0
    truncations: int = 0
    novel: bool = False
    outlived: bool = False


@dataclass(slots=True)
class _Run:
    patterns: Sequence[str]
    novelty: Novelty = field(default_factory=Novelty)
    shapes: Shapes = field(default_factory=Shapes)
    logs: dict[str, _Log] = field(default_factory=dict)
    sides: dict[str, _Side] = field(default_factory=dict)  # structured files beside them
    lead: int | None = None
    lead_seconds: float = 0.0
    lead_step: int | None = None
    incidents: dict[tuple[str, str | None, str | None, bool], float] = field(default_factory=dict)
    last_line: str | None = None
    phase: LogPhase = "setup"
    results: Results = field(default_factory=Results)


class RunLogs:
    """Parsers by run and file. Ranks that print the same step count once, messages once an incident."""

    def __init__(self, patterns: Mapping[str, Sequence[str]] | None = None) -> None:
        self._patterns = dict(patterns or {})
        self._runs: dict[str, _Run] = {}

    def consume(self, chunks: Sequence[TailChunk], now_seconds: float) -> tuple[LogBatch, ...]:
        """One batch for each run that has files; a restored one first where an existing log was entered."""
        by_run: dict[str, list[TailChunk]] = {}
        for chunk in chunks:
            by_run.setdefault(chunk.run, []).append(chunk)
        batches: list[LogBatch] = []
        for name in list(dict.fromkeys([*self._runs, *by_run])):
            run = self._runs.get(name)
            if run is None:
                run = self._runs[name] = _Run(self._patterns.get(name, ()))
            mine = by_run.get(name, [])
            restored = [chunk for chunk in mine if chunk.restored]
            if restored:
                batches.append(self._batch(name, run, restored, now_seconds, restored=True))
            batches.append(self._batch(name, run, [c for c in mine if not c.restored], now_seconds, restored=False))
        return tuple(batches)

    def reconfigure(self, patterns: Mapping[str, Sequence[str]]) -> None:
        """Take other patterns over, and keep everything that is known of the logs."""
        self._patterns = dict(patterns)
        for name, run in self._runs.items():
            wanted = self._patterns.get(name, ())
            if tuple(wanted) != tuple(run.patterns):
                run.patterns = wanted
                for log in run.logs.values():
                    log.parser.use(wanted)

    def forget(self, run: str) -> None:
        """Drop everything about a run."""
        self._runs.pop(run, None)

    def _batch(
        self, name: str, run: _Run, chunks: Sequence[TailChunk], now_seconds: float, *, restored: bool
    ) -> LogBatch:
        growth = _Growth()
        for chunk in chunks:
            self._chunk(name, run, chunk, growth)
        if not restored:
            for path, log in run.logs.items():
                self._survive(name, path, log, partial(self._idle, run, log, now_seconds, growth))
        novel = growth.novel and not restored
        logs = run.logs
        return LogBatch(
            run=name,
            time_seconds=now_seconds,
            events=tuple(growth.events),
            lines=0 if restored else growth.lines,
            bytes=0 if restored else growth.bytes,
            redraws=0 if restored else growth.redraws,
            novel=novel,
            restored=restored,
            last_line=run.last_line,
            unread_bytes=sum(log.unread_bytes for log in logs.values()),
            dropped_bytes=growth.dropped_bytes,
            opens=growth.opens,
            rotations=growth.rotations,
            truncations=growth.truncations,
            files=tuple(path for path, log in logs.items() if log.readable),
            readable=any(log.readable for log in logs.values()),
            error=next((log.error for log in logs.values() if log.error), None),
            outlived=growth.outlived,
        )

    def _chunk(self, name: str, run: _Run, chunk: TailChunk, growth: _Growth) -> None:
        if chunk.file not in run.logs and (side := parser_for(chunk.file)) is not None:
            known = _latest(run.sides, chunk.file, lambda: _Side(side))
            self._survive(name, chunk.file, known, partial(self._side, run, known.parser, chunk, growth))
            return
        log = _latest(run.logs, chunk.file, lambda: _Log(LogParser(run.patterns, run.novelty, run.shapes), chunk.rank))
        self._survive(name, chunk.file, log, partial(self._log, run, log, chunk, growth))

    def _survive(self, name: str, path: str, file: _Log | _Side, read: Callable[[], None]) -> None:
        """Read on whatever one file holds: what cannot be understood is counted, and told once a file."""
        failure: Exception | None = None
        try:
            read()
        except Exception as error:  # noqa: BLE001 (one file must not stop the logs of all runs)
            failure = error
        if failure is None and isinstance(file, _Log):
            failure = file.parser.failure
        if failure is not None and not file.failed:
            file.failed = True
            logger.error("run %s: a line of %s could not be understood, reading on", name, path, exc_info=failure)

    def _idle(self, run: _Run, log: _Log, now_seconds: float, growth: _Growth) -> None:
        self._take(run, log, log.parser.idle(now_seconds), growth)

    def _log(self, run: _Run, log: _Log, chunk: TailChunk, growth: _Growth) -> None:
        log.readable, log.error, log.unread_bytes = chunk.readable, chunk.error, chunk.unread_bytes
        growth.opens += chunk.opens
        growth.rotations += chunk.rotations
        growth.truncations += chunk.truncations
        growth.dropped_bytes += chunk.dropped_bytes
        parser = log.parser
        if chunk.restart:
            self._take(run, log, parser.restart(), growth)
        lines, size, redraws, dropped = parser.lines, parser.bytes_read, parser.redraws, parser.dropped_bytes
        read = _restored if chunk.restored else LogParser.feed
        events = read(parser, chunk.data, chunk.time_seconds) if chunk.data else []
        growth.lines += parser.lines - lines
        growth.bytes += parser.bytes_read - size
        growth.redraws += parser.redraws - redraws
        growth.dropped_bytes += parser.dropped_bytes - dropped
        growth.novel |= parser.take_novel()
        if chunk.data and parser.last_line:
            run.last_line = parser.last_line
        if chunk.restored:
            current = _without_outlived(events)
            growth.outlived |= len(current) < len(events)
            events = current
        self._take(run, log, events, growth)

    def _side(self, run: _Run, side: SideFile, chunk: TailChunk, growth: _Growth) -> None:
        """Values of a structured file replace those of the log; a result that the log printed is no second one."""
        if chunk.restart:
            side.restart()
        events = side.feed(chunk.data, chunk.time_seconds)
        _bound(run)
        growth.events += [event for event in events if event.outcome is not None]
        if chunk.restored:  # of checkpoints that were there before: nobody knows which was the last
            return
        growth.novel |= side.moves and bool(chunk.data)
        for event in (event for event in events if event.outcome is None):
            if event.event == "validation" and not run.results.repeats(event.split or "val", event.metrics):
                run.results.note(event.split or "val", event.metrics)
                growth.events.append(event)
            else:
                growth.events.append(replace(event, event="progress", phase=run.phase, step=None, epoch=None))

    def _take(self, run: _Run, log: _Log, events: Sequence[LogEvent], growth: _Growth) -> None:
        for event in events:
            run.phase = event.phase
            if event.event == "validation":
                run.results.note(event.split or "val", event.metrics)
            if event.event == "val_progress" and event.metrics:  # of the part so far: shown by parse-log only
                growth.events.append(replace(event, metrics={}))
            elif event.event == "warning":
                if self._first_of_incident(run, event):
                    growth.events.append(event)
            elif event.event != "train_step" or self._leads(run, log, event):
                growth.events.append(event)

    def _first_of_incident(self, run: _Run, event: LogEvent) -> bool:
        name = (event.warning or "", event.severity, event.outcome, event.by_value)
        before = run.incidents.get(name)
        if before is None and len(run.incidents) >= MAX_INCIDENTS:
            return False
        run.incidents[name] = event.time_seconds if before is None else max(before, event.time_seconds)
        # a value that is not finite is counted record by record, elsewhere
        return before is None or event.time_seconds - before > INCIDENT_SECONDS

    def _leads(self, run: _Run, log: _Log, event: LogEvent) -> bool:
        rank = event.rank if event.rank is not None else (log.rank or 0)
        silent = event.time_seconds - run.lead_seconds > LEAD_SILENT_SECONDS
        ahead = event.step is not None and (run.lead_step is None or event.step > run.lead_step)
        if run.lead is None or rank == run.lead or (silent and ahead):
            run.lead, run.lead_seconds = rank, event.time_seconds
            run.lead_step = event.step if event.step is not None else run.lead_step
            return True
        return False


def _latest(files: dict[str, F], path: str, make: Callable[[], F]) -> F:
    """The file of that path, made if it is new, and put last in the order of use."""
    file = files.pop(path, None)
    if file is None:
        if len(files) >= MAX_FILES:
            files.pop(next(iter(files)))
        file = make()
    files[path] = file
    return file


def _bound(run: _Run) -> None:
    """Keep no more of all the run's unfinished documents than of one: those that were silent longest are given up."""
    sides = [side.parser for side in run.sides.values()]
    held = sum(side.held_bytes for side in sides)
    for side in sides:
        if held <= MAX_BYTES:
            return
        held -= side.held_bytes
        side.restart()


def _restored(parser: LogParser, data: bytes, time_seconds: float) -> list[LogEvent]:
    """The events of an existing log, of steps of the same kind in a row only the last ones: they say where it is.

    All of them at once would take many times the memory of the text.
    """
    events: list[LogEvent] = []
    steps: defaultdict[object, deque[LogEvent]] = defaultdict(lambda: deque(maxlen=KEPT_STEPS))
    for start in range(0, len(data), SLICE_BYTES):
        for event in parser.feed(data[start : start + SLICE_BYTES], time_seconds):
            if event.event in _REPEATED and event.outcome is None:
                kind = (event.event, event.split, event.rank, event.phase, *event.metrics)
                steps[kind].append(event)
                continue
            events += sorted(chain(*steps.values()), key=_line)
            steps.clear()
            events.append(event)
    return [*events, *sorted(chain(*steps.values()), key=_line)]


def _line(event: LogEvent) -> int:
    return event.line


def _without_outlived(events: Sequence[LogEvent]) -> list[LogEvent]:
    """An existing log without the ends of attempts that a later one follows, in this file alone.

    Another file of the run may have the same lines, or the exception without the steps.
    """
    trains = [index for index, event in enumerate(events) if event.event in _TRAINS]
    end = max((index for index, event in enumerate(events) if _is_end(event)), default=-1)
    before = [index for index in trains if index < end]
    if before and _is_farewell(events[end], [events[index] for index in (before[-1], *trains[len(before) :])]):
        trains = before
    last = max(trains, default=0)
    return [event for index, event in enumerate(events) if index >= last or not _is_end(event)]


def _is_farewell(end: LogEvent, training: Sequence[LogEvent]) -> bool:
    """Whether `training`, from its last event before `end` on, is a few steps of ranks that had not heard of that yet.

    An attempt that comes later begins, or goes back.
    """
    steps = [event.step for event in training if event.event == "train_step" and event.step is not None]
    died = end.outcome in {"failed", "cancelled"} or end.severity == "fatal"
    return died and len(steps) == len(training) <= FAREWELL_STEPS + 1 and steps == sorted(steps)


def _is_end(event: LogEvent) -> bool:
    ends = event.outcome is not None or event.severity == "fatal"
    return ends or event.event == "train_end" or event.phase == "done"
