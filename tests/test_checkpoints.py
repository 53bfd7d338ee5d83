"""`sources.checkpoints`: real directories, hostile and huge ones too, looked at in threads with a deadline."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes import FakeClock
from training_exporter.clock import Clock, SystemClock
from training_exporter.model import CheckpointTarget, DirectoryListing
from training_exporter.sources import directory_scan
from training_exporter.sources.checkpoints import CheckpointSource
from training_exporter.sources.directory_scan import DirectoryScanner

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's rights")


def target(path: Path | str, root: str = "/", uid: int | None = None) -> CheckpointTarget:
    """A target of the run `run`."""
    return CheckpointTarget("run", str(path), root, uid, uid)


def write(path: Path, text: str = "x") -> Path:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def paths(listing: DirectoryListing) -> set[str]:
    """What is listed, folders left out."""
    return {entry.path for entry in listing.entries if not entry.directory}


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something happens in another thread, ten seconds at most."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the awaited never happened"
        time.sleep(0.005)


@pytest.fixture
def clock() -> FakeClock:
    """A clock at rest."""
    return FakeClock()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what a scan asks of the file system."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            counted[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(directory_scan.os, name, call)

    for name in ("stat", "scandir", "open", "fstat"):
        count(name)
    return counted


class TestDirectoryScanner:
    def test_lists_files_with_size_and_time(self, tmp_path: Path, clock: FakeClock) -> None:
        """Paths are relative, times the file system's own, wall time this node's."""
        os.utime(write(tmp_path / "0/model.safetensors", "abc"), (5.5, 5.5))
        clock.shift_seconds = 7.0
        (listing,) = DirectoryScanner(target(tmp_path), clock).scan()
        (entry,) = [entry for entry in listing.entries if not entry.directory]
        assert (entry.path, entry.bytes, entry.modified_seconds) == ("0/model.safetensors", 3, 5.5)
        assert listing.wall_seconds - listing.time_seconds == 7.0
        assert (listing.readable, listing.exists, listing.truncated) == (True, True, False)

    def test_a_directory_that_is_not_there_yet(self, tmp_path: Path, clock: FakeClock) -> None:
        """An output directory is often named before it is made; that is no failure."""
        scanner = DirectoryScanner(target(tmp_path / "later"), clock)
        assert [(item.exists, item.readable) for item in scanner.scan()] == [(False, True)]
        write(tmp_path / "later/ckpt.pt")
        assert [paths(item) for item in scanner.scan()] == [{"ckpt.pt"}]

    def test_a_pattern_names_several(self, tmp_path: Path, clock: FakeClock) -> None:
        """Each directory that fits has its own listing, and one that vanishes is said to be gone once."""
        for name in ("run1", "run2", "other"):
            write(tmp_path / name / "out/ckpt.pt")
        scanner = DirectoryScanner(target(tmp_path / "run*/out"), clock)
        assert [item.target.path for item in scanner.scan()] == [
            str(tmp_path / name / "out") for name in ("run1", "run2")
        ]
        (tmp_path / "run1").rename(tmp_path / "gone")
        found = {Path(item.target.path).parent.name: item.exists for item in scanner.scan()}
        assert found == {"run1": False, "run2": True}
        assert len(scanner.scan()) == 1

    def test_special_files_are_not_opened(self, tmp_path: Path, clock: FakeClock) -> None:
        """A FIFO named like a marker blocks nothing and is no entry."""
        os.mkfifo(tmp_path / "latest")
        write(tmp_path / "ckpt.pt")
        (listing,) = DirectoryScanner(target(tmp_path), clock).scan()
        assert paths(listing) == {"ckpt.pt"}

    def test_links_are_reported_and_not_followed(self, tmp_path: Path, clock: FakeClock) -> None:
        """A loop of links ends at once; a link has a target and no size."""
        write(tmp_path / "0/model.safetensors", "abc")
        (tmp_path / "checkpoint_best").symlink_to("0")
        (tmp_path / "0/loop").symlink_to("..")
        (listing,) = DirectoryScanner(target(tmp_path), clock).scan()
        links = {entry.path: (entry.link_target, entry.bytes) for entry in listing.entries if entry.link_target}
        assert links == {"checkpoint_best": ("0", 0), "0/loop": ("..", 0)}

    def test_small_markers_carry_their_text(self, tmp_path: Path, clock: FakeClock) -> None:
        """`latest` says which checkpoint it means; a long file of that name is not read, and a change is."""
        marker = write(tmp_path / "latest", "global_step100\n")
        write(tmp_path / "sub/latest", "x" * 600)
        scanner = DirectoryScanner(target(tmp_path), clock)
        texts = [{entry.path: entry.text for entry in scanner.scan()[0].entries} for _ in range(3)]
        assert [(text["latest"], text["sub/latest"]) for text in texts] == [("global_step100\n", None)] * 3
        write(marker, "global_step200\n")
        assert [entry.text for entry in scanner.scan()[0].entries if entry.path == "latest"] == ["global_step200\n"]

    def test_what_is_deleted_while_scanning_is_left_out(
        self, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rotation removes files and folders under the scanner's hands; the rest is listed as ever."""
        for name in ("a.pt", "b.pt", "sub/c.pt"):
            write(tmp_path / name)
        real = os.scandir

        def scandir(directory: int) -> Iterator[os.DirEntry[str]]:
            found = real(directory)
            (tmp_path / "b.pt").unlink(missing_ok=True)
            (tmp_path / "sub/c.pt").unlink(missing_ok=True)
            if (tmp_path / "sub").exists():
                (tmp_path / "sub").rmdir()
            return found

        monkeypatch.setattr(directory_scan.os, "scandir", scandir)
        scanner = DirectoryScanner(target(tmp_path), clock)
        for _ in range(3):
            (listing,) = scanner.scan()
            assert (paths(listing), listing.readable) == ({"a.pt"}, True)

    def test_rewriting_in_place_is_seen(self, tmp_path: Path, clock: FakeClock) -> None:
        """A file that grows does not change its folder's time, and is seen all the same, look after look."""
        file = write(tmp_path / "ckpt.pt")
        scanner = DirectoryScanner(target(tmp_path), clock)
        sizes = []
        for size in range(1, 7):
            file.write_text("x" * size)
            sizes.append(scanner.scan()[0].entries[0].bytes)
        assert sizes == [1, 2, 3, 4, 5, 6]

    def test_a_file_made_within_one_tick_of_the_clock_is_seen(self, tmp_path: Path, clock: FakeClock) -> None:
        """A folder's time may not move for two changes in a row, so it is trusted at the second sight only."""
        write(tmp_path / "a.pt")
        scanner = DirectoryScanner(target(tmp_path), clock)
        scanner.scan()
        before = tmp_path.stat()
        write(tmp_path / "b.pt")
        os.utime(tmp_path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert paths(scanner.scan()[0]) == {"a.pt", "b.pt"}

    def test_an_unreadable_folder_is_named(
        self, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A folder of another user is skipped and said; an input/output error fails the whole look."""
        write(tmp_path / "private/ckpt.pt")
        write(tmp_path / "ckpt.pt")

        def refuse(error: OSError) -> None:
            def open_at(*_: object) -> int:
                raise error

            monkeypatch.setattr(directory_scan, "open_at", open_at)

        refuse(PermissionError(13, "Permission denied"))
        (listing,) = DirectoryScanner(target(tmp_path), clock).scan()
        assert (paths(listing), listing.error) == ({"ckpt.pt"}, "private: Permission denied")
        refuse(OSError(5, "Input/output error"))
        with pytest.raises(OSError, match="Input/output error"):
            DirectoryScanner(target(tmp_path), clock).scan()


@pytest.fixture
def roomy() -> Iterator[Path]:
    """A folder for very many files: in memory where there is such a place, and emptied afterwards."""
    memory = Path("/dev/shm")  # noqa: S108 - the folder below it is a private one
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


class TestCost:
    def test_a_hundred_thousand_files_are_not_walked_every_time(
        self, roomy: Path, clock: FakeClock, calls: Counter[str]
    ) -> None:
        """Once known, old folders cost one look at their own time each; the newest checkpoint is still seen to grow."""
        for folder in range(100):
            directory = roomy / f"cache/{folder}"
            directory.mkdir(parents=True)
            descriptor = os.open(directory, os.O_RDONLY)
            for file in range(1000):
                os.close(os.open(str(file), os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
            os.close(descriptor)
        new = write(roomy / "checkpoint-5/model.safetensors")
        scanner = DirectoryScanner(target(roomy), clock)
        for _ in range(3):
            scanner.scan()
        calls.clear()
        for size in (10, 20, 30):
            new.write_text("x" * size)
            (listing,) = scanner.scan()
            found = {entry.path: entry.bytes for entry in listing.entries}
            assert found["checkpoint-5/model.safetensors"] == size
        assert listing.truncated
        assert calls["stat"] / 3 <= directory_scan.HOT_FILES + 2 * directory_scan.WIDE_FOLDER
        assert calls["scandir"] == 0
        assert calls["open"] + calls["fstat"] <= 3 * 400

    def test_an_old_folder_is_looked_at_in_turn(
        self, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A change in place in a folder that is not among the newest is found after some looks, not never."""
        monkeypatch.setattr(directory_scan, "HOT_FILES", 4)
        monkeypatch.setattr(directory_scan, "TURN_FILES", 4)
        for folder in range(12):
            for file in range(4):
                os.utime(write(tmp_path / str(folder) / str(file)), (1000 + folder, 1000 + folder))
        scanner = DirectoryScanner(target(tmp_path), clock)
        for _ in range(3):
            scanner.scan()
        (tmp_path / "2/1").write_text("changed")
        os.utime(tmp_path / "2/1", (1001, 1001))
        looks = 0
        while {entry.path: entry.bytes for entry in scanner.scan()[0].entries}["2/1"] != 7:
            looks += 1
            assert looks <= 13

    def test_a_wide_folder_is_looked_at_in_part(self, tmp_path: Path, clock: FakeClock, calls: Counter[str]) -> None:
        """Of 3,000 files in one folder the new and the newest are looked at each time, and a part of the rest."""
        for file in range(3000):
            os.utime(write(tmp_path / f"{file:04}"), (1000, 1000))
        scanner = DirectoryScanner(target(tmp_path), clock)
        for _ in range(3):
            scanner.scan()
        calls.clear()
        write(tmp_path / "new.pt")
        (listing,) = scanner.scan()
        assert "new.pt" in paths(listing)
        assert calls["stat"] <= 3 * directory_scan.TURN_FILES

    def test_depth_and_width_are_bounded(self, tmp_path: Path, clock: FakeClock) -> None:
        """Neither an endless chain of folders nor a flood of files in one makes an endless listing, and it says so."""
        write(tmp_path / "/".join("abcdefghij") / "deep.pt")
        for file in range(directory_scan.MAX_ENTRIES_PER_FOLDER + 10):
            (tmp_path / f"{file}").touch()
        (listing,) = DirectoryScanner(target(tmp_path), clock).scan()
        assert listing.truncated
        assert len(listing.entries) <= directory_scan.MAX_ENTRIES_PER_FOLDER + directory_scan.MAX_DEPTH + 1


class TestRights:
    @needs_root
    def test_a_container_path_never_leaves_its_root(self, tmp_path: Path, clock: FakeClock) -> None:
        """An absolute link in a container means the container's file, not this machine's."""
        write(tmp_path / "root/data/out/inside.pt")
        write(tmp_path / "outside/secret.pt")
        (tmp_path / "root/sub").mkdir()
        (tmp_path / "root/link").symlink_to("/data/out")
        (tmp_path / "root/sub/link").symlink_to("/data/out")
        (tmp_path / "root/escape").symlink_to(f"../../../../{tmp_path}/outside")
        root = str(tmp_path / "root")
        assert paths(DirectoryScanner(target("/link", root), clock).scan()[0]) == {"inside.pt"}
        for path in ("/sub/link", "/sub/../data/./out/", "/../../data/out"):
            assert paths(DirectoryScanner(target(path, root), clock).scan()[0]) == {"inside.pt"}
        assert not DirectoryScanner(target("/escape", root), clock).scan()[0].exists
        assert not DirectoryScanner(target("/../outside", root), clock).scan()[0].exists

    @needs_root
    def test_root_sees_only_what_the_owner_may_see(self, tmp_path: Path, clock: FakeClock) -> None:
        """A run that names a directory which its owner may not read is shown nothing of it."""
        write(tmp_path / "secret/ckpt.pt")
        (tmp_path / "secret").chmod(0o700)
        for folder in (tmp_path, *tmp_path.parents[:-2]):
            folder.chmod(folder.stat().st_mode | 0o011)
        (tmp_path / "link").symlink_to("secret")
        (tmp_path / "empty").mkdir(0o700)
        for name in ("secret", "link", "empty"):
            with pytest.raises(PermissionError):
                DirectoryScanner(target(tmp_path / name, uid=NOBODY), clock).scan()
        assert paths(DirectoryScanner(target(tmp_path / "secret"), clock).scan()[0]) == {"ckpt.pt"}
        os.chown(tmp_path / "secret", NOBODY, NOBODY)
        assert paths(DirectoryScanner(target(tmp_path / "secret", uid=NOBODY), clock).scan()[0]) == {"ckpt.pt"}

    def test_a_container_that_is_gone_is_a_failure(self, clock: FakeClock) -> None:
        """A directory missing in a living container is none yet; a missing container says nothing."""
        with pytest.raises(FileNotFoundError):
            DirectoryScanner(target("/out", "/proc/0/root"), clock).scan()


class Blocking:
    """A scanner that blocks on the path `dead` until released, and lists nothing elsewhere."""

    release = threading.Event()
    running = 0

    def __init__(self, wanted: CheckpointTarget, clock: Clock) -> None:
        self.target = wanted
        self.clock = clock

    def scan(self) -> tuple[DirectoryListing, ...]:
        """One empty listing, or none for a long time."""
        if self.target.path == "dead":
            Blocking.running += 1
            Blocking.release.wait(60)
        return (DirectoryListing(self.target, self.clock.now(), self.clock.now()),)


@pytest.fixture
def source(clock: FakeClock) -> Iterator[CheckpointSource]:
    """A source of one-millisecond intervals over blocking scanners."""
    Blocking.release.clear()
    Blocking.running = 0
    source = CheckpointSource(clock, scanner=Blocking, interval_seconds=0.001, deadline_seconds=30.0, max_threads=3)
    yield source
    Blocking.release.set()
    source.close()


def states(source: CheckpointSource) -> dict[str, tuple[bool, bool]]:
    """Readable and stuck by path."""
    return {item.target.path: (item.readable, item.stuck) for item in source.collect()}


class TestCheckpointSource:
    def test_a_dead_path_is_stuck_and_delays_no_other(self, source: CheckpointSource, clock: FakeClock) -> None:
        """The mount that never answers makes its own path stuck, past its deadline, and nothing else."""
        source.watch([target("dead"), target("alive")])
        wait_for(lambda: Blocking.running == 1 and states(source) == {"alive": (True, False)})
        clock.advance(31)
        wait_for(lambda: states(source) == {"dead": (False, True), "alive": (True, False)})
        assert source.stuck
        Blocking.release.set()
        wait_for(lambda: states(source) == {"dead": (True, False), "alive": (True, False)})
        assert not source.stuck

    def test_a_stuck_thread_is_never_started_twice(self, source: CheckpointSource, clock: FakeClock) -> None:
        """Taken off the list and put back while it hangs, it is still the one thread, and counted as such."""
        for _ in range(5):
            source.watch([target("dead")])
            wait_for(lambda: Blocking.running == 1)
            source.watch([])
        source.watch([target("dead"), target("b"), target("c"), target("d")])
        wait_for(lambda: states(source).keys() >= {"b", "c"})
        assert Blocking.running == 1
        assert states(source)["d"] == (False, False)
        clock.advance(31)
        wait_for(lambda: states(source)["dead"] == (False, True))

    def test_a_thread_beyond_the_limit_is_refused_and_said(self, source: CheckpointSource) -> None:
        """More directories than threads: the last are unreadable with a reason, until there is room."""
        source.watch([target(name) for name in "abcd"])
        wait_for(lambda: len(states(source)) == 4 and states(source)["c"] == (True, False))
        (refused,) = [item for item in source.collect() if not item.readable]
        assert (refused.target.path, refused.error) == ("d", "more than 3 directories")
        source.watch([target(name) for name in "bcd"])
        wait_for(lambda: states(source).get("d") == (True, False))

    def test_a_failure_is_unreadable_with_its_reason(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What cannot be read is so said, for every directory that the pattern named before."""
        write(tmp_path / "a/out/ckpt.pt")
        source = CheckpointSource(SystemClock(), interval_seconds=0.001)
        source.watch([target(f"{tmp_path}/*/out")])
        wait_for(lambda: states(source) == {f"{tmp_path}/a/out": (True, False)})

        def scan(_: DirectoryScanner) -> tuple[DirectoryListing, ...]:
            raise OSError(116, "Stale file handle")

        monkeypatch.setattr(DirectoryScanner, "scan", scan)
        wait_for(lambda: states(source) == {f"{tmp_path}/a/out": (False, False)})
        (listing,) = source.collect()
        assert listing.error is not None
        assert "Stale file handle" in listing.error
        source.close()
