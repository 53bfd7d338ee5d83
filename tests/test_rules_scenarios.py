"""Scenarios through the exporter and then through the rules: what fires, and that node and rules see the same state.

The shipped scenarios, one for each alert that those do not raise (`scenarios/`), and those beside this checkout in
`../shared/scenarios` where that folder is.
"""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from rule_player import ROOT, Played, Recording, play, promtools, read_openmetrics
from training_exporter import simulate
from training_exporter.runs.verdict import CODES
from training_exporter.scenario.load import shipped

SHIPPED = sorted(shipped().values())
OWN = sorted((ROOT / "tests/scenarios").glob("*.yaml"))
SHARED = sorted((ROOT.parent / "shared/scenarios").glob("*.yaml"))
# A change of state reaches the rules with the next scrape (15 s) and evaluation (30 s), and a minute is granted.
GRACE_SECONDS = 60 + 15 + 30
# How long after a scrape was last possible the rules may still speak of what they saw then.
LOOKBACK_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Simulated:
    """A scenario, the series that it left and the states of its run by second of change."""

    words: dict[str, Any]
    recording: Recording
    changes: list[tuple[int, str]]

    @property
    def run(self) -> str:
        return str(self.words["run"]["name"])

    def states(self, first_second: int, last_second: int) -> set[str]:
        """The states of the node's verdict at any time between two moments."""
        before = [state for second, state in self.changes if second <= first_second]
        return {*before[-1:], *(state for second, state in self.changes if first_second < second <= last_second)}

    def is_watched(self, second: int) -> bool:
        """Whether the exporter was scraped lately enough for the rules to know anything."""
        start = 0
        for segment in self.words["segments"]:
            end = start + seconds(segment["for"])
            if "exporter" in segment.get("blind", ()) and start <= second <= end + LOOKBACK_SECONDS:
                return False
            start = end
        return True


def seconds(text: str | float) -> int:
    """A duration as scenarios write it."""
    if not isinstance(text, str):
        return int(text)
    units = {"s": 1, "m": 60, "h": 3600}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


@functools.cache
def simulated(file: Path) -> Simulated:
    """A scenario played through everything behind the sources."""
    out = io.StringIO()
    with TemporaryDirectory() as folder:
        series = Path(folder) / "series.txt"
        assert simulate.run(file, json=True, openmetrics=series, interval_seconds=15, out=out) == 0
        recording = read_openmetrics(series)
    changes = [json.loads(line) for line in out.getvalue().splitlines()]
    return Simulated(
        yaml.safe_load(file.read_text()), recording, [(change["t"], change["state"]) for change in changes]
    )


def expect_alerts(words: dict[str, Any], played: Played, *, patience: int = 1) -> None:
    """Every wanted alert in time and none that is neither wanted nor allowed; `patience` times the bound is in time."""
    expected = words.get("expect", {})
    wanted = expected.get("alerts", [])
    allowed = {entry["alert"] for entry in wanted} | set(expected.get("may", ()))
    assert played.ever("critical", "warning") - allowed == set()
    for entry in wanted:
        labels = {"cause": entry["cause"]} if "cause" in entry else {}
        fired = played.minutes(entry["alert"], **labels)
        after, within = seconds(entry["after"]) / 60, seconds(entry["within"]) / 60 * patience
        assert fired, entry
        assert after <= fired[0] <= after + within, entry
        if "until" in entry:
            assert fired[-1] <= seconds(entry["until"]) / 60, entry


@pytest.mark.parametrize("file", SHIPPED + OWN + SHARED, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_alerts_and_states(file: Path, tmp_path: Path) -> None:
    """The expected alerts and no other, and at every minute a state that the node's own verdict has around then."""
    scenario = simulated(file)
    played = play(promtools()[0], [scenario.recording], tmp_path)
    expect_alerts(scenario.words, played)
    for want in scenario.words["expect"].get("states", ()):
        at = seconds(want["at"])
        assert want["state"] in scenario.states(at - 60, at + 60), want
    disagreements = {}
    for minute, codes in played.codes.items():
        now = minute * 60
        states = scenario.states(now - GRACE_SECONDS, now + 60)
        if scenario.is_watched(now) and codes.get(scenario.run, 0) not in {CODES[state] for state in states}:
            disagreements[minute] = codes.get(scenario.run), states
    assert disagreements == {}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_newest_promtool(file: Path, tmp_path: Path) -> None:
    """The newest Prometheus that is promised says the same."""
    scenario = simulated(file)
    expect_alerts(scenario.words, play(promtools()[-1], [scenario.recording], tmp_path))


@pytest.mark.parametrize(
    "worsen",
    [
        pytest.param(lambda recording: recording.every(4), id="60s"),
        pytest.param(lambda recording: recording.without(0.2, 1), id="fifth_missing"),
        pytest.param(lambda recording: recording.every(4).without(0.2, 1), id="60s_fifth_missing"),
    ],
)
@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_bad_scraping(file: Path, worsen: Callable[[Recording], Recording], tmp_path: Path) -> None:
    """Scraped rarely and with failures, what is silent stays silent and the rest comes within twice its time."""
    scenario = simulated(file)
    expect_alerts(scenario.words, play(promtools()[0], [worsen(scenario.recording)], tmp_path), patience=2)
