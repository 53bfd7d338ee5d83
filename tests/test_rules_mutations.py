"""Nothing in the judgement is for show: without any one signal, or a guard against blindness, a verdict is wrong.

Each story hangs on one thing alone. It is judged twice by the node and twice by the rules: as shipped, and without it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rule_player import RULES, Played, Recording, play, promtools, read_openmetrics
from training_exporter import simulate
from training_exporter.catalogue import SIGNALS
from training_exporter.model import SOURCES
from training_exporter.recording import Recording as OpenMetrics
from training_exporter.runs import picture
from training_exporter.runs.run import Run
from training_exporter.scenario.load import parse

TRAINING = """\
name: mutation
ranks: 1
gpu: {idle_watts: 60, limit_watts: 600, memory_total_mib: 80000}
run: {name: mutation, budgets: {idle: 3m, validation: 3m, checkpoint: 3m, start: 3m, progress: 5m}}
segments:
  - for: 4m
    gpu: {util: [95, 100], mem_util: 40, watts: [350, 400], memory_mib: 30000}
    cores: {rank: 1.0, loader: 0.5}
    read: 5MiB
    log:
      - {every: 10s, line: "step {n} loss {x:.3f}", n: {start: 10, by: 10}, x: {start: 3, by: -0.01}}
"""
# Twelve minutes in which one signal moves and no other, with budgets of 3 min.
ALONE = {
    "step": 'log: [{every: 30s, line: "step {n} loss {x:.3f}", n: {start: 250, by: 10}, x: {start: 2.8, by: -0.01}}]',
    "validation": (
        'log: [{every: 30s, line: "Validating:  10%|#         | {n}/1866 [00:10<01:40,  1.00it/s]",'
        " n: {start: 1, by: 20}}]"
    ),
    "checkpoint": "write: 0, checkpoint: {at: 0s, name: '0', layout: speculators, mib: 8000, takes: 11m}",
    "log": (
        'log: [{every: 30s, line: "Map:  10%|#         | {n}/100000 [00:10<01:40, 100.00 examples/s]",'
        " n: {start: 1000, by: 100}}]"
    ),
    "gpu": "gpu: {util: 97, mem_util: 40, watts: [350, 400], memory_mib: 30000}",
    "io": "read: 1MiB",
    "cpu": "cores: {rank: 0.05, loader: 0.5}",
}
# A source goes blind together with the run, or with its progress: what would be said, and the arm that prevents it.
STALL_GUARD = """\
                unless on (run)
              (run:training_blind:bool{source=~"gpu|processes|exporter"} == 1)
"""
PROGRESS_GUARD = """\
              unless on (run)
            (
              (run:training_blind:bool{source=~"logs|checkpoints|exporter"} == 1)
                unless on (run)
              (last_over_time(run:training_no_progress:bool[10m]) == 1)
            )
"""
BLIND = {
    "gpu": ("blind: [gpu]", "stalled", "TrainingStalled", STALL_GUARD),
    "processes": ("blind: [processes]", "stalled", "TrainingStalled", STALL_GUARD),
    "logs": ("blind: [logs], read: 1MiB", "no_progress", "TrainingNoProgress", PROGRESS_GUARD),
}


def story(rest: str) -> str:
    """The scenario: training, then what is given."""
    at_rest = {"gpu": "{watts: 84, memory_mib: 30000}", "cores": "{rank: 0.05}"}
    words = [f"{key}: {value}" for key, value in at_rest.items() if not rest.startswith(f"{key}: ")]
    return f"{TRAINING}  - {{for: 12m, {', '.join([*words, rest])}}}\n"


def told(text: str, folder: Path) -> tuple[set[str], Recording]:
    """The states of the node and the series that it leaves."""
    scrapes = OpenMetrics()
    changes = list(simulate.changes_of(parse("mutation.yaml", text), scrapes, interval_seconds=15))
    file = folder / "series.om"
    with file.open("w") as out:
        scrapes.write(out)
    return {change.state for change in changes}, read_openmetrics(file)


def judged(recording: Recording, folder: Path, mutate: Callable[[str], str] = str) -> Played:
    """What the rules say when their text is changed so."""
    files = []
    for file in RULES:
        files.append(folder / file.name)
        files[-1].write_text(mutate(file.read_text()))
    return play(promtools()[0], [recording], folder, rules=files)


def without_signal(signal: str) -> Callable[[str], str]:
    """No clock of a run reads this signal any more."""

    def mutate(text: str) -> str:
        idle = "training_activity_timestamp_seconds[5m]"
        progress = 'signal=~"step|validation|checkpoint|log"'
        rest = "|".join(word for word in ("step", "validation", "checkpoint", "log") if word != signal)
        text = text.replace(idle, f'training_activity_timestamp_seconds{{signal!="{signal}"}}[5m]')
        return text.replace(progress, f'signal=~"{rest}"')

    return mutate


def without_text(arm: str) -> Callable[[str], str]:
    """The arm is gone from wherever it stands."""
    return lambda text: text.replace(arm, "")


def test_every_signal_is_tried() -> None:
    """The stories are as many as the signals, and each guard stands once in the rules."""
    assert set(ALONE) == set(SIGNALS)
    rules = "".join(file.read_text() for file in RULES)
    assert [rules.count(guard) for guard in (STALL_GUARD, PROGRESS_GUARD)] == [1, 1]


@pytest.mark.parametrize("signal", SIGNALS)
class TestSignals:
    def test_node(self, signal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What keeps the run alive by itself is missed by the node when it is taken away."""
        text = story(ALONE[signal])
        assert "stalled" not in told(text, tmp_path)[0]
        mark = Run.mark
        monkeypatch.setattr(Run, "mark", lambda run, name, time: None if name == signal else mark(run, name, time))
        assert "stalled" in told(text, tmp_path)[0]

    def test_rules(self, signal: str, tmp_path: Path) -> None:
        """And by the rules."""
        _, recording = told(story(ALONE[signal]), tmp_path)
        assert judged(recording, tmp_path).minutes("TrainingStalled") == []
        assert judged(recording, tmp_path, without_signal(signal)).minutes("TrainingStalled")


@pytest.mark.parametrize("source", BLIND)
class TestBlindness:
    def test_node(self, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without its guard the node says what it cannot know."""
        rest, state, _, _ = BLIND[source]
        assert state not in told(story(rest), tmp_path)[0]
        monkeypatch.setattr(picture, "_blind", lambda *_: dict.fromkeys(SOURCES, False))
        assert state in told(story(rest), tmp_path)[0]

    def test_rules(self, source: str, tmp_path: Path) -> None:
        """Without the arm in the rules an alert fires."""
        rest, _, alert, guard = BLIND[source]
        _, recording = told(story(rest), tmp_path)
        assert judged(recording, tmp_path).minutes(alert) == []
        assert judged(recording, tmp_path, without_text(guard)).minutes(alert)
