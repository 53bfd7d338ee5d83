"""The checkpoints of one run over time: what grew, what was completed and how often that happens."""

from __future__ import annotations

import posixpath
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from training_exporter.model import DirectoryListing
from training_exporter.runs.layouts import Checkpoint, Judgement, judge
from training_exporter.runs.view import CheckpointView

# An incomplete checkpoint in which nothing was written for this long is left over, not in progress.
ABANDONED_SECONDS = 300.0
# The typical interval is the median of so many.
INTERVALS = 20


@dataclass(slots=True)
class _Directory:
    """One watched directory: its newest listing, and the last judgement that could be made."""

    listing: DirectoryListing
    judgement: Judgement | None = None  # None until it could be read once
    judged_seconds: float | None = None


class CheckpointTracker:
    """The checkpoints of one run, from the first listing of its directories on.

    Growth and completion count only where this tracker saw them happen: what stood there at the first look does not.
    """

    def __init__(self, intervals: Mapping[str, Iterable[float]] | None = None) -> None:
        self.last_growth_seconds: float | None = None
        self.event_files_growth_seconds: float | None = None
        self.completed_total = 0
        self.trained_total = 0  # without those of step 0, which some programs write before they train
        self._directories: dict[tuple[str, str], _Directory] = {}
        self._completed_wall: dict[str, float] = {}
        self._intervals: dict[str, deque[float]] = {}
        self._noted: dict[tuple[str, str], float] = {}  # path of a checkpoint -> its time when it was noted
        for kind, values in (intervals or {}).items():
            self._intervals[kind] = deque(values, INTERVALS)

    def observe(self, listing: DirectoryListing) -> None:
        """Take in the newest listing of one directory; one that could not be read changes no judgement."""
        key = (listing.target.root, posixpath.normpath(listing.target.path))
        directory = self._directories.setdefault(key, _Directory(listing))
        directory.listing = listing
        if not _usable(listing) or listing.time_seconds == directory.judged_seconds:
            return  # the same look a second time is no second look
        directory.judged_seconds = listing.time_seconds
        before, directory.judgement = directory.judgement, judge(listing, directory.judgement)
        if before is not None:
            self._grow(before, directory.judgement, listing)
        for checkpoint in directory.judgement.checkpoints:
            if checkpoint.complete and self._is_new(_place(listing, checkpoint), checkpoint) and checkpoint.changed:
                self._complete(checkpoint, listing)

    def view(self, now_seconds: float) -> CheckpointView | None:
        """What is known at `now_seconds` (steady scale); None while no directory can be read."""
        known = [item for item in self._directories.values() if item.judgement is not None and _usable(item.listing)]
        if not known:
            return None
        standing = self._standing(known)
        complete = [item for item in standing if item[1].complete]
        newest = max(complete, key=lambda item: item[1].key, default=None)
        writing = [checkpoint for listing, checkpoint in standing if _in_progress(listing, checkpoint, now_seconds)]
        last = newest[1] if newest else None
        return CheckpointView(
            count=len(complete),
            last_seconds=_steady(*newest) if newest else None,
            last_wall_seconds=last.wall_seconds if last else None,
            last_bytes=last.bytes if last else None,
            last_step=last.step if last else None,
            last_name=last.name if last else None,
            in_progress=bool(writing),
            in_progress_bytes=sum(checkpoint.bytes for checkpoint in writing) if writing else None,
            interval_seconds=self.interval_seconds,
            directories=tuple(dict.fromkeys(item.listing.target.path for item in known)),
            not_checkpoints=tuple(
                dict.fromkeys(name for item in known if item.judgement for name in item.judgement.not_checkpoints)
            ),
        )

    @property
    def readable(self) -> bool | None:
        """Whether every directory can be read now; None before the first listing."""
        listings = [item.listing for item in self._directories.values()]
        return all(_usable(listing) for listing in listings) if listings else None

    @property
    def stuck(self) -> bool:
        """Whether the scan of a directory does not come back."""
        return any(item.listing.stuck for item in self._directories.values())

    @property
    def blind(self) -> bool:
        """Whether a directory that could be read once cannot be read now."""
        return any(item.judgement is not None and not _usable(item.listing) for item in self._directories.values())

    @property
    def interval_seconds(self) -> float | None:
        """The typical time between two checkpoints: of the kind that is written most often; None until known."""
        return min((median(values) for values in self._intervals.values() if values), default=None)

    @property
    def intervals(self) -> dict[str, list[float]]:
        """What was learnt, by kind of name, for the next start of the exporter."""
        return {kind: list(values) for kind, values in self._intervals.items() if values}

    def _grow(self, before: Judgement, after: Judgement, listing: DirectoryListing) -> None:
        old = {checkpoint.path: checkpoint for checkpoint in before.checkpoints}
        newest = max((checkpoint.newest_seconds for checkpoint in before.checkpoints), default=0.0)
        if after.event_bytes > before.event_bytes:
            self.event_files_growth_seconds = listing.time_seconds
        for checkpoint in after.checkpoints:
            known = old.get(checkpoint.path)
            if known is None and listing.truncated and checkpoint.newest_seconds <= newest:
                continue  # it was there before, beyond the limit of what is listed
            if _grew(known, checkpoint):
                self.last_growth_seconds = listing.time_seconds

    def _is_new(self, place: tuple[str, str], checkpoint: Checkpoint) -> bool:
        """Whether this completion was not noted yet: slow ranks may write after it, two directories may show it."""
        if self._noted.get(place) == checkpoint.wall_seconds:
            return False
        self._noted[place] = checkpoint.wall_seconds
        return True

    def _complete(self, checkpoint: Checkpoint, listing: DirectoryListing) -> None:
        self.completed_total += 1
        self.trained_total += checkpoint.step != 0
        self.last_growth_seconds = listing.time_seconds
        kind = f"{checkpoint.layout}/{re.sub(r'[0-9]+', '#', checkpoint.name)}"
        last = self._completed_wall.get(kind)
        if last is not None and checkpoint.wall_seconds > last:
            self._intervals.setdefault(kind, deque(maxlen=INTERVALS)).append(checkpoint.wall_seconds - last)
        self._completed_wall[kind] = max(checkpoint.wall_seconds, last or 0.0)

    def _standing(self, known: list[_Directory]) -> list[tuple[DirectoryListing, Checkpoint]]:
        """Every checkpoint once, though one directory may lie in another."""
        standing: dict[tuple[str, str], tuple[DirectoryListing, Checkpoint]] = {}
        for item in sorted(known, key=lambda item: len(item.listing.target.path)):
            for checkpoint in item.judgement.checkpoints if item.judgement else ():
                standing.setdefault(_place(item.listing, checkpoint), (item.listing, checkpoint))
        return list(standing.values())


def _usable(listing: DirectoryListing) -> bool:
    return listing.readable and not listing.stuck


def _place(listing: DirectoryListing, checkpoint: Checkpoint) -> tuple[str, str]:
    return listing.target.root, posixpath.normpath(posixpath.join(listing.target.path, checkpoint.path))


def _grew(known: Checkpoint | None, checkpoint: Checkpoint) -> bool:
    if known is None:
        return checkpoint.bytes > 0
    return checkpoint.bytes > known.bytes or checkpoint.newest_seconds > known.newest_seconds


def _steady(listing: DirectoryListing, checkpoint: Checkpoint) -> float:
    """The time of a checkpoint on the steady scale, never later than the look at it."""
    return listing.time_seconds - max(0.0, listing.wall_seconds - checkpoint.wall_seconds)


def _in_progress(listing: DirectoryListing, checkpoint: Checkpoint, now_seconds: float) -> bool:
    if checkpoint.complete:
        return False
    if checkpoint.changed:
        return now_seconds - checkpoint.unchanged_since_seconds <= ABANDONED_SECONDS
    return listing.wall_seconds - checkpoint.newest_seconds <= ABANDONED_SECONDS
