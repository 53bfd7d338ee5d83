"""Hears of changes on local file systems and cuts the pause before the next poll short; it is never the truth."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from training_exporter.sources.mounts import MountTable

MAX_DIRECTORIES = 32
MIN_SECONDS = 0.2  # between two wake-ups, however fast a log grows
# inotify sees only this machine's writes: on the file systems of others it is blind
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "zfs", "f2fs", "overlay"})

logger = logging.getLogger(__name__)


class Waker(FileSystemEventHandler):
    """Watches the directories of followed files, as many as are local; any trouble only means waiting for the poll."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._woken = 0.0
        self._lock = threading.Lock()
        self._observer: BaseObserver | None = None
        self._watches: dict[str, ObservedWatch | None] = {}

    def watch(self, directories: Iterable[str]) -> None:
        """Replace the set of watched directories."""
        wanted = dict.fromkeys(directories)
        for path in [path for path in self._watches if path not in wanted]:
            watch = self._watches.pop(path)
            if watch is not None and self._observer is not None:
                self._observer.unschedule(watch)
        for path in wanted:
            if path not in self._watches and len(self._watches) < MAX_DIRECTORIES:
                self._watches[path] = self._schedule(path)

    def close(self) -> None:
        """Stop; never waits."""
        if self._observer is not None:
            self._observer.stop()
            self._observer = None

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in ("opened", "closed", "closed_no_write"):
            return  # our own looks
        now = time.monotonic()
        with self._lock:
            if now - self._woken < MIN_SECONDS:
                return
            self._woken = now
        self._wake()

    def _schedule(self, path: str) -> ObservedWatch | None:
        if MountTable.read().type_of(path) not in _LOCAL:
            return None
        try:
            if self._observer is None:
                self._observer = Observer()
                self._observer.daemon = True
                self._observer.start()
            return self._observer.schedule(self, path, recursive=False)
        except (FileNotFoundError, NotADirectoryError):
            return None  # of a run that ended, and its folder is gone
        except OSError as error:
            logger.info("changes in %s are seen at the next poll only: %s", path, error)
            return None
