"""The command `parse-log`: shows what the log parser makes of a file."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO, TextIO

from training_exporter.logs import LogParser
from training_exporter.model import LogEvent

_CHUNK_BYTES = 1 << 18
_EXACT = 2.0**53  # beyond this a float is no exact integer
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def run(file: str, *, json: bool, out: TextIO, patterns: Sequence[str] = ()) -> int:
    """Print the events of a file (`-` is standard input): one JSON object a line, or a table. Returns 0.

    Raises OSError when the file cannot be read, PatternError for a bad pattern.
    """
    parser = LogParser(patterns)
    write = _json_line if json else _table_line
    with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
        if not json:
            out.write(f"{'line':>7}  {'phase':<10} {'event':<19} what\n")
        out.writelines(map(write, _events(stream, parser)))
    if not json:
        out.write(f"{parser.lines} lines, {parser.redraws} redraws, {parser.bytes_read} bytes\n")
    return 0


def _events(stream: BinaryIO, parser: LogParser) -> Iterator[LogEvent]:
    while data := stream.read(_CHUNK_BYTES):
        yield from parser.feed(data, 0.0)
    yield from parser.close()


def as_json(event: LogEvent) -> dict[str, object]:
    """The object of an event; keys that say nothing are left out."""
    found: dict[str, object] = {
        "line": event.line,
        "end_line": event.end_line,
        "event": event.event,
        "phase": event.phase,
    }
    plain = {"split": event.split, "step": event.step, "step_total": event.step_total, "rank": event.rank}
    found |= {key: value for key, value in plain.items() if value is not None}
    if event.epoch is not None:
        found["epoch"] = _number(event.epoch)
    if event.epoch_total is not None:
        found["epoch_total"] = _number(event.epoch_total)
    if event.metrics:
        found["metrics"] = {name: _number(number) for name, number in event.metrics.items()}
    if event.setup:
        found["setup"] = True
    if event.warning is not None or event.outcome is not None:
        said = {"warning": event.warning, "class": event.severity, "outcome": event.outcome, "reason": event.reason}
        found |= {key: text for key, text in said.items() if text is not None}
    return found


def _number(value: float) -> float | int | str:
    if not math.isfinite(value):
        return "nan" if value != value else ("inf" if value > 0 else "-inf")  # noqa: PLR0124 - only nan is not itself
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


def _json_line(event: LogEvent) -> str:
    return _encode(as_json(event)) + "\n"


def _table_line(event: LogEvent) -> str:
    return f"{event.line:>7}  {event.phase:<10} {event.event:<19} {_words(event)}\n"


def _words(event: LogEvent) -> str:
    words = []
    if event.warning:
        words.append(f"{event.warning} ({event.severity})")
    for name, count, total in (("epoch", event.epoch, event.epoch_total), ("step", event.step, event.step_total)):
        if count is not None:
            words.append(f"{name} {_number(float(count))}" + (f"/{_number(float(total))}" if total is not None else ""))
    if event.metrics:
        words.append(f"{event.split}: {_pairs(event.metrics)}")
    if event.outcome:
        words.append(event.outcome)
    return "  ".join(words)


def _pairs(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={_number(number)}" for name, number in metrics.items())
