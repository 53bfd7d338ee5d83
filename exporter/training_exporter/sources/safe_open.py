"""Opening a path that a job named, with no more rights than the owner of that job has."""

from __future__ import annotations

import ctypes
import errno
import grp
import os
import platform
import pwd
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

# the kernel gives up after as many (MAXSYMLINKS in include/linux/namei.h)
MAX_LINKS = 40

# setgroups(2) by number: the C library's own wrapper would change every thread of the process
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "ppc64le": 81, "s390x": 206, "riscv64": 159}
_UNCHANGED = -1  # setfsuid(2): an invalid id changes nothing and returns the current one

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who a run belongs to: a path that the run named is opened with these rights only."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @classmethod
    def of(cls, uid: int | None, gid: int | None) -> Owner | None:
        """The owner with the groups that this machine's user database gives it; None if `uid` is unknown."""
        if uid is None:
            return None
        groups: Sequence[int] = ()
        name = None
        with suppress(KeyError):
            entry = pwd.getpwuid(uid)
            name, gid = entry.pw_name, entry.pw_gid if gid is None else gid
        if gid is None:
            gid = grp.getgrnam("nogroup").gr_gid if uid else 0
        if name is not None:
            groups = os.getgrouplist(name, gid)
        return cls(uid, gid, tuple(groups) or (gid,))

    def may(self, status: os.stat_result, wanted: int) -> bool:
        """Whether the mode bits give `wanted` (4 read, 1 search) to this owner; access lists are not looked at."""
        if self.uid == 0:
            return True
        if status.st_uid == self.uid:
            shift = 6
        elif status.st_gid == self.gid or status.st_gid in self.groups:
            shift = 3
        else:
            shift = 0
        return (status.st_mode >> shift) & wanted == wanted


@contextmanager
def rights_of(owner: Owner | None) -> Iterator[None]:
    """Give the calling thread the file system rights of `owner` while inside; a process that is not root keeps its own.

    Raises PermissionError when root could not lower its rights: nothing may be opened then.
    """
    if owner is None or owner.uid == 0 or os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    try:
        _set_groups(owner.groups)
        _set_id(_libc.setfsgid, owner.gid)
        _set_id(_libc.setfsuid, owner.uid)
        yield
    finally:
        _set_id(_libc.setfsuid, os.geteuid())
        _set_id(_libc.setfsgid, os.getegid())
        _set_groups(groups)


def open_below(root: str, path: str, flags: int, owner: Owner | None = None, *, follow_last: bool = False) -> int:
    """Open the regular file or directory `path` as seen from the directory `root`, and return its descriptor.

    Symbolic links, absolute ones and `..` included, are resolved below `root`, so that a container's path never
    leaves it. The last part may be a link only with `follow_last`. FIFOs, sockets and devices are never opened.
    Raises OSError (ELOOP for a forbidden link, EACCES where the owner has no right, EINVAL for a special file).
    """
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with rights_of(owner):
        return _Walk(top, owner, follow_last=follow_last).open(path, flags)


def open_at(directory: int, name: str, flags: int, owner: Owner | None = None) -> int:
    """Open the regular file or directory `name` in an open directory; never through a link, never a special file."""
    _require_plain(os.stat(name, dir_fd=directory, follow_symlinks=False), owner, name)
    descriptor = _open_unmarked(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, directory)
    try:
        _require_plain(os.fstat(descriptor), owner, name)  # another may stand there since
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class _Walk:
    """One resolution of a path; owns the descriptors of the directories on the way."""

    def __init__(self, top: int, owner: Owner | None, *, follow_last: bool) -> None:
        self._stack = [top]
        self._owner = owner
        self._follow_last = follow_last
        self._links = 0

    def open(self, path: str, flags: int) -> int:
        try:
            return self._open(deque(path.split("/")), flags)
        finally:
            self._close_above(0)

    def _open(self, parts: deque[str], flags: int) -> int:
        while parts:
            part = parts.popleft()
            if part in {"", "."}:
                continue
            if part == "..":
                self._close_above(max(1, len(self._stack) - 1))
                continue
            here = self._stack[-1]
            self._require_search(here, part)
            last = not any(part not in {"", "."} for part in parts)
            if stat.S_ISLNK(os.stat(part, dir_fd=here, follow_symlinks=False).st_mode):
                self._follow(part, parts, last=last)
            elif last:
                return open_at(here, part, flags, self._owner)
            else:
                self._stack.append(
                    os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
                )
        return open_at(self._stack[-1], ".", flags, self._owner)

    def _follow(self, part: str, parts: deque[str], *, last: bool) -> None:
        self._links += 1
        if (last and not self._follow_last) or self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part)
        target = os.readlink(part, dir_fd=self._stack[-1])
        if target.startswith("/"):
            self._close_above(1)
        parts.extendleft(reversed(target.split("/")))

    def _require_search(self, directory: int, part: str) -> None:
        if _refuses(self._owner, os.fstat(directory), 1):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), part)

    def _close_above(self, keep: int) -> None:
        while len(self._stack) > keep:
            os.close(self._stack.pop())


def _refuses(owner: Owner | None, status: os.stat_result, wanted: int) -> bool:
    # as root this thread has the owner's rights and the kernel checks; with, say, CAP_DAC_READ_SEARCH it does not
    return owner is not None and os.geteuid() not in {0, owner.uid} and not owner.may(status, wanted)


def _require_plain(status: os.stat_result, owner: Owner | None, name: str) -> None:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise OSError(errno.EINVAL, "neither a regular file nor a directory", name)
    if _refuses(owner, status, 5 if stat.S_ISDIR(status.st_mode) else 4):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)


def _open_unmarked(name: str, flags: int, directory: int) -> int:
    """Open without a trace of the reading in the access time, where the kernel allows that: to owners and root."""
    try:
        return os.open(name, flags | os.O_NOATIME, dir_fd=directory)
    except PermissionError:  # not the owner, or no right to open it at all
        return os.open(name, flags, dir_fd=directory)


def _set_id(call: ctypes._NamedFuncPointer, wanted: int) -> None:
    call(wanted)
    if call(_UNCHANGED) != wanted:
        raise PermissionError(errno.EPERM, "cannot take the file system rights of the run's owner")


def _set_groups(groups: Sequence[int]) -> None:
    number = _SETGROUPS.get(platform.machine())
    if number is None:
        raise PermissionError(errno.EPERM, f"setgroups is not known for {platform.machine()}")
    if _libc.syscall(number, len(groups), (ctypes.c_uint32 * len(groups))(*groups)) != 0:
        code = ctypes.get_errno()
        raise PermissionError(code, os.strerror(code))
