"""The command `simulate`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from training_exporter import simulate
from training_exporter.runs.view import NodeView, RunView, Verdict
from training_exporter.scenario.load import parse
from training_exporter.scenario.play import EPOCH_SECONDS
from training_exporter.scenario.playback import Playback
from training_exporter.simulate import Change, Changes

STORY = """\
name: short
ranks: 2
gpu: {idle_watts: 60, limit_watts: 600, memory_total_mib: 80000}
run: {name: short-run, budgets: {idle: 3m}}
segments:
  - for: 5m
    gpu: {util: [95, 100], mem_util: 40, watts: [350, 400], memory_mib: 30000}
    cores: {rank: 1.0, loader: 0.5}
    read: 5MiB
    log:
      - {every: 10s, line: "step {n} loss {x:.3f}", n: {start: 10, by: 10}, x: {start: 3, by: -0.01}}
  - for: 10m
    gpu: {watts: 80}
    ranks: {0: {state: sleeping}, 1: {state: sleeping}}
  - {for: 5m, blind: [exporter]}
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What `simulate --json` prints for the short story, and the OpenMetrics file."""
    folder = tmp_path_factory.mktemp("simulate")
    story, series = folder / "short.yaml", folder / "out.om"
    story.write_text(STORY)
    out = io.StringIO()
    assert simulate.run(str(story), json=True, openmetrics=series, interval_seconds=15, out=out) == 0
    return out.getvalue(), series.read_text()


def view_of(*verdicts: tuple[str, str, str]) -> NodeView:
    """A picture with runs of these names, states and causes."""
    runs = tuple(
        RunView(name, "torchrun", "train.py", "", "", True, True, Verdict(state, 0, cause))  # noqa: FBT003
        for name, state, cause in verdicts
    )
    return NodeView(0.0, 0.0, runs)


class TestChanges:
    def test_only_what_is_new(self) -> None:
        """A change is another state, or another cause of the same one."""
        changes = Changes()
        told = [
            [(change.run, change.state, change.cause) for change in changes.between(view, second)]
            for second, view in enumerate(
                [
                    view_of(("a", "training", "")),
                    view_of(("a", "training", ""), ("b", "starting", "")),
                    view_of(("a", "stalled", "host"), ("b", "starting", "")),
                    view_of(("a", "stalled", "storage"), ("b", "starting", "")),
                ]
            )
        ]
        assert told == [
            [("a", "training", "")],
            [("b", "starting", "")],
            [("a", "stalled", "host")],
            [("a", "stalled", "storage")],
        ]

    def test_a_forgotten_run_is_absent_once(self) -> None:
        """A run that left the picture is absent, said once."""
        changes = Changes()
        list(changes.between(view_of(("a", "ended", "")), 0))
        assert [change.state for change in changes.between(view_of(), 1)] == ["absent"]
        assert not list(changes.between(view_of(), 2))

    def test_words(self) -> None:
        """A change reads as one line of JSON, or as one for a person."""
        change = Change(3725, "a", "stalled", "host", "Idle for 10 min.")
        assert json.loads(change.as_json()) == {"t": 3725, "run": "a", "state": "stalled", "cause": "host"}
        assert change.as_text() == "1:02:05  a  stalled (host)        Idle for 10 min."


class TestRun:
    def test_states(self, played: tuple[str, str]) -> None:
        """The story's states come in their order, the stall past the configured budget."""
        lines = [json.loads(line) for line in played[0].splitlines()]
        assert [line["state"] for line in lines] == ["starting", "training", "quiet", "stalled"]
        assert {line["run"] for line in lines} == {"short-run"}
        assert lines[-1]["cause"] == "host"
        assert 300 + 180 <= lines[-1]["t"] <= 300 + 180 + 15

    def test_series(self, played: tuple[str, str]) -> None:
        """The file is strict OpenMetrics with a sample each 15 s, and none while nobody could scrape."""
        assert played[1].endswith("# EOF\n")
        families = {family.name: family for family in text_string_to_metric_families(played[1])}
        times = [
            float(sample.timestamp) - EPOCH_SECONDS for sample in families["training_exporter_time_seconds"].samples
        ]
        assert times == list(range(0, 15 * 60, 15))

    def test_it_is_repeatable(self, played: tuple[str, str], tmp_path: Path) -> None:
        """A second run says the same to the byte."""
        story, series = tmp_path / "short.yaml", tmp_path / "out.om"
        story.write_text(STORY)
        out = io.StringIO()
        simulate.run(str(story), json=True, openmetrics=series, interval_seconds=15, out=out)
        assert (out.getvalue(), series.read_text()) == played

    def test_a_faulty_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A file with faults ends with 1 and the faults on the error output."""
        story = tmp_path / "bad.yaml"
        story.write_text(STORY.replace("for: 10m", "fur: 10m"))
        out = io.StringIO()
        assert simulate.run(str(story), json=True, openmetrics=None, interval_seconds=15, out=out) == 1
        assert out.getvalue() == ""
        assert "segments[1].fur" in capsys.readouterr().err

    def test_no_file(self, tmp_path: Path) -> None:
        """A file that is not there is an OSError for the command line to report, with its name."""
        missing = str(tmp_path / "missing.yaml")
        with pytest.raises(FileNotFoundError, match=r"missing\.yaml"):
            simulate.run(missing, json=False, openmetrics=None, interval_seconds=15, out=io.StringIO())

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        """An output that cannot be written is said before anything is played."""
        story, out = tmp_path / "short.yaml", io.StringIO()
        story.write_text(STORY)
        nowhere = tmp_path / "nowhere" / "out.om"
        with pytest.raises(FileNotFoundError, match="nowhere"):
            simulate.run(str(story), json=True, openmetrics=nowhere, interval_seconds=15, out=out)
        assert out.getvalue() == ""

    def test_a_shipped_name(self) -> None:
        """A shipped scenario is played by its name, as in the demo."""
        out = io.StringIO()
        assert simulate.run("rank-death", json=True, openmetrics=None, interval_seconds=15, out=out) == 0
        assert ("degraded", "rank") in [
            (change["state"], change["cause"]) for change in map(json.loads, out.getvalue().splitlines())
        ]


class TestExporterRestart:
    """The exporter is started anew in the middle of the story, with what it kept."""

    def states(self, restart_seconds: int, seconds: int) -> list[str]:
        """The states of each second after the restart."""
        playback = Playback(parse("short.yaml", STORY))
        for _ in range(restart_seconds):
            playback.advance()
        playback.restart()
        return [run.verdict.state for _ in range(seconds) for run in playback.advance().runs]

    def test_a_stall_is_not_hidden(self) -> None:
        """A run that was stalled is stalled, from the first second on."""
        assert set(self.states(restart_seconds=540, seconds=120)) == {"stalled"}

    def test_a_stall_is_not_made(self) -> None:
        """A run that trains goes on training."""
        assert set(self.states(restart_seconds=240, seconds=55)) == {"training"}

    def test_the_log_is_entered_at_its_end(self) -> None:
        """What stands in it already is no news: nothing moves, and the lines after it count."""
        playback = Playback(parse("short.yaml", STORY))
        for _ in range(240):
            playback.advance()
        playback.restart()
        (run,) = [playback.advance() for _ in range(3)][-1].runs
        assert run.log is not None
        assert (run.log.lines_total, run.step) == (0, 260)
        (run,) = [playback.advance() for _ in range(10)][-1].runs
        assert run.log is not None
        assert (run.log.lines_total, run.step) == (1, 270)

    def test_scrapes_are_missing_meanwhile(self) -> None:
        """For 20 s there is nothing to scrape."""
        seconds = [second for second, _, _ in simulate.play(parse("short.yaml", STORY), restart_at=240)]
        assert seconds == [*range(240), *range(260, 1201)]
