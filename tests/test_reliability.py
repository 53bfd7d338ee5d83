"""Faults inside one process: dead threads, jumping clocks, full disks, monstrous logs, storms of processes."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from e2e.harness import wait_until
from fakes import FakeClock
from hanging_mount import can_mount, small_disk
from jobs import Watch, complete, job
from nodes import RUN, TRAINS, World
from training_exporter import monitor as monitor_module
from training_exporter.config import Config, RunConfig
from training_exporter.logs import RunLogs, shapes
from training_exporter.logs.plan import Plan
from training_exporter.metrics import MOST_SERIES_PER_RUN, ViewCollector, families
from training_exporter.model import (
    CheckpointTarget,
    Health,
    LogBatch,
    LogTarget,
    Observation,
    ProcessRecord,
    ProcessTable,
    Report,
    TailChunk,
)
from training_exporter.monitor import Monitor
from training_exporter.options import ServeOptions
from training_exporter.runs.metric_values import METRIC_NAMES_LIMIT
from training_exporter.runs.node import Node
from training_exporter.runs.view import NodeView
from training_exporter.sources import offload as offload_module
from training_exporter.sources import procfs as proc
from training_exporter.sources import tail_pattern
from training_exporter.sources.checkpoints import CheckpointSource
from training_exporter.sources.directory_scan import DirectoryScanner
from training_exporter.sources.offload import Offload
from training_exporter.sources.processes import LONG_LISTING_TICKS, ProcessSource
from training_exporter.sources.tail import EXPAND_SECONDS, MAX_RETIRED, TailSource
from training_exporter.sources.tail_file import RESTORE_BYTES
from training_exporter.state import StateFile
from training_exporter.worker import Worker

PATIENCE_SECONDS = 20.0
MIB = 1 << 20
HOUR_SECONDS = 3600.0


@pytest.fixture
def clock() -> FakeClock:
    """A clock at rest."""
    return FakeClock()


def kill(thread: threading.Thread) -> None:
    """Make a thread end at the next line of Python that it runs, as if it had never been."""
    assert thread.ident is not None
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)) == 1


class TestDeadSource:
    """A source whose code or whose thread dies."""

    @pytest.mark.parametrize("death", [MemoryError("no memory"), SystemExit(1), RecursionError("too deep")])
    def test_it_fails_alone_and_is_asked_again(self, clock: FakeClock, death: BaseException) -> None:
        """Whatever it raises is health, and the thread lives on."""
        answers: Iterator[BaseException | int] = iter([death, 1])
        asked = threading.Semaphore(0)

        def collect() -> int:
            answer = next(answers, 1)
            asked.release()
            if isinstance(answer, BaseException):
                raise answer
            return answer

        worker = Worker("logs", collect, interval_seconds=0.01, deadline_seconds=5, clock=clock)
        worker.run_once()
        health = worker.latest()[1].health
        assert (health.success, health.error) == (False, f"{type(death).__name__}: {death}")
        worker.start()
        try:
            wait_until("it works again", lambda: worker.latest()[1].data == 1, seconds=PATIENCE_SECONDS)
        finally:
            worker.stop()

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # it is the fault
    def test_a_killed_thread_is_replaced(self, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
        """The next tick starts another, and says so."""
        calls: list[str] = []
        worker = Worker(
            "logs",
            lambda: calls.append(threading.current_thread().name),
            interval_seconds=0.01,
            deadline_seconds=5,
            clock=clock,
        )
        worker.start()
        first = worker._thread
        assert first is not None
        kill(first)
        first.join(PATIENCE_SECONDS)
        assert not first.is_alive()
        calls.clear()
        worker.start()
        try:
            wait_until("it is asked again", lambda: calls, seconds=PATIENCE_SECONDS)
        finally:
            worker.stop()
        assert "the thread of source logs died and was replaced" in caplog.messages

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # it is the fault
    def test_the_tick_looks_after_the_threads(self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        """A running exporter notices by itself that a source has no thread any more."""
        monkeypatch.setattr(monitor_module, "TICK_SECONDS", 0.01)
        whole = Monitor(Config(), ServeOptions(collectors=frozenset({"checkpoints"})), clock)
        whole.start()
        try:
            worker = whole._checkpoints.worker
            first = worker._thread
            assert first is not None
            worker.wake()
            kill(first)
            worker.wake()
            wait_until("it is dead", lambda: not first.is_alive() or worker.wake(), seconds=PATIENCE_SECONDS)
            wait_until(
                "there is another",
                lambda: worker._thread is not first and worker._thread.is_alive(),  # type: ignore[union-attr]
                seconds=PATIENCE_SECONDS,
            )
        finally:
            whole.stop()

    def test_no_more_threads(self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """After a fork storm the system refuses threads: what cannot start fails by name, and starts when it can."""
        begin = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name.startswith("source-checkpoints /"):
                raise RuntimeError("can't start new thread")
            begin(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)
        source = CheckpointSource(clock)
        source.watch([CheckpointTarget("run", str(tmp_path))])
        (listing,) = source.collect()
        assert (listing.readable, listing.error) == (False, "RuntimeError: can't start new thread")
        monkeypatch.undo()
        try:
            wait_until("it is listed", lambda: [one.readable for one in source.collect()] == [True], seconds=10)
        finally:
            source.close()


class TestExhausted:
    """No descriptor or memory is left: nothing is known to be gone."""

    @pytest.mark.parametrize("code", sorted(offload_module.EXHAUSTED))
    def test_it_is_a_failure_and_no_absence(self, code: int) -> None:
        """Of a read that fails for want of descriptors nobody may conclude that the process is gone."""

        def fail() -> int:
            raise OSError(code, os.strerror(code))

        offload = Offload[str]("test", deadline_seconds=5)
        with pytest.raises(OSError, match=os.strerror(code)):
            offload.run([("a", fail), ("b", lambda: 2)])
        assert offload.run([("b", lambda: 2)]) == {"b": 2}

    @pytest.mark.parametrize("file", ["stat", "cmdline", "environ", "status", "io"])
    def test_a_member_is_not_forgotten(
        self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str
    ) -> None:
        """The table is withheld while it lasts, and whole afterwards, newcomers of that time included."""
        _process(tmp_path, 1, "init")
        _process(tmp_path, 7, "train")
        source = ProcessSource(clock, procfs=str(tmp_path), interesting=_named("train"))
        assert set(source.collect().processes) == {7}
        _process(tmp_path, 8, "train")
        read = proc.read_file

        def starve(path: str, **options: int) -> bytes:
            if path.endswith(f"/{file}"):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
            return read(path, **options)

        monkeypatch.setattr(proc, "read_file", starve)
        for _ in range(3):
            clock.advance(2)
            with pytest.raises(OSError, match="Too many open files"):
                source.collect()
        monkeypatch.undo()
        clock.advance(2)
        table = source.collect()
        assert set(table.processes) == {7, 8}
        assert all(record.environment for record in table.processes.values())

    def test_the_files_of_a_pattern_are_not_gone(
        self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """They are followed on; that no others can be found is said once."""
        log = tmp_path / "rank0.log"
        log.write_text("")
        follower = Follower(tmp_path / "*.log", clock)
        follower.poll()

        def starve(*_: object, **__: object) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as starved:
            starved.setattr(tail_pattern, "open_below", starve)
            for number in range(1, 4):
                with log.open("a") as file:
                    file.write(f"step {number}/9\n")
                follower.poll()
                assert follower.lines == number
                follower.poll(EXPAND_SECONDS)
        assert caplog.text.count("Too many open files") == 1
        (tmp_path / "rank1.log").write_text("step 1/9\n")
        follower.poll(EXPAND_SECONDS)
        assert follower.lines == 4


class TestProcessStorm:
    """Far more processes than a training node has, and none for long."""

    BORN = 5000

    def test_thousands_come_and_go(self, clock: FakeClock, tmp_path: Path) -> None:
        """Between two listings 5,000 end and 5,000 are born: the job is the same, and nothing is kept of the dead."""
        _process(tmp_path, 1, "init")
        _process(tmp_path, 7, "train")
        source = ProcessSource(clock, procfs=str(tmp_path), interesting=_named("train"))
        for generation in range(2):
            first = 10 + generation * self.BORN
            for pid in range(first, first + self.BORN):
                _process(tmp_path, pid, "true", small=True)
            assert set(self._listed(source, clock).processes) == {7}
            assert len(source._entries) == self.BORN + 2
            for pid in range(first, first + self.BORN):
                (tmp_path / str(pid)).rename(tmp_path / f"gone-{pid}")
        self._listed(source, clock)
        kept = (source._members, source._context, source._readers, source._unsettled, source._unread)
        assert set(source._entries) == {1, 7}
        assert all(group <= {1, 7} for group in (*kept, source._candidates))

    @staticmethod
    def _listed(source: ProcessSource, clock: FakeClock) -> ProcessTable:
        """The table once there was a listing for sure: of thousands there is one in some ticks only."""
        for _ in range(LONG_LISTING_TICKS):
            clock.advance(2)
            table = source.collect()
        return table

    def test_a_real_fork_storm(self, tmp_path: Path) -> None:
        """While hundreds of processes a second begin and end, every look succeeds and shows the job whole."""
        watch = Watch()
        stop = threading.Event()

        def storm() -> None:
            while not stop.is_set():
                for pid in [os.posix_spawn("/bin/true", ["true"], {}) for _ in range(20)]:
                    os.waitpid(pid, 0)

        with job(tmp_path / "job") as made:
            made.start("train.py")
            watch.until(made.directory, complete())
            thread = threading.Thread(target=storm)
            thread.start()
            try:
                assert all(complete()(watch.look(made.directory)) for _ in range(20))
            finally:
                stop.set()
                thread.join(PATIENCE_SECONDS)


def _named(word: str) -> Callable[[Mapping[int, ProcessRecord]], set[int]]:
    return lambda records: {pid for pid, record in records.items() if word in (record.command or ())}


def _process(root: Path, pid: int, command: str, *, small: bool = False) -> None:
    """A process of an imitated /proc; a `small` one has no more than what is read of strangers."""
    directory = root / str(pid)
    directory.mkdir()
    (directory / "stat").write_text(f"{pid} ({command}) S 1 {pid} {pid} 0 -1 0 1 0 9 0 3 2 0 0 20 0 1 0 {pid} 0 0\n")
    (directory / "cmdline").write_text(f"{command}\0")
    if not small:
        (directory / "fd").mkdir()
        (directory / "environ").write_text("RANK=0\0")
        (directory / "status").write_text("Uid:\t7\t7\t7\t7\n")
        (directory / "io").write_text("rchar: 1\nwchar: 2\nread_bytes: 3\nwrite_bytes: 4\n")


class TestClock:
    """The wall clock jumps; or the machine sleeps, which the steady clock does not count either."""

    @pytest.mark.parametrize("jump_seconds", [-HOUR_SECONDS, HOUR_SECONDS, 12 * HOUR_SECONDS])
    def test_no_age_moves(self, jump_seconds: float) -> None:
        """A run that trains goes on training, and one that hangs stalls at its time; shown times follow the wall."""
        world = World()
        world.all(TRAINS)
        world.pass_time(300, every=10.0)
        before = _shown(world.view, "training_log_last_line_timestamp_seconds")
        world.view = replace(world.view, wall_shift_seconds=jump_seconds)
        assert _shown(world.view, "training_log_last_line_timestamp_seconds") == before + jump_seconds
        self._observe(world, jump_seconds)
        assert (world.state, world.run.idle_seconds) == (("training", ""), 0.0)
        for _ in range(595):
            self._observe(world, jump_seconds, hung=True)
        assert world.state[0] == "quiet"
        for _ in range(10):
            self._observe(world, jump_seconds, hung=True)
        assert world.state[0] == "stalled"

    @staticmethod
    def _observe(world: World, shift_seconds: float, *, hung: bool = False) -> None:
        """A second under the moved wall clock; the ranks rest in it if they hang."""
        if hung:
            world.all(replace(TRAINS, utilization=0.0, memory_utilization=0.0, watts=60.0, cores=0.0, state="sleeping"))
        observe = world.node.observe
        world.node.observe = lambda seen: observe(replace(seen, wall_shift_seconds=shift_seconds))  # type: ignore[method-assign]
        try:
            world.pass_time(1.0)
        finally:
            world.node.observe = observe  # type: ignore[method-assign]


def _shown(view: NodeView, name: str) -> float:
    (value,) = [sample.value for family in families(view) for sample in family.samples if sample.name == name]
    return float(value)


class TestDisk:
    @pytest.mark.skipif(not can_mount(), reason="mounting takes root")
    @pytest.mark.parametrize("how", ["full", "read-only"])
    def test_a_disk_that_takes_nothing(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
        """The old memory stays whole, the failure is said once, and nothing is raised."""
        folder = tmp_path / "state"
        with small_disk(folder) as disk:
            state = StateFile(folder)
            state.save({"a": 1})
            disk.fill() if how == "full" else disk.lock()
            for _ in range(3):
                state.save({"a": "x" * 100_000})
            assert state.load() == {"a": 1}
        assert len(caplog.messages) == 1
        assert {"full": "No space left on device", "read-only": "Read-only file system"}[how] in caplog.messages[0]

    @pytest.mark.parametrize("text", ["", "{", "[1]", '{"version": 99}', '{"version": 1, "runs": 5}', "\0" * 5000])
    def test_a_corrupt_memory_starts_anew(self, tmp_path: Path, clock: FakeClock, text: str) -> None:
        """The exporter starts, watches, and replaces the file."""
        (tmp_path / "state.json").write_text(text)
        whole = Monitor(Config(), ServeOptions(state_directory=tmp_path, collectors=frozenset()), clock)
        whole.tick()
        whole._save()
        assert StateFile(tmp_path).load()["runs"] == {}


class Follower:
    """A tailer of one log, what it understands, and how much memory that took."""

    def __init__(self, log: Path, clock: FakeClock) -> None:
        self.clock = clock
        self.tail = TailSource(clock, deadline_seconds=PATIENCE_SECONDS)
        self.logs = RunLogs({})
        self.lines = self.bytes = self.dropped = 0
        self.unread = 0
        self.tail.follow([LogTarget("run", str(log))])

    def poll(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        chunks = self.tail.collect()
        self.unread = max((chunk.unread_bytes for chunk in chunks), default=0)
        for batch in self.logs.consume(chunks, self.clock.now()):
            self.lines += batch.lines
            self.bytes += batch.bytes
            self.dropped += batch.dropped_bytes


def _peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that Python held at one time during a call, above what it held before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestLog:
    def test_ten_gibibytes(self, tmp_path: Path, clock: FakeClock) -> None:
        """A log of that size is entered at its end, at the price of its last part, and followed from there."""
        log = tmp_path / "train.log"
        with log.open("wb") as stream:
            stream.truncate(10 << 30)
            stream.seek(0, os.SEEK_END)
            stream.write(b"\nstep 5/10 loss 0.5\n")
        follower = Follower(log, clock)
        assert _peak_bytes(follower.poll) < 8 * RESTORE_BYTES
        assert (follower.lines, follower.unread) == (0, 0)
        with log.open("ab") as stream:
            stream.write(b"step 6/10 loss 0.4\n" * 3)
        follower.poll()
        assert follower.lines == 3

    @pytest.mark.parametrize("byte", [b"x", b"\0"], ids=["one-line", "nul-bytes"])
    def test_bytes_without_an_end_of_line(self, tmp_path: Path, clock: FakeClock, byte: bytes) -> None:
        """They come in bounded pieces, most of them are given up and counted, and the next line is read."""
        log = tmp_path / "train.log"
        log.write_bytes(b"")
        follower = Follower(log, clock)
        follower.poll()
        with log.open("ab") as stream:
            for _ in range(32):
                stream.write(byte * MIB)

        def read_all() -> None:
            follower.poll()
            while follower.unread:
                follower.poll()

        assert _peak_bytes(read_all) < 12 * MIB
        with log.open("ab") as stream:
            stream.write(b"\nstep 6/10 loss 0.4\n")
        follower.poll()
        assert (follower.lines, follower.bytes) == (2, 32 * MIB + len("\nstep 6/10 loss 0.4\n"))
        assert follower.dropped > 0

    def test_rotation_ten_times_a_second(self, tmp_path: Path, clock: FakeClock) -> None:
        """Nothing is counted twice, few files stay open, and the file that stays at last is read whole."""
        log = tmp_path / "train.log"
        log.write_bytes(b"")
        follower = Follower(log, clock)
        follower.poll()
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a count of names
        written = 0
        for second in range(30):
            for turn in range(10):
                with log.open("ab") as stream:
                    stream.write(b"step %d/1000 loss 0.5\n" % (10 * second + turn))
                written += 1
                log.rename(tmp_path / f"train.log.{second}-{turn}")
                log.write_bytes(b"")
            follower.poll()
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 4  # noqa: PTH208  a count of names
        assert 0 < follower.lines <= written
        follower.poll(10)
        counted = follower.lines
        with log.open("ab") as stream:
            stream.write(b"step 999/1000 loss 0.5\n" * 100)
        follower.poll(10)
        assert follower.lines == counted + 100

    def test_files_that_come_and_go_are_not_held_open(self, tmp_path: Path, clock: FakeClock) -> None:
        """Of hundreds of deleted files the last few are kept open, for a log that is followed again."""
        follower = Follower(tmp_path / "attempt_*" / "stdout.log", clock)
        follower.poll()
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a count of names
        for number in range(200):
            folder = tmp_path / f"attempt_{number}"
            folder.mkdir()
            (folder / "stdout.log").write_text("step 1/2\n")
            follower.poll(EXPAND_SECONDS)
            (folder / "stdout.log").unlink()
            folder.rmdir()
        follower.poll(EXPAND_SECONDS)
        assert follower.lines == 200
        assert len(os.listdir("/proc/self/fd")) <= descriptors + MAX_RETIRED + 1  # noqa: PTH208  a count of names

    @pytest.mark.parametrize("kind", ["_line", "_record"])
    def test_no_two_lines_alike(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        """What is remembered of the shapes of lines is bounded by their size, not by their number alone."""
        plan = Plan(drafts=(), rank=None)
        monkeypatch.setattr(shapes, "understand", lambda *_: (plan, True))
        monkeypatch.setattr(shapes, "statements", lambda *_: ())
        known = shapes.Shapes()
        remember = getattr(known, kind)

        def flood() -> None:
            for number in range(1000):
                remember((f"{number:x}".rjust(15_000, "x"), "."), ["1"])

        assert _peak_bytes(flood) < 3 * shapes.MAX_KEPT
        assert len(known) > 0

    @pytest.mark.parametrize(("kind", "most"), [("plan", shapes.MAX_PLACES_KEPT), ("joined", shapes.MAX_PLACES_JOINED)])
    def test_no_two_lines_have_their_numbers_in_the_same_places(self, kind: str, most: int) -> None:
        """What is remembered of where numbers stand is bounded by its size, too."""
        known = shapes.Shapes()
        understand = getattr(known, kind)

        def flood() -> None:
            for number in range(1000):
                widths = [1 + (number >> bit & 1) for bit in range(10)] * 20
                understand(" ".join("1" * width for width in widths))

        assert _peak_bytes(flood) < 2 * most + MIB // 2

    def test_documents_that_are_never_complete(self, clock: FakeClock) -> None:
        """Of files that a trainer writes beside its log no more is kept than of one; a whole one is read as ever."""
        logs = RunLogs({})

        def read(file: str, data: bytes) -> tuple[LogBatch, ...]:
            clock.advance(1)
            return logs.consume([TailChunk("run", file, clock.now(), data)], clock.now())

        def flood() -> None:
            for number in range(100):
                read(f"/out/checkpoint-{number}/trainer_state.json", b'{"log_history": [' + b" " * MIB)
                read("/out/metrics.csv", b"x" * MIB)

        assert _peak_bytes(flood) < 24 * MIB
        (batch,) = read("/out/checkpoint-500/trainer_state.json", b'{"log_history": [{"loss": 0.5, "step": 7}]}')
        assert [dict(event.metrics) for event in batch.events] == [{"loss": 0.5}]

    NAMES = int(os.environ.get("METRIC_NAMES", "5000"))  # a million takes minutes

    def test_a_new_metric_name_in_every_line(self, clock: FakeClock) -> None:
        """Neither the scrape nor the memory grows with their number."""
        run = RunConfig("run", logs=("/log",))
        node, logs = Node(Config(runs=(run,)), "host"), RunLogs({})

        def read(first: int) -> NodeView:
            text = "".join(f"step {n}/999999999 metric_{n:x} = {n}.5\n" for n in range(first, first + 1000))
            clock.advance(1)
            batches = logs.consume([TailChunk("run", "/log", clock.now(), text.encode())], clock.now())
            return node.observe(Observation(clock.now(), logs=Report(batches, Health(success=True))))

        for thousand in range(2):
            view = read(1000 * thousand)
        assert _peak_bytes(lambda: [read(first) for first in range(2000, self.NAMES, 1000)]) < 16 * MIB
        view = read(self.NAMES)
        assert sum(len(family.samples) for family in families(view)) <= MOST_SERIES_PER_RUN
        assert len(view.runs[0].metrics) == METRIC_NAMES_LIMIT
        assert view.runs[0].step == self.NAMES + 999


class TestCheckpoints:
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
    def test_devices_and_pipes_named_like_checkpoints(self, tmp_path: Path, clock: FakeClock) -> None:
        """None is opened: a device may block for ever or answer without end, a FIFO waits for its writer."""
        for name in ("checkpoint-1", "model.safetensors", "latest"):
            os.mkfifo(tmp_path / name)
        (tmp_path / "checkpoint-2").mkdir()
        for name in ("latest", "trainer_state.json"):
            os.mknod(tmp_path / "checkpoint-2" / name, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
        (tmp_path / "checkpoint-2" / "model.safetensors").write_text("x")
        (listing,) = DirectoryScanner(CheckpointTarget("run", str(tmp_path)), clock).scan()
        assert {entry.path for entry in listing.entries} == {"checkpoint-2", "checkpoint-2/model.safetensors"}
        follower = Follower(tmp_path / "checkpoint-*" / "trainer_state.json", clock)
        follower.poll()
        assert (follower.lines, follower.bytes) == (0, 0)

    def test_a_directory_that_is_a_pipe_or_a_loop(self, tmp_path: Path, clock: FakeClock) -> None:
        """What the arguments name as output directory is refused with its reason, without waiting."""
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "loop").symlink_to("loop")
        for name, reason in (("pipe", "neither a regular file nor a directory"), ("loop", "symbolic links")):
            with pytest.raises(OSError, match=reason):
                DirectoryScanner(CheckpointTarget("run", str(tmp_path / name)), clock).scan()


class TestLabels:
    HOSTILE = ('"', "\\", "\n", '"} 1\nfake_metric{x="', "\udcff\ud800", "\x00\x1b[2J", "x" * MIB, "é\u202e", "{}=,")

    @pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
    def test_a_hostile_run_name(self, name: str, clock: FakeClock) -> None:
        """It stands in every label as one value that a scraper reads back, and makes no series of its own."""
        view = replace(_a_view(clock), health={"logs": Health(success=True)})
        plain = _series(view)
        hostile = _series(replace(view, runs=tuple(replace(run, name=name, script=name) for run in view.runs)))
        assert [metric for metric, _ in hostile] == [metric for metric, _ in plain]
        runs = {labels["run"] for _, labels in hostile if "run" in labels}
        assert len(runs) == 1
        assert len(runs.pop()) <= 200


def _a_view(clock: FakeClock) -> NodeView:
    world = World(now=clock.now())
    world.all(TRAINS)
    world.pass_time(30, every=10.0)
    assert world.run.name == RUN
    return world.view


def _series(view: NodeView) -> list[tuple[str, dict[str, str]]]:
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: view, lambda: None))
    found = text_string_to_metric_families(generate_latest(registry).decode())
    return [(sample.name, sample.labels) for family in found for sample in family.samples]
