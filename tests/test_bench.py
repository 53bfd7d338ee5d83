"""The pure parts of the benchmarks: ratios, tables, what counts as found, and the page that they are written to."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rule_player import ROOT, Played

Load = Callable[[str], ModuleType]

BENCH = ROOT / "bench"


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    """Imports a benchmark by its file name, with those beside it; they are no package."""
    before = list(sys.path)
    sys.path.insert(0, str(BENCH))

    def loaded(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    yield loaded
    sys.path[:] = before


class TestRatio:
    def test_rounds_are_compared_with_their_own(self, load: Load) -> None:
        """A slow round of both leaves the ratio alone."""
        row = load("ratio").Comparison("x", [1.0, 10.0, 1.0], [2.0, 20.0, 4.0], "ms", 0.5)
        assert row.ratios == [0.5, 0.5, 0.25]
        assert row.ratio == 0.5
        assert row.met

    @pytest.mark.parametrize(("judged", "ratio", "met"), [("best", 1, True), ("median", 2, True), ("worst", 6, False)])
    def test_which_round_counts(self, load: Load, judged: str, ratio: float, met: bool) -> None:
        """And a bound is met when it is reached."""
        row = load("ratio").Comparison("x", [6.0, 1.0, 2.0], [1.0, 1.0, 1.0], "ms", 2.0, judged=judged)
        assert (row.ratio, row.met) == (ratio, met)

    def test_without_a_bound_nothing_is_judged(self, load: Load) -> None:
        """The cells of bound and verdict stay empty."""
        row = load("ratio").Comparison("x", [6.0], [1.0], "ms")
        assert row.met
        assert row.row().endswith("|  |  |")

    def test_table_says_what_was_missed(self, load: Load) -> None:
        """One row for each comparison, as wide as the head."""
        ratio = load("ratio")
        rows = [ratio.Comparison("good", [1.0], [2.0], "s", 1.0), ratio.Comparison("bad", [3.0], [2.0], "s", 1.0)]
        head, rule, good, bad = ratio.table(rows, "theirs").splitlines()
        assert "theirs" in head
        assert len({line.count("|") for line in (head, rule, good, bad)}) == 1
        assert good.endswith("| yes |")
        assert bad.endswith("| **NO** |")


class TestMeters:
    def test_samples_are_counted_without_comments(self, load: Load) -> None:
        """Neither HELP, TYPE nor the end of OpenMetrics is one."""
        assert load("meters").samples('# HELP a b\n# TYPE a gauge\na 1\na{b="c"} 2\n\n# EOF\n') == 2

    def test_own_process_has_cpu_time_and_memory(self, load: Load) -> None:
        """The clock is the one by which a process knows its own time."""
        meters = load("meters")
        before, between, after = time.process_time(), meters.cpu_seconds(os.getpid()), time.process_time()
        assert before <= between <= after
        held = meters.memory(os.getpid())
        assert held.unique <= held.proportional <= held.resident
        assert (held + held).resident == 2 * held.resident


def fired(alert: str, *minutes: int, **labels: str) -> Played:
    """Rules that said only this."""
    said = frozenset({"alertname": alert, "severity": "critical", **labels}.items())
    return Played({minute: frozenset({said}) for minute in minutes})


class TestDetection:
    WANTED = {"alerts": [{"alert": "TrainingStalled", "cause": "host", "after": "30m", "within": "15m"}]}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("minutes", "cause", "cell"),
        [
            ((40, 41), "host", "Stalled after 10 min"),
            ((46,), "host", "**missed** Stalled"),
            ((29, 40), "host", "**missed** Stalled"),
            ((40,), "storage", "**missed** Stalled"),
        ],
        ids=["in_time", "late", "early", "wrong_cause"],
    )
    def test_ours(self, load: Load, minutes: tuple[int, ...], cause: str, cell: str) -> None:
        """Only the right alert in its time is found."""
        detection = load("detection")
        assert detection.judge_ours(self.WANTED, fired("TrainingStalled", *minutes, cause=cause)).cell() == cell

    def test_ours_may_only_raise_what_is_wanted_or_allowed(self, load: Load) -> None:
        """Anything else is a false alarm."""
        detection = load("detection")
        played = fired("TrainingNoProgress", 5)
        assert detection.judge_ours({"may": ["TrainingNoProgress"]}, played).cell() == "quiet"
        assert detection.judge_ours({}, played).cell() == "**false** NoProgress at 5 min"

    @pytest.mark.parametrize(
        ("minutes", "cell"),
        [
            ((40,), "GpuIdle after 10 min"),
            ((), "**missed** a hang"),
            ((20, 40), "GpuIdle after 10 min; **false** GpuIdle at 20 min"),
            ((50,), "**missed** a hang"),
        ],
        ids=["in_time", "silent", "also_before", "late"],
    )
    def test_naive(self, load: Load, minutes: tuple[int, ...], cell: str) -> None:
        """Asked for the hang, whatever its cause is called; before it, nobody should be disturbed."""
        detection = load("detection")
        assert detection.judge_naive(self.WANTED, fired("GpuIdle", *minutes), "GpuIdle").cell() == cell

    def test_naive_is_not_blamed_for_what_else_is_wrong(self, load: Load) -> None:
        """A lost GPU is no hang, and to fire then disturbs nobody for nothing."""
        detection = load("detection")
        expected = {"alerts": [{"alert": "TrainingGpuLost", "after": "10m", "within": "5m"}]}
        assert detection.judge_naive(expected, fired("GpuIdle", 30), "GpuIdle").cell() == "quiet"

    def test_summary(self, load: Load) -> None:
        """Recall and precision over all scenarios."""
        detection = load("detection")
        rows = [
            detection.Judged((("a", 4.0), ("b", 10.0)), ("c",), ()),
            detection.Judged((), (), (("d", 3),)),
        ]
        assert detection.summary(detection.OURS, rows) == (
            "| training-exporter | 2/3 | 0.667 | 1 | 0.667 | 7 (4 to 10) min | 1 | **NO** |"
        )


class TestFleet:
    def test_one_node_in_a_hundred_hangs(self, load: Load) -> None:
        """Also in the smallest fleet there is one."""
        pages = load("fleet_pages")
        assert [sum(map(pages.stalled, range(nodes))) for nodes in (10, 100, 1000)] == [1, 1, 10]

    def test_rule_groups_are_read(self, load: Load) -> None:
        """From the metrics that Prometheus has of itself."""
        pattern = load("prometheus").GROUP
        line = 'prometheus_rule_group_last_duration_seconds{rule_group="/etc/rules/recording.yml;training-runs"} 0.25'
        match = pattern.match(line)
        assert match is not None
        assert match.groupdict() == {"what": "last_duration", "group": "training-runs", "value": "0.25"}


# Needs a GPU, and writes a page of its own.
APART = {"hardware.py", "run.py"}


class TestPage:
    def test_every_benchmark_is_on_it(self, load: Load) -> None:
        """Those are the scripts whose exit status says whether they kept their bounds."""
        scripts = {path.name for path in BENCH.glob("*.py") if "sys.exit(main())" in path.read_text()}
        assert set(load("run").BENCHMARKS) == scripts - APART

    TEXT = "== warm-up\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\nnote 1\nnote 2\n"

    def test_tables_stay_tables(self, load: Load) -> None:
        """All else is set as it was printed."""
        assert load("run").markdown(self.TEXT) == (
            "```text\n== warm-up\n```\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n```text\nnote 1\nnote 2\n```"
        )

    def test_what_is_not_run_again_stays(self, load: Load, tmp_path: Path) -> None:
        """The section of each benchmark is replaced alone, in the order in which they are listed."""
        run = load("run")
        page = tmp_path / "benchmarks.md"
        run.write(page, {"b.py": "## b.py: in bounds\n\nbefore\n", "a.py": "## a.py: in bounds\n"}, ("a.py", "b.py"))
        run.write(page, {"b.py": "## b.py: in bounds\n\nafter\n"}, ("a.py", "b.py"))
        text = page.read_text()
        assert text.index("## a.py") < text.index("## b.py")
        assert "after" in text
        assert "before" not in text
