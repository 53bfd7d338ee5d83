"""The GPU source on a driver that does what a test says, with the time of the test."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable

import pytest

from training_exporter.model import GpuDevice, GpuSample
from training_exporter.sources.gpu import MAX_SAMPLES, GpuSource
from training_exporter.sources.gpu_driver import (
    DriverMissingError,
    FastValues,
    FoundGpu,
    GpuDriverError,
    GpuEvent,
    GpuLostError,
    SessionLostError,
    SlowValues,
)
from training_exporter.sources.gpu_session import DriverSession, GpuLabels

START_SECONDS = 1_700_000_000.0
DEADLINE_SECONDS = 5.0
WAIT_SECONDS = 20.0


class ManualClock:
    """The time of a test; moves only when told."""

    def __init__(self) -> None:
        self.seconds = START_SECONDS

    def now(self) -> float:
        return self.seconds

    def wall_shift(self) -> float:
        return 0.0


@dataclasses.dataclass
class Board:
    """A GPU of the scripted driver."""

    uuid: str
    power_watts: float = 350.0
    temperature_celsius: float = 60.0
    error: GpuDriverError | None = None
    instances: list[str] = dataclasses.field(default_factory=list)
    slot: str | None = None
    hang: threading.Event | None = None  # every call waits for it
    slow_hang: threading.Event | None = None


class ScriptedDriver:
    """A driver whose boards, errors and hangs a test sets; notes what it was asked."""

    def __init__(self, *boards: Board) -> None:
        self.boards = list(boards)
        self.open_error: GpuDriverError | None = None
        self.count_error: GpuDriverError | None = None
        self.open_hang: threading.Event | None = None
        self.events: list[GpuEvent] = []
        self.calls: list[str] = []

    def open(self) -> None:
        self.calls.append("open")
        _wait(self.open_hang)
        _raise(self.open_error)

    def close(self) -> None:
        self.calls.append("close")

    def count(self) -> int:
        _raise(self.count_error)
        return len(self.boards)

    def identify(self, index: int) -> tuple[FoundGpu, ...]:
        self.calls.append(f"identify {index}")
        if index >= len(self.boards):
            return ()
        board = self.boards[index]
        _wait(board.hang)
        _raise(board.error)
        device = GpuDevice(str(index), board.uuid, pci_bus_id=board.slot, mig=bool(board.instances))
        instances = [
            FoundGpu(GpuDevice(f"{index}:{number}", uuid, parent=str(index), mig=True), (board, uuid))
            for number, uuid in enumerate(board.instances)
        ]
        return FoundGpu(device, (board, board.uuid)), *instances

    def sample_fast(self, gpu: FoundGpu) -> FastValues:
        board = self._board(gpu)
        _wait(board.hang)
        return FastValues(power_watts=board.power_watts)

    def sample_slow(self, gpu: FoundGpu) -> SlowValues:
        board = self._board(gpu)
        self.calls.append(f"slow {board.uuid}")
        temperature = board.temperature_celsius
        _wait(board.slow_hang)
        return SlowValues(temperature_celsius=temperature)

    def wait_for_events(self, timeout_seconds: float) -> tuple[GpuEvent, ...]:
        assert timeout_seconds < 1
        events, self.events = tuple(self.events), []
        return events

    def _board(self, gpu: FoundGpu) -> Board:
        assert isinstance(gpu.handle, tuple)
        board, uuid = gpu.handle
        assert isinstance(board, Board)
        _raise(board.error)
        if board not in self.boards or uuid not in {board.uuid, *board.instances}:
            raise GpuLostError("no longer there")
        return board


class Bench:
    """A source, driven call by call in the test's own thread, except where a driver hangs."""

    def __init__(self, driver: ScriptedDriver) -> None:
        self.clock = ManualClock()
        self.driver = driver
        self.source = GpuSource(driver, self.clock, deadline_seconds=DEADLINE_SECONDS)
        self.threads: list[threading.Thread] = []

    def tick(self, seconds: float = 1.0, *, without: int | None = None) -> list[GpuSample]:
        """Let time pass, let every thread do one round, and drain; without the reader at an index that hangs."""
        self.clock.seconds += seconds
        self.source._supervisor.run_once()
        self.source._events.run_once()
        for index, reader in enumerate(self.source._readers):
            if index != without:
                reader.worker.run_once()
        return list(self.source.drain().data or ())

    def ticks(self, count: int) -> list[GpuSample]:
        """Several rounds, a second apart."""
        return [sample for _ in range(count) for sample in self.tick()]

    def begin(self, run_once: Callable[[], None]) -> None:
        """Start a round that will hang, in a thread."""
        thread = threading.Thread(target=run_once, daemon=True)
        self.threads.append(thread)
        thread.start()

    def reader(self, index: int) -> Callable[[], None]:
        """One round of the reader at that index."""
        return self.source._readers[index].worker.run_once

    def finish(self) -> None:
        """Wait for the rounds that hung and were released."""
        for thread in self.threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()


def _wait(event: threading.Event | None) -> None:
    if event is not None:
        assert event.wait(WAIT_SECONDS)


def _raise(error: GpuDriverError | None) -> None:
    if error is not None:
        raise error


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _labels(samples: list[GpuSample]) -> list[str]:
    return sorted(sample.device.gpu for sample in samples)


def _lost(samples: list[GpuSample]) -> dict[str, bool]:
    return {sample.device.gpu: sample.lost for sample in samples}


class TestSampling:
    def test_every_gpu_is_sampled_in_every_round(self) -> None:
        """A drain gives each sample once, oldest first, however many rounds there were."""
        bench = Bench(ScriptedDriver(Board("A"), Board("B")))
        bench.tick()
        bench.clock.seconds += 1
        for index in (0, 1, 0):
            bench.reader(index)()
            bench.clock.seconds += 0.25
        report = bench.source.drain()
        assert report.data is not None
        assert [sample.device.gpu for sample in report.data] == ["0", "1", "0"]
        times = [sample.time_seconds for sample in report.data]
        assert times == sorted(times)
        assert bench.source.drain().data == ()

    def test_a_burst_between_two_drains_is_among_the_samples(self) -> None:
        """Work of a second is seen although a scrape comes once a minute."""
        driver = ScriptedDriver(Board("A", power_watts=90.0))
        bench = Bench(driver)
        bench.tick()
        for second in range(60):
            driver.boards[0].power_watts = 400.0 if second == 30 else 90.0
            bench.clock.seconds += 1
            bench.reader(0)()
        power = [sample.power_watts for sample in bench.source.drain().data or ()]
        assert power == [90.0] * 30 + [400.0] + [90.0] * 29

    def test_slow_values_are_read_every_few_seconds_and_carried_on(self) -> None:
        """Between two readings the last value stands in the samples."""
        driver = ScriptedDriver(Board("A", temperature_celsius=60.0))
        bench = Bench(driver)
        bench.tick()
        driver.boards[0].temperature_celsius = 70.0
        assert [sample.temperature_celsius for sample in bench.ticks(6)] == [60.0] * 4 + [70.0] * 2
        assert driver.calls.count("slow A") == 2

    def test_samples_that_nobody_drains_are_bounded(self) -> None:
        """The oldest go first."""
        bench = Bench(ScriptedDriver(Board("A")))
        bench.tick()
        for _ in range(MAX_SAMPLES + 1):
            bench.source._publish(GpuSample(bench.clock.now(), GpuDevice("0", "A")))
        assert len(bench.source.drain().data or ()) == MAX_SAMPLES

    def test_samples_are_in_the_order_of_their_time(self) -> None:
        """A GPU that took longer to answer was asked before one that answered first."""
        bench = Bench(ScriptedDriver(Board("A")))
        bench.tick()
        for seconds in (3, 1, 2):
            bench.source._publish(GpuSample(START_SECONDS + seconds, GpuDevice("0", "A")))
        expected = [START_SECONDS + seconds for seconds in (1, 2, 3)]
        assert expected == [sample.time_seconds for sample in bench.source.drain().data or ()]

    def test_one_failing_gpu_hides_only_itself(self) -> None:
        """The error names it and the source goes on."""
        driver = ScriptedDriver(Board("A"), Board("B"))
        bench = Bench(driver)
        bench.tick()
        driver.boards[1].error = GpuDriverError("unknown error")
        assert _labels(bench.tick()) == ["0"]
        health = bench.source.health()
        assert (health.success, health.stuck) == (True, False)
        assert health.error == "gpu 1: GpuDriverError: unknown error"
        driver.boards[1].error = None
        assert _labels(bench.tick()) == ["0", "1"]
        assert bench.source.health().error is None


class TestHanging:
    def test_data_is_withdrawn_at_the_deadline_and_returns_with_the_call(self) -> None:
        """Only the GPU that hangs is missing; what was read before the hang is not told after it."""
        released = threading.Event()
        driver = ScriptedDriver(Board("A"), Board("B"))
        bench = Bench(driver)
        bench.tick()
        driver.boards[1].hang = released
        bench.begin(bench.reader(1))
        _until(lambda: bench.source._readers[1].worker._began_seconds is not None)
        assert _labels(bench.tick(DEADLINE_SECONDS, without=1)) == ["0"]
        assert not bench.source.health().stuck
        assert _labels(bench.tick(0.5, without=1)) == ["0"]
        assert bench.source.health().stuck
        assert bench.source.health().success
        assert bench.source.health().error == "gpu 1: no answer within 5 s"
        released.set()
        bench.finish()
        assert not bench.source.health().stuck
        assert bench.source.drain().data == ()
        assert _labels(bench.tick()) == ["0", "1"]

    def test_a_slow_reading_that_hung_is_thrown_away(self) -> None:
        """After the release the slow values are read again, not carried on from before the hang."""
        released = threading.Event()
        driver = ScriptedDriver(Board("A", slow_hang=released))
        bench = Bench(driver)
        bench.clock.seconds += 1
        bench.source._supervisor.run_once()
        bench.begin(bench.reader(0))
        _until(lambda: "slow A" in driver.calls)
        bench.clock.seconds += 100
        driver.boards[0].temperature_celsius = 90.0
        released.set()
        bench.finish()
        assert [sample.temperature_celsius for sample in bench.tick()] == [90.0]

    def test_all_hanging_is_no_data(self) -> None:
        """The source has failed then, and says that it is stuck."""
        released = threading.Event()
        driver = ScriptedDriver(Board("A", hang=released))
        bench = Bench(driver)
        bench.tick(without=0)
        bench.begin(bench.reader(0))
        _until(lambda: "identify 0" in driver.calls)
        bench.clock.seconds += DEADLINE_SECONDS + 1
        report = bench.source.drain()
        assert (report.data, report.health.success, report.health.stuck) == (None, False, True)
        released.set()
        bench.finish()

    def test_a_hanging_start_is_stuck(self) -> None:
        """Setting the library up may hang as well."""
        released = threading.Event()
        driver = ScriptedDriver(Board("A"))
        driver.open_hang = released
        bench = Bench(driver)
        bench.begin(bench.source._supervisor.run_once)
        _until(lambda: "open" in driver.calls)
        bench.clock.seconds += DEADLINE_SECONDS + 1
        report = bench.source.drain()
        assert (report.data, report.health.success, report.health.stuck) == (None, False, True)
        released.set()
        bench.finish()
        assert _labels(bench.tick()) == ["0"]

    def test_each_change_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        """One line when it stops to answer, one when it answers again."""
        released = threading.Event()
        driver = ScriptedDriver(Board("A"), Board("B"))
        bench = Bench(driver)
        bench.tick()
        driver.boards[1].hang = released
        bench.begin(bench.reader(1))
        _until(lambda: bench.source._readers[1].worker._began_seconds is not None)
        with caplog.at_level(logging.INFO):
            for _ in range(20):
                bench.tick(without=1)
            released.set()
            bench.finish()
            bench.ticks(3)
        expected = ["source gpu 1 does not answer within 5 s", "source gpu 1 answers again"]
        assert expected == [record.getMessage() for record in caplog.records]

    def test_stopping_waits_for_nothing(self) -> None:
        """Started threads that hang are left alone; they are daemons, so that the process can end."""
        released = threading.Event()
        bench = Bench(ScriptedDriver(Board("A", hang=released)))
        bench.source.start()
        _until(lambda: "identify 0" in bench.driver.calls)
        bench.source.stop()
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("source-gpu")]
        assert any(thread.name == "source-gpu 0" for thread in threads)
        assert all(thread.daemon for thread in threads)
        released.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()


class TestOpening:
    def test_a_missing_driver_is_a_state_and_looked_for_slowly(self, caplog: pytest.LogCaptureFixture) -> None:
        """One line at info, a new attempt after a minute, and everything works once it is there."""
        driver = ScriptedDriver(Board("A"))
        driver.open_error = DriverMissingError("no NVIDIA driver library")
        bench = Bench(driver)
        with caplog.at_level(logging.INFO):
            bench.ticks(60)
        assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
            ("INFO", "no GPU can be read: no NVIDIA driver library")
        ]
        assert driver.calls == ["open"]
        health = bench.source.health()
        assert (health.success, health.stuck, health.error) == (False, False, "no NVIDIA driver library")
        driver.open_error = None
        assert _labels(bench.tick(2)) == ["0"]
        assert bench.source.health().error is None

    def test_a_failing_driver_is_tried_less_and_less_often(self, caplog: pytest.LogCaptureFixture) -> None:
        """After 1, 2, 4, ... and at last every 60 s, with one line for one error."""
        driver = ScriptedDriver(Board("A"))
        driver.open_error = GpuDriverError("insufficient permissions")
        bench = Bench(driver)
        bench.ticks(70)
        assert driver.calls.count("open") == 7
        bench.ticks(120)
        assert driver.calls.count("open") == 9
        assert [record.levelname for record in caplog.records] == ["WARNING"]

    def test_no_gpu_is_a_failure_that_is_looked_at_again(self) -> None:
        """A driver that comes up after the exporter is found."""
        driver = ScriptedDriver()
        bench = Bench(driver)
        bench.tick()
        assert bench.source.health().error == "the driver knows no GPU"
        driver.boards.append(Board("A"))
        assert bench.tick(30) == []
        assert _labels(bench.tick(31)) == ["0"]

    def test_a_lost_session_is_opened_again(self, caplog: pytest.LogCaptureFixture) -> None:
        """All GPUs fail at once after a driver reload; one line says so, and one that it is over."""
        driver = ScriptedDriver(*(Board(uuid) for uuid in "ABCD"))
        bench = Bench(driver)
        bench.tick()
        for board in driver.boards:
            board.error = SessionLostError("uninitialised")
        with caplog.at_level(logging.INFO):
            assert bench.tick() == []
            assert not bench.source.health().success
            assert bench.source.drain().data is None
            for board in driver.boards:
                board.error = None
            assert _labels(bench.tick()) == list("0123")
        assert driver.calls.count("open") == 2
        assert [record.getMessage() for record in caplog.records] == [
            "no GPU can be read: uninitialised",
            "the GPUs can be read again",
        ]

    def test_the_driver_is_not_closed_under_a_call(self) -> None:
        """With a call that hangs it is set up a second time instead, after the deadline."""
        released = threading.Event()
        driver = ScriptedDriver(Board("A"), Board("B"))
        bench = Bench(driver)
        bench.tick()
        driver.boards[1].hang = released
        bench.begin(bench.reader(1))
        _until(lambda: bench.source._session._inside == 1)
        driver.boards[0].error = SessionLostError("uninitialised")
        bench.tick(without=1)
        driver.boards[0].error = None
        for _ in range(4):
            bench.tick(without=1)
        assert driver.calls.count("open") == 1
        for _ in range(2):
            bench.tick(without=1)
        assert driver.calls.count("open") == 2
        assert "close" not in driver.calls
        released.set()
        bench.finish()

    def test_failure_of_every_gpu_opens_the_driver_again(self) -> None:
        """A container that lost its devices answers an unknown error to everything."""
        driver = ScriptedDriver(Board("A"), Board("B"))
        bench = Bench(driver)
        bench.tick()
        for board in driver.boards:
            board.error = GpuDriverError("unknown error")
        bench.ticks(2)
        health = bench.source.health()
        assert (health.success, health.error) == (False, "gpu 0: GpuDriverError: unknown error")
        for board in driver.boards:
            board.error = None
        bench.ticks(3)
        assert bench.source.health().success
        assert driver.calls.count("close") == 1


class TestLosing:
    def test_a_lost_gpu_has_samples_that_say_so(self, caplog: pytest.LogCaptureFixture) -> None:
        """Nothing else is in them, the driver is asked rarely, and the others go on."""
        driver = ScriptedDriver(Board("A"), Board("B"))
        bench = Bench(driver)
        bench.tick()
        driver.boards[1].error = GpuLostError("gpu is lost")
        with caplog.at_level(logging.INFO):
            samples = bench.ticks(10)
        lost = [sample for sample in samples if sample.lost]
        assert [sample.device.uuid for sample in lost] == ["B"] * 10
        assert {sample.power_watts for sample in lost} == {None}
        assert driver.calls.count("identify 1") == 1
        assert bench.source.health().success
        driver.boards[1].error = None
        with caplog.at_level(logging.INFO):
            assert _lost(bench.ticks(2)) == {"0": False, "1": False}
        assert [record.getMessage() for record in caplog.records] == ["GPU 1 is lost: gpu is lost", "GPU 1 is back"]

    def test_a_gpu_lost_before_the_start_is_told_by_its_index(self) -> None:
        """It takes its identity once it is back."""
        driver = ScriptedDriver(Board("A"), Board("B", error=GpuLostError("gpu is lost")))
        bench = Bench(driver)
        assert _lost(bench.tick()) == {"0": False, "1": True}
        driver.boards[1].error = None
        assert {s.device.gpu: s.device.uuid for s in bench.tick(11)} == {"0": "A", "1": "B"}
        assert _lost(bench.ticks(3)) == {"0": False, "1": False}

    def test_a_gpu_that_stays_lost_is_tried_with_the_library_set_up_anew(self) -> None:
        """After a minute, and then less and less often; the others miss no more than a round or two."""
        driver = ScriptedDriver(Board("A"), Board("B", error=GpuLostError("gpu is lost")))
        bench = Bench(driver)
        samples = bench.ticks(600)
        assert driver.calls.count("open") == 4
        assert sum(sample.device.gpu == "0" for sample in samples) > 590

    def test_a_gpu_that_vanished_is_lost_and_the_others_keep_their_labels(self) -> None:
        """The driver numbers the rest anew; a GPU is the same by its UUID."""
        driver = ScriptedDriver(*(Board(uuid) for uuid in "ABCD"))
        bench = Bench(driver)
        bench.tick()
        del driver.boards[1]
        bench.ticks(3)
        samples = bench.tick()
        assert {s.device.gpu: s.device.uuid for s in samples} == dict(zip("0123", "ABCD", strict=True))
        assert _lost(samples) == {"0": False, "1": True, "2": False, "3": False}
        driver.boards.insert(1, Board("B"))
        bench.ticks(3)
        assert _lost(bench.tick()) == dict.fromkeys("0123", False)

    def test_a_lost_gpu_that_then_vanishes_is_not_back(self, caplog: pytest.LogCaptureFixture) -> None:
        """Another GPU has its index then."""
        driver = ScriptedDriver(*(Board(uuid) for uuid in "ABC"))
        bench = Bench(driver)
        bench.tick()
        with caplog.at_level(logging.INFO):
            driver.boards[1].error = GpuLostError("gpu is lost")
            bench.tick()
            del driver.boards[1]
            bench.ticks(3)
            assert _lost(bench.tick()) == {"0": False, "1": True, "2": False}
        assert [record.getMessage() for record in caplog.records] == ["GPU 1 is lost: gpu is lost", "GPU 1 vanished"]

    def test_a_gpu_that_appears_is_sampled(self) -> None:
        """Without a restart."""
        driver = ScriptedDriver(Board("A"))
        bench = Bench(driver)
        bench.tick()
        driver.boards.append(Board("B"))
        bench.ticks(2)
        assert _lost(bench.tick()) == {"0": False, "1": False}

    def test_a_card_in_the_slot_of_another_replaces_it(self) -> None:
        """It takes over the label, and nothing is lost."""
        driver = ScriptedDriver(Board("A", slot="01:00"), Board("B", slot="02:00"))
        bench = Bench(driver)
        bench.tick()
        driver.boards[1] = Board("C", slot="02:00")
        bench.ticks(12)
        samples = bench.tick()
        assert {s.device.gpu: s.device.uuid for s in samples} == {"0": "A", "1": "C"}
        assert _lost(samples) == {"0": False, "1": False}


class TestMig:
    def test_instances_follow_the_label_of_their_gpu(self) -> None:
        """An instance names its parent, also after the driver numbered the GPUs anew."""
        driver = ScriptedDriver(Board("A"), Board("B", instances=["M", "N"]))
        bench = Bench(driver)
        bench.tick()
        del driver.boards[0]
        bench.ticks(3)
        devices = {s.device.uuid: s.device for s in bench.tick() if not s.lost}
        assert [devices[uuid].gpu for uuid in "BMN"] == ["1", "1:0", "1:1"]
        assert [devices[uuid].parent for uuid in "BMN"] == [None, "1", "1"]

    def test_an_instance_that_is_destroyed_is_not_lost(self) -> None:
        """Whoever partitions a GPU anew has broken nothing."""
        driver = ScriptedDriver(Board("A", instances=["M", "N"]))
        bench = Bench(driver)
        assert _labels(bench.tick()) == ["0", "0:0", "0:1"]
        driver.boards[0].instances.remove("N")
        bench.tick()
        assert _lost(bench.tick()) == {"0": False, "0:0": False}

    def test_instances_are_lost_with_their_gpu(self) -> None:
        """Their runs must learn of it."""
        driver = ScriptedDriver(Board("A", instances=["M"]))
        bench = Bench(driver)
        bench.tick()
        driver.boards[0].error = GpuLostError("gpu is lost")
        assert _lost(bench.tick()) == {"0": True, "0:0": True}


class TestEvents:
    def test_a_critical_error_is_in_one_sample(self) -> None:
        """A repeat of the same code is another event."""
        driver = ScriptedDriver(Board("A"), Board("B"))
        bench = Bench(driver)
        bench.tick()
        driver.events = [GpuEvent(GpuDevice("1", "B"), 31), GpuEvent(GpuDevice("1", "B"), 31)]
        told = [(s.device.gpu, xid.xid) for s in bench.ticks(3) for xid in s.xids]
        assert told == [("1", 31), ("1", 31)]

    def test_the_error_of_a_lost_gpu_is_told(self) -> None:
        """It explains the loss."""
        driver = ScriptedDriver(Board("A"))
        bench = Bench(driver)
        bench.tick()
        driver.events = [GpuEvent(GpuDevice("0", "A"), 79)]
        driver.boards[0].error = GpuLostError("gpu is lost")
        [sample] = bench.tick()
        assert (sample.lost, [xid.xid for xid in sample.xids]) == (True, [79])

    def test_the_error_of_a_gpu_that_hangs_is_told_at_once(self) -> None:
        """In a sample that holds no value of it."""
        released = threading.Event()
        driver = ScriptedDriver(Board("A"), Board("B"))
        bench = Bench(driver)
        bench.tick()
        driver.boards[1].hang = released
        bench.begin(bench.reader(1))
        _until(lambda: bench.source._readers[1].worker._began_seconds is not None)
        bench.tick(DEADLINE_SECONDS + 1, without=1)
        driver.events = [GpuEvent(GpuDevice("1", "B"), 119)]
        [sample] = [s for s in bench.tick(without=1) if s.device.gpu == "1"]
        assert (sample.power_watts, sample.lost, [xid.xid for xid in sample.xids]) == (None, False, [119])
        released.set()
        bench.finish()


class TestDriverSession:
    def test_a_late_error_of_an_earlier_opening_changes_nothing(self) -> None:
        """A call that hung through a reload fails when it returns, and the driver is already open again."""
        session = DriverSession(ScriptedDriver(), ManualClock(), deadline_seconds=DEADLINE_SECONDS)
        session.ensure_open()
        session.renew()
        session.ensure_open()
        session.lose(SessionLostError("uninitialised"), 1)
        with session.inside() as generation:
            assert generation == 2

    def test_a_late_answer_does_not_end_a_failure(self) -> None:
        """What another thread still read before the session was lost says nothing about the next one."""
        clock = ManualClock()
        session = DriverSession(ScriptedDriver(), clock, deadline_seconds=DEADLINE_SECONDS)
        session.ensure_open()
        session.lose(GpuDriverError("unknown error"))
        session.answered()
        assert session.error == "unknown error"
        clock.seconds += 1
        session.ensure_open()
        assert session.error == "unknown error"
        session.answered()
        assert session.error is None


class TestGpuLabels:
    def test_a_new_gpu_never_takes_a_label_in_use(self) -> None:
        """Even when the driver gives it the index of one that vanished."""
        labels = GpuLabels()
        for index, uuid in enumerate("AB"):
            labels.claim(index, 1, GpuDevice(str(index), uuid))
        assert labels.claim(1, 2, GpuDevice("1", "C")).gpu == "2"
        assert labels.claim(0, 2, GpuDevice("0", "A")).gpu == "0"
        assert [device.uuid for device in labels.vanished(2, 2)] == ["B"]

    def test_nothing_has_vanished_before_all_were_looked_at(self) -> None:
        """Right after an opening the GPUs are not yet identified."""
        labels = GpuLabels()
        for index, uuid in enumerate("AB"):
            labels.claim(index, 1, GpuDevice(str(index), uuid))
        labels.claim(0, 2, GpuDevice("0", "B"))
        assert labels.vanished(2, 2) == ()
