"""Follows one path through appends, rotations and truncations; every read gives the next state and what was read."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

from training_exporter.model import LogTarget, TailChunk
from training_exporter.sources.safe_open import Owner, open_below

READ_BYTES = 1 << 18  # of one file in one round: bounds memory, and one log cannot starve the others
RESTORE_BYTES = 2 << 20  # of a log that was there before: enough for the last epoch's results
_MARK_BYTES = 256  # remembered from both ends of what was read: a file rewritten behind our back differs there
_CHECK_SECONDS = 5.0  # the file of a path is opened anew only so often
_KEPT_SECONDS = 60.0  # a rotated file is still read so long after it grew last: its writer may not have noticed


class Handle:
    """An open descriptor that is closed when the last reading that knows it is dropped."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        status = os.fstat(descriptor)
        self.identity = (status.st_dev, status.st_ino)

    def __del__(self) -> None:
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class Position:
    """How far one open file was read, and how what was read can be told again."""

    handle: Handle
    offset: int
    head: bytes = b""  # the first bytes of the file
    tail: bytes = b""  # the last bytes before the offset
    modified_ns: int = -1
    grew_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Following:
    """State of one followed path between two rounds."""

    position: Position | None = None
    kept: tuple[Position, ...] = ()  # rotated away, perhaps still written
    tried: bool = False  # a round was finished: what appears from now on is new
    checked_seconds: float = 0.0
    error: str | None = None

    def failed(self, error: str) -> Following:
        """The same place, of a round that gave no answer."""
        return replace(self, error=error)


@dataclass(slots=True)
class Reading:
    """The answer of one round."""

    following: Following
    chunks: list[TailChunk] = field(default_factory=list)


def read(target: LogTarget, path: str, label: str, following: Following, now: float) -> Reading:
    """One round over one path, whose chunks carry `label`.

    Blocks as long as the file system does; changes nothing but its answer.
    """
    round_ = _Round(target, path, label, following, now)
    round_.run()
    return Reading(round_.following, round_.chunks)


class _Round:
    def __init__(self, target: LogTarget, path: str, label: str, following: Following, now: float) -> None:
        self._target = target
        self._path = path
        self._label = label
        self._now = now
        self.following = following
        self.chunks: list[TailChunk] = []

    def run(self) -> None:
        self._drain_kept()
        before = self.following.position
        if before is not None:
            grew = self._advance(before)
            if grew and self._now - self.following.checked_seconds < _CHECK_SECONDS:
                return
        self._look_up()

    def _open(self) -> Handle:
        owner = Owner.of(self._target.uid, self._target.gid)
        flags = os.O_RDONLY | os.O_NOCTTY
        handle = Handle(open_below(self._target.root, self._path, flags, owner, follow_last=self._target.configured))
        if stat.S_ISDIR(os.fstat(handle.descriptor).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._path)
        return handle

    def _look_up(self) -> None:
        """Compare what the path names now with what is open."""
        if self._is_as_before():
            return
        position = self.following.position
        try:
            handle = self._open()
        except OSError as error:
            self._unreadable(error)
            return
        self.following = replace(self.following, checked_seconds=self._now)
        if position is None:
            self._first(handle)
        elif handle.identity != position.handle.identity:
            self._rotated(position, handle)
        elif self.following.error is not None:
            self._readable(position)
        self.following = replace(self.following, tried=True)

    def _is_as_before(self) -> bool:
        """Whether the path, opened a moment ago or looked for in vain, names the same file still, or none.

        That is a tenth of the cost of opening it. A network file system may answer from its cache, which opening
        renews, so a path is opened every few seconds all the same.
        """
        if self._now - self.following.checked_seconds >= _CHECK_SECONDS:
            return False
        position, error = self.following.position, self.following.error
        try:
            status = Path(self._target.root.rstrip("/") + self._path).stat()
        except FileNotFoundError:
            # below another root a link may lead elsewhere
            return position is None and error == self._words(errno.ENOENT) and self._target.root == "/"
        except OSError:
            return False
        return position is not None and error is None and (status.st_dev, status.st_ino) == position.handle.identity

    def _words(self, code: int) -> str:
        return f"{self._path}: {os.strerror(code)}"

    def _unreadable(self, error: OSError) -> None:
        text = self._words(error.errno) if error.errno else f"{self._path}: {error}"
        position = self.following.position
        if position is None and text != self.following.error:
            self._say(readable=False, error=text)
        self.following = replace(
            self.following, tried=True, checked_seconds=self._now, error=text if position is None else None
        )

    def _readable(self, position: Position) -> None:
        self.following = replace(self.following, error=None)
        self._say(unread_bytes=max(0, os.fstat(position.handle.descriptor).st_size - position.offset))

    def _first(self, handle: Handle) -> None:
        """A file opened for the first time: entered at its end if it was there before, else at its start."""
        size = os.fstat(handle.descriptor).st_size
        position = Position(handle, 0, grew_seconds=self._now)
        if self.following.tried or size == 0:
            self._say(opens=1)
            self.following = replace(self.following, error=None)
            self._advance(position)
            return
        data, start = _last_lines(handle, size)
        head = os.pread(handle.descriptor, _MARK_BYTES, 0)
        position = replace(position, offset=start + len(data), head=head, tail=data[-_MARK_BYTES:])
        self.following = replace(self.following, position=position, error=None)
        self._say(data=data, restored=True, opens=1)

    def _rotated(self, position: Position, handle: Handle) -> None:
        """Another file stands under the path: finish the old one, then read the new one from its start."""
        while self._advance(position) and self.following.position is not None:
            position = self.following.position
            if self._unread(position) > READ_BYTES:
                return  # a backlog: the new file waits
        kept = (*self.following.kept[-1:], replace(position, grew_seconds=self._now))
        self.following = replace(self.following, kept=kept, position=None, error=None)
        self._say(opens=1, rotations=1, restart=True)
        self._advance(Position(handle, 0, grew_seconds=self._now))

    def _advance(self, position: Position) -> bool:
        """Read what was appended; whether there was anything."""
        try:
            status = os.fstat(position.handle.descriptor)
            rewritten = status.st_size < position.offset or (
                status.st_mtime_ns != position.modified_ns and not _same(position)
            )
            if rewritten:
                self._say(truncations=1, restart=True)
                position = Position(position.handle, _first_data(position.handle), grew_seconds=self._now)
            data = os.pread(position.handle.descriptor, READ_BYTES, position.offset)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self._stale(position)
            return False
        moved = _moved(position, data, status.st_mtime_ns, self._now)
        self.following = replace(self.following, position=moved)
        if data or rewritten:
            self._say(data=data, unread_bytes=max(0, status.st_size - moved.offset))
        return bool(data)

    def _stale(self, position: Position) -> None:
        """The server forgot the file: open it again, and go on where it is the same."""
        handle = self._open()
        again = replace(position, handle=handle)
        if os.fstat(handle.descriptor).st_size >= position.offset and _same(again):
            self.following = replace(self.following, position=again)
            self._say(opens=1)
        else:
            self.following = replace(self.following, position=Position(handle, 0, grew_seconds=self._now))
            self._say(opens=1, rotations=1, restart=True)

    def _drain_kept(self) -> None:
        kept = []
        for position in self.following.kept:
            data = os.pread(position.handle.descriptor, READ_BYTES, position.offset)
            if data:
                self._say(data=data, file=f"{self._label} (rotated)")
            after = _moved(position, data, position.modified_ns, self._now)
            if self._now - after.grew_seconds < _KEPT_SECONDS:
                kept.append(after)
        self.following = replace(self.following, kept=tuple(kept))

    def _unread(self, position: Position) -> int:
        return max(0, os.fstat(position.handle.descriptor).st_size - position.offset)

    def _say(self, *, file: str | None = None, **fields: object) -> None:
        chunk = TailChunk(self._target.run, file or self._label, self._now, rank=self._target.rank)
        self.chunks.append(replace(chunk, **fields))  # type: ignore[arg-type]


def _moved(position: Position, data: bytes, modified_ns: int, now: float) -> Position:
    if not data:
        return replace(position, modified_ns=modified_ns)
    head = position.head
    if len(head) < _MARK_BYTES:
        head = os.pread(position.handle.descriptor, _MARK_BYTES, 0)[: position.offset + len(data)]
    return replace(
        position,
        offset=position.offset + len(data),
        head=head,
        tail=(position.tail + data[-_MARK_BYTES:])[-_MARK_BYTES:],
        modified_ns=modified_ns,
        grew_seconds=now,
    )


def _same(position: Position) -> bool:
    """Whether the file still has, at both ends of what was read, what was read there."""
    descriptor = position.handle.descriptor
    start = position.offset - len(position.tail)
    return (
        os.pread(descriptor, len(position.head), 0) == position.head
        and os.pread(descriptor, len(position.tail), start) == position.tail
    )


def _last_lines(handle: Handle, size: int) -> tuple[bytes, int]:
    """The last RESTORE_BYTES from the start of a line, and where they begin."""
    start = max(0, size - RESTORE_BYTES)
    data = os.pread(handle.descriptor, size - start, start)
    if start:
        cut = data.find(b"\n") + 1
        return data[cut:], start + cut
    return data, 0


def _first_data(handle: Handle) -> int:
    """Where the data begins: a writer that kept its offset over a truncation leaves a hole before it."""
    try:
        return os.lseek(handle.descriptor, 0, os.SEEK_DATA)
    except OSError:
        return 0
