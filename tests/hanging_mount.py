"""File systems of a test's own: one that never answers, one that is full or read-only."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MNT_DETACH = 2
MS_RDONLY, MS_REMOUNT = 1, 32

_libc = ctypes.CDLL(None, use_errno=True)


def can_mount() -> bool:
    """Whether this machine lets the test mount one: root, and a kernel with FUSE."""
    return os.geteuid() == 0 and os.access("/dev/fuse", os.W_OK)


@contextmanager
def hanging(directory: Path) -> Iterator[None]:
    """Mount on a directory a FUSE file system whose server reads no request.

    Whoever looks into it waits in D state, and gets an error at the end; the test itself must not.
    """
    channel = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        with _mounted("hanging", directory, "fuse", f"fd={channel},rootmode=40000,user_id=0,group_id=0,allow_other"):
            yield
            os.close(channel)  # the kernel gives up now, and everybody is released
            channel = -1
    finally:
        if channel >= 0:
            os.close(channel)


@contextmanager
def second_procfs(directory: Path) -> Iterator[Path]:
    """Another mount of the process table, so that what is done to it is not seen in /proc."""
    directory.mkdir()
    with _mounted("proc", directory, "proc", ""):
        yield directory


@contextmanager
def _mounted(source: str, directory: Path, kind: str, options: str) -> Iterator[None]:
    if _libc.mount(source.encode(), os.fsencode(directory), kind.encode(), 0, options.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(directory))
    try:
        yield
    finally:
        _libc.umount2(os.fsencode(directory), MNT_DETACH)


class SmallDisk:
    """A file system of half a mebibyte."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def fill(self) -> None:
        """Leave no room."""
        try:
            with (self._directory / "ballast").open("wb", buffering=0) as ballast:
                while ballast.write(b"x" * 4096):
                    pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def lock(self) -> None:
        """Mount it read-only."""
        target = os.fsencode(self._directory)
        if _libc.mount(b"none", target, None, MS_REMOUNT | MS_RDONLY, None) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(self._directory))


@contextmanager
def small_disk(directory: Path) -> Iterator[SmallDisk]:
    """A file system in memory that can be filled or locked."""
    directory.mkdir()
    with _mounted("small", directory, "tmpfs", "size=512k"):
        yield SmallDisk(directory)
