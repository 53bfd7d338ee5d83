"""The tailer against real files: nothing is lost and nothing counted twice, whatever happens to them."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from training_exporter.logs import RunLogs
from training_exporter.model import LogTarget, TailChunk
from training_exporter.sources import tail_file, tail_pattern
from training_exporter.sources.tail import TailSource


class ManualClock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now(self) -> float:
        return self.seconds

    def wall_shift(self) -> float:
        return 0.0


class Follower:
    """A tailer of one target and the understanding behind it."""

    def __init__(self, path: str | Path, **target: object) -> None:
        self.clock = ManualClock()
        self.tail = TailSource(self.clock, deadline_seconds=10)
        self.logs = RunLogs({})
        self.lines = 0
        self.tail.follow([LogTarget("run", str(path), **target)])  # type: ignore[arg-type]

    def poll(self, seconds: float = 1.0) -> tuple[TailChunk, ...]:
        self.clock.seconds += seconds
        chunks = self.tail.collect()
        for batch in self.logs.consume(chunks, self.clock.seconds):
            self.lines += batch.lines
        return chunks

    def text(self, seconds: float = 1.0) -> bytes:
        return b"".join(chunk.data for chunk in self.poll(seconds))


class TestAppends:
    def test_reading_leaves_no_access_time(self, tmp_path: Path) -> None:
        """A log that was written since the last reading would get one from whoever reads it, and its disk a write."""
        log = tmp_path / "train.log"
        log.write_bytes(b"one\n")
        os.utime(log, (1, 2))
        assert Follower(log).text() == b"one\n"
        assert log.stat().st_atime == 1

    def test_new_file_is_read_from_its_start_and_then_as_it_grows(self, tmp_path: Path) -> None:
        """A log that appears after the first look is new from its first byte."""
        log = tmp_path / "train.log"
        follower = Follower(log)
        follower.poll()
        log.write_bytes(b"one\n")
        assert follower.text() == b"one\n"
        with log.open("ab") as stream:
            stream.write(b"two\nthr")
        assert follower.text() == b"two\nthr"
        assert follower.text() == b""
        assert follower.lines == 2

    def test_existing_log_is_entered_at_its_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last lines restore the state and are counted nowhere; what is appended later is counted."""
        monkeypatch.setattr(tail_file, "RESTORE_BYTES", 20)
        log = tmp_path / "train.log"
        log.write_bytes(b"".join(b"line %04d\n" % number for number in range(1000)))
        follower = Follower(log)
        (chunk,) = follower.poll()
        assert (chunk.restored, chunk.data, chunk.opens) == (True, b"line 0998\nline 0999\n"[10:], 1)
        assert follower.lines == 0
        with log.open("ab") as stream:
            stream.write(b"line 1000\n")
        assert follower.text() == b"line 1000\n"
        assert follower.lines == 1

    def test_big_growth_comes_in_bounded_pieces_with_the_rest_announced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One round takes a bounded number of bytes and says how many are left."""
        monkeypatch.setattr(tail_file, "READ_BYTES", 1000)
        log = tmp_path / "train.log"
        follower = Follower(log)
        follower.poll()
        log.write_bytes(b"x" * 2500)
        assert [(len(chunk.data), chunk.unread_bytes) for chunk in follower.poll() if chunk.data] == [(1000, 1500)]
        assert [(len(chunk.data), chunk.unread_bytes) for chunk in follower.poll()] == [(1000, 500)]
        assert [(len(chunk.data), chunk.unread_bytes) for chunk in follower.poll()] == [(500, 0)]


class TestRotations:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        log = tmp_path / "train.log"
        log.write_bytes(b"")
        return log

    @pytest.fixture
    def follower(self, log: Path) -> Follower:
        follower = Follower(log)
        follower.poll()
        log.write_bytes(b"first line\nsecond line\n")
        assert follower.text() == b"first line\nsecond line\n"
        return follower

    def test_rename_and_create(self, log: Path, follower: Follower) -> None:
        """The rest of the old file comes before the new one, and the rotation is counted."""
        with log.open("ab") as stream:
            stream.write(b"late\n")
        log.rename(log.with_suffix(".1"))
        log.write_bytes(b"new\n")
        chunks = (*follower.poll(), *follower.poll(10))
        assert b"".join(chunk.data for chunk in chunks) == b"late\nnew\n"
        assert sum(chunk.rotations for chunk in chunks) == 1

    def test_writer_that_keeps_the_renamed_file_is_still_heard(self, log: Path, follower: Follower) -> None:
        """What goes on into the renamed file is a stream of its own and loses nothing."""
        with log.open("ab") as stream:
            log.rename(log.with_suffix(".1"))
            log.write_bytes(b"new\n")
            follower.poll(10)
            stream.write(b"still here\n")
            stream.flush()
            chunks = follower.poll()
        assert [(chunk.file, chunk.data) for chunk in chunks] == [(f"{log} (rotated)", b"still here\n")]

    def test_truncation(self, log: Path, follower: Follower) -> None:
        """A file cut to nothing is read again from its start; the stream begins anew."""
        log.write_bytes(b"again\n")
        chunks = follower.poll()
        assert b"".join(chunk.data for chunk in chunks) == b"again\n"
        assert (chunks[0].truncations, chunks[0].restart) == (1, True)

    def test_truncation_that_grows_back_to_the_same_size(self, log: Path, follower: Follower) -> None:
        """Equal size hides a rewrite only from those who look at nothing but the size."""
        log.write_bytes(b"other line\nsecond lime\n")
        assert follower.text() == b"other line\nsecond lime\n"

    def test_truncation_that_grows_beyond(self, log: Path, follower: Follower) -> None:
        """A file rewritten and grown beyond the place read is recognised by its content."""
        log.write_bytes(b"first line\nquite another and longer line\nand more\n")
        assert follower.text() == b"first line\nquite another and longer line\nand more\n"

    def test_writer_that_keeps_its_offset_over_a_truncation(self, log: Path, follower: Follower) -> None:
        """Copytruncate under a writer without O_APPEND leaves a hole, that is not read as text."""
        with log.open("r+b") as stream:
            stream.seek(0, os.SEEK_END)
            os.truncate(log, 0)
            stream.seek(1 << 20)
            stream.write(b"after the hole\n")
        assert follower.text().strip(b"\0") == b"after the hole\n"

    def test_delete_and_recreate(self, log: Path, follower: Follower) -> None:
        """While the path is gone the open file is read on; the next file under it is new."""
        log.unlink()
        assert follower.text() == b""
        log.write_bytes(b"recreated\n")
        assert follower.text(10) == b"recreated\n"

    def test_symbolic_link_that_is_flipped(self, tmp_path: Path) -> None:
        """A configured path may be a link; when it points elsewhere, that file is read from its start."""
        (tmp_path / "a.log").write_bytes(b"")
        (tmp_path / "b.log").write_bytes(b"from b\n")
        link = tmp_path / "latest.log"
        link.symlink_to("a.log")
        follower = Follower(link, configured=True)
        follower.poll()
        (tmp_path / "a.log").write_bytes(b"from a\n")
        assert follower.text() == b"from a\n"
        link.unlink()
        link.symlink_to("b.log")
        assert follower.text(10) == b"from b\n"

    def test_stale_handle_is_opened_again_where_it_was(
        self, log: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After ESTALE the file is opened again and read on from the same place."""
        with log.open("ab") as stream:
            stream.write(b"third\n")
        real, failed = os.pread, []

        def pread(descriptor: int, size: int, offset: int) -> bytes:
            if not failed:
                failed.append(True)
                raise OSError(116, "Stale file handle")
            return real(descriptor, size, offset)

        monkeypatch.setattr(os, "pread", pread)
        first = follower.poll()
        assert [chunk.opens for chunk in first if chunk.opens] == [1]
        assert b"".join(c.data for c in first) + follower.text() == b"third\n"


class TestPatterns:
    def test_files_that_appear_later_are_read_from_their_start(self, tmp_path: Path) -> None:
        """A new attempt's folder of torchrun is found and read whole."""
        follower = Follower(tmp_path / "*" / "attempt_*" / "*" / "std*.log")
        assert follower.poll() == ()
        folder = tmp_path / "none_abc" / "attempt_0" / "1"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_bytes(b"hello\n")
        assert follower.text(10) == b"hello\n"

    def test_two_names_of_one_file_are_read_once(self, tmp_path: Path) -> None:
        """A hard link that the pattern names too gives no second stream."""
        (tmp_path / "a.log").write_bytes(b"")
        (tmp_path / "b.log").hardlink_to(tmp_path / "a.log")
        follower = Follower(tmp_path / "*.log")
        follower.poll()
        (tmp_path / "a.log").write_bytes(b"once\n")
        assert follower.text() == b"once\n"


class TestHostilePaths:
    def test_link_on_the_last_part_is_refused(self, tmp_path: Path) -> None:
        """A discovered path must not make the exporter read what the link points at."""
        (tmp_path / "secret").write_bytes(b"root:x\n")
        (tmp_path / "log").symlink_to(tmp_path / "secret")
        follower = Follower(tmp_path / "log")
        (chunk,) = follower.poll()
        assert (chunk.readable, chunk.data) == (False, b"")
        assert "symbolic links" in (chunk.error or "")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another's rights")
    def test_root_reads_with_the_rights_of_the_owner_only(self, tmp_path: Path) -> None:
        """What the run's owner cannot read is not read for them."""
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_uid == 0 and folder not in (Path("/"), Path("/tmp")):  # noqa: S108 - left alone
                folder.chmod(0o755)
        log = tmp_path / "log"
        log.write_bytes(b"root only\n")
        log.chmod(0o600)
        assert [chunk.readable for chunk in Follower(log, uid=65534, gid=65534).poll()] == [False]
        log.chmod(0o644)
        assert Follower(log, uid=65534, gid=65534).text() == b"root only\n"

    def test_fifo_is_refused(self, tmp_path: Path) -> None:
        """A FIFO would block, or take the job's data away."""
        os.mkfifo(tmp_path / "log")
        (chunk,) = Follower(tmp_path / "log").poll()
        assert chunk.readable is False

    def test_absolute_link_on_the_way_stays_below_the_root(self, tmp_path: Path) -> None:
        """In a container's path an absolute link means the container's own root."""
        root = tmp_path / "root"
        (root / "inside").mkdir(parents=True)
        (root / "inside" / "log").write_bytes(b"of the container\n")
        (root / "logs").symlink_to("/inside")
        assert Follower("/logs/log", root=str(root)).text() == b"of the container\n"

    def test_path_that_never_answers_costs_only_itself(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A dead mount is left behind with its thread; the other run's log is read on, and it too once it answers."""
        release = threading.Event()
        (tmp_path / "dead").write_bytes(b"")
        (tmp_path / "good").write_bytes(b"")
        real = tail_file.open_below

        def open_below(root: str, path: str, *arguments: object, **options: object) -> int:
            if path.endswith("dead"):
                release.wait(30)
            return real(root, path, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(tail_file, "open_below", open_below)
        clock = ManualClock()
        tail = TailSource(clock, deadline_seconds=0.05)
        tail.follow([LogTarget("a", str(tmp_path / "dead")), LogTarget("b", str(tmp_path / "good"))])
        chunks = tail.collect()
        assert [(chunk.run, chunk.readable) for chunk in chunks] == [("a", False)]
        assert [(chunk.run, chunk.readable) for chunk in tail.collect()] == [("b", True)]
        (tmp_path / "good").write_bytes(b"alive\n")
        assert [(chunk.run, chunk.data) for chunk in tail.collect()] == [("b", b"alive\n")]
        release.set()
        wait_for(lambda: any(chunk.run == "a" and chunk.readable for chunk in tail.collect()))

    def test_path_that_is_late_each_time_keeps_nobody_waiting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who gave no answer in time is asked behind the others of its file system, though it may be asked again."""
        answers = threading.Semaphore(0)
        for name in ("late", "good"):
            (tmp_path / name).write_bytes(b"alive\n")
        real = tail_file.open_below

        def open_below(root: str, path: str, *arguments: object, **options: object) -> int:
            if path.endswith("late"):
                answers.acquire(timeout=30)
            return real(root, path, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(tail_file, "open_below", open_below)
        tail = TailSource(ManualClock(), deadline_seconds=0.05)
        tail.follow([LogTarget("a", str(tmp_path / "late")), LogTarget("b", str(tmp_path / "good"))])
        tail.collect()
        answers.release()
        wait_for(lambda: not tail._offload.stuck)
        assert [(chunk.run, chunk.data) for chunk in tail.collect()] == [("b", b"alive\n")]
        answers.release()

    def test_many_patterns_on_a_dead_mount_cost_one_deadline_a_round(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One is tried before the others of its file system."""
        release = threading.Event()

        def never(*_: object, **__: object) -> int:
            release.wait(30)
            raise OSError

        monkeypatch.setattr(tail_pattern, "open_below", never)
        tail = TailSource(ManualClock(), deadline_seconds=0.05)
        tail.follow([LogTarget("a", str(tmp_path / f"{number}/*.log")) for number in range(5)])
        stuck = []
        for _ in range(2):
            tail.collect()
            stuck.append(len(tail._offload.stuck))
        release.set()
        assert stuck == [1, 2]


class TestCounting:
    def test_lines_equal_what_was_written_under_random_treatment(self, tmp_path: Path) -> None:
        """Appends, rotations, truncations and pauses in any order: as many line feeds counted as written."""
        draw = random.Random(7)  # noqa: S311 - repeatable, not secret
        log = tmp_path / "train.log"
        log.write_bytes(b"")
        follower = Follower(log)
        follower.poll()
        written = 0
        for step in range(int(os.environ.get("TAIL_ROUNDS", "1000"))):
            action = draw.choice(["append", "append", "append", "rename", "truncate", "delete", "pause", "rewrite"])
            if action in ("truncate", "rewrite", "delete"):
                follower.poll(10)  # what nobody read before it was cut away is lost to everyone
            text = b"".join(b"line %d of step %d\n" % (number, step) for number in range(draw.randrange(5)))
            if action == "rename":
                log.rename(tmp_path / f"train.log.{step}")
            elif action == "delete":
                log.unlink()
            if action == "rewrite":
                log.write_bytes(text)
            elif action == "truncate":
                os.truncate(log, 0)
            elif action != "pause":
                with log.open("ab") as stream:
                    stream.write(text)
            written += text.count(b"\n") if action not in ("pause", "truncate") else 0
            if draw.random() < 0.7 or action in ("rename", "delete"):
                follower.poll(draw.choice([1, 10]))
        for _ in range(3):
            follower.poll(10)
        assert follower.lines == written


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Poll a condition that another thread makes true."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("the condition never came true")
