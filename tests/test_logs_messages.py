"""Known messages: name, class and what they prove, each from a line as it is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from training_exporter.logs import LogParser
from training_exporter.logs.messages import find
from training_exporter.model import LogEvent

DATA = Path(__file__).parent / "data" / "logs" / "messages.tsv"  # name, class, line as printed
LINES = [row.split("\t", 2) for row in DATA.read_text(encoding="utf-8").splitlines()]
HEALTHY = [
    "number of nan iterations:   0",
    "Using fault tolerance with timeout 600 s",
    "loss scale: 65536.0",
    "NCCL version 2.21.5+cuda12.4",
    "error_rate: 0.12",
    "Memory usage: 41.2 GB",
    "failed: 0, succeeded: 1200",
    "exits with return code = 0",
    "wer: 0.12 (no errors)",
    "signal processing front end: mel",
    "The interrupted run is resumed from step 100",
    "inf_norm: 0.2",
    "workers: 8",
]


def messages(line: str) -> list[tuple[str | None, str | None]]:
    """Name and class of the messages in one line of a log."""
    parser = LogParser()
    events: list[LogEvent] = [*parser.feed(f"{line}\n".encode(), 0.0), *parser.close()]
    return [(event.warning, event.severity) for event in events if event.event == "warning"]


class TestKnownMessages:
    @pytest.mark.parametrize(("name", "severity", "line"), LINES, ids=[f"{i}-{row[0]}" for i, row in enumerate(LINES)])
    def test_line_is_recognised(self, name: str, severity: str, line: str) -> None:
        """A line as a framework prints it has the name and class that docs/logs.md gives."""
        assert messages(line) == [(name, severity)]

    @pytest.mark.parametrize("line", HEALTHY)
    def test_healthy_lines_are_no_messages(self, line: str) -> None:
        """The same words in a healthy line mean nothing."""
        assert messages(line) == []

    def test_numbers_that_decide_are_looked_at_each_time(self) -> None:
        """Two exit codes in lines of one shape are two different things."""
        parser = LogParser()
        line = "job exits with return code = {}\n"
        events = [parser.feed(line.format(code).encode(), 0.0) for code in (0, -9, 0, 1)]
        assert [[event.warning for event in found] for found in events] == [
            [],
            ["worker_killed"],
            [],
            ["worker_failed"],
        ]


class TestSpokenOf:
    """The words of an error in a sentence that reports none."""

    @pytest.mark.parametrize(
        "line",
        [
            'Set PYTORCH_CUDA_ALLOC_CONF to avoid "CUDA out of memory" errors',
            "This prevents the CUDA out of memory of the last release",
            "ncclUnhandledCudaError handler installed",
            "No space left on device check: ok",
            "If you see ncclSystemError, look at the network",
        ],
    )
    def test_what_is_only_spoken_of_is_no_message(self, line: str) -> None:
        """Advice, and checks that found nothing."""
        assert find(line) is None

    @pytest.mark.parametrize(
        "line",
        [
            "torch.cuda.OutOfMemoryError caught, reducing batch size",
            "Caught exception, retrying: RuntimeError: CUDA error: invalid device",
            "ncclRemoteError on step 5, recovered after 3 s, continuing",
        ],
    )
    def test_what_is_survived_is_suspect(self, line: str) -> None:
        """The program says itself that it goes on."""
        found = find(line)
        assert found is not None
        assert found.severity == "suspect"

    @pytest.mark.parametrize(
        "line",
        [
            "torch.OutOfMemoryError: CUDA out of memory. If reserved but unallocated is large try X to avoid it.",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "retrying failed 3 times, giving up: CUDA error: unspecified launch failure",
            "OSError: [Errno 28] No space left on device: '/data/handler/check'",
            "To avoid data inconsistency, we are taking the entire process down: DistBackendError",
        ],
    )
    def test_advice_behind_an_error_does_not_soften_it(self, line: str) -> None:
        """Nor does a retry that was given up."""
        found = find(line)
        assert found is not None
        assert found.severity == "fatal"
