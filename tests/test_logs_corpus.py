"""The corpus in data/logs: logs of many frameworks in our own words, each with what must be understood.

A file is the log itself; a line `#> {...}` says what the line before it (or the last `lines` lines) means. The marks
␍ ␛ ␈ stand for carriage return, escape and backspace. Keys: `event`, `phase` after it, `val` (the complete set of
results of that place), `train` (values that must be there), `step`, `total`, `epoch`, `epoch_total`, `rank`, `setup`,
`warn` with `class`, `outcome`; `free` leaves the results open. A line that no entry covers must give neither a result
nor a fatal message.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from training_exporter.logs import LogParser
from training_exporter.model import LogEvent

DATA = Path(__file__).parent / "data" / "logs"
MARKS = str.maketrans({"␍": "\r", "␛": "\x1b", "␈": "\b"})
COUNTS = {"step": "step", "total": "step_total", "epoch": "epoch", "epoch_total": "epoch_total", "rank": "rank"}


@dataclass
class Expectation:
    """One entry and the physical lines it is about."""

    first: int
    last: int
    wanted: dict[str, Any]
    near: list[LogEvent] = field(default_factory=list)

    def __str__(self) -> str:
        return f"line {self.first}: {json.dumps(self.wanted)}"


def read_sample(path: Path) -> tuple[bytes, list[Expectation]]:
    """The log of a sample, and what is expected of it."""
    lines: list[str] = []
    expectations: list[Expectation] = []
    for text in path.read_text(encoding="utf-8").splitlines():
        if text.startswith("#> "):
            wanted = json.loads(text[3:])
            expectations.append(Expectation(len(lines) - wanted.pop("lines", 1) + 1, len(lines), wanted))
        else:
            lines.append(text.translate(MARKS))
    return "".join(f"{line}\n" for line in lines).encode(), expectations


def understood(data: bytes) -> list[LogEvent]:
    """All events of a log."""
    parser = LogParser()
    return [*parser.feed(data, 0.0), *parser.close()]


def same(left: float | str, right: float) -> bool:
    """Whether two values are equal, nan to nan."""
    return math.isclose(float(left), right, rel_tol=1e-9) or (math.isnan(float(left)) and math.isnan(right))


def values(events: list[LogEvent], *splits: str) -> dict[str, float]:
    """All values of these events in one dict; of a validation only its results, not those of a part."""
    return {
        name: number
        for event in events
        if event.split in splits and event.event not in ("val_progress", "val_begin")
        for name, number in event.metrics.items()
    }


def faults(expected: Expectation, phase: str) -> list[str]:
    """What is wrong at one place, in words."""
    wanted, near = expected.wanted, expected.near
    found = []
    results = values(near, "val", "test")
    target = wanted.get("val", {})
    if not wanted.get("free") and not (
        results.keys() == target.keys() and all(same(target[name], results[name]) for name in target)
    ):
        found.append(f"results {results}")
    trained = values(near, "train")
    found += [
        f"train {name}: {trained.get(name)}"
        for name, number in wanted.get("train", {}).items()
        if name not in trained or not same(number, trained[name])
    ]
    if wanted.get("event", "any") != "any" and wanted["event"] not in [event.event for event in near]:
        found.append(f"events {[event.event for event in near]}")
    found += [
        f"{key} {[getattr(event, name) for event in near]}"
        for key, name in {**COUNTS, "outcome": "outcome", "setup": "setup"}.items()
        if key in wanted and wanted[key] not in [getattr(event, name) for event in near]
    ]
    if "warn" in wanted and (wanted["warn"], wanted["class"]) not in [(e.warning, e.severity) for e in near]:
        found.append(f"messages {[(event.warning, event.severity) for event in near]}")
    if wanted.get("phase", "any") not in ("any", phase):
        found.append(f"phase {phase}")
    return found


@pytest.mark.parametrize("path", sorted(DATA.glob("*.txt")), ids=lambda path: path.stem)
class TestCorpus:
    def test_every_entry_is_understood(self, path: Path) -> None:
        """Results, counters, phases and messages are those that a person reads there."""
        data, expectations = read_sample(path)
        events = understood(data)
        wrong = []
        for expected in expectations:
            expected.near = [e for e in events if e.line <= expected.last and e.end_line >= expected.first]
            before = [event.phase for event in events if event.line <= expected.last]
            wrong += [f"{expected}: {fault}" for fault in faults(expected, before[-1] if before else "setup")]
        assert wrong == []

    def test_nothing_else_is_a_result_or_fatal(self, path: Path) -> None:
        """A line without an entry gives no result and no fatal message."""
        data, expectations = read_sample(path)
        covered = {line for expected in expectations for line in range(expected.first, expected.last + 1)}
        unwanted = [
            (event.line, event.event, dict(event.metrics), event.warning)
            for event in understood(data)
            if event.line not in covered and (event.split in ("val", "test") or event.severity == "fatal")
        ]
        assert unwanted == []

    def test_chunks_of_any_size_give_the_same_events(self, path: Path) -> None:
        """One byte at a time says the same as all at once."""
        data, _ = read_sample(path)
        parser = LogParser()
        events = [event for index in range(len(data)) for event in parser.feed(data[index : index + 1], 0.0)]
        assert repr([*events, *parser.close()]) == repr(understood(data))
