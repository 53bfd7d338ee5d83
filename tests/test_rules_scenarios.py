"""Scenarios through the exporter and then through the rules: what fires, and that node and rules see the same state.

The shipped scenarios, one for each alert that those do not raise (`scenarios/`), and those beside this checkout in
`../shared/scenarios` where that folder is. Under bad conditions a chosen few, or with `--robustness` all of them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rule_player import play, promtools
from scenario_lab import OWN, SHARED, SHARED_ROOT, SHIPPED, Lab, Trial, expect_alerts, expect_states
from training_exporter.runs.verdict import CODES

# One worker plays for all, from the start of the session on: the lab takes whatever the processors have left, so a test
# may wait long for its play.
pytestmark = pytest.mark.timeout(1500)

OLDEST, NEWEST = promtools()[0], promtools()[-1]
# A change of state reaches the rules with the next scrape (15 s) and evaluation (30 s), and a minute is granted.
GRACE_SECONDS = 60 + 15 + 30
# How long after a scrape was last possible the rules may still speak of what they saw then.
LOOKBACK_SECONDS = 300
# Every cause of a stall, every kind of blindness to it, and healthy runs that look like stalls.
CHOSEN = (
    "collective-hang", "healthy", "loader-deadlock", "slow-validation", "storage-hang", "long-checkpoint",
    "blind-processes", "stopped", "no-gpu", "no-log",
)  # fmt: skip
# A stall and an end.
ALONE = ("loader-deadlock", "rank-death")
CONDITIONS: Mapping[str, Mapping[str, object]] = {
    "60s": {"scraping": "60s"},
    "fifth_missing": {"scraping": "fifth_missing"},
    "60s_fifth_missing": {"scraping": "60s_fifth_missing"},
    "restart": {"restart": True},
    "x0.7": {"stretch": 0.7},
    "x1.3": {"stretch": 1.3},
}


def everything() -> list[Trial]:
    """Every shipped and shared scenario under every condition."""
    return [Trial(file, OLDEST, **words) for words in CONDITIONS.values() for file in SHIPPED + SHARED]  # type: ignore[arg-type]


def chosen() -> list[Trial]:
    """Each of a chosen few under two conditions, in turn, so that each condition meets stalls and healthy runs."""
    files = [file for name in CHOSEN for file in SHIPPED + OWN if file.stem == name]
    conditions = list(CONDITIONS.values())
    return [
        Trial(file, OLDEST, **conditions[(number + turn) % len(conditions)])  # type: ignore[arg-type]
        for number, file in enumerate(files)
        for turn in (0, 3)
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Trials are parameters, so that the lab knows from the start which of them are asked for."""
    if metafunc.function is test_alerts_and_states:
        trials = [Trial(file, OLDEST) for file in SHIPPED + OWN + SHARED]
    elif metafunc.function is test_newest_promtool:
        trials = [Trial(file, NEWEST) for file in SHIPPED]
    elif metafunc.function is test_alone:
        trials = [Trial(file, OLDEST) for file in SHIPPED if file.stem in ALONE]
    elif metafunc.function is test_bad_conditions:
        trials = everything() if metafunc.config.getoption("--robustness") else chosen()
    elif metafunc.function is test_score_of_scenarios:
        # what it asks is asked with the oldest promtool too, and more, by test_alerts_and_states
        pairs = [(file, NEWEST) for file in SHARED]
        metafunc.parametrize("judged_scenario", pairs, ids=lambda pair: f"{pair[0].stem}-{Path(pair[1]).name}")
        return
    else:
        return
    metafunc.parametrize("trial", trials, ids=lambda trial: trial.name)


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Plays what the collected tests ask for, on all processors."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    trials = [given["trial"] for given in parameters if "trial" in given]
    judged = [given["judged_scenario"] for given in parameters if "judged_scenario" in given]
    laboratory = Lab(trials, judged, tmp_path_factory.mktemp("lab"))
    yield laboratory
    laboratory.close()


def test_alerts_and_states(lab: Lab, trial: Trial) -> None:
    """The expected alerts and no other, and at every minute a state that the node's own verdict has around then."""
    scenario, played = lab.answer(trial)
    expect_alerts(scenario.words, played)
    expect_states(scenario)
    disagreements = {}
    for minute, codes in played.codes.items():
        now = minute * 60
        states = scenario.states(now - GRACE_SECONDS, now + 60)
        watched = scenario.is_watched(now, lookback_seconds=LOOKBACK_SECONDS)
        if watched and codes.get(scenario.run, 0) not in {CODES[state] for state in states}:
            disagreements[minute] = codes.get(scenario.run), states
    assert disagreements == {}


def test_newest_promtool(lab: Lab, trial: Trial) -> None:
    """The newest Prometheus that is promised says the same."""
    scenario, played = lab.answer(trial)
    expect_alerts(scenario.words, played)


def test_alone(lab: Lab, trial: Trial, tmp_path: Path) -> None:
    """That the rules saw other runs beside it changes nothing in what they say of one."""
    scenario, played = lab.answer(trial)
    assert play(trial.promtool, [scenario.recording], tmp_path) == played


def test_bad_conditions(lab: Lab, trial: Trial) -> None:
    """Scraped badly, exporter restarted, or another tempo: silence stays, the rest comes within twice its time."""
    scenario, played = lab.answer(trial)
    expect_alerts(scenario.words, played, patience=2)


def test_score_of_scenarios(lab: Lab, judged_scenario: tuple[Path, str]) -> None:
    """The judge of the scenarios beside this checkout is content with each of them."""
    judgement = lab.judgement(*judged_scenario)
    assert judgement.content, judgement.said


@pytest.mark.skipif(
    not (SHARED_ROOT / "tools/score_logs.py").exists(), reason="no ../shared/tools beside this checkout"
)
def test_score_of_logs() -> None:
    """The judge of the logs beside this checkout is content."""
    command = f"{Path(sys.executable).with_name('training-exporter')} parse-log --json"
    tool = [sys.executable, str(SHARED_ROOT / "tools/score_logs.py"), "--command", command]
    done = subprocess.run([*tool, str(SHARED_ROOT / "research/logs")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
