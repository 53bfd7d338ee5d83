"""Follows the log files of all runs by polling; a path that does not answer costs its own thread and nothing else."""

from __future__ import annotations

import logging
import posixpath
import resource
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from training_exporter.clock import Clock
from training_exporter.model import LogTarget, TailChunk
from training_exporter.sources.mounts import MountTable
from training_exporter.sources.offload import Offload
from training_exporter.sources.tail_file import Following, Reading, read
from training_exporter.sources.tail_pattern import expand, is_pattern
from training_exporter.sources.tail_wake import Waker

DEADLINE_SECONDS = 2.0  # of one read; a dead mount never answers
EXPAND_SECONDS = 5.0  # between two looks for new files of a pattern
RETIRED_SECONDS = 600.0  # how long the place in a file is remembered that is not followed for a while
MAX_RETIRED = 64  # each holds its file open, which keeps the blocks of a deleted one
TWIN_SECONDS = 30.0  # between two looks whether a second name of a file is one of its own now
MAX_FILES = 1024
# Of the descriptors that this process may have, one part in so many is for the files of logs, and for those followed
# before: clients and the other sources need some too.
FILES_SHARE, RETIRED_SHARE = 3, 8

logger = logging.getLogger(__name__)

Key = tuple[str, str, str]  # run, root, path


@dataclass(slots=True)
class _Entry:
    """One followed path."""

    target: LogTarget
    label: str  # how its stream is called: the path, told apart where two roots have the same
    following: Following = field(default_factory=Following)
    mute: bool = False  # said once that it does not answer
    twin_until_seconds: float = 0.0  # a second name of a file that is read already
    retired_seconds: float = 0.0


class TailSource:
    """What was appended to the followed files. `collect` is called about once a second, by one thread."""

    def __init__(
        self,
        clock: Clock,
        *,
        wake: Callable[[], None] | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._targets: tuple[LogTarget, ...] = ()
        self._entries: dict[Key, _Entry] = {}
        self._retired: dict[Key, _Entry] = {}
        self._found: dict[LogTarget, tuple[str, ...]] = {}
        self._expanded_seconds: float | None = None
        self._mounts = MountTable({})  # as of then
        self._starved = False
        self._most_files = _affordable(MAX_FILES, FILES_SHARE)
        self._most_retired = _affordable(MAX_RETIRED, RETIRED_SHARE)
        self._full = False
        self._offload: Offload[Key] = Offload("log-reader", deadline_seconds=deadline_seconds)
        self._waker = Waker(wake) if wake is not None else None

    def follow(self, targets: Sequence[LogTarget]) -> None:
        """Replace the set of followed files and patterns; thread-safe, returns at once."""
        with self._lock:
            self._targets = tuple(dict.fromkeys(targets))

    def collect(self) -> tuple[TailChunk, ...]:
        """The bytes that came since the call before, at most a few MiB a file, and what happened to the files.

        A file that is there at the first look is entered at its end; its last MiB come as one restored chunk. A file
        that appears later is read from its start.
        """
        now = self._clock.now()
        with self._lock:
            targets = self._targets
        known = set(self._found)
        self._expand(targets, now)
        self._choose(targets, known, now)
        chunks: list[TailChunk] = []
        growing: set[str] = set()
        for key, reading in self._read(now):
            taken = self._take(key, reading, now)
            chunks += taken
            if any(chunk.data for chunk in taken):
                growing.add(posixpath.dirname(key[2]))
        self._watch(growing, behind=any(chunk.unread_bytes for chunk in chunks))
        return tuple(chunks)

    def close(self) -> None:
        """Stop waiting for changes; never waits for a stuck read."""
        self.follow(())
        if self._waker is not None:
            self._waker.close()

    def _read(self, now: float) -> list[tuple[Key, Reading | None]]:
        """The answers of this round; who gave none last time is asked last, so that it keeps nobody waiting again."""
        due = [key for key, entry in self._entries.items() if entry.twin_until_seconds <= now]
        due.sort(key=lambda key: self._entries[key].mute)
        return [answer for keys in self._by_mount(due) for answer in self._ask(keys, now)]

    def _by_mount(self, keys: Iterable[Key]) -> Iterable[list[Key]]:
        """The keys that are not stuck, by file system.

        Those of one are asked until one does not answer, and the others are left for the next round: a dead mount with
        many logs costs one deadline a round, not one a log.
        """
        stuck = self._offload.stuck
        groups: dict[tuple[str, str], list[Key]] = {}
        for key in keys:
            if key not in stuck:
                groups.setdefault((key[1], self._mounts.point(key[2]) if key[1] == "/" else ""), []).append(key)
        return groups.values()

    def _ask(self, keys: Sequence[Key], now: float) -> list[tuple[Key, Reading | None]]:
        entries = [(key, self._entries[key]) for key in keys]
        jobs = ((key, partial(read, entry.target, key[2], entry.label, entry.following, now)) for key, entry in entries)
        answers = self._offload.run(jobs, until_stuck=True)
        stuck = self._offload.stuck.intersection(keys)
        return [(key, answers.get(key)) for key in keys if key in answers or key in stuck or not stuck]

    def _take(self, key: Key, reading: Reading | None, now: float) -> Sequence[TailChunk]:
        entry = self._entries[key]
        if reading is None:
            return self._silent(key, entry, now)
        entry.mute = False
        if entry.following.position is None and self._is_twin(key, reading.following):
            entry.twin_until_seconds = now + TWIN_SECONDS
            return ()
        entry.following = reading.following
        return reading.chunks

    def _silent(self, key: Key, entry: _Entry, now: float) -> Sequence[TailChunk]:
        """No answer: nothing was taken, so the next answer goes on from the same place."""
        if entry.mute:
            return ()
        entry.mute = True
        error = "does not answer" if key in self._offload.stuck else "cannot be read"
        entry.following = entry.following.failed(f"{key[2]}: {error}")
        return (
            TailChunk(key[0], entry.label, now, rank=entry.target.rank, readable=False, error=entry.following.error),
        )

    def _is_twin(self, key: Key, following: Following) -> bool:
        if following.position is None:
            return False
        identity = following.position.handle.identity
        return any(
            other != key
            and other[0] == key[0]
            and entry.following.position is not None
            and entry.following.position.handle.identity == identity
            for other, entry in self._entries.items()
        )

    def _expand(self, targets: Sequence[LogTarget], now: float) -> None:
        """Look for the files of patterns, now and then."""
        due = self._expanded_seconds is None or now - self._expanded_seconds >= EXPAND_SECONDS
        patterns = [target for target in targets if is_pattern(target.path)]
        self._found = {target: self._found[target] for target in patterns if target in self._found}
        wanted = {
            (target.run, target.root, target.path): target for target in patterns if due or target not in self._found
        }
        if due:
            self._expanded_seconds = now
        try:
            if due:
                self._mounts = MountTable.read()
            for keys in self._by_mount(wanted):
                answers = self._offload.run(((key, partial(expand, wanted[key])) for key in keys), until_stuck=True)
                self._found.update((wanted[key], found) for key, found in answers.items())
        except OSError as error:  # no descriptor or memory is left, which says nothing about the files
            if not self._starved:
                logger.warning("files of logs cannot be looked for: %s; the known ones are followed", error)
            self._starved = True
        else:
            self._starved = self._starved and not due

    def _choose(self, targets: Sequence[LogTarget], known: set[LogTarget], now: float) -> None:
        """Keep the place in files still wanted, begin the new ones, remember for a while those no longer wanted."""
        every: dict[Key, LogTarget] = {}
        for target in targets:
            for path in self._found.get(target, ()) if is_pattern(target.path) else (target.path,):
                every.setdefault((target.run, target.root, path), target)
        wanted = dict(islice(every.items(), self._most_files))
        if len(every) > len(wanted) and not self._full:
            logger.warning("%d log files are followed, and %d are not", len(wanted), len(every) - len(wanted))
        self._full = len(every) > len(wanted)
        for key in [key for key in self._entries if key not in wanted]:
            self._retired.pop(key, None)  # the newest are the last
            entry = self._retired[key] = self._entries.pop(key)
            entry.retired_seconds = now
        young = [item for item in self._retired.items() if now - item[1].retired_seconds < RETIRED_SECONDS]
        self._retired = dict(young[-self._most_retired :])
        for key, target in wanted.items():
            if key in self._entries:
                self._entries[key].target = target
            else:
                self._entries[key] = self._again(key, target) or _Entry(
                    target, self._label(key), Following(tried=target in known)
                )

    def _again(self, key: Key, target: LogTarget) -> _Entry | None:
        """The place in the same file, followed before: under this key, or through the root of a process now gone."""
        entry = self._retired.pop(key, None)
        if entry is None:
            same = next((old for old in self._retired if (old[0], old[2]) == (key[0], key[2])), None)
            entry = None if same is None else self._retired.pop(same)
        if entry is not None:
            entry.target = target
        return entry

    def _label(self, key: Key) -> str:
        taken = {(other[0], entry.label) for other, entry in self._entries.items()}
        return key[2] if (key[0], key[2]) not in taken else f"{key[1]}:{key[2]}"

    def _watch(self, growing: set[str], *, behind: bool) -> None:
        """Listen where it is quiet: to hear of each line of a busy log would cost more than to read it."""
        if behind and self._wake is not None:
            self._wake()
        if self._waker is not None:
            followed = {posixpath.dirname(path): None for _, root, path in self._entries if root == "/"}
            self._waker.watch(directory for directory in followed if directory not in growing)


def _affordable(most: int, share: int) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(1, min(most, soft // share))
