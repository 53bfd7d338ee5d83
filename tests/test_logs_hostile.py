"""Lines made to be slow: what a line costs grows with its length, and one that cannot be understood stops nothing."""

from __future__ import annotations

import time

import pytest

from training_exporter.logs import LogParser, RunLogs, shapes
from training_exporter.logs.plan import Plan
from training_exporter.logs.shapes import Shapes
from training_exporter.model import LogBatch, TailChunk
from training_exporter.redact import text as redacted

UNITS = (
    *("_", "a_", "a=", "1,", "[", "[1/2]", "%", "*", "(", "|", "\x1b[1;1;", ".1", "-", " ", "\t", ": ", "{", '"', "'"),
    *("e", "0x", "a/", "=", "ACGT", "prompt_with_underscores_", "12%|#| 1/2 [0:0<0:0]", "\r", "\b", "\\'", "111,"),
    *("[1/2] ", "a ", "a.", "A.", "1 ", "1:1 ", "- ", "a - ", "'a' ", "a: 1 ", "a 1, ", "step 1 ", "epoch 1 ", "é"),
    *("loss of the x on ", "checkpoint ", "saving model ", "eval ", "status ", "OOM ", "NCCL WARN ", "TCPStore "),
    *(
        "Traceback ",
        "[train] a=1 ",
        "[0:0<0:0]",
        "(a)",
        "{'a': ",
        "tensor(",
        "http://",
        "token=",
        "--token ",
        "━",
        "\u00a0",
    ),
    *("with torch.compile ", "reached ", "a, device=", "Received SIGTERM ", "x.y-z_", "{a", "}{", "a1", "1a", "val_"),
    *("'s ", "a's a ", "np.float32(1), ", "[>", "--> ", "Progress on:a ", "1epoch ", "1-1batch ", "Epoch(val) [1]"),
    *(
        " Average Precision  (AP) @[ IoU=",
        "Validate metric DataLoader 0 ",
        "█",
        "[1] a ",
        "x.pth saved ",
        "a -- ",
        "| > a: 1 ",
    ),
)
FRAMES = (("", ""), ("", " x"), ("step 1 loss", "x"), ("1/2", "x"), ("{'loss': 1.0, 'a': ", "}"), ("[rank0]: ", ":"))
SIZE = 64 * 1024
SECONDS = 1.0  # of computing; a quadratic search of 64 KiB takes minutes


def _line(unit: str, frame: tuple[str, str], size: int = SIZE) -> str:
    return frame[0] + unit * (size // len(unit)) + frame[1]


def _seconds(text: str) -> float:
    logs = RunLogs()
    begin = time.process_time()
    chunk = TailChunk(run="r", file="/f.log", data=text.encode() + b"\n", time_seconds=0.0)
    logs.consume([chunk], 0.0)
    logs.consume([], 10.0)
    return time.process_time() - begin


class TestCost:
    """What a line of 64 KiB costs."""

    @pytest.mark.parametrize("unit", UNITS)
    def test_a_line_of_one_unit_again_and_again_is_understood_at_once(self, unit: str) -> None:
        """Whatever is repeated, in front of it and behind it."""
        spent = {frame: _seconds(_line(unit, frame)) for frame in FRAMES}
        assert {frame: took for frame, took in spent.items() if took > SECONDS} == {}

    @pytest.mark.parametrize("unit", UNITS)
    def test_many_short_lines_of_it_cost_no_more(self, unit: str) -> None:
        """Short enough that no bound on the length helps, each of another shape."""
        sizes = range(180, 300, 4)
        lines = [_line(unit, (f"{'ab' * (size % 7)} ", " x"), size) for size in sizes]
        assert _seconds("\n".join(lines)) < SECONDS

    @pytest.mark.parametrize("unit", UNITS)
    def test_a_record_joined_of_many_lines_costs_no_more(self, unit: str) -> None:
        """A wrapped record is searched as one line."""
        begin = time.process_time()
        Shapes().joined(_line(unit, ("step 1 loss ", " x")))
        assert time.process_time() - begin < SECONDS

    @pytest.mark.parametrize("unit", UNITS)
    def test_masking_secrets_costs_no_more(self, unit: str) -> None:
        """The last line is shown, with its secrets masked."""
        begin = time.process_time()
        redacted(_line(unit, ("password", " x")))
        assert time.process_time() - begin < SECONDS


class TestLongLines:
    """Lines that are longer than any report."""

    def test_a_thousand_bars_on_one_line_say_where_the_last_one_stands(self) -> None:
        """Bars of several processes glue; no depth of the interpreter limits how many."""
        line = "".join(f"Training: 12%|#| {step}/2000 [00:01<00:09]" for step in range(1, 300))
        events = LogParser().feed(line.encode() + b"\n", 0.0)
        assert events[-1].step == 299

    def test_what_stands_behind_glued_bars_is_read(self) -> None:
        """A record that was printed on the line of the bars is one."""
        line = "Training: 12%|#| 1/2000 [00:01<00:09]" * 20 + "{'loss': 1.5, 'learning_rate': 1e-05, 'epoch': 0.5}"
        events = LogParser().feed(line.encode() + b"\n", 0.0)
        assert events[-1].metrics == {"loss": 1.5, "learning_rate": 1e-05}

    def test_a_record_of_a_hundred_metrics_is_read_to_its_end(self) -> None:
        """Reinforcement learning prints records of several KiB."""
        names = [f"actor/metric_{chr(97 + index // 26)}{chr(97 + index % 26)}/loss" for index in range(150)]
        line = "step:7 - " + " - ".join(f"{name}:{index}.5" for index, name in enumerate(names))
        (event,) = [event for event in LogParser().feed(line.encode() + b"\n", 0.0) if event.step == 7]
        assert len(event.metrics) == 150


class TestFault:
    """A fault of the parser itself, which no line should meet."""

    @staticmethod
    def _consume(monkeypatch: pytest.MonkeyPatch) -> dict[str, LogBatch]:
        understand = shapes.understand

        def faulty(literals: tuple[str, ...], tokens: list[str], masked: str) -> tuple[Plan, bool]:
            if "poison" in masked:
                raise RecursionError("too deep")
            return understand(literals, tokens, masked)

        monkeypatch.setattr(shapes, "understand", faulty)
        texts = {"bad": b"poison\nstep 1 loss 2.0\npoison\nstep 2 loss 1.9\n", "good": b"step 7 loss 1.0\n"}
        chunks = [TailChunk(run=run, file=f"/{run}.log", data=data, time_seconds=0.0) for run, data in texts.items()]
        return {batch.run: batch for batch in RunLogs().consume(chunks, 0.0)}

    def test_the_line_is_counted_and_the_next_ones_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One line that cannot be understood is only shown."""
        batch = self._consume(monkeypatch)["bad"]
        assert (batch.lines, [event.step for event in batch.events]) == (4, [1, 2])

    def test_other_runs_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In the same round."""
        assert [event.step for event in self._consume(monkeypatch)["good"].events] == [7]

    def test_it_is_told_once(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        """With the file and the reason."""
        self._consume(monkeypatch)
        assert [record.getMessage() for record in caplog.records] == [
            "run bad: a line of /bad.log could not be understood, reading on"
        ]
