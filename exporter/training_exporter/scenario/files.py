"""What stands in the run's checkpoint directory, and grows there while a checkpoint is written."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from training_exporter.model import CheckpointTarget, DirectoryListing, FileEntry
from training_exporter.runs.layouts import marker_text, writing_order
from training_exporter.scenario.records import Checkpoint, Segment

# The run's own settings, there from the start: a directory that holds only this holds no checkpoint.
SETTINGS = "train_config.json"
SETTINGS_BYTES = 2048


class CheckpointDirectory:
    """One output directory on the virtual clock."""

    def __init__(self, path: str, epoch_seconds: float) -> None:
        self.path = path
        self._files = {SETTINGS: FileEntry(SETTINGS, SETTINGS_BYTES, epoch_seconds)}
        self._writing: list[_Writing] = []

    def enter(self, segment: Segment) -> None:
        """Note the checkpoint of the new segment."""
        if segment.checkpoint is not None:
            self._writing.append(_Writing(segment.checkpoint, segment.start_seconds))

    def grow(self, at_seconds: float, now: float) -> int:
        """Write what one second brings; the bytes that rank 0 writes for it and no `write` of the scenario names."""
        shown = 0
        for writing in self._writing:
            grown = writing.advance(at_seconds, now, self._files)
            shown += grown if writing.checkpoint.adds_to_writes else 0
        self._writing = [writing for writing in self._writing if not writing.ended]
        return shown

    def interrupt(self) -> None:
        """Whoever writes is gone: what is half written stays half written."""
        self._writing.clear()

    def list(self, targets: Sequence[CheckpointTarget], now: float) -> tuple[DirectoryListing, ...]:
        """What the checkpoint source would read of its targets; any other path does not exist."""
        return tuple(
            DirectoryListing(target, now, now, self._entries())
            if posixpath.normpath(target.path) == self.path
            else DirectoryListing(target, now, now, exists=False)
            for target in targets
        )

    def _entries(self) -> tuple[FileEntry, ...]:
        newest: dict[str, float] = {}
        for file in self._files.values():
            folder = posixpath.dirname(file.path)
            while folder:
                newest[folder] = max(newest.get(folder, 0.0), file.modified_seconds)
                folder = posixpath.dirname(folder)
        folders = tuple(FileEntry(path, 4096, modified, directory=True) for path, modified in sorted(newest.items()))
        return (*folders, *self._files.values())


class _Writing:
    """A checkpoint on its way to the disk, file after file."""

    def __init__(self, checkpoint: Checkpoint, start_seconds: float) -> None:
        self.checkpoint = checkpoint
        self.ended = False
        self._start_seconds = start_seconds + checkpoint.at_seconds
        self._coming = [
            (path, size) for path, size, _ in writing_order(checkpoint.layout, checkpoint.name, checkpoint.bytes)
        ]
        self._total_bytes = sum(size for _, size in self._coming)
        self._due_bytes = 0
        self._whole_bytes = 0  # in the files that are no longer in `_coming`

    def advance(self, at_seconds: float, now: float, files: dict[str, FileEntry]) -> int:
        """Write up to what is due; the number of bytes that took."""
        share = (at_seconds - self._start_seconds) / self.checkpoint.takes_seconds
        limit = 0.5 if self.checkpoint.partial else 1.0
        self.ended = share >= limit
        due = round(self._total_bytes * max(0.0, min(share, limit)))
        while self._coming and due > self._whole_bytes:
            path, size = self._coming[0]
            written = min(size, due - self._whole_bytes)
            whole = written == size
            text = marker_text(path, self.checkpoint.name) if whole else None
            files[path] = FileEntry(path, written, now, text=text)
            if not whole:
                break
            self._whole_bytes += size
            self._coming.pop(0)
        grown, self._due_bytes = due - self._due_bytes, due
        return grown
