"""`runs.budgets`: how long is too long, per phase, learnt and configured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from training_exporter.config import Budgets
from training_exporter.runs.budgets import Learner, Situation, current_budgets, idle_budget, phase_budget

LEARNT_NOTHING = Budgets()
TRAINING = Situation("training", seen_working=True, weak_evidence=False, host_work=False)


def stepping(seconds: float, count: int = 10, steps: int = 1) -> Learner:
    """A learner that saw so many steps at this distance."""
    learner = Learner()
    for number in range(count):
        learner.step(number * seconds, steps)
    return learner


class TestIdleBudget:
    @pytest.mark.parametrize(
        ("interval", "budget"),
        [(12.0, 600.0), (200.0, 1000.0), (3600.0, 1800.0)],
        ids=["floor", "learnt", "ceiling"],
    )
    def test_is_five_step_intervals_within_limits(self, interval: float, budget: float) -> None:
        """600 to 1800 s."""
        assert idle_budget(LEARNT_NOTHING, stepping(interval)) == budget

    def test_without_steps_it_is_the_floor(self) -> None:
        """Nothing learnt yet."""
        assert idle_budget(LEARNT_NOTHING, Learner()) == 600.0

    def test_a_configured_value_wins(self) -> None:
        """Whatever was learnt."""
        assert idle_budget(Budgets(idle=42.0), stepping(3600.0)) == 42.0


class TestPhaseBudget:
    @pytest.mark.parametrize(
        ("phase", "kind", "first", "learnt"),
        [
            ("validating", "validation", 2700.0, [(100.0, 900.0), (1000.0, 3000.0), (9000.0, 7200.0)]),
            ("checkpointing", "checkpoint", 900.0, [(10.0, 600.0), (500.0, 1500.0), (9000.0, 3600.0)]),
            ("starting", "start", 1800.0, [(10.0, 1800.0), (1000.0, 3000.0), (9000.0, 7200.0)]),
        ],
    )
    def test_first_and_learnt_values(
        self, phase: str, kind: str, first: float, learnt: list[tuple[float, float]]
    ) -> None:
        """A generous first one, then three times the 90th percentile within limits."""
        assert phase_budget(phase, LEARNT_NOTHING, Learner()) == first
        for seconds, budget in learnt:
            learner = Learner()
            learner.begin(kind, 0.0)
            learner.end(kind, seconds)
            assert phase_budget(phase, LEARNT_NOTHING, learner) == budget

    def test_configured_values_win(self) -> None:
        """Each for its phase."""
        configured = Budgets(validation=1.0, start=2.0, checkpoint=3.0)
        phases = ("validating", "starting", "checkpointing")
        assert [phase_budget(phase, configured, Learner()) for phase in phases] == [1.0, 2.0, 3.0]


class TestCurrentBudgets:
    def test_training_rests_for_the_idle_budget(self) -> None:
        """And an hour without progress."""
        assert current_budgets(TRAINING, LEARNT_NOTHING, Learner()) == (600.0, 3600.0)

    def test_weak_evidence_selects_the_long_budget(self) -> None:
        """1800 s while training."""
        assert current_budgets(replace(TRAINING, weak_evidence=True), LEARNT_NOTHING, Learner())[0] == 1800.0

    @pytest.mark.parametrize(
        ("working", "weak", "idle"), [(False, False, 2700.0), (True, False, 600.0), (True, True, 2700.0)]
    )
    def test_a_long_budget_needs_an_unseen_phase_or_weak_evidence(self, working: bool, weak: bool, idle: float) -> None:
        """A validation that was seen working and falls silent is judged by the idle budget."""
        now = Situation("validating", seen_working=working, weak_evidence=weak, host_work=False)
        assert current_budgets(now, LEARNT_NOTHING, Learner())[0] == idle

    def test_progress_is_twice_the_phase_budget(self) -> None:
        """Also of a validation that was seen working."""
        now = Situation("validating", seen_working=True, weak_evidence=False, host_work=False)
        assert current_budgets(now, LEARNT_NOTHING, Learner())[1] == 5400.0

    def test_progress_is_three_typical_intervals(self) -> None:
        """A log line every 100 min is not a lack of progress after one hour."""
        learner = Learner()
        for number in range(4):
            learner.progress(number * 6000.0)
        assert current_budgets(TRAINING, LEARNT_NOTHING, learner)[1] == 18000.0

    def test_a_burst_of_progress_is_one_move(self) -> None:
        """Lines in a block do not hide how far apart the blocks are."""
        learner = Learner()
        for number in range(4):
            for line in range(50):
                learner.progress(number * 6000.0 + line)
        assert current_budgets(TRAINING, LEARNT_NOTHING, learner)[1] == pytest.approx(3 * 5951.0)

    @pytest.mark.parametrize(("works", "progress"), [(True, 14400.0), (False, 3600.0)])
    def test_a_start_with_host_work_may_take_four_hours(self, works: bool, progress: float) -> None:
        """Tokenising takes hours; a start in which nobody works does not."""
        now = Situation("starting", seen_working=works, weak_evidence=False, host_work=works)
        assert current_budgets(now, LEARNT_NOTHING, Learner())[1] == progress

    def test_a_person_at_a_terminal_may_take_a_day(self) -> None:
        """Both budgets."""
        assert current_budgets(replace(TRAINING, waiting=True), LEARNT_NOTHING, Learner()) == (86400.0, 86400.0)


class TestLearner:
    def test_the_first_intervals_teach_nothing(self) -> None:
        """They hold compilation and caches being filled."""
        learner = Learner()
        for time in (0.0, 900.0, 1200.0, 1210.0, 1220.0):
            learner.step(time, 1)
        assert learner.typical("step") == 10.0

    def test_a_stall_teaches_nothing(self) -> None:
        """The interval in which the run was found stalled is dropped as a whole."""
        learner = stepping(10.0)
        learner.spoil()
        learner.step(5000.0, 1)
        learner.step(5010.0, 1)
        assert learner.typical("step") == 10.0

    def test_a_phase_between_two_steps_is_no_step_interval(self) -> None:
        """The step after a validation begins anew."""
        learner = stepping(10.0)
        learner.abandon("step")
        learner.step(3000.0, 1)
        learner.step(3010.0, 1)
        assert learner.typical("step") == 10.0

    def test_the_time_of_a_step_is_its_line_over_its_steps(self) -> None:
        """A line every 20 s for ten steps: 2 s; the median of the whole worker set."""
        assert stepping(20.0, steps=10).step_seconds() == pytest.approx(2.0, rel=0.02)

    def test_moves_of_a_bar_between_two_lines_do_not_shorten_a_step(self) -> None:
        """A line every 50 s for 50 steps, and a bar that is drawn every 10 s: 1 s a step."""
        learner = Learner()
        for time in range(0, 1000, 10):
            learner.step(float(time), 50 if time % 50 == 0 else 0)
        assert learner.step_seconds() == pytest.approx(1.0, rel=0.02)
        assert learner.typical("step") == 10.0

    def test_a_new_worker_set_drops_all_but_the_times_of_starts(self) -> None:
        """No other worker set can teach those."""
        learner = stepping(100.0)
        learner.begin("start", 0.0)
        learner.end("start", 1000.0)
        learner.new_worker_set()
        assert (learner.typical("step"), learner.step_seconds(), learner.typical("start")) == (None, None, 1000.0)

    def test_is_remembered(self) -> None:
        """Intervals, open ones and the step time; an open step interval is not taken up again."""
        learner, again = stepping(200.0), Learner()
        learner.begin("validation", 3000.0)
        again.restore(learner.remember(0.0))
        again.step(9000.0, 1)
        again.end("validation", 4000.0)
        assert (again.typical("step"), again.typical("validation"), again.step_seconds()) == (
            200.0,
            1000.0,
            learner.step_seconds(),
        )
