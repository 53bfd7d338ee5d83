"""Families from a view: complete, without a series twice, and nothing where nothing is known."""

from __future__ import annotations

import math
import re
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tools import needs
from training_exporter import catalogue, metrics
from training_exporter.catalogue import CATALOGUE
from training_exporter.metrics import ReloadState, ViewCollector, families, label
from training_exporter.model import GpuDevice, Health
from training_exporter.runs.view import GpuView, MetricValue, NodeView, RunView, Verdict

GOLDEN = Path(__file__).parent / "golden" / "metrics.txt"
RELOAD = ReloadState(successful=True, success_seconds=1_699_000_000.0)
EMPTY = NodeView(time_seconds=100.0, wall_shift_seconds=0.0)


def registry_of(view: NodeView, reload_state: ReloadState | None = None) -> CollectorRegistry:
    """A registry of one collector over a fixed view."""
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: view, lambda: reload_state))
    return registry


def series(view: NodeView, name: str) -> dict[tuple[str, ...], float]:
    """Samples of one metric by the values of their labels, in the order of the catalogue."""
    labels = catalogue.BY_NAME[name].labels
    return {
        tuple(sample.labels[key] for key in labels): sample.value
        for family in families(view, RELOAD)
        for sample in family.samples
        if sample.name == name
    }


def bare_run(name: str = "r", **fields: object) -> RunView:
    """A run of which nothing is known but its name."""
    run = RunView(name, "torchrun", "train.py", "", "", paging=True, alive=True, verdict=Verdict("training", 30))
    return replace(run, **fields)  # type: ignore[arg-type]


def with_runs(*runs: RunView) -> NodeView:
    """A node without GPUs and sources."""
    return replace(EMPTY, runs=runs)


class TestFamilies:
    def test_golden(self, rich_view: NodeView, update_golden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """The whole text of a rich node is reviewed as a file; `pytest --update-golden` rewrites it."""
        monkeypatch.setattr(metrics, "__version__", "0.0.0")
        monkeypatch.setattr("platform.python_version", lambda: "3.0.0")
        text = generate_latest(registry_of(rich_view, RELOAD)).decode()
        text = re.sub(r"e\+0(\d\d)$", r"e+\1", text, flags=re.MULTILINE)  # as prometheus-client < 0.26 writes it
        if update_golden:
            GOLDEN.write_text(text)
        assert GOLDEN.read_text() == text

    def test_every_metric_of_the_catalogue_can_appear(self, rich_view: NodeView) -> None:
        """The rich view leaves no row of the catalogue without a series."""
        names = {sample.name for family in families(rich_view, RELOAD) for sample in family.samples}
        assert {spec.name for spec in CATALOGUE} == names

    def test_no_series_twice(self, rich_view: NodeView) -> None:
        """Even two runs of one name give each series once; a repeated one would cost the whole scrape."""
        doubled = replace(rich_view, runs=rich_view.runs * 2, gpus=rich_view.gpus * 2)
        counts = Counter(
            (sample.name, tuple(sorted(sample.labels.items())))
            for family in families(doubled, RELOAD)
            for sample in family.samples
        )
        assert [key for key, count in counts.items() if count > 1] == []

    def test_series_count(self, rich_view: NodeView) -> None:
        """A node with 8 GPUs and one run stays near the promised 390 series."""
        count = sum(len(family.samples) for family in families(rich_view, RELOAD))
        assert 330 <= count <= 420

    def test_labels_are_those_of_the_catalogue(self, rich_view: NodeView) -> None:
        """Each sample carries exactly the labels that its row names."""
        wrong = [
            sample.name
            for family in families(rich_view, RELOAD)
            for sample in family.samples
            if set(sample.labels) != set(catalogue.BY_NAME[sample.name].labels)
        ]
        assert wrong == []

    @needs("promtool")
    def test_promtool_accepts_it(self, rich_view: NodeView) -> None:
        """`promtool check metrics` finds neither an error nor a naming fault."""
        text = generate_latest(registry_of(rich_view, RELOAD))
        result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
        assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")

    def test_openmetrics_parses(self, rich_view: NodeView) -> None:
        """The OpenMetrics text survives the reference parser and has no `_created` series."""
        text = generate_openmetrics(registry_of(rich_view, RELOAD)).decode()
        samples = [s.name for family in text_string_to_metric_families(text) for s in family.samples]
        assert len(samples) == sum(len(family.samples) for family in families(rich_view, RELOAD))
        assert not any(name.endswith("_created") for name in samples)


class TestAbsence:
    def test_empty_node(self) -> None:
        """Without GPU, job and sources only the exporter speaks of itself."""
        names = {family.name for family in families(EMPTY)}
        assert names == {
            "training_exporter_build_info",
            "training_exporter_time_seconds",
            "training_exporter_series_dropped",
        }

    def test_unknown_is_absent(self) -> None:
        """A run of which only the name is known exports no zero in place of a measurement."""
        names = {family.name for family in families(with_runs(bare_run()))}
        assert not names & {
            "training_run_processes",
            "training_run_process_state",
            "training_step",
            "training_phase",
            "training_log_lines",
            "training_checkpoints",
            "training_run_end_time_seconds",
        }

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_what_is_no_number_is_absent(self, value: float) -> None:
        """A validation result that is NaN leaves no value; its counter tells."""
        run = bare_run(
            metrics={("validation", "loss"): MetricValue(value, 90.0)},
            metrics_nonfinite_total={"validation": 1},
        )
        assert series(with_runs(run), "training_metric_value") == {}
        assert series(with_runs(run), "training_metric_nonfinite_total") == {("r", "validation"): 1.0}

    def test_failed_source_has_health_only(self) -> None:
        """A source that never succeeded has no duration and no time of success."""
        view = replace(EMPTY, health={"gpu": Health(success=False, stuck=True)})
        assert series(view, "training_exporter_collector_success") == {("gpu",): 0.0}
        assert series(view, "training_exporter_collector_stuck") == {("gpu",): 1.0}
        assert series(view, "training_exporter_collector_last_success_timestamp_seconds") == {}


class TestSets:
    def test_outcome_is_complete_from_the_start(self) -> None:
        """All outcomes are 0 while the run lives and exactly one is 1 after its end."""
        name = "training_run_outcome"
        assert dict.fromkeys((("r", o) for o in catalogue.OUTCOMES), 0.0) == series(with_runs(bare_run()), name)
        ended = series(with_runs(bare_run(outcome="failed")), name)
        assert {key: value for key, value in ended.items() if value} == {("r", "failed"): 1.0}

    def test_phase_is_one_hot(self) -> None:
        """Exactly one of all phases is 1."""
        phases = series(with_runs(bare_run(phase="training")), "training_phase")
        assert {("r", phase) for phase in catalogue.PHASES} == set(phases)
        assert [key for key, value in phases.items() if value == 1] == [("r", "training")]

    def test_process_roles_and_states_are_complete(self) -> None:
        """Once the table was read, a role or state that nobody has is 0."""
        view = with_runs(bare_run(processes={"worker": 2}, process_states={"stopped": 1}))
        assert series(view, "training_run_processes") == {
            ("r", "launcher"): 0,
            ("r", "worker"): 2,
            ("r", "loader"): 0,
            ("r", "other"): 0,
        }
        assert len(series(view, "training_run_process_state")) == 5

    def test_absent_expected_run_is_zero(self) -> None:
        """Roles that are known to be empty are exported as 0."""
        view = with_runs(bare_run(processes=dict.fromkeys(catalogue.ROLES, 0)))
        assert {0.0} == set(series(view, "training_run_processes").values())


class TestCeilings:
    def test_one_run_cannot_crowd_out_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A run with a million metric names loses the excess, which is counted; its neighbour loses nothing."""
        monkeypatch.setattr(metrics, "MOST_SERIES_PER_RUN", 100)
        names = {("train", f"name_{number}"): MetricValue(1.0, 90.0) for number in range(1000)}
        view = with_runs(bare_run("greedy", metrics=names), bare_run("modest", step=7))
        assert series(view, "training_step") == {("modest",): 7.0}
        dropped = series(view, "training_exporter_series_dropped")[()]
        assert 1000 - 100 < dropped < 1000

    def test_whole_scrape(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The node has a ceiling too; the exporter's own health stays below it."""
        monkeypatch.setattr(metrics, "MOST_SERIES", 50)
        view = replace(
            with_runs(*(bare_run(f"r{number}") for number in range(100))), health={"gpu": Health(success=True)}
        )
        assert sum(len(family.samples) for family in families(view)) == 51
        assert series(view, "training_exporter_collector_success") == {("gpu",): 1.0}
        assert series(view, "training_exporter_series_dropped")[()] > 500


class TestTimes:
    def test_wall_times_follow_the_wall_clock(self, rich_view: NodeView) -> None:
        """All timestamps are steady time plus the shift, so that ages on the exporter's clock never jump."""
        exporter = series(rich_view, "training_exporter_time_seconds")[()]
        activity = series(rich_view, "training_activity_timestamp_seconds")["eagle3-synth100k", "log"]
        assert rich_view.time_seconds + 5 == exporter
        assert exporter - activity == 30.0

    def test_checkpoint_time_is_the_files_own(self, rich_view: NodeView) -> None:
        """The modification time is exported as the file system says it; the age is on the steady clock."""
        run = ("eagle3-synth100k",)
        assert rich_view.time_seconds - 5395 == series(rich_view, "training_checkpoint_last_timestamp_seconds")[run]
        assert series(rich_view, "training_checkpoint_age_seconds")[run] == 5400.0


class TestLabel:
    def test_long_values_stay_apart(self) -> None:
        """Names of a mebibyte are cut, and two that differ at the end remain two."""
        first, second = label("x" * 2**20), label("x" * 2**20 + "y")
        assert metrics.LABEL_CHARACTERS == len(first) == len(second)
        assert first != second

    def test_invalid_utf8_is_replaced(self) -> None:
        """A surrogate from an undecodable command line cannot break the encoding of the scrape."""
        run = bare_run(name="r\udcff", script='a"b\nc\\d')
        text = generate_latest(registry_of(with_runs(run))).decode()
        assert 'run="r?"' in text
        assert r'script="a\"b\nc\\d"' in text


class TestViewCollector:
    def test_registering_collects_nothing(self) -> None:
        """A registry may take the collector before there is a first view."""
        asked = []

        def no_view() -> NodeView:
            asked.append("view")
            raise AssertionError

        CollectorRegistry(auto_describe=True).register(ViewCollector(no_view))
        assert asked == []

    def test_name_selection(self, rich_view: NodeView) -> None:
        """`name[]` finds counters and gauges by their exposed name."""
        names = ["training_step", "training_log_lines_total"]
        text = generate_latest(registry_of(rich_view).restricted_registry(names)).decode()
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert sorted(names) == sorted(line.partition("{")[0] for line in lines)

    def test_dropped_series_are_said_once(
        self, rich_view: NodeView, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The log tells once that series are left out, not with every scrape."""
        monkeypatch.setattr(metrics, "MOST_SERIES_PER_RUN", 10)
        registry = registry_of(rich_view)
        for _ in range(3):
            generate_latest(registry)
        assert caplog.text.count("series are left out") == 1

    def test_gpu_without_a_run(self) -> None:
        """A GPU that nobody uses is shown with what its driver said."""
        gpu = GpuView(device=GpuDevice("0", "GPU-0"), lost=True)
        assert series(replace(EMPTY, gpus=(gpu,)), "training_gpu_lost") == {("0",): 1.0}
