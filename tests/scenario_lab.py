"""Plays scenarios, each once a session and several at a time, and keeps what node and rules said of them.

A trial is a scenario under a condition: as it stands, stretched, or with the exporter restarted. What scraping adds
(rarer, or with failures) and which promtool evaluates is asked of the trial afterwards.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from rule_player import ROOT, Played, Recording, play_apart, read_openmetrics
from training_exporter import simulate
from training_exporter.recording import Recording as OpenMetrics
from training_exporter.scenario.load import parse, shipped

SHIPPED = sorted(shipped().values())
OWN = sorted((ROOT / "tests/scenarios").glob("*.yaml"))
SHARED_ROOT = ROOT.parent / "shared"
SHARED = sorted((SHARED_ROOT / "scenarios").glob("*.yaml"))
STEP_SECONDS = 15
BATCH = 4  # plays whose rules are evaluated together

Worsening = Callable[[Recording], Recording]
SCRAPING: Mapping[str, Worsening] = {
    "": lambda recording: recording,
    "60s": lambda recording: recording.every(4),
    "fifth_missing": lambda recording: recording.without(0.2, 1),
    "60s_fifth_missing": lambda recording: recording.every(4).without(0.2, 1),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """One play of a scenario, and one evaluation of the rules over what it left."""

    file: Path
    promtool: str
    scraping: str = ""  # a key of SCRAPING
    stretch: float = 1.0  # of the segments, not of the budgets
    restart: bool = False  # of the exporter, in the middle

    @property
    def play(self) -> Trial:
        """The trial without what does not change the play."""
        return Trial(self.file, "", "", self.stretch, self.restart)

    @property
    def name(self) -> str:
        words = [f"{self.file.parent.name}-{self.file.stem}", Path(self.promtool).name, self.scraping]
        words += [f"x{self.stretch:g}"] if self.stretch != 1.0 else []
        return "-".join(filter(None, [*words, "restart" if self.restart else ""]))


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

    def is_watched(self, second: int, *, lookback_seconds: int) -> bool:
        """Whether the exporter was scraped lately enough for the rules to know anything."""
        start = 0
        for segment in self.words["segments"]:
            end = start + seconds(segment["for"])
            if "exporter" in segment.get("blind", ()) and start <= second <= end + lookback_seconds:
                return False
            start = end
        return True


def seconds(text: str | float) -> int:
    """A duration as scenarios write it."""
    if not isinstance(text, str):
        return int(text)
    units = {"s": 1, "m": 60, "h": 3600}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


def stretched(words: dict[str, Any], factor: float) -> dict[str, Any]:
    """A scenario with longer or shorter segments, and the expectations moved along; bounds stay."""

    def moved(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
        return entry | {key: f"{round(seconds(entry[key]) * factor)}s" for key in keys if key in entry}

    segments = []
    for segment in words["segments"]:
        longer = moved(segment, "for")
        longer["log"] = [moved(line, "at", "from") for line in segment.get("log", ())]
        if "checkpoint" in segment:
            longer["checkpoint"] = moved(segment["checkpoint"], "at")
        segments.append(longer)
    expect = dict(words["expect"])
    expect["states"] = [moved(state, "at") for state in expect.get("states", ())]
    expect["alerts"] = [moved(alert, "after", "until") for alert in expect.get("alerts", ())]
    return {**words, "segments": segments, "expect": expect}


def simulated(trial: Trial, folder: Path) -> Simulated:
    """Play through everything behind the sources; the series are left in `folder`, with the changes as JSON lines."""
    words = yaml.safe_load(trial.file.read_text())
    text = trial.file.read_text()
    if trial.stretch != 1.0:
        words = stretched(words, trial.stretch)
        text = yaml.safe_dump(words, allow_unicode=True)
    scenario = parse(trial.file.name, text)
    scrapes = OpenMetrics()
    middle = int(scenario.duration_seconds / 2) if trial.restart else None
    changes = list(simulate.changes_of(scenario, scrapes, interval_seconds=STEP_SECONDS, restart_at=middle))
    with (folder / f"{trial.name}.om").open("w") as file:
        scrapes.write(file)
    (folder / f"{trial.name}.jsonl").write_text("".join(f"{change.as_json()}\n" for change in changes))
    recording = read_openmetrics(folder / f"{trial.name}.om")
    return Simulated(words, recording, [(change.at_seconds, change.state) for change in changes])


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the judge of the shared scenarios says of one of them, with one promtool."""

    content: bool
    said: str


@dataclass(frozen=True, slots=True)
class Examined:
    """One play, what the rules say of it in each of its trials, and its judgement by each promtool."""

    scenario: Simulated
    answers: Mapping[Trial, Played]
    judgements: Mapping[str, Judgement]


def judged(file: Path, promtool: str, folder: Path) -> Judgement:
    """Ask the judge of the scenarios beside this checkout; what it asks of `simulate` was left in `folder`."""
    command = f"{sys.executable} {ROOT / 'tests/replay.py'} {folder}"
    libyaml, tool = ROOT / "tests/libyaml.py", SHARED_ROOT / "tools/score_scenarios.py"
    judge = [sys.executable, str(libyaml), str(tool), "--command", command]
    rules = ["--rules", str(ROOT / "prometheus/rules"), "--promtool", promtool]
    done = subprocess.run([*judge, *rules, str(file)], capture_output=True, text=True, check=False)
    return Judgement(done.returncode == 0 and "scenarios 1 " in done.stdout, done.stdout + done.stderr)


def examined(
    plays: Mapping[Trial, list[Trial]], judges: Mapping[Trial, list[str]], folder: Path
) -> dict[Trial, Examined]:
    """Play each once, then ask everything of it: the rules together with the others, the judge alone."""
    scenarios = {play: simulated(play, folder) for play in plays}
    questions: dict[tuple[str, str], list[Trial]] = {}
    for trial in chain.from_iterable(plays.values()):
        questions.setdefault((trial.promtool, trial.scraping), []).append(trial)
    answers: dict[Trial, Played] = {}
    with TemporaryDirectory(dir=folder) as scratch:
        for (promtool, scraping), trials in questions.items():
            recordings = [SCRAPING[scraping](scenarios[trial.play].recording) for trial in trials]
            answers.update(zip(trials, play_apart(promtool, recordings, Path(scratch)), strict=True))
    return {
        play: Examined(
            scenarios[play],
            {trial: answers[trial] for trial in trials},
            {promtool: judged(play.file, promtool, folder) for promtool in judges.get(play, ())},
        )
        for play, trials in plays.items()
    }


def _stand_back() -> None:
    """Leave the processors to those who measure time, and look for garbage rarely: nearly nothing here is any."""
    os.nice(5)
    gc.set_threshold(100_000, 50, 50)


class Lab:
    """Works on all trials and judgements from its creation on, one processor each; asking for one waits for it.

    `judged` holds pairs of a scenario and a promtool.
    """

    def __init__(self, trials: Iterable[Trial], judged: Iterable[tuple[Path, str]], folder: Path) -> None:
        self._pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn"), _stand_back)
        by_play: dict[Trial, list[Trial]] = {}
        for trial in dict.fromkeys(trials):
            by_play.setdefault(trial.play, []).append(trial)
        judges: dict[Trial, list[str]] = {}
        for file, promtool in judged:
            judges.setdefault(Trial(file, "").play, []).append(promtool)
        plays = list(dict.fromkeys([*by_play, *judges]))
        self._plays: dict[Trial, Future[dict[Trial, Examined]]] = {}
        for start in range(0, len(plays), BATCH):
            batch = {play: by_play.get(play, []) for play in plays[start : start + BATCH]}
            self._plays.update(dict.fromkeys(batch, self._pool.submit(examined, batch, judges, folder)))

    def answer(self, trial: Trial) -> tuple[Simulated, Played]:
        """What the node and the rules said."""
        found = self._examined(trial.play)
        return found.scenario, found.answers[trial]

    def judgement(self, file: Path, promtool: str) -> Judgement:
        """What the judge said."""
        return self._examined(Trial(file, "").play).judgements[promtool]

    def _examined(self, play: Trial) -> Examined:
        return self._plays[play].result()[play]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def expect_alerts(words: Mapping[str, Any], played: Played, *, patience: int = 1) -> None:
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


def expect_states(scenario: Simulated) -> None:
    """The states that the scenario promises, give or take a minute."""
    for want in scenario.words["expect"].get("states", ()):
        at = seconds(want["at"])
        assert want["state"] in scenario.states(at - 60, at + 60), want
