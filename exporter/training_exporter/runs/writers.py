"""Whose a log file is when several processes write to it: `bash run.sh > train.log` gives one to all that it starts."""

from __future__ import annotations

from collections.abc import Collection

from training_exporter.model import ProcessRecord

MAX_FILES = 1024  # the ones that were not written for the longest time are forgotten


class LogWriters:
    """Remembers, by file or pipe, the head of the run that writes to it and when that was last seen to."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[tuple[int, int], float]] = {}

    def note(self, writer: ProcessRecord, head: ProcessRecord, now_seconds: float) -> None:
        """A process of the run of `head` writes to its outputs now."""
        for target in writer.outputs:
            if target.path is not None and target.kind in ("file", "pipe") and self._may(target.path, head):
                self._owners.pop(target.path, None)
                self._owners[target.path] = head.key, now_seconds  # the last in the order of use
        for oldest in list(self._owners)[:-MAX_FILES]:
            del self._owners[oldest]

    def own(self, head: ProcessRecord, paths: Collection[str]) -> frozenset[str]:
        """Those of the paths that are no other run's: whatever ran beside that run is a part of it or a helper."""
        return frozenset(path for path in paths if self._may(path, head))

    def _may(self, path: str, head: ProcessRecord) -> bool:
        owner = self._owners.get(path)
        return owner is None or owner[0] == head.key or head.start_seconds > owner[1]
