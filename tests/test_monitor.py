"""`monitor`: the running whole, driven tick by tick."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeClock
from training_exporter import monitor
from training_exporter.config import Config, Match, RunConfig
from training_exporter.model import Health, LogTarget, Observation, Report, TailChunk
from training_exporter.monitor import LogReader, Monitor
from training_exporter.options import ServeOptions
from training_exporter.runs.node import Node
from training_exporter.runs.view import NodeView
from training_exporter.state import StateFile


@pytest.fixture
def clock() -> FakeClock:
    """A clock at rest."""
    return FakeClock()


class Tail:
    """A tail source that says what the test gives it."""

    def __init__(self) -> None:
        self.chunks: list[TailChunk] = []
        self.targets: tuple[LogTarget, ...] = ()

    def follow(self, targets: Any) -> None:
        """Note the targets."""
        self.targets = tuple(targets)

    def collect(self) -> tuple[TailChunk, ...]:
        """Everything given since the last call."""
        taken, self.chunks = self.chunks, []
        return tuple(taken)

    def append(self, clock: FakeClock, text: str) -> None:
        """A growth of the log of run `a`."""
        self.chunks.append(TailChunk("a", "/log", clock.now(), text.encode()))


class TestLogReader:
    @pytest.fixture
    def tail(self) -> Tail:
        """A tail without news."""
        return Tail()

    @pytest.fixture
    def reader(self, tail: Tail, clock: FakeClock) -> LogReader:
        """A reader that follows the log of run `a`."""
        reader = LogReader(tail, clock, {})  # type: ignore[arg-type]  # a stand-in
        reader.follow([LogTarget("a", "/log")])
        return reader

    def test_no_batch_is_lost_between_two_ticks(self, reader: LogReader, tail: Tail, clock: FakeClock) -> None:
        """The worker may read twice before the tick looks; both batches are handed on, once."""
        for text in ("one\n", "two\nthree\n"):
            tail.append(clock, text)
            reader.collect()
        assert sum(batch.lines for batch in reader.drain()) == 3
        assert reader.drain() == ()

    def test_a_late_tick_stops_the_reading_and_loses_nothing(
        self, reader: LogReader, tail: Tail, clock: FakeClock
    ) -> None:
        """While batches wait for the tick the log stays in its file, so that memory is bounded."""
        tail.append(clock, "x" * monitor.WAITING_BYTES + "\n")
        reader.collect()
        tail.append(clock, "one more\n")
        reader.collect()
        assert (reader.full, len(tail.chunks)) == (True, 1)
        assert sum(batch.lines for batch in reader.drain()) == 1
        reader.collect()
        assert not reader.full
        assert [batch.last_line for batch in reader.drain()] == ["one more"]

    def test_a_backlog_does_not_wait_for_the_time_of_the_tick(self, tail: Tail, clock: FakeClock) -> None:
        """Who takes the batches is told once nothing more is read until then."""
        asked: list[str] = []
        reader = LogReader(tail, clock, {}, hurry=lambda: asked.append("tick"))  # type: ignore[arg-type]  # a stand-in
        reader.follow([LogTarget("a", "/log")])
        for text in ("x" * monitor.WAITING_BYTES + "\n", "one more\n"):
            assert asked == []
            tail.append(clock, text)
            reader.collect()
        assert asked == ["tick"]

    def test_new_patterns_keep_a_half_read_line(self, reader: LogReader, tail: Tail, clock: FakeClock) -> None:
        """A reload in the middle of a line loses nothing, and its patterns hold for that line."""
        tail.append(clock, "my metric bleu")
        reader.collect()
        reader.reconfigure({"a": (r"^my metric (?P<name>\w+) = (?P<value>\S+)$",)})
        tail.append(clock, " = 0.25\nstep 1 loss 2.0\n")
        reader.collect()
        events = [event for batch in reader.drain() for event in batch.events]
        assert any(0.25 in event.metrics.values() for event in events)

    def test_a_run_without_logs_is_forgotten(self, reader: LogReader, tail: Tail, clock: FakeClock) -> None:
        """What is known of a run's lines does not outlive the run: the same line is new for the next of its name."""
        line = "a line that nobody has seen\n"
        tail.append(clock, line)
        reader.collect()
        tail.append(clock, line)
        reader.collect()
        assert [batch.novel for batch in reader.drain()] == [True, False]
        reader.follow([])
        reader.collect()
        reader.follow([LogTarget("a", "/log")])
        tail.append(clock, line)
        reader.collect()
        assert [batch.novel for batch in reader.drain()] == [True]


class TestMonitor:
    @pytest.fixture
    def whole(self, clock: FakeClock) -> Monitor:
        """A monitor whose sources were never started."""
        return Monitor(Config(), ServeOptions(collectors=frozenset()), clock)

    def test_a_frozen_judgement_publishes_health_only(self, whole: Monitor, clock: FakeClock) -> None:
        """Without a tick for over a minute there is no data: a frozen exporter must not look like a frozen run."""
        whole.tick()
        assert whole.healthy()
        clock.advance(61)
        assert not whole.healthy()
        assert whole.view() == NodeView(clock.now(), 0.0)

    def test_a_fault_of_the_judgement_is_logged_once_and_does_not_end_it(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, whole: Monitor
    ) -> None:
        """The tick goes on behind an unexpected exception, which is said once."""
        ticks = iter(range(5))

        def observe(_: Node, __: Observation) -> NodeView:
            if next(ticks) == 3:
                whole.stop()
            message = "a fault of ours"
            raise ValueError(message)

        monkeypatch.setattr(Node, "observe", observe)
        monkeypatch.setattr(monitor, "TICK_SECONDS", 0)
        whole._run()
        assert next(ticks) == 4
        assert len([record for record in caplog.records if record.exc_info]) == 1

    def test_a_state_directory_that_hangs_does_not_keep_it_from_starting(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, clock: FakeClock
    ) -> None:
        """After a short wait the exporter starts without its memory, and says so."""
        release = threading.Event()
        monkeypatch.setattr(StateFile, "load", lambda _: {"waited": release.wait(30)})
        monkeypatch.setattr(monitor, "RECALL_SECONDS", 0.05)
        try:
            Monitor(Config(), ServeOptions(state_directory=tmp_path, collectors=frozenset()), clock)
        finally:
            release.set()
        assert caplog.messages == ["the state directory does not answer; starting without what was remembered"]

    def test_reload_takes_the_new_configuration(self, whole: Monitor) -> None:
        """An expected run that is not here is shown from the next tick on."""
        whole.tick()
        assert whole.view().runs == ()
        whole.reload(
            Config(runs=(RunConfig("expected-run", match=Match(cmdline="no such command line"), expected=True),))
        )
        whole.tick()
        assert [run.verdict.state for run in whole.view().runs] == ["absent"]

    def test_a_source_that_is_switched_off_is_never_waited_for(self, whole: Monitor) -> None:
        """With every collector off the exporter is ready at once and reports no health for them."""
        assert whole.ready()
        assert whole.view().health == {}

    def test_a_driver_that_was_only_just_asked_has_not_failed(
        self, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
    ) -> None:
        """Before the GPUs have answered or failed once there is no news of them, so that no run looks blind."""
        seen: list[Observation] = []

        def observe(_: Node, observation: Observation) -> NodeView:
            seen.append(observation)
            return NodeView(clock.now(), 0.0)

        monkeypatch.setattr(Node, "observe", observe)
        watching = Monitor(Config(), ServeOptions(collectors=frozenset({"gpu"})), clock)
        watching.tick()
        health = Health(success=False, error="no driver")
        monkeypatch.setattr(watching._gpu, "health", lambda: health)
        watching.tick()
        assert [observation.gpu for observation in seen[-2:]] == [None, Report(None, health)]
