"""`worker`: one thread per source, with a deadline."""

from __future__ import annotations

import logging
import threading

import pytest

from fakes import FakeClock
from training_exporter.model import Health, Report
from training_exporter.worker import Worker


@pytest.fixture
def clock() -> FakeClock:
    """A clock at rest."""
    return FakeClock()


class Source:
    """Answers with a number, fails or hangs as the test says."""

    def __init__(self) -> None:
        self.answer: int | Exception = 1
        self.calls = 0
        self.entered = threading.Event()
        self.release = threading.Event()
        self.release.set()

    def collect(self) -> int:
        """One answer."""
        self.calls += 1
        self.entered.set()
        assert self.release.wait(10)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def make(source: Source, clock: FakeClock) -> Worker[int]:
    """A worker that is not started."""
    return Worker("gpu", source.collect, interval_seconds=1, deadline_seconds=5, clock=clock)


class TestWorker:
    def test_before_the_first_answer_there_is_neither_data_nor_success(self, clock: FakeClock) -> None:
        """Nothing is guessed before a source has spoken."""
        assert make(Source(), clock).latest() == (0, Report(None, Health(success=False)))

    def test_an_answer_is_data_with_success(self, clock: FakeClock) -> None:
        """The answer, its duration and its time are published together."""
        worker = make(Source(), clock)
        worker.run_once()
        health = Health(success=True, duration_seconds=0.0, last_success_seconds=clock.now())
        assert worker.latest() == (1, Report(1, health))

    def test_a_failure_withdraws_the_data_and_keeps_the_time_of_the_last_success(self, clock: FakeClock) -> None:
        """The last good value never survives a failure."""
        source = Source()
        worker = make(source, clock)
        worker.run_once()
        succeeded = clock.now()
        clock.advance(10)
        source.answer = OSError("no driver\nsecond line")
        worker.run_once()
        health = Health(success=False, duration_seconds=0.0, last_success_seconds=succeeded, error="OSError: no driver")
        assert worker.latest() == (2, Report(None, health))

    def test_hung_source_leaves_health_only(self, clock: FakeClock) -> None:
        """Past its deadline a call is reported stuck, its data withdrawn, and no second call is started."""
        source = Source()
        worker = make(source, clock)
        worker.run_once()
        source.release.clear()
        source.entered.clear()
        worker.start()
        try:
            assert source.entered.wait(10)
            assert worker.latest()[1].data == 1  # within its deadline the last answer stands
            clock.advance(6)
            sequence, report = worker.latest()
            assert (sequence, report.data) == (1, None)
            assert report.health.stuck
            assert not report.health.success
            assert report.health.error == "no answer within 5 s"
            assert source.calls == 2
        finally:
            source.release.set()
            worker.stop()

    def test_the_return_of_the_call_alone_clears_the_mark(self, clock: FakeClock) -> None:
        """When the hung call returns its answer is published, without a restart of anything."""
        source = Source()
        worker = make(source, clock)
        source.release.clear()
        thread = threading.Thread(target=worker.run_once)
        thread.start()
        assert source.entered.wait(10)
        clock.advance(6)
        assert worker.latest()[1].health.stuck
        source.release.set()
        thread.join(10)
        sequence, report = worker.latest()
        assert (sequence, report.data, report.health.stuck, report.health.duration_seconds) == (1, 1, False, 6)

    def test_a_change_of_state_is_logged_once(self, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
        """A source that fails a thousand times says so once, and once that it works again."""
        source = Source()
        worker = make(source, clock)
        with caplog.at_level(logging.INFO):
            source.answer = OSError("no driver")
            for _ in range(1000):
                worker.run_once()
            source.answer = 1
            for _ in range(1000):
                worker.run_once()
        assert caplog.messages == ["source gpu fails: OSError: no driver", "source gpu works again"]

    def test_wake_cuts_the_pause_short(self, clock: FakeClock) -> None:
        """A woken worker collects at once, however long its interval."""
        source = Source()
        worker = Worker("logs", source.collect, interval_seconds=3600, deadline_seconds=5, clock=clock)
        worker.start()
        try:
            assert source.entered.wait(10)
            source.entered.clear()
            worker.wake()
            assert source.entered.wait(10)
        finally:
            worker.stop()
