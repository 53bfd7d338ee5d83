"""The log lines of the shipped scenarios, played through the parser: each training line moves the step."""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import training_exporter
from training_exporter.logs import RunLogs
from training_exporter.model import LogEvent, TailChunk

FOLDERS = (
    Path(training_exporter.__file__).parent / "scenario" / "shipped",
    Path(__file__).parents[2] / "shared/scenarios",
)
SCENARIOS = sorted({path.stem: path for folder in FOLDERS for path in folder.glob("*.yaml")}.values())
UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
# training lines print a loss of a step, or are bars; results have split words or are known scores
TRAIN = re.compile(r"loss\b.*\{n|\{n.*loss\b|\{n[^}]*\}/\d+ \[|iter \{n\}|loss_0=\{x")
NO_TRAIN = re.compile(r"Validation|Running tokenizer|Loading shards|/80 \[|heartbeat")


def seconds(text: str) -> float:
    """Seconds of `1h30m`."""
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)([dhms])", str(text)))


def lines(document: dict[str, Any]) -> list[tuple[float, str, str]]:
    """Time, printed text and template of each log line, in order."""
    found = []
    start = 0.0
    for segment in document["segments"]:
        length = seconds(segment["for"])
        for entry in segment.get("log") or ():
            every = seconds(entry["every"]) if "every" in entry else length + 1
            at = seconds(entry.get("at", entry.get("from", entry.get("every"))))
            for count in range(int((length - at) / every) + 1):
                numbers = {key: entry[key]["start"] + entry[key]["by"] * count for key in "nx" if key in entry}
                text = entry["line"].format(clock="12:00:00", **numbers) + ("\r" if entry.get("cr") else "\n")
                found.append((start + at + every * count, text, entry["line"]))
        start += length
    return sorted(found, key=lambda item: item[0])


def play(path: Path) -> dict[str, list[list[LogEvent]]]:
    """The events of each appearance of each template; a wrapped record belongs to the template of its first line."""
    logs = RunLogs({})
    found: dict[str, list[list[LogEvent]]] = {}
    of_line: list[list[LogEvent]] = []  # where the events of a physical line go
    for at, group in groupby(lines(yaml.safe_load(path.read_text(encoding="utf-8"))), key=lambda item: item[0]):
        for _, text, template in group:
            mine: list[LogEvent] = []
            found.setdefault(template, []).append(mine)
            (batch,) = logs.consume((TailChunk("run", "log", at, text.encode()),), at)
            if text.endswith("\r"):
                mine.extend(batch.events)
                continue
            of_line.append(mine)
            for event in batch.events:
                of_line[event.line - 1].append(event)
        for event in logs.consume((), at + 3)[0].events:
            of_line[event.line - 1].append(event)
    return found


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
class TestScenarios:
    def test_training_lines_advance_the_step(self, path: Path) -> None:
        """Each line of a repeated training template gives a train_step beyond the one before."""
        stuck = []
        for template, appearances in play(path).items():
            if len(appearances) < 3 or not TRAIN.search(template) or NO_TRAIN.search(template):
                continue
            steps = [event.step for events in appearances for event in events if event.event == "train_step"]
            moved = [after for before, after in pairwise(steps) if (after or 0) > (before or 0)]
            if len(moved) < len(appearances) - 2:
                stuck.append((template, len(appearances), len(moved)))
        assert stuck == []

    def test_validation_bars_advance(self, path: Path) -> None:
        """Each drawing of a bar during a validation is progress of that validation."""
        stuck = [
            template
            for template, appearances in play(path).items()
            if len(appearances) > 3
            and ("Validation DataLoader" in template or "/80 [" in template)
            and any("val_progress" not in [event.event for event in events] for events in appearances)
        ]
        assert stuck == []

    def test_only_lines_of_results_are_results(self, path: Path) -> None:
        """A validation result comes from a line that prints one, and from no other."""
        wrong = [
            template
            for template, appearances in play(path).items()
            if any(event.event == "validation" for events in appearances for event in events)
            and not re.search(r"val[/_ ]|\*\*\* eval metrics|rouge|bleu", template)
        ]
        assert wrong == []
