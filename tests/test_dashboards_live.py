"""Every query of the dashboards against real Prometheus servers, in training, validation, checkpoint and stall."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boards.board import panels_of, selector_of
from boards.fleet import NO_TARGET
from dashboard_stage import INSTANCE, Answers, is_ready, prometheus, record, serving, simulate, until
from rule_player import JOB, ROOT
from training_exporter.demo_stack import free_port
from training_exporter.runs.verdict import CODES
from training_exporter.scenario.play import EPOCH_SECONDS

TOUR = ROOT / "tests/data/dashboard-tour.yaml"
BOARDS = {
    name: json.loads((ROOT / f"grafana/dashboards/{name}.json").read_text(encoding="utf-8"))
    for name in ("fleet", "run", "node")
}
# The oldest that the rules promise to work with, and the newest of the tests.
VERSIONS = ("2.42", "3.5")
# Seconds of the tour; what a panel over time draws is asked at the same moments.
MOMENTS = {
    "training": 41 * 60,
    "validating": 34 * 60 + 30,
    "checkpointing": 37 * 60 + 15,
    "stalled": 56 * 60,
}
DOWN = 66 * 60
# Panels that may be empty, and why.
MAY_BE_EMPTY = {"Firing alerts": "nothing fires in a healthy phase"}
CHOSEN = {"job": ".+", "run": "tour", "node": INSTANCE, "gpu": ".+", "__rate_interval": "1m"}


def chosen(query: str) -> str:
    """A query as Grafana sends it once everything on the screen is chosen."""
    return re.sub(r"\$(\w+)", lambda match: CHOSEN[match[1]], query)


def queries(board: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Title of the panel and target, for every query of a dashboard."""
    for panel in panels_of(BOARDS[board]):
        for target in panel["targets"]:
            yield panel["title"], target


def query_of(board: str, title: str) -> str:
    """The one query of a panel."""
    (found,) = (target["expr"] for panel, target in queries(board) if panel == title)
    return chosen(found)


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a Prometheus that saw the tour."""
    if shutil.which("promtool") is None:
        _missing("promtool")
    folder = tmp_path_factory.mktemp("tour")
    simulate(TOUR, folder / "tour.om")
    record({INSTANCE: folder / "tour.om"}, folder / "data")
    return folder / "data"


@pytest.fixture(scope="module", params=VERSIONS)
def program(request: pytest.FixtureRequest) -> Path:
    """Prometheus of that version."""
    found = prometheus(request.param)
    if found is None:
        _missing(f"Prometheus {request.param}")
    return found


@pytest.fixture(scope="module")
def answers(program: Path, tour: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """A Prometheus of that version which saw the tour."""
    data = tmp_path_factory.mktemp("served") / "data"
    shutil.copytree(tour, data)
    with serving(program, data) as found:
        yield found


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing: scripts/install-test-tools")
    pytest.skip(f"{what} is not installed")


class TestQueries:
    @pytest.mark.parametrize("moment", MOMENTS)
    def test_the_tour_is_where_it_should_be(self, answers: Answers, moment: str) -> None:
        """The rules and the exporter agree on the state at each moment of these tests."""
        at = EPOCH_SECONDS + MOMENTS[moment]
        assert answers.values("run:training_state:code", at) == [CODES[moment]]
        assert answers.values("training_run_state_code", at) == [CODES[moment]]

    @pytest.mark.parametrize("board", BOARDS)
    @pytest.mark.parametrize("moment", MOMENTS)
    def test_every_query_returns_rows_with_the_labels_of_its_legend(
        self, answers: Answers, board: str, moment: str
    ) -> None:
        """No panel is empty or shows a legend with a hole in it, in any phase of a run that tells everything."""
        faults = []
        for title, target in queries(board):
            rows = answers.rows(chosen(target["expr"]), EPOCH_SECONDS + MOMENTS[moment])
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            if not rows and title not in MAY_BE_EMPTY:
                faults.append(f"{title} {target['refId']}: no rows")
            faults += [f"{title} {target['refId']}: {wanted - set(row)}" for row in rows if wanted - set(row)]
        assert faults == []

    @pytest.mark.parametrize("board", BOARDS)
    def test_columns_of_a_table_join(self, answers: Answers, board: str) -> None:
        """All queries of a table have the same rows, so that the merge makes one line of each."""
        at = EPOCH_SECONDS + MOMENTS["stalled"]
        faults = []
        for panel in panels_of(BOARDS[board]):
            if panel["type"] == "table":
                columns = [answers.rows(chosen(target["expr"]), at) for target in panel["targets"]]
                shared = set.intersection(*(set(row) for rows in columns for row in rows))
                keys = [sorted(tuple(row[label] for label in sorted(shared)) for row in rows) for rows in columns]
                faults += [panel["title"] for key in keys if key != keys[0]]
        assert faults == []

    @pytest.mark.parametrize("board", BOARDS)
    def test_every_variable_offers_something(self, answers: Answers, board: str) -> None:
        """Each choice can be made, from the series of the time range on the screen."""
        wanted = {"job": [JOB], "run": ["tour"], "node": [INSTANCE], "gpu": ["0", "1"]}
        start, end = EPOCH_SECONDS, EPOCH_SECONDS + MOMENTS["stalled"]
        for variable in BOARDS[board]["templating"]["list"]:
            if variable["type"] == "query":
                label = variable["definition"].rpartition(", ")[2].removesuffix(")")
                found = answers.label_values(chosen(selector_of(variable)), label, start, end)
                assert found == wanted[variable["name"]]

    @pytest.mark.parametrize("board", BOARDS)
    def test_annotations_mark_what_happened(self, answers: Answers, board: str) -> None:
        """Each kind of mark is there in an hour in which everything happens, except for a restart."""
        start, end = EPOCH_SECONDS, EPOCH_SECONDS + DOWN
        found = {
            note["name"]: len(answers.ranges(chosen(note["expr"]), start, end, 30))
            for note in BOARDS[board]["annotations"]["list"]
        }
        assert [name for name, count in found.items() if not count] == (["Workers replaced"] if board == "run" else [])

    def test_the_run_table_shows_the_state_that_the_band_shows(self, answers: Answers) -> None:
        """And in a stall the cause, the silence past its budget and the alert."""
        at = EPOCH_SECONDS + MOMENTS["stalled"]
        assert answers.values(query_of("run", "Verdict"), at) == [CODES["stalled"]]
        assert answers.values(query_of("fleet", "Stalled, degraded or failed"), at) == [1]
        (used,) = answers.values(query_of("run", "Silence used up"), at)
        assert used > 1
        assert "TrainingStalled" in {row["alertname"] for row in answers.rows(query_of("fleet", "Firing alerts"), at)}

    def test_silence_tells_a_validation_from_a_hang(self, answers: Answers) -> None:
        """The same tile that passes 100 % in the hang stays low while a validation idles on its GPUs."""
        (used,) = answers.values(query_of("run", "Silence used up"), EPOCH_SECONDS + MOMENTS["validating"])
        assert used < 0.1


class TestBlind:
    """The fleet dashboard where nobody looks."""

    COUNTS = ("No progress or unknown", "Training", "Validating", "Checkpointing", "Absent or no data")

    def test_an_exporter_that_went_away_is_counted_and_no_zero_is_shown(self, answers: Answers) -> None:
        """What is known of a stall stays; what nobody counts any more has no number."""
        at = EPOCH_SECONDS + DOWN
        assert answers.values(query_of("fleet", "Exporters down"), at) == [1]
        assert answers.values(query_of("fleet", "Stalled, degraded or failed"), at) == [1]
        assert {title: answers.values(query_of("fleet", title), at) for title in self.COUNTS} == {
            title: [] for title in self.COUNTS
        }
        fired = {row["alertname"] for row in answers.rows(query_of("fleet", "Firing alerts"), at)}
        assert "TrainingExporterDown" in fired

    def test_a_run_of_which_nothing_is_heard_has_no_data(self, answers: Answers) -> None:
        """Where the rules say nothing, the band has a word for an hour after the exporter went away."""
        state = query_of("fleet", "State of every run").replace(
            "run:training_state:code", "missing:training_state:code"
        )
        assert answers.values(state, EPOCH_SECONDS + DOWN) == [0]

    def test_without_a_target_the_tile_says_so(self, program: Path, tmp_path: Path) -> None:
        """A Prometheus that scrapes no exporter is not a fleet without trouble."""
        with serving(program, tmp_path / "data") as empty:
            assert empty.values(query_of("fleet", "Exporters down"), EPOCH_SECONDS) == [NO_TARGET]
            counts = (*self.COUNTS, "Stalled, degraded or failed")
            assert [title for title in counts if empty.values(query_of("fleet", title), EPOCH_SECONDS)] == []

    def test_a_target_that_never_answered_is_down(self, program: Path, tmp_path: Path) -> None:
        """From the first scrape on, before any series of it exists."""
        target = {"job_name": JOB, "static_configs": [{"targets": [f"127.0.0.1:{free_port()}"]}]}
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [target]}
        query = query_of("fleet", "Exporters down")
        with serving(program, tmp_path / "data", config) as alone:
            until(lambda: alone.values(query) == [1])
            assert [title for title in self.COUNTS if alone.values(query_of("fleet", title))] == []


class TestDemo:
    def test_every_query_returns_rows_from_a_scraped_demo(self, program: Path, tmp_path: Path) -> None:
        """What the exporter serves, Prometheus scrapes and the rules make live is what the dashboards ask for."""
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/prometheus").symlink_to(program)
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        listen = f"127.0.0.1:{free_port()}"
        words = ["--scenario", str(TOUR), "--start", "52m", "--monitoring", str(ROOT), "--web.listen-address", listen]
        command = [sys.executable, "-m", "training_exporter", "demo", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path}) as demo:
            try:
                (address,) = re.findall(r"^Prometheus: +http://(\S+)/$", _head(demo, "Prometheus:"), re.MULTILINE)
                until(lambda: is_ready(address))
                until(lambda: _without_rows(Answers(address), listen), [])
                assert demo.poll() is None
            finally:
                demo.terminate()


def _head(program: subprocess.Popen[str], word: str) -> str:
    """What a program prints up to the line that begins with `word`."""
    text = ""
    for line in program.stdout or ():
        text += line
        if line.startswith(word):
            break
    return text


# A demo has no past of the recording rules, of which this panel takes a sample a minute.
NOT_YET = "GPU-hours by state, last 24 h"


def _without_rows(answers: Answers, instance: str) -> list[str]:
    """The queries that return nothing now, on the node that is called `instance`."""
    return [
        f"{board}: {title} {target['refId']}"
        for board in BOARDS
        for title, target in queries(board)
        if title not in {*MAY_BE_EMPTY, NOT_YET}
        and not answers.rows(chosen(target["expr"]).replace(INSTANCE, instance))
    ]
