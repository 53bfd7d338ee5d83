"""`runs.power` and `runs.quantiles`: what is learnt of a GPU's power, and from which seconds."""

from __future__ import annotations

import math

import pytest

from training_exporter.runs.power import IdlePower, TrainPower, effort_ratio
from training_exporter.runs.quantiles import Histogram, Intervals


def rest(power: IdlePower, watts: list[float], *, at_rest: bool = True) -> None:
    """One sample a second."""
    for second, value in enumerate(watts):
        power.observe(float(second), value, at_rest=at_rest)


class TestIdlePower:
    def test_learns_steady_power_at_rest(self) -> None:
        """Ten seconds within 3 W."""
        power = IdlePower()
        rest(power, [64.0, 65.0, 64.5, 66.0, 65.0, 64.0, 65.5, 65.0, 64.0, 65.0])
        assert power.watts == pytest.approx(65.0, abs=1.0)

    def test_learns_nothing_from_power_that_varies(self) -> None:
        """The validation of the story: 0 % and 197-279 W."""
        power = IdlePower()
        rest(power, [197.0, 279.0, 230.0, 250.0] * 20)
        assert power.watts is None

    def test_learns_nothing_while_a_kernel_runs(self) -> None:
        """Steady power of a spin is no rest."""
        power = IdlePower()
        rest(power, [92.0] * 60, at_rest=False)
        assert power.watts is None

    def test_a_kernel_in_between_begins_the_ten_seconds_anew(self) -> None:
        """Two rests of five seconds are no rest of ten."""
        power = IdlePower()
        for second in range(40):
            power.observe(float(second), 64.0, at_rest=second % 6 != 0)
        assert power.watts is None

    def test_is_remembered(self) -> None:
        """Through the record that goes into the state file."""
        power, again = IdlePower(), IdlePower()
        rest(power, [64.0] * 20)
        again.restore(power.remember())
        assert again.watts == power.watts == 64.0


class TestTrainPower:
    def test_is_the_median_while_the_step_advanced(self) -> None:
        """A checkpoint between two steps does not count when it is discarded."""
        power = TrainPower()
        for _ in range(10):
            for _ in range(10):
                power.observe(370.0, 1.0)
            power.confirm()
        for _ in range(300):
            power.observe(90.0, 1.0)
        power.discard()
        power.confirm()
        assert power.watts == 370.0

    def test_stands_on_minute_means_until_a_step_is_read(self) -> None:
        """The 90th percentile of them: five minutes of rest, then one of work."""
        power = TrainPower()
        for watts in [70.0] * 300 + [600.0] * 60:
            power.observe(watts, 1.0)
        assert power.watts == 600.0

    def test_is_unknown_after_a_minute(self) -> None:
        """Too little was seen to call anything training."""
        power = TrainPower()
        for _ in range(100):
            power.observe(600.0, 1.0)
        assert power.watts is None

    def test_does_not_depend_on_the_rate_of_samples(self) -> None:
        """Three minutes at 400 W in few samples outweigh one at 100 W in many."""
        power = TrainPower()
        for _ in range(36):
            power.observe(400.0, 5.0)
        for _ in range(60):
            power.observe(100.0, 1.0)
        power.confirm()
        assert power.watts == 400.0

    def test_is_dropped_with_the_worker_set(self) -> None:
        """And learnt anew."""
        power = TrainPower()
        for _ in range(400):
            power.observe(600.0, 1.0)
        power.clear()
        assert power.watts is None


class TestEffort:
    @pytest.mark.parametrize(
        ("watts", "effort"),
        [(60.0, 0.0), (375.0, 1.0), (217.5, 0.5), (40.0, 0.0), (None, None)],
    )
    def test_is_the_place_between_rest_and_training(self, watts: float | None, effort: float | None) -> None:
        """0 at rest and under it, 1 at training."""
        assert effort_ratio(watts, 60.0, 375.0) == effort

    @pytest.mark.parametrize(("idle", "train"), [(None, 300.0), (60.0, None), (60.0, 99.0), (300.0, 60.0)])
    def test_is_unknown_until_both_ends_are_known_and_apart(self, idle: float | None, train: float | None) -> None:
        """Under 40 W the two cannot be told apart."""
        assert effort_ratio(80.0, idle, train) is None


class TestHistogram:
    def test_quantiles_count_weights(self) -> None:
        """Nine parts of ten lie at or below the 90th percentile."""
        histogram = Histogram(1.0)
        histogram.add(10.0, 9.0)
        histogram.add(20.0, 1.0)
        assert (histogram.quantile(0.5), histogram.quantile(0.9), histogram.quantile(0.95)) == (10.0, 10.0, 20.0)

    def test_an_empty_one_has_none(self) -> None:
        """Unknown, not 0."""
        assert Histogram(1.0).quantile(0.5) is None

    def test_the_old_fades_past_the_limit(self) -> None:
        """A hundred seconds at 50 W, then as many at 80 W: with a limit of 100 the new has more weight."""
        histogram = Histogram(1.0, limit=100.0)
        for watts in [50.0] * 100 + [80.0] * 100:
            histogram.add(watts)
        assert (histogram.quantile(0.5), histogram.weight <= 100.0) == (80.0, True)

    def test_logarithms_give_relative_resolution(self) -> None:
        """A step time of 2 % either way is the same."""
        histogram = Histogram(0.02)
        histogram.add(math.log(1.5))
        assert math.exp(histogram.quantile(0.5) or 0.0) == pytest.approx(1.5, rel=0.02)


class TestIntervals:
    def test_typical_is_the_90th_percentile_of_the_last_twenty(self) -> None:
        """One outlier among twenty is none, and what came before them is forgotten."""
        intervals = Intervals([1000.0] * 20)
        for value in [*range(1, 20), 500]:
            intervals.add(float(value))
        assert intervals.typical() == 18.0

    def test_is_unknown_while_there_is_none(self) -> None:
        """No interval, no guess."""
        assert Intervals().typical() is None
