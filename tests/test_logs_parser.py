"""The parser as a whole: independence of chunks, robustness, counting, blocks and user patterns."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from training_exporter.logs import LogParser, PatternError
from training_exporter.logs.shapes import Shapes
from training_exporter.logs.split import MAX_PIECE_BYTES
from training_exporter.model import LogEvent

# pieces from which logs are made that try every path of the parser
PIECES = (
    "step 10 | loss 2.5 | lr 3e-4",
    "{'eval_loss': 1.5, 'epoch': 1.0}",
    "\r 10%|█         | 10/100 [00:01<00:09, 9it/s]",
    "Traceback (most recent call last):",
    '  File "a.py", line 1',
    "ValueError: no",
    "***** eval metrics *****",
    "  eval_acc = 0.5",
    "[09:00:00] INFO     train/loss=2.0,      t.py:1",
    " " * 20 + "epoch=0, global_step=5",
    "[step=5/10,epoch=1]",
    "    train/loss=1.0",
    "{'a': 1,",
    "'b': nan}",
    "| AP | AP50 | AP75 |",
    "| 1.0 | 2.0 | 3.0 |",
    "epoch train_loss  valid_loss  accuracy",
    "0  1.0  2.0  0.5",
    "│ loss │ 0.5 │ eval_acc │ 0.25 │",
    "├──────┼─────┤",
    "╰──────┴─────╯",
    "│ Training result │",
    "Training |  Validation",
    "loss     |     0.5  |       N/A",
    "step:20K ep:4 epch:0.5 loss:0.1",
    "\x1b[31mred\x1b[0m",
    "\b\b\b",
    "\r\n",
    "\n",
    "\n\n",
    '{"log":"step 1 loss 2\\n","stream":"stdout","time":"t"}',
    "2026-01-01T00:00:00.1Z stdout P step 1 | lo",
    "é",
    "\x00",
    "Validation epoch 1/2 started",
    "Training completed",
    "TrainingArguments(",
    "lr=1,",
    ")",
    "wandb: x 1",
    "12:30:01",
    "12: step 1 loss 2",
    "12:30: step 1 loss 2",
    '{"log":"\\u001b[32mstep 1 loss 2 \\udb80\\udc05 \\ud800\\n","stream":"stdout","time":"t"}',
    "[1,3]<stdout>:",
    "[rank1]: ",
    "x" * 50,
    "\U000f0000",
    "=" * 20,
    "Validate metric   DataLoader 0",
    "  val_acc   0.5",
)
TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=12), max_size=40).map(
    lambda parts: "".join(part + ("\n" if index % 3 else "") for index, part in enumerate(parts)).encode()
)
RELAXED = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


def events_of(data: bytes, *, cuts: list[int] | None = None, patterns: tuple[str, ...] = ()) -> list[LogEvent]:
    """All events of a log that comes in the pieces between the cuts."""
    parser = LogParser(patterns)
    edges = [0, *sorted(cut for cut in cuts or [] if cut < len(data)), len(data)]
    found = [e for start, end in pairwise(edges) for e in parser.feed(data[start:end], 1.0)]
    return [*found, *parser.close()]


class TestProperties:
    @RELAXED
    @given(TEXT, st.lists(st.integers(0, 2000), max_size=12))
    def test_any_chunking_gives_the_same_events(self, data: bytes, cuts: list[int]) -> None:
        """Events do not depend on how the bytes were cut."""
        assert repr(events_of(data, cuts=cuts)) == repr(events_of(data))  # nan is not equal to itself

    @RELAXED
    @given(st.text("abc_loss0123456789 :=/.,-+eT%[]'{}", max_size=60), st.lists(st.integers(1, 9), max_size=8))
    def test_a_remembered_shape_changes_nothing(self, text: str, shifts: list[int]) -> None:
        """A line means the same whether or not lines with other digits came before it."""
        shapes = Shapes()
        for shift in [0, *shifts]:
            shifted = text.translate({ord(str(digit)): str((digit + shift) % 10) for digit in range(10)})
            plan, tokens = shapes.plan(shifted)
            assert (plan, list(tokens)) == Shapes().plan(shifted)

    @RELAXED
    @given(st.binary(max_size=600))
    def test_no_bytes_make_it_raise(self, data: bytes) -> None:
        """Whatever a file holds, it is read, and its line feeds are counted."""
        parser = LogParser()
        parser.feed(data, 0.0)
        parser.close()
        assert (parser.lines, parser.failures) == (data.count(b"\n"), 0)

    @RELAXED
    @given(TEXT)
    def test_lines_are_line_feeds(self, data: bytes) -> None:
        """The number of lines is what `wc -l` says."""
        parser = LogParser()
        parser.feed(data, 0.0)
        assert (parser.lines, parser.bytes_read) == (data.count(b"\n"), len(data))

    def test_garbled_lines_of_the_corpus_do_not_raise(self) -> None:
        """Lines cut, doubled and mixed anywhere are read without an exception."""
        draw = random.Random(3)  # noqa: S311 - repeatable, not secret
        text = "\n".join(PIECES)
        for _ in range(200):
            cut = draw.randrange(len(text))
            parser = LogParser()
            parser.feed((text[cut:] + text[:cut] * 2)[draw.randrange(40) :].encode(), 0.0)
            parser.close()
            assert (parser.failures, parser.failure) == (0, None)


class TestRedraws:
    def test_redraws_are_counted_apart_from_lines(self) -> None:
        """A bar drawn three times over is one line and two redraws."""
        parser = LogParser()
        parser.feed(b"\r10%|#   | 1/10\r20%|##  | 2/10\r30%|### | 3/10\n", 0.0)
        assert (parser.lines, parser.redraws) == (1, 3)

    def test_windows_line_ends_are_no_redraws(self) -> None:
        """A carriage return before the line feed draws nothing over."""
        parser = LogParser()
        parser.feed(b"one\r\ntwo\r\n", 0.0)
        assert (parser.lines, parser.redraws) == (2, 0)

    def test_bar_gives_its_step_before_the_line_ends(self) -> None:
        """A bar that never ends its line still moves."""
        parser = LogParser()
        parser.feed(b"\rEpoch 0:  10%|#   | 10/100 [00:01<00:09,  9it/s]", 0.0)
        events = parser.feed(b"\rEpoch 0:  11%|#   | 11/100 [00:01<00:09,  9it/s]", 1.0)
        assert [(event.event, event.step) for event in events] == [("train_step", 10)]

    @pytest.mark.parametrize(
        ("text", "epoch"),
        [
            ("Epoch 1/3:  70% 14/20 [00:08<00:10, 1.00it/s, loss=0.051]", 1.0),
            ("Epoch 1/3: 14/20 [00:08<00:10, 1.00it/s, loss=0.051]", 1.0),
            ("Epoch 1: 14/20 [00:08<00:10, 1.00it/s]", 1.0),
            ("Training:  70% 14/20 [00:08<00:10, 1.00it/s, loss=0.051]", None),
            (" 70% 14/20 [00:08<00:10, 1.00it/s]", None),
            ("14/20 [00:08<00:10,  3.2s/it]", None),
        ],
    )
    def test_bar_without_its_bar(self, text: str, epoch: float | None) -> None:
        """`bar_format` leaves it out, and so does a narrow terminal: the step is the count, not the total."""
        events = LogParser().feed(f"{text}\n".encode(), 0.0)
        assert [(event.event, event.step, event.step_total, event.epoch) for event in events] == [
            ("train_step", 14, 20, epoch)
        ]

    def test_a_bar_that_is_printed_in_thousands_counts_in_ones(self) -> None:
        """`unit_scale`: else 14.0k would be step 14, and 14.1k none."""
        text = "Training:  70% 14.0k/20.0k [00:08<00:10, 1.00kit/s]\rTraining:  71%|#  | 14.1k/20.0k [00:08<00:10]\n"
        events = LogParser().feed(text.encode(), 0.0)
        assert [(event.step, event.step_total) for event in events] == [(14000, 20000), (14100, 20000)]

    def test_bar_that_stands_there_is_read_after_a_pause(self) -> None:
        """The last drawing, which no carriage return ended yet, counts once it has stood for two seconds."""
        parser = LogParser()
        parser.feed(b"\rEpoch 0: 100%|#### | 100/100 [00:01<00:00,  9it/s]", 10.0)
        assert parser.idle(11.0) == []
        assert [(event.event, event.step) for event in parser.idle(12.0)] == [("train_step", 100)]
        assert parser.idle(13.0) == []


class TestSummaryOfPycocotools:
    """Twelve lines that a program may repeat in its own words right behind."""

    ROWS = (
        b" Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.311\n"
        b" Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 0.502\n"
        b" Average Recall     (AR) @[ IoU=0.50:0.95 | area=medium | maxDets=100 ] = 0.404\n"
    )

    def test_it_is_a_result_once_nothing_follows(self) -> None:
        """After two seconds of silence, with all its values."""
        parser = LogParser()
        assert parser.feed(self.ROWS, 10.0) == []
        assert parser.idle(11.0) == []
        (event,) = parser.idle(12.0)
        assert (event.event, event.line, event.end_line) == ("validation", 1, 3)
        assert event.metrics == {"ap": 0.311, "ap50": 0.502, "ar_medium": 0.404}

    def test_it_is_a_result_before_the_training_goes_on(self) -> None:
        """The next step ends it, and stands behind it."""
        events = LogParser().feed(self.ROWS + b"step 7 loss 1.5\n", 10.0)
        assert [event.event for event in events] == ["validation", "train_step"]

    def test_a_program_that_says_the_same_is_taken_at_its_words(self) -> None:
        """One result, under the program's own names."""
        events = LogParser().feed(self.ROWS + b"Epoch(val) [1][50]  bbox_mAP: 0.3110, bbox_mAP_50: 0.5020\n", 10.0)
        assert [event.metrics for event in events] == [{"bbox_map": 0.311, "bbox_map_50": 0.502}]

    def test_another_summary_of_the_same_names_is_another_result(self) -> None:
        """Two evaluations in a row."""
        events = events_of(self.ROWS + self.ROWS.replace(b"0.311", b"0.322"))
        assert [event.metrics["ap"] for event in events] == [0.311, 0.322]


class TestBounds:
    def test_one_endless_line_is_cut_and_counted(self) -> None:
        """What is longer than 1 MiB is dropped and counted; the next line is understood."""
        parser = LogParser()
        for _ in range(40):
            parser.feed(b"x" * (1 << 16), 0.0)
        events = parser.feed(b"\nstep 5 | loss 1.0\n", 0.0)
        assert parser.dropped_bytes == 40 * (1 << 16) - MAX_PIECE_BYTES
        assert [event.step for event in events] == [5]

    def test_many_shapes_do_not_grow_without_bound(self) -> None:
        """A log in which no line is like another keeps a bounded number of shapes."""
        parser = LogParser()
        for number in range(6000):
            parser.feed(f"x{number}y some words\n".encode(), 0.0)
        assert len(parser._shapes) <= 2 * 4096


class TestBlocks:
    def test_wrapped_record_is_one_event_over_its_lines(self) -> None:
        """A RichHandler record at 80 columns is read as the one record it was."""
        data = (
            b"[09:26:53] INFO     val/loss_epoch=9.146,                          trainer.py:576\n"
            b"                    val/acc_epoch=0.562, epoch=0                                \n"
        )
        (event,) = events_of(data)
        assert (event.line, event.end_line, event.event) == (1, 2, "validation")
        assert event.metrics == {"loss": 9.146, "acc": 0.562}

    RICH = (
        "[09:26:53] INFO     Training epoch 1/2 started                    trainer.py:642",
        "[09:27:19] INFO     train/loss_0=2.400, train/full_acc_0=0.41,    trainer.py:498",
        "                    train/loss=17.000, epoch=0, lr=5.00e-05,                    ",
        "                    global_step=40                                              ",
        "           INFO     Validation epoch 1/2 started                  trainer.py:659",
        "[10:09:13] INFO     val/loss_0_epoch=2.300,                       trainer.py:576",
        "                    val/loss_epoch=1.01e+03, epoch=0                            ",
        "           INFO     Validation epoch 1/2 completed                trainer.py:660",
        "           INFO     Updated checkpoint_best -> 0                  trainer.py:632",
        "                    (loss_epoch=1014.200012)                                    ",
    )

    @pytest.mark.parametrize(
        "prefix",
        [
            *("[default0]:", "[rank0]:", "0: ", "00: ", "[1,0]<stdout>:", "gpu-n01: ", "[pod/trainer-0-x2/trainer] "),
            *(
                "\x1b[36m(Trainer pid=33)\x1b[0m ",
                "2026-03-14T09:27:54.123456Z ",
                "trainer-1  | ",
                "[default0]:[rank0]:",
            ),
        ],
    )
    def test_a_wrapped_record_behind_what_a_launcher_prints(self, prefix: str) -> None:
        """Whatever stands before every line of it, it is the same record, and what a rank adds is its rank."""

        def told(before: str) -> list[tuple[object, ...]]:
            lines = [f"{before.replace('54', str(50 + number))}{line}\n" for number, line in enumerate(self.RICH)]
            return [
                (event.line, event.end_line, event.event, event.phase, event.epoch, event.step, event.metrics)
                for event in events_of("".join(lines).encode())
            ]

        assert told(prefix) == told("")
        assert [event[2] for event in told("")] == ["epoch_begin", "train_step", "val_begin", "validation", "val_end"]

    @pytest.mark.parametrize("prefix", ["", "[default0]:"])
    @pytest.mark.parametrize("place", [2, 3])
    def test_a_line_of_another_rank_within_a_wrapped_record(self, prefix: str, place: int) -> None:
        """Launchers copy the output of the ranks line by line: what comes between ends no record."""
        lines = [f"{prefix}{line}" for line in self.RICH]
        lines.insert(
            place,
            "[default1]:[rank1]:W0314 09:27:55.1 42 torch/_dynamo/x.py:8] torch._dynamo hit config.recompile_limit (8)",
        )
        events = events_of("\n".join([*lines, ""]).encode())
        (step,) = [event for event in events if event.event == "train_step"]
        assert (step.step, set(step.metrics)) == (40, {"loss_0", "full_acc_0", "loss", "lr"})
        assert "dynamo_recompile_limit" in {event.warning for event in events}

    def test_a_record_of_another_rank_begins_a_new_one(self) -> None:
        """Only what begins nothing comes between."""
        lines = [
            "[default0]:[09:27:19] INFO     train/loss=2.4,      t.py:498",
            "[default1]:[09:27:19] INFO     train/loss=2.6,      t.py:498",
        ]
        lines.append(f"[default1]:{'global_step=40':>34}")
        events = events_of("\n".join([*lines, ""]).encode())
        assert [(event.rank, event.step) for event in events] == [(0, None), (1, 40)]

    def test_block_is_closed_by_silence(self) -> None:
        """Nothing follows the last record: after two seconds it is complete."""
        parser = LogParser()
        assert parser.feed(b"[09:26:53] INFO     val/loss=9.146, epoch=0    trainer.py:576\n", 10.0) == []
        assert parser.idle(11.0) == []
        assert [event.event for event in parser.idle(12.0)] == ["validation"]

    @pytest.mark.parametrize(
        ("last", "expected"),
        [
            ("ValueError: wrong", ("fatal", "failed")),
            ("KeyboardInterrupt", ("suspect", "cancelled")),
            ("x.api.SignalException: Process 1 got signal: 15", ("suspect", "cancelled")),
            ("SystemExit: 0", ("suspect", None)),
            ("going on with the next batch", ("suspect", None)),
        ],
    )
    def test_traceback_is_judged_by_its_last_line(self, last: str, expected: tuple[str, str | None]) -> None:
        """An interrupt is a cancellation, an error a failure, and what goes on was caught."""
        data = f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n{last}\n'.encode()
        event = next(event for event in events_of(data) if event.warning == "traceback")
        assert (event.severity, event.outcome) == expected

    def test_tracebacks_of_ranks_that_interleave_are_kept_apart(self) -> None:
        """Two ranks that fail at once give one traceback each."""
        data = (
            b"[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n"
            b'[rank0]:   File "a.py"\n[rank1]:   File "a.py"\n[rank1]: KeyboardInterrupt\n[rank0]: ValueError: no\n'
        )
        verdicts = {e.rank: e.outcome for e in events_of(data) if e.warning == "traceback"}
        assert verdicts == {0: "failed", 1: "cancelled"}

    @pytest.mark.parametrize("place", [1, 2, 3])
    def test_a_line_of_another_rank_within_a_traceback(self, place: int) -> None:
        """Python writes a traceback line by line, so that ranks that share a file write between."""
        lines = ["Traceback (most recent call last):", '  File "a.py", line 14', '    raise RuntimeError("x")']
        lines.append("RuntimeError: no data")
        lines.insert(place, "step 3/100 loss 0.51")
        data = "\n".join(["step 1/100 loss 0.52", *lines, ""]).encode()
        (event,) = [event for event in events_of(data) if event.warning == "traceback"]
        assert event.outcome == "failed"

    def test_what_follows_a_traceback_without_an_exception_is_none(self) -> None:
        """It may have been cut off; a later line with a colon says nothing of it."""
        lines = ["Traceback (most recent call last):", '  File "a.py", line 14', "step 1/100 loss 0.52", "Epoch: 3"]
        (event,) = [event for event in events_of("\n".join([*lines, ""]).encode()) if event.warning == "traceback"]
        assert (event.outcome, event.severity) == (None, "suspect")


class TestUserPatterns:
    def test_pattern_gives_a_metric(self) -> None:
        """A pattern of the configuration names a metric that nothing else would find."""
        (event,) = events_of(b"my metric BLEURT = 0.71\n", patterns=(r"^my metric (?P<name>\w+) = (?P<value>\S+)$",))
        assert (event.split, event.metrics) == ("val", {"bleurt": 0.71})

    @pytest.mark.parametrize(
        "pattern",
        [r"(?P<name>(\w+)+) (?P<value>\d)", r"((?P<name>a*)*)(?P<value>b)", r"(?P<name>x)(?P<value>(?:\d+,?)*)"],
    )
    def test_repetition_inside_repetition_is_refused(self, pattern: str) -> None:
        """Such a pattern could take for ever; the error names it."""
        with pytest.raises(PatternError, match="repetition") as error:
            LogParser((pattern,))
        assert repr(pattern) in str(error.value)

    @pytest.mark.parametrize("pattern", ["(", r"loss (?P<value>\d+)", "(?P<name>a)"])
    def test_broken_pattern_is_refused(self, pattern: str) -> None:
        """No pattern at all, or one without the groups `name` and `value`."""
        with pytest.raises(PatternError):
            LogParser((pattern,))


class TestTables:
    def test_rows_that_come_late_belong_to_their_header(self) -> None:
        """A table of epochs stays open over minutes, bars and warnings."""
        parser = LogParser()
        parser.feed(b"epoch     train_loss  valid_loss  accuracy  time\n", 0.0)
        assert parser.idle(60.0) == []
        parser.feed(b"\r 50%|#####     | 5/10 [00:01<00:01,  9it/s]\n", 70.0)
        events = parser.feed(b"0         0.812331    0.601221    0.781122  00:12\n", 120.0)
        assert [(event.event, event.epoch, dict(event.metrics)) for event in events if event.split == "val"] == [
            ("validation", 0, {"loss": 0.601221, "accuracy": 0.781122})
        ]


class TestEndOfTraining:
    """Which lines say that the training is over."""

    @pytest.mark.parametrize(
        "line",
        [
            "Finished Training",
            "done training in 123.4 seconds",
            "Training completed.",
            "Training finished! Best acc 0.9",
            "Training finished in 3h 2m",
            "Training completed successfully",
            "Training completed after 100 steps",
            "Finished training at iteration 1000",
            "Total training time: 0:02:36 (0:00:07 on hooks)",
            "Overall training speed: 1998 iterations in 0:02:29 (0.0750 s / it)",
            "INFO: Completed training run",
            "Training done (3 epochs)",
            "Training completed. Next steps: share the model",
        ],
    )
    def test_an_end_is_a_statement_of_its_own(self, line: str) -> None:
        """With when and how at most."""
        assert [event.event for event in LogParser().feed(line.encode() + b"\n", 0.0)] == ["train_end"]

    @pytest.mark.parametrize(
        "line",
        [
            "Finished training step 3",
            "training finished for fold 1 of 5",
            "Training completed: 50%",
            "Done training for epoch 0",
            "Completed training batch 10/100",
            "Finished training iteration 200",
            "Finished training tokenizer",
            "Done training discriminator",
            "Total training time so far: 3h",
            "overall training speed: 3 it/s",
            "Training finished for this stage, moving on",
            "Training done, next fold",
            "Training stopped for validation",
            "End of training step 3",
        ],
    )
    def test_the_end_of_a_part_is_none(self, line: str) -> None:
        """A step, a fold, a share, an object behind it."""
        assert [event for event in LogParser().feed(line.encode() + b"\n", 0.0) if event.event == "train_end"] == []


class TestNames:
    """What belongs to the name of a value, and what to the sentence around it."""

    @pytest.mark.parametrize(
        ("line", "metrics"),
        [
            ("path /data/nan/inf/x.pt loss 1.0 step 12", {"loss": 1.0}),
            ("step 12 wrote model.pt loss: 1.0", {"loss": 1.0}),
            ("step 12 finished with loss 1.5", {"loss": 1.5}),
            ("step 12 the loss is 1.5", {"loss": 1.5}),
            ("step 1_300 loss 2", {"loss": 2.0}),
            ("step 12 train/top.k_loss: 2", {"top_k_loss": 2.0}),
        ],
    )
    def test_neither_files_nor_sentences_are_in_a_name(self, line: str, metrics: dict[str, float]) -> None:
        """Only what names the value."""
        (event,) = LogParser().feed(line.encode() + b"\n", 0.0)
        assert (event.event, event.metrics) == ("train_step", metrics)

    @pytest.mark.parametrize(
        "line",
        ["No error found, loss is not nan", "The best epoch was 3 with val loss 0.4"],
    )
    def test_what_is_denied_or_was_the_best_is_no_result(self, line: str) -> None:
        """A sentence about a value reports none."""
        assert LogParser().feed(line.encode() + b"\n", 0.0) == []

    def test_a_date_is_no_step(self) -> None:
        """Whatever order day and month have."""
        (event,) = LogParser().feed(b"10/12/2026 training started\n", 0.0)
        assert (event.event, event.step, event.step_total) == ("train_begin", None, None)

    def test_a_step_with_underscores_is_a_number(self) -> None:
        """As Python writes 1300 for people."""
        (event,) = LogParser().feed(b"step 1_300 loss 2\n", 0.0)
        assert event.step == 1300


class TestReachOfAResult:
    """What says nothing of a split is of the evaluation that was just told, but not for ever."""

    RESULT = b"eval loss: 2.5\n"
    SCORE = b"reward: 0.5\n"

    def test_more_of_the_same_evaluation_may_follow(self) -> None:
        """Programs print a line for each score."""
        events = LogParser().feed(self.RESULT + self.SCORE, 0.0)
        assert [event.event for event in events] == ["validation", "validation"]

    def test_what_comes_long_after_a_result_is_none(self) -> None:
        """A loop of reinforcement learning goes on with rollouts, and prints the rewards of those."""
        events = LogParser().feed(self.RESULT + b"weights are sent to the workers\n" * 50 + self.SCORE, 0.0)
        assert [event.event for event in events] == ["validation"]

    def test_an_evaluation_may_take_as_many_lines_as_it_likes(self) -> None:
        """Until its first result it is awaited."""
        data = b"Running validation\n" + b"request was answered\n" * 50 + self.SCORE
        events = LogParser().feed(data, 0.0)
        assert [event.event for event in events] == ["val_begin", "validation"]


class TestRoundedSteps:
    """Steps that are printed in thousands."""

    def test_they_count_in_ones(self) -> None:
        """`step:20K` is step 20000."""
        (event,) = LogParser().feed(b"step:20K loss:0.5\n", 0.0)
        assert event.step == 20_000

    def test_the_steps_between_have_no_number(self) -> None:
        """The same thousand again says nothing of the step; that the loss is another still shows progress."""
        events = LogParser().feed(b"step:20K loss:0.5\nstep:20K loss:0.4\nstep:21K loss:0.3\n", 0.0)
        assert [(event.event, event.step) for event in events] == [
            ("train_step", 20_000),
            ("train_step", None),
            ("train_step", 21_000),
        ]
