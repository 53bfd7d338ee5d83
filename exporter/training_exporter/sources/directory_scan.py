"""Listing a checkpoint directory again and again at a cost that does not grow with what lies still in it."""

from __future__ import annotations

import errno
import heapq
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from training_exporter.clock import Clock
from training_exporter.model import CheckpointTarget, DirectoryListing, FileEntry
from training_exporter.sources.safe_open import Owner, open_at, open_below, rights_of

# deep enough for <project>/<experiment>/global_step_10/actor/huggingface/model.safetensors
MAX_DEPTH = 6
MAX_FOLDERS = 2_000
MAX_ENTRIES = 20_000
MAX_ENTRIES_PER_FOLDER = 5_000
MAX_MATCHES = 64  # of a glob pattern
# Files in place are rewritten without a trace in their folder's time, so the folders with the newest files are looked
# at file by file every time, up to so many files; of all others a few take turns.
HOT_FILES = 2_000
TURN_FILES = 200
# A folder with more files than this is looked at by its newest and a changing part of the rest.
WIDE_FOLDER = 1_000

# never walked: large, and no checkpoint lies there
SKIPPED_FOLDERS = frozenset({".git", "__pycache__", "node_modules", ".venv", "wandb"})
# say which checkpoint is the newest (deepspeed, Megatron, mmengine and detectron2)
TEXT_FILES = frozenset({"latest", "latest_checkpointed_iteration.txt", "last_checkpoint"})
MAX_TEXT_BYTES = 512

_MAGIC = re.compile(r"[*?[]")
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_REFUSED = frozenset({errno.EACCES, errno.EPERM})


@dataclass(slots=True)
class _Folder:
    """What is remembered of one folder between two looks."""

    modified_ns: int
    files: dict[str, FileEntry] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    settled: bool = False  # listed twice under the same time: a change within one tick of that clock is seen too
    truncated: bool = False

    @property
    def newest_seconds(self) -> float:
        return max((entry.modified_seconds for entry in self.files.values()), default=0.0)


class DirectoryScanner:
    """Lists the directories of one target; not thread-safe, and may block for as long as the file system does."""

    def __init__(self, target: CheckpointTarget, clock: Clock) -> None:
        self._target = target
        self._clock = clock
        self._trees: dict[str, _Tree] = {}

    def scan(self) -> tuple[DirectoryListing, ...]:
        """One listing per directory that the target names, or one that says that there is none.

        Raises OSError where the directory, or a folder in it, cannot be read for another reason than rights.
        """
        owner = Owner.of(self._target.uid, self._target.gid)
        paths = self._expand(owner)
        vanished = [path for path in self._trees if path not in paths]
        listings = [self._list(path, owner) for path in (*paths, *vanished)]
        for path in vanished:
            self._trees.pop(path, None)
        return tuple(listings)

    def _list(self, path: str, owner: Owner | None) -> DirectoryListing:
        now = self._clock.now()
        listing = DirectoryListing(replace(self._target, path=path), now, now + self._clock.wall_shift())
        Path(
            self._target.root
        ).stat()  # a container that is gone is a failure, a directory that is not there yet is none
        try:
            descriptor = open_below(self._target.root, path, os.O_RDONLY, owner, follow_last=True)
        except FileNotFoundError:
            self._trees.pop(path, None)
            return replace(listing, exists=False)
        with _closing(descriptor), rights_of(owner):
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                return replace(listing, entries=(_entry(posixpath.basename(path), status),))
            tree = self._trees.setdefault(path, _Tree())
            entries = tuple(tree.walk(descriptor, owner))
            return replace(listing, entries=entries, truncated=tree.truncated, error=tree.refused)

    def _expand(self, owner: Owner | None) -> list[str]:
        """The paths that the target's pattern fits; a path without a pattern is itself, there or not."""
        if not _MAGIC.search(self._target.path):
            return [self._target.path]
        paths = ["/"]
        for part in self._target.path.strip("/").split("/"):
            if _MAGIC.search(part):
                paths = [path for above in paths for path in self._fitting(above, part, owner)][:MAX_MATCHES]
            else:
                paths = [posixpath.join(path, part) for path in paths]
        return paths or [self._target.path]

    def _fitting(self, above: str, pattern: str, owner: Owner | None) -> list[str]:
        try:
            descriptor = open_below(self._target.root, above, os.O_RDONLY | os.O_DIRECTORY, owner, follow_last=True)
        except OSError as error:
            if error.errno in _GONE:
                return []
            raise
        with _closing(descriptor), os.scandir(descriptor) as items:
            names = sorted(item.name for item in items)
        return [posixpath.join(above, name) for name in names if fnmatchcase(name, pattern)]


class _Tree:
    """The folders below one directory, as they were at the last look."""

    def __init__(self) -> None:
        self.truncated = False
        self.refused: str | None = None
        self._folders: dict[str, _Folder] = {}
        self._hot: set[str] = set()
        self._turn = 0
        self._visited: dict[str, _Folder] = {}
        self._beyond: dict[str, float] = {}  # folders past the limits -> their time; those looked at last come last

    def walk(self, descriptor: int, owner: Owner | None) -> Iterator[FileEntry]:
        """Every entry below an open directory, within the limits."""
        self.truncated, self.refused, self._visited = False, None, {}
        for path in list(self._beyond)[:TURN_FILES]:
            del self._beyond[path]
        self._visit(descriptor, "", owner, MAX_ENTRIES)
        self._folders = self._visited
        self._choose()
        for path, folder in self._folders.items():
            if path:
                yield FileEntry(path, 0, folder.modified_ns / 1e9, directory=True)
            yield from folder.files.values()

    def _visit(self, descriptor: int, path: str, owner: Owner | None, budget: int) -> int:
        """Look at a folder and what is below it; returns how many entries that were."""
        folder = self._visited[path] = self._look(descriptor, path, owner)
        self.truncated |= folder.truncated
        used = len(folder.files) + 1
        if path.count("/") + bool(path) >= MAX_DEPTH:
            return used
        ages = {name: self._age(descriptor, posixpath.join(path, name)) for name in folder.folders}
        for name in sorted(ages, key=lambda name: ages[name], reverse=True):
            # one huge folder must not hide its neighbours: none may take more than half of what is left
            left = (budget - used) // 2
            if left <= 0 or len(self._visited) >= MAX_FOLDERS:
                self.truncated = True
                break
            used += self._descend(descriptor, posixpath.join(path, name), owner, left)
        return used

    def _descend(self, above: int, path: str, owner: Owner | None, budget: int) -> int:
        try:
            descriptor = open_at(above, posixpath.basename(path), os.O_RDONLY | os.O_DIRECTORY, owner)
        except OSError as error:
            if error.errno in _REFUSED:
                self.refused = f"{path}: {error.strerror}"
            elif error.errno not in _GONE:
                raise
            return 1
        with _closing(descriptor):
            if posixpath.basename(path) in SKIPPED_FOLDERS:
                self._visited[path] = _Folder(os.fstat(descriptor).st_mtime_ns)
                return 1
            return self._visit(descriptor, path, owner, budget)

    def _age(self, above: int, path: str) -> float:
        """When a folder last changed as far as is known: the newest come first, so that a limit cuts off the oldest."""
        known = self._folders.get(path)
        if known is not None:
            self._beyond.pop(path, None)
            return max(known.newest_seconds, known.modified_ns / 1e9)
        if path not in self._beyond:
            try:
                status = os.stat(posixpath.basename(path), dir_fd=above, follow_symlinks=False)
            except FileNotFoundError:
                return 0.0
            self._beyond[path] = status.st_mtime
        return self._beyond[path]

    def _look(self, descriptor: int, path: str, owner: Owner | None) -> _Folder:
        modified_ns = os.fstat(descriptor).st_mtime_ns
        known = self._folders.get(path)
        if known is not None and known.settled and known.modified_ns == modified_ns:
            if path in self._hot:
                self._refresh(descriptor, path, known, known.files, owner)
            return known
        folder = _Folder(modified_ns, settled=known is not None and known.modified_ns == modified_ns)
        names, folder.folders, folder.truncated = _names(descriptor)
        if known is not None:
            folder.files = {name: known.files[name] for name in names if name in known.files}
        self._refresh(descriptor, path, folder, names, owner)
        return folder

    def _refresh(self, descriptor: int, path: str, folder: _Folder, names: Iterable[str], owner: Owner | None) -> None:
        for name in self._due(folder, list(names)):
            entry = _look_at(descriptor, path, name, folder.files.get(name), owner)
            if entry is None:
                folder.files.pop(name, None)
            else:
                folder.files[name] = entry

    def _due(self, folder: _Folder, names: list[str]) -> Iterable[str]:
        if len(names) <= WIDE_FOLDER:
            return names
        new = [name for name in names if name not in folder.files]
        newest = heapq.nlargest(TURN_FILES, folder.files, key=lambda name: folder.files[name].modified_seconds)
        start = self._turn * TURN_FILES % len(names)
        return dict.fromkeys((*new, *newest, *names[start : start + TURN_FILES]))

    def _choose(self) -> None:
        """Choose the folders to look at file by file next time: those with the newest files, and a few in turn."""
        self._turn += 1
        by_age = sorted(self._folders, key=lambda path: self._folders[path].newest_seconds, reverse=True)
        self._hot = set(self._take(by_age, HOT_FILES))
        rest = [path for path in self._folders if path not in self._hot and self._folders[path].files]
        if rest:
            start = self._turn % len(rest)
            self._hot.update(self._take(rest[start:] + rest[:start], TURN_FILES))

    def _take(self, paths: list[str], files: int) -> Iterator[str]:
        for path in paths:
            if files <= 0:
                return
            yield path
            files -= min(len(self._folders[path].files), WIDE_FOLDER)


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _names(descriptor: int) -> tuple[list[str], tuple[str, ...], bool]:
    """Names of the files and links, and of the folders to walk, of an open directory; whether there were more."""
    files: list[str] = []
    folders: list[str] = []
    with os.scandir(descriptor) as found:
        for count, item in enumerate(found):
            if count >= MAX_ENTRIES_PER_FOLDER:
                return files, tuple(folders), True
            if not item.is_dir(follow_symlinks=False):
                files.append(item.name)
            else:
                folders.append(item.name)
    return files, tuple(folders), False


def _look_at(descriptor: int, folder: str, name: str, known: FileEntry | None, owner: Owner | None) -> FileEntry | None:
    """The entry of one file of an open directory; None where it is gone by now or is a FIFO, socket or device."""
    try:
        status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        if known is not None and _is_same(known, status):
            return known
        entry = _entry(posixpath.join(folder, name), status)
        if stat.S_ISLNK(status.st_mode):
            entry = replace(entry, bytes=0, link_target=os.readlink(name, dir_fd=descriptor))
        elif not stat.S_ISREG(status.st_mode):
            return None
    except FileNotFoundError:
        return None
    if name in TEXT_FILES and entry.link_target is None and entry.bytes <= MAX_TEXT_BYTES:
        entry = replace(entry, text=_text(descriptor, name, owner))
    return entry


def _is_same(known: FileEntry, status: os.stat_result) -> bool:
    """Whether a regular file is as it was; a link is always read, as what it names may have changed in place."""
    same = known.bytes == status.st_size and known.modified_seconds == status.st_mtime
    return same and known.link_target is None and stat.S_ISREG(status.st_mode)


def _entry(path: str, status: os.stat_result) -> FileEntry:
    return FileEntry(path, status.st_size, status.st_mtime)


def _text(directory: int, name: str, owner: Owner | None) -> str | None:
    try:
        descriptor = open_at(directory, name, os.O_RDONLY, owner)
    except OSError:
        return None  # replaced or forbidden: what it says stays unknown, that it is there does not
    with _closing(descriptor):
        return os.read(descriptor, MAX_TEXT_BYTES).decode(errors="replace")
