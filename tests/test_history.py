"""The recent past of a run: bounded, and rates that do not lie at its edges."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from training_exporter.report.history import KEPT_MOMENTS, History, Rates
from training_exporter.runs.view import NodeView, RunView


def at(view: NodeView, seconds: float, **fields: object) -> NodeView:
    """The view `seconds` later, with changes to its only run."""
    run = replace(view.runs[0], **fields)  # type: ignore[arg-type]
    return replace(view, time_seconds=view.time_seconds + seconds, runs=(run,))


def only(view: NodeView) -> RunView:
    """The run of a view with one."""
    return view.runs[0]


class TestHistory:
    def test_rates(self, rich_view: NodeView) -> None:
        """Rates are differences of totals over the last minute."""
        history = History()
        run = only(rich_view)
        assert run.log is not None
        assert run.read_bytes_total is not None
        history.add(rich_view)
        log = replace(run.log, lines_total=run.log.lines_total + 30)
        gpus = tuple(replace(gpu, working_seconds_total=29_015.0) for gpu in rich_view.gpus)
        later = at(
            rich_view, 30, log=log, read_bytes_total=run.read_bytes_total + 3e6, cpu_seconds_total={"worker": 1393.5}
        )
        history.add(replace(later, gpus=gpus))
        assert Rates(
            lines_per_second=1.0,
            read_bytes_per_second=1e5,
            written_bytes_per_second=0.0,
            cpu_cores=2.0,
            gpu_working_ratio=0.5,
            seconds=30.0,
        ) == history.rates(run.name)

    def test_first_look_has_no_rate(self, rich_view: NodeView) -> None:
        """One moment alone, an unknown run and a gap of more than the window give no rate."""
        history = History()
        history.add(rich_view)
        assert Rates() == history.rates(only(rich_view).name) == history.rates("nobody")
        history.add(at(rich_view, 600))
        assert Rates() == history.rates(only(rich_view).name)

    def test_restarted_counter_has_no_rate(self, rich_view: NodeView) -> None:
        """A total that fell is no negative rate."""
        history = History()
        history.add(rich_view)
        history.add(at(rich_view, 10, read_bytes_total=5.0))
        assert history.rates(only(rich_view).name).read_bytes_per_second is None

    def test_bounded(self, rich_view: NodeView) -> None:
        """Steps are kept, looks between them are not, and an hour is the end."""
        history = History()
        for second in range(0, 10_000, 5):
            history.add(at(rich_view, second))
        kept = history.moments(only(rich_view).name)
        assert len(kept) == KEPT_MOMENTS
        assert {10.0} == {after.time_seconds - before.time_seconds for before, after in pairwise(kept)}

    def test_forgets_with_the_view(self, rich_view: NodeView) -> None:
        """A run that left the view leaves no memory behind."""
        history = History()
        history.add(rich_view)
        history.add(replace(rich_view, runs=()))
        assert history.moments(only(rich_view).name) == ()
