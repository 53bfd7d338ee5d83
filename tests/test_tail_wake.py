"""What cuts the pause before a poll short: changes on local file systems, told by the mount table."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from training_exporter.clock import SystemClock
from training_exporter.model import LogTarget
from training_exporter.sources.mounts import MountTable
from training_exporter.sources.tail import TailSource
from training_exporter.sources.tail_wake import Waker


@pytest.fixture
def mounts() -> MountTable:
    """A table with a root, a network mount, and a local disk whose mount point has a blank."""
    return MountTable({"/": "ext4", "/data": "nfs4", "/data/local disk": "xfs"})


class TestMountTable:
    @pytest.mark.parametrize(
        ("path", "point", "kind"),
        [
            ("/home/a/train.log", "/", "ext4"),
            ("/data", "/data", "nfs4"),
            ("/data/run/train.log", "/data", "nfs4"),
            ("/database/train.log", "/", "ext4"),
            ("/data/local disk/train.log", "/data/local disk", "xfs"),
        ],
    )
    def test_nearest_mount_above_a_path(self, mounts: MountTable, path: str, point: str, kind: str) -> None:
        """The longest mount point that is a whole prefix of the path's parts."""
        assert (mounts.point(path), mounts.type_of(path)) == (point, kind)

    def test_own_table_is_readable(self) -> None:
        """The table of this machine has a root."""
        assert MountTable.read().type_of("/") != ""


class TestWaker:
    def test_growth_of_a_followed_file_wakes(self, tmp_path: Path) -> None:
        """An append in a watched local directory wakes at once."""
        woken = threading.Event()
        waker = Waker(woken.set)
        log = tmp_path / "train.log"
        log.write_bytes(b"")
        waker.watch([str(tmp_path)])
        if not any(waker._watches.values()):
            pytest.skip("the temporary directory is on no local file system")
        log.write_bytes(b"a line\n")
        assert woken.wait(10)
        waker.close()

    def test_what_cannot_be_watched_is_left_to_the_poll(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A directory that is not there is no error, and not worth a line."""
        caplog.set_level("INFO")
        waker = Waker(lambda: None)
        waker.watch([str(tmp_path / "missing")])
        assert caplog.messages == []
        waker.watch([])
        assert waker._watches == {}
        waker.close()


class TestListening:
    def test_busy_directories_are_left_to_the_poll(self, tmp_path: Path) -> None:
        """A directory is listened to after a round in which its logs were quiet, and not while they grow."""
        log = tmp_path / "train.log"
        log.write_bytes(b"")
        source = TailSource(SystemClock(), wake=lambda: None)
        source.follow([LogTarget("run", str(log))])
        heard = []
        for line in (b"", b"a line\n", b""):
            with log.open("ab") as file:
                file.write(line)
            source.collect()
            assert source._waker is not None
            heard.append(str(tmp_path) in source._waker._watches)
        source.close()
        assert heard == [True, False, True]
