"""`runs.progress`: what records of a log move, count and set."""

from __future__ import annotations

import pytest

from nodes import event, step
from training_exporter.model import LogBatch, LogEvent
from training_exporter.runs.metric_values import METRIC_NAMES_LIMIT
from training_exporter.runs.progress import Counter, LogProgress, Moves, is_loss


def read(progress: LogProgress, *events: LogEvent, novel: bool = False, restored: bool = False) -> Moves:
    """One batch with these records."""
    return progress.observe(LogBatch("job", 100.0, events, lines=len(events), novel=novel, restored=restored))


class TestCounter:
    @pytest.mark.parametrize(
        ("values", "steps"),
        [
            ([10, 20, 30], [1, 10, 10]),
            ([10, 10, 10], [1, 0, 0]),
            ([900, 999, 3, 6], [1, 99, 1, 3]),
            ([100, 98, 110, 108, 120], [1, 0, 10, 0, 10]),
            ([100, 70, 75, 80], [1, 0, 1, 5]),
        ],
        ids=["advances", "repeats", "new epoch", "two ranks", "resumed"],
    )
    def test_advances(self, values: list[int], steps: list[int]) -> None:
        """Repeats and late ranks are no advance, beginning anew is one."""
        counter = Counter()
        assert [counter.advance(value) for value in values] == steps

    def test_another_epoch_begins_anew_at_any_value(self) -> None:
        """99 of the last epoch, 60 of this one."""
        counter = Counter(99)
        assert counter.advance(60, anew=True) == 1


class TestSteps:
    def test_a_step_moves_and_counts(self) -> None:
        """The counter of advances starts with the first line seen."""
        progress = LogProgress()
        moves = [read(progress, step(number)).step for number in (10, 20, 20)]
        assert (moves, progress.step, progress.steps_total) == ([True, True, False], 20, 11)

    def test_a_training_bar_is_a_step(self) -> None:
        """Where nothing else prints one."""
        progress = LogProgress()
        read(progress, event("progress", step=5, step_total=1500))
        assert (progress.step, progress.steps_target) == (5, 1500)

    def test_step_records_win_over_the_bar(self) -> None:
        """The bar counts within the epoch, the records over all of them."""
        progress = LogProgress()
        read(progress, step(4000), event("progress", step=10, step_total=100))
        read(progress, step(4010), event("progress", step=20, step_total=100))
        assert (progress.step, progress.steps_total) == (4010, 11)

    def test_a_bar_at_zero_is_no_first_step(self) -> None:
        """It was only drawn: compilation may follow."""
        progress = LogProgress()
        moves = read(progress, event("progress", step=0, step_total=100))
        assert (moves.first_step, progress.step_read) == (False, False)

    def test_a_set_up_bar_is_no_step(self) -> None:
        """Tokenizing moves the log signal only."""
        moves = read(LogProgress(), event("progress", "setup", step=50, step_total=100, setup=True), novel=True)
        assert (moves.step, moves.first_step, moves.log) == (False, False, True)

    def test_the_bar_of_an_evaluation_is_none_either(self) -> None:
        """It has the shape of the training bar."""
        moves = read(LogProgress(), event("progress", "validation", step=5, step_total=80))
        assert (moves.step, moves.validation) == (False, True)

    def test_a_record_without_a_counter_moves_by_its_epoch(self) -> None:
        """Dictionaries with a fractional epoch."""
        progress = LogProgress()
        moves = [
            read(progress, event("train_step", split="train", epoch=epoch, metrics={"loss": 1.0})).step
            for epoch in (0.01, 0.02, 0.02)
        ]
        assert moves == [True, True, False]

    def test_the_beginning_of_the_next_epoch_is_progress(self) -> None:
        """And no step."""
        progress = LogProgress()
        first = read(progress, event("epoch_begin", epoch=1, epoch_total=5))
        second = read(progress, event("epoch_begin", epoch=2, epoch_total=5))
        assert (first.step, second.step, second.first_step, progress.epochs_target) == (False, True, False, 5)


class TestValidation:
    def test_several_results_of_one_validation_are_one(self) -> None:
        """A dictionary and then a table; a step or a begin comes before the next."""
        progress = LogProgress()
        result = event("validation", "validation", split="val", metrics={"loss": 1.0})
        read(progress, event("val_begin", "validation"), result, result, step(5), result)
        assert progress.validations_total == 2

    def test_an_advancing_bar_moves(self) -> None:
        """A redraw of the same count does not."""
        progress = LogProgress()
        bar = [event("val_progress", "validation", step=number, step_total=9) for number in (1, 1, 2)]
        assert [read(progress, entry).validation for entry in bar] == [True, False, True]

    def test_a_result_without_a_begin_announces_no_phase(self) -> None:
        """Nobody knows when that validation began."""
        moves = read(LogProgress(), event("validation", "validation", split="val", metrics={"rouge": 0.4}))
        assert (moves.validation, moves.phases) == (True, ())


class TestPhases:
    def test_follows_begins_and_ends_in_order(self) -> None:
        """Also when they come in one batch."""
        moves = read(
            LogProgress(),
            event("epoch_begin"),
            event("val_begin", "validation"),
            event("val_end", "validation"),
            event("checkpoint_begin", "checkpoint"),
            event("checkpoint_saved", "checkpoint"),
        )
        assert moves.phases == ("training", "validating", "validated", "checkpointing", "checkpointed")

    def test_a_begin_is_a_begin_though_the_parser_is_still_in_it(self) -> None:
        """Its phase lasts until the next step line."""
        progress = LogProgress()
        read(progress, event("val_begin", "validation"), event("val_end", "validation"))
        assert read(progress, event("val_begin", "validation")).phases == ("validating",)

    def test_a_save_beside_the_training_changes_nothing(self) -> None:
        """An asynchronous one keeps the parser in its phase."""
        progress = LogProgress()
        read(progress, step(5))
        assert read(progress, event("checkpoint_begin", "train")).phases == ()

    def test_the_last_redraw_of_a_validation_bar_reopens_nothing(self) -> None:
        """It often comes after the end line."""
        progress = LogProgress()
        read(progress, event("val_begin", "validation"), event("val_end", "validation"))
        assert read(progress, event("val_progress", "validation", step=9, step_total=9)).phases == ()


class TestMetrics:
    def test_values_go_by_split_and_name(self) -> None:
        """With the time of the last update."""
        progress = LogProgress()
        read(progress, event("validation", "validation", split="val", metrics={"full_acc_0": 0.56}, time_seconds=90.0))
        assert (progress.metrics.newest["validation", "full_acc_0"].value, progress.metrics.updated_seconds) == (
            0.56,
            {"validation": 90.0},
        )

    def test_names_past_the_ceiling_are_counted(self) -> None:
        """Per-class tables explode."""
        progress = LogProgress()
        names = {f"class_{number}": 0.5 for number in range(METRIC_NAMES_LIMIT + 7)}
        read(progress, event("validation", "validation", split="val", metrics=names))
        assert (len(progress.metrics.newest), progress.metrics.dropped_total) == (METRIC_NAMES_LIMIT, 7)

    def test_the_first_names_are_kept(self) -> None:
        """Whatever comes after them in the same batch, again and again."""
        progress = LogProgress()
        names = {f"class_{number}": 0.5 for number in range(METRIC_NAMES_LIMIT)}
        tail = [step(number, metrics={"late": 1.0, "loss": 2.0 - number}) for number in (1, 2)]
        read(progress, step(0, metrics={"loss": 2.0}), step(0, metrics=names), *tail)
        metrics = progress.metrics
        assert (len(metrics.newest), metrics.dropped_total) == (METRIC_NAMES_LIMIT, 3)  # the last class, and twice late
        assert metrics.newest["train", "loss"].value == 0.0
        assert ("train", "late") not in metrics.newest

    def test_every_value_that_is_not_finite_is_counted(self) -> None:
        """Also those of a batch that are not its newest, by split; a restored log counts none."""
        progress = LogProgress()
        lost = [step(number, metrics={"loss": float("nan"), "lr": 0.1}) for number in (1, 2)]
        read(progress, *lost, step(3, metrics={"loss": 1.0}))
        read(progress, event("validation", "validation", split="val", metrics={"loss": float("inf")}))
        assert progress.metrics.nonfinite_total == {"train": 2, "validation": 1}
        read(progress, *lost, restored=True)
        assert progress.metrics.nonfinite_total["train"] == 2

    def test_published_mappings_are_never_changed(self) -> None:
        """A scrape may still read the older picture."""
        progress = LogProgress()
        read(progress, step(1, metrics={"loss": 2.0}))
        before = progress.metrics.newest
        read(progress, step(2, metrics={"loss": 1.0}))
        assert before["train", "loss"].value == 2.0

    @pytest.mark.parametrize(("losses", "streak"), [("nnn", 3), ("nnfn", 1), ("ff", 0)])
    def test_the_streak_of_losses_that_are_not_finite(self, losses: str, streak: int) -> None:
        """In a row, of training records."""
        progress = LogProgress()
        for number, kind in enumerate(losses):
            read(progress, step(number, metrics={"loss": float("nan") if kind == "n" else 1.0}))
            read(progress, event("validation", "validation", split="val", metrics={"loss": 0.5}))
        assert progress.nonfinite_streak == streak

    @pytest.mark.parametrize(
        ("name", "loss"), [("loss", True), ("lm_loss", True), ("loss_scale", False), ("grad_norm", False)]
    )
    def test_a_loss_scale_is_no_loss(self, name: str, loss: bool) -> None:
        """Nor is a gradient norm, which overflows and is skipped."""
        assert is_loss(name) is loss


class TestEpochs:
    @pytest.mark.parametrize(
        ("printed", "epochs"),
        [
            pytest.param([(1, 3), (2, 3), (3, 3)], [0, 1, 2], id="from-one"),
            pytest.param([(0, 3), (1, 3), (2, 3)], [0, 1, 2], id="from-zero"),
            pytest.param([(2, 3), (3, 3)], [1, 2], id="entered-late"),
            pytest.param([(0, None), (1, None)], [0, 1], id="without-a-total"),
            pytest.param([(0.26, 3), (1.0, 3), (1.26, 3)], [0.26, 1.0, 1.26], id="fractions"),
        ],
    )
    def test_are_counted_from_zero(self, printed: list[tuple[float, float | None]], epochs: list[float]) -> None:
        """However the log prints them."""
        progress, seen = LogProgress(), []
        for epoch, total in printed:
            read(progress, event("epoch_begin", epoch=epoch, epoch_total=total))
            seen.append(progress.epoch)
        assert seen == epochs

    def test_a_log_that_prints_both(self) -> None:
        """It announces epoch 2 of 5 and prints epoch=1, as speculators does: one epoch, also after a restart."""
        progress = LogProgress()
        read(progress, event("epoch_begin", epoch=2, epoch_total=5))
        read(progress, event("train_step", step=7, epoch=1))
        again = LogProgress()
        again.restore(progress.remember(0.0))
        read(again, event("epoch_begin", epoch=3, epoch_total=5))
        assert (progress.epoch, again.epoch) == (1, 2)

    @pytest.mark.parametrize(
        ("announced", "printed", "epochs"),
        [
            pytest.param(1, [1, 2], [0, 1], id="both-from-one"),
            pytest.param(1, [0, 1], [0, 1], id="records-from-zero"),
            pytest.param(3, [2, 3], [2, 3], id="records-from-zero-entered-late"),
            pytest.param(2, [1.5, 2.0], [1.5, 2.0], id="fractions"),
        ],
    )
    def test_without_a_total_behind_an_announcement(
        self, announced: int, printed: list[float], epochs: list[float]
    ) -> None:
        """`Epoch 1/3` and then `Epoch 1 step 10`: the same epoch, unless the records have another number for it."""
        progress, seen = LogProgress(), []
        for number, epoch in enumerate(printed):
            read(progress, event("epoch_begin", epoch=announced + number, epoch_total=9))
            read(progress, event("train_step", step=7, epoch=epoch))
            seen.append(progress.epoch)
            memory, progress = progress.remember(0.0), LogProgress()
            progress.restore(memory)
        assert seen == epochs

    def test_what_counts_from_zero_is_remembered(self) -> None:
        """A restart of the exporter in the second epoch does not see the 0."""
        progress, again = LogProgress(), LogProgress()
        read(progress, event("train_step", epoch=0, epoch_total=3, step=1))
        again.restore(progress.remember(0.0))
        read(again, event("train_step", epoch=1, epoch_total=3, step=2))
        assert again.epoch == 1


class TestTarget:
    @pytest.mark.parametrize(
        ("steps", "epochs", "reached"),
        [
            pytest.param([10, 50], None, True, id="the-last-of-all"),
            pytest.param([10, 49], None, True, id="counted-from-zero"),
            pytest.param([10, 40], None, False, id="before-it"),
            pytest.param([10, 50, 10, 50], None, False, id="the-last-of-an-epoch-nobody-says-of-which"),
            pytest.param([10, 30, 5, 50], None, True, id="behind-an-attempt-that-did-not-get-there"),
            pytest.param([10, 50, 10, 50], 3, False, id="of-the-second-of-three"),
            pytest.param([10, 50, 10, 50, 10, 50], 3, True, id="of-the-third"),
        ],
    )
    def test_is_reached(self, steps: list[int], epochs: int | None, reached: bool) -> None:
        """`step 50/50` ends each epoch; also after a restart of the exporter."""
        progress, epoch = LogProgress(), 0
        for value in steps:
            if value == steps[0] and epochs is not None:
                epoch += 1
                read(progress, event("epoch_begin", epoch=epoch, epoch_total=epochs))
            read(progress, event("train_step", step=value, step_total=50))
        again = LogProgress()
        again.restore(progress.remember(0.0))
        assert (progress.at_target, again.at_target) == (reached, reached)


class TestRestored:
    def test_sets_and_moves_nothing(self) -> None:
        """The log was there before the exporter."""
        progress = LogProgress()
        moves = read(progress, step(700, metrics={"loss": float("nan")}), restored=True, novel=True)
        assert (moves.step, moves.log, progress.step, progress.steps_total, progress.nonfinite_streak) == (
            False,
            False,
            700,
            0,
            None,
        )

    def test_the_end_of_an_earlier_attempt_in_the_same_file_is_over(self) -> None:
        """Also where it is remembered from before a restart."""
        progress = LogProgress()
        read(progress, event("train_end", "done"))
        progress.observe(LogBatch("job", 100.0, (event("train_begin"), step(3)), restored=True, outlived=True))
        assert progress.done is False

    def test_an_end_that_was_read_live_is_final(self) -> None:
        """Whatever the log says then."""
        progress = LogProgress()
        read(progress, event("train_end", "done"))
        read(progress, step(3))
        assert progress.done is True

    def test_an_end_is_none_when_the_training_goes_on_behind_it(self) -> None:
        """`Training finished.` of a fold or a stage: three further steps say so."""
        progress = LogProgress()
        read(progress, step(10))
        read(progress, event("train_end", "done"))
        goes_on = [read(progress, step(number)).goes_on for number in (11, 12, 13)]
        assert (goes_on, progress.done) == ([False, False, True], False)

    def test_an_end_is_none_when_steps_begin_anew_behind_it(self) -> None:
        """The next fold counts from 1, and trains: it has a loss."""
        progress = LogProgress()
        read(progress, step(1000))
        read(progress, event("train_end", "done"))
        for number in (1, 2, 3):
            read(progress, step(number, metrics={"loss": 2.0 + number}))
        assert progress.done is False

    def test_an_evaluation_behind_the_end_does_not_undo_it(self) -> None:
        """Its bar counts from 1 and says nothing of a loss; its results are results."""
        progress = LogProgress()
        read(progress, step(1000))
        read(progress, event("train_end", "done"))
        for number in range(1, 9):
            read(progress, step(number))
            read(progress, event("validation", "validation", metrics={"loss": float(number)}))
        assert progress.done is True

    def test_a_summary_that_repeats_does_not_undo_the_end(self) -> None:
        """The last step is printed again and again."""
        progress = LogProgress()
        read(progress, step(1000, metrics={"loss": 2.0}))
        read(progress, event("train_end", "done"))
        for _ in range(9):
            read(progress, step(1000, metrics={"loss": 2.0}))
        assert progress.done is True
