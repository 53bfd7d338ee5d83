"""Structured files beside a log: the same metrics with all digits, and no validation counted twice."""

from __future__ import annotations

import json

import pytest

from training_exporter.logs import RunLogs, side_targets
from training_exporter.logs.side_files import parser_for
from training_exporter.model import CheckpointTarget, LogEvent, TailChunk


def read(path: str, data: bytes) -> list[LogEvent]:
    """The events of a whole file, fed a few bytes at a time."""
    parser = parser_for(path)
    assert parser is not None
    return [event for start in range(0, len(data), 7) for event in parser.feed(data[start : start + 7], 5.0)]


class TestValMetrics:
    def test_flat_dict_is_one_validation(self) -> None:
        """Names are those of the log, values have all their digits."""
        text = json.dumps({"val/loss_epoch": 9.14574021, "val/full_acc_0_epoch": 0.56218, "epoch": 0}, indent=2)
        (event,) = read("/ckpt/0/val_metrics.json", text.encode())
        assert (event.event, event.split, event.epoch) == ("validation", "val", 0)
        assert event.metrics == {"loss": 9.14574021, "full_acc_0": 0.56218}

    @pytest.mark.parametrize("text", ["", "{", '{"a": ', "[1, 2]", "null", "}", '{"a": {"b": [}]}', "\x00\xff"])
    def test_anything_else_is_no_report(self, text: str) -> None:
        """An unfinished or strange file says nothing and breaks nothing."""
        assert read("val_metrics.json", text.encode()) == []


class TestTrainerState:
    def test_last_report_of_each_kind(self) -> None:
        """The history is long and known; only its end is news."""
        history = [
            {"loss": 2.0, "learning_rate": 1e-5, "epoch": 0.1, "step": 10},
            {"eval_loss": 1.9, "eval_runtime": 3.0, "epoch": 0.1, "step": 10},
            {"loss": 1.5123456, "epoch": 0.2, "step": 20},
            {"eval_loss": 1.4123456, "eval_accuracy": 0.61234, "epoch": 0.2, "step": 20},
        ]
        train, result = read("trainer_state.json", json.dumps({"log_history": history, "best": None}).encode())
        assert (train.split, train.step, train.metrics) == ("train", 20, {"loss": 1.5123456})
        assert (result.split, result.step) == ("val", 20)
        assert result.metrics == {"loss": 1.4123456, "accuracy": 0.61234}


class TestMetricsCsv:
    def test_sparse_rows(self) -> None:
        """A row has the cells of one kind of report; the others are empty."""
        events = read("x/metrics.csv", b"epoch,step,train_loss,val_loss\n0,49,2.31,\n0,99,,1.79012\n")
        assert [(event.split, event.step, dict(event.metrics)) for event in events] == [
            ("train", 49, {"loss": 2.31}),
            ("val", 99, {"loss": 1.79012}),
        ]


class TestInARun:
    def test_digits_are_added_and_the_validation_is_not_repeated(self) -> None:
        """A result that the log printed with three digits becomes exact, without a second validation."""
        logs = RunLogs({})
        line = b"val/loss_epoch=9.146, val/full_acc_0_epoch=0.562, epoch=0\n"
        (batch,) = logs.consume((TailChunk("r", "a.log", 1.0, line),), 1.0)
        assert [event.event for event in batch.events] == ["validation"]
        exact = json.dumps({"loss_epoch": 9.14574, "full_acc_0_epoch": 0.56218}).encode()
        (batch,) = logs.consume((TailChunk("r", "ckpt/0/val_metrics.json", 2.0, exact),), 2.0)
        assert [(event.event, event.split, event.metrics["loss"]) for event in batch.events] == [
            ("progress", "val", 9.14574)
        ]
        assert (batch.lines, batch.bytes, batch.novel) == (0, 0, False)

    def test_result_that_no_log_printed_is_a_validation(self) -> None:
        """Where the log is silent the file alone tells."""
        (batch,) = RunLogs({}).consume((TailChunk("r", "c/val_metrics.json", 1.0, b'{"loss": 1.0}'),), 1.0)
        assert [event.event for event in batch.events] == ["validation"]
        assert batch.readable is False

    def test_files_of_earlier_checkpoints_say_nothing(self) -> None:
        """What lay there before tells nobody which was the last."""
        chunk = TailChunk("r", "c/val_metrics.json", 1.0, b'{"loss": 1.0}', restored=True)
        assert [batch.events for batch in RunLogs({}).consume((chunk,), 1.0)] == [(), ()]

    def test_where_they_are_looked_for(self) -> None:
        """In each checkpoint, and beside the directory of the checkpoints; with the rights of the run's owner."""
        targets = side_targets([CheckpointTarget("r", "/x/version_0/checkpoints", root="/proc/7/root", uid=5, gid=6)])
        assert [target.path for target in targets] == [
            "/x/version_0/checkpoints/*/val_metrics.json",
            "/x/version_0/checkpoints/*/trainer_state.json",
            "/x/version_0/metrics.csv",
        ]
        assert {(target.run, target.root, target.uid, target.gid) for target in targets} == {
            ("r", "/proc/7/root", 5, 6)
        }


class TestErrorFile:
    @pytest.mark.parametrize(
        ("text", "outcome"),
        [
            ("RuntimeError: the data went missing", "failed"),
            ("SignalException: Process 4711 got signal: 15", "cancelled"),
            ("KeyboardInterrupt: ", "cancelled"),
        ],
    )
    def test_the_exception_is_evidence(self, text: str, outcome: str) -> None:
        """What torch.distributed.elastic's @record writes says how the rank ended, and which file says so."""
        document = {"message": {"message": text, "extraInfo": {"py_callstack": "...", "timestamp": "1700000000"}}}
        (event,) = read("/logs/none_x/attempt_0/0/error.json", json.dumps(document).encode())
        assert (event.outcome, event.text, event.severity) == (outcome, text, None)
        assert event.file == "/logs/none_x/attempt_0/0/error.json"

    def test_older_format(self) -> None:
        """The message may be the text itself."""
        (event,) = read("error.json", b'{"message": "boom\\nsecond line"}')
        assert (event.outcome, event.text) == ("failed", "boom")

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"message": 5}', '{"message": {"message": null}}', "{}"])
    def test_anything_else_is_no_evidence(self, text: str) -> None:
        """Half-written, empty and strange files say nothing."""
        assert read("error.json", text.encode()) == []

    def test_one_that_was_there_before_counts(self) -> None:
        """An exporter that comes late still learns what ended the rank."""
        chunk = TailChunk("job", "/x/error.json", 5.0, data=b'{"message": "boom"}', restored=True)
        batch = RunLogs().consume([chunk], 5.0)[0]
        assert [event.outcome for event in batch.events] == ["failed"]
        assert (batch.readable, batch.lines, batch.novel) == (False, 0, False)


class TestEventFile:
    def test_growth_is_progress_and_no_log(self) -> None:
        """Its bytes are no lines; what was there before moves nothing."""
        logs = RunLogs()
        path = "/tb/events.out.tfevents.1700000000.node.4711.0"
        first = logs.consume([TailChunk("job", path, 5.0, data=b"\x18\0\0\0", restored=True)], 5.0)
        later = logs.consume([TailChunk("job", path, 6.0, data=b"\x18\0\0\0")], 6.0)
        assert [batch.novel for batch in (*first, *later)] == [False, False, True]
        assert (later[0].lines, later[0].bytes, later[0].files, later[0].readable) == (0, 0, (), False)
