"""Which checkpoints stand in a directory, whether each is whole, and how old: a pure judgement of a listing."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import cache

from training_exporter.model import DirectoryListing, FileEntry
from training_exporter.runs.folders import Folder, Found, find, matches, parse_name
from training_exporter.runs.layout_table import EVENT_FILES, LAYOUTS, SMALL_BYTES, TEMPORARY, WRITING, Written
from training_exporter.runs.shards import shards_complete

# Nothing changed over two scans and for this long: complete, where the layout has no better sign.
STABLE_SECONDS = 60.0
# A file that was already there at the first look counts as stable at once when it is this old. Not less, because the
# file server's clock may be behind this node's.
OLD_SECONDS = 600.0
# Files of slower ranks may be younger than the marker by this much; what comes later is the next save in place.
STRAGGLE_SECONDS = 120.0
# An older checkpoint that its marker no longer names must hold this share of the bytes of the one that it names.
SAME_SIZE_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint, whole or not, as it stands at one look.

    `wall_seconds` is the file system's own time of the newest marker, or of the newest data where no marker counts.
    """

    path: str  # below the directory; "" is the directory itself
    name: str
    layout: str
    complete: bool
    wall_seconds: float
    bytes: int
    files: int  # of data, under their final names
    newest_seconds: float  # modification time of the newest data
    step: int | None = None
    order: int = -1  # the number in the name, whatever it counts
    unchanged_since_seconds: float = 0.0  # steady scale
    looks: int = 1  # in a row that found it unchanged
    changed: bool = False  # since the first look at it, or at the directory
    most_files: int = 0  # that stood there under the present marker: fewer means it is being deleted

    @property
    def key(self) -> tuple[float, int]:
        """Sorts by age, then by number."""
        return self.wall_seconds, self.order


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one look at a directory found."""

    checkpoints: tuple[Checkpoint, ...] = ()
    not_checkpoints: tuple[str, ...] = ()  # names directly in the directory, sorted
    event_bytes: int = 0  # TensorBoard event files anywhere below


def judge(listing: DirectoryListing, previous: Judgement | None = None) -> Judgement:
    """Judge a readable listing; `previous` is the judgement of the look before, which stability is measured against."""
    root = Folder.of(listing)
    before = {checkpoint.path: checkpoint for checkpoint in previous.checkpoints} if previous else {}
    found = find(root)
    by_path = {item.path: item for item in found}
    checkpoints = tuple(_Look(listing, item, by_path, before, first=previous is None).judge() for item in found)
    return Judgement(checkpoints, _others(root, found), _event_bytes(listing.entries))


def writing_order(layout: str, name: str, total_bytes: int) -> list[Written]:
    """The files of a checkpoint in the order a real writer makes them: (path below the directory, bytes, kind).

    `layout` is one of speculators, hf, deepspeed, megatron, dcp, lightning, file; raises KeyError for another. The
    marker comes last where there is one. What a marker beside the checkpoint says is in `marker_text`.
    """
    rows = WRITING[layout]
    shares = sum(share for _, share, _ in rows)
    left = max(0, total_bytes - SMALL_BYTES * sum(share == 0 for _, share, _ in rows))
    files: list[Written] = []
    for path, share, kind in rows:
        part = left * share // shares if share else SMALL_BYTES
        left, shares = (left - part, shares - share) if share else (left, shares)
        files.append((path.format(name=name), part, kind))
    return files


def marker_text(path: str, name: str) -> str | None:
    """What the marker file `path` says once the checkpoint `name` is whole; None for a file that names nothing."""
    if path == "latest_checkpointed_iteration.txt":
        return str(int(re.sub(r"\D", "", name) or 0))
    return name if path in {"latest", "last_checkpoint"} else None


@dataclass(frozen=True, slots=True)
class _Look:
    """One checkpoint under judgement, with all that bears on it."""

    listing: DirectoryListing
    found: Found
    siblings: Mapping[str, Found]
    before: Mapping[str, Checkpoint]
    first: bool

    def judge(self) -> Checkpoint:
        found, layout = self.found, self.found.layout
        step, order = self._numbers()
        data = [entry for entry in found.files if not matches(layout.late + layout.markers, entry.path)]
        newest = max((entry.modified_seconds for entry in data), default=0.0)
        draft = Checkpoint(
            path=found.path,
            name=found.name,
            layout=layout.name,
            complete=False,
            wall_seconds=max((entry.modified_seconds for entry in found.files), default=0.0),
            bytes=sum(entry.bytes for entry in found.files),
            files=sum(not matches(TEMPORARY, entry.path) for entry in data),
            newest_seconds=newest,
            step=step,
            order=order,
        )
        draft = self._over_time(draft)
        if not data or self._unfinished() or draft.files < draft.most_files:
            return draft
        return self._decide(draft, data)

    def _over_time(self, draft: Checkpoint) -> Checkpoint:
        now = self.listing.time_seconds
        old = self.before.get(draft.path)
        if old is None:
            return replace(draft, unchanged_since_seconds=now, changed=not self.first, most_files=draft.files)
        same = (draft.bytes, draft.files, draft.newest_seconds) == (old.bytes, old.files, old.newest_seconds)
        rewritten = draft.newest_seconds > old.newest_seconds
        return replace(
            draft,
            unchanged_since_seconds=old.unchanged_since_seconds if same else now,
            looks=old.looks + 1 if same else 1,
            changed=old.changed or not same,
            most_files=draft.files if rewritten else max(draft.files, old.most_files),
        )

    def _stable(self, draft: Checkpoint) -> bool:
        if draft.looks < 2:
            return False
        watched = self.listing.time_seconds - draft.unchanged_since_seconds
        age = self.listing.wall_seconds - draft.newest_seconds
        return watched >= STABLE_SECONDS or (not draft.changed and age >= OLD_SECONDS)

    def _decide(self, draft: Checkpoint, data: list[FileEntry]) -> Checkpoint:
        layout = self.found.layout
        beside = self._beside()
        named = next((entry for entry in beside if self._names(entry)), None)
        within = [entry for entry in self.found.files if matches(layout.markers, entry.path)]
        marks = [named] if named is not None else within
        if marks:
            mark = max(entry.modified_seconds for entry in marks)
            return replace(draft, complete=self._marked(draft, data, mark), wall_seconds=mark)
        draft = replace(draft, wall_seconds=draft.newest_seconds)
        if not self._stable(draft) or any(matches(TEMPORARY, entry.path) for entry in data):
            return draft
        alone = self.found.parent is None  # the listed directory itself: what lies beside it cannot be seen
        complete = (
            layout.unmarked == "stable"
            or (layout.unmarked == "lone" and not beside)
            or (bool(layout.beside) and alone and not layout.closing)
            or (bool(layout.closing) and (alone or not layout.beside) and self._closed(data))
            or self._outlived(draft, beside)
        )
        return replace(draft, complete=complete)

    def _marked(self, draft: Checkpoint, data: list[FileEntry], mark: float) -> bool:
        """Whether the marker is not older than the data; files of slow ranks may come a little later."""
        stragglers = self.found.layout.stragglers
        own = [entry.modified_seconds for entry in data if not matches(stragglers, entry.path)]
        if max(own, default=0.0) > mark:
            return False
        return draft.newest_seconds <= mark or (draft.newest_seconds - mark <= STRAGGLE_SECONDS and self._stable(draft))

    def _closed(self, data: list[FileEntry]) -> bool:
        """Whether the file that is written last, where the marker is left out, is the newest."""
        closing = self.found.layout.closing
        last = [entry.modified_seconds for entry in data if matches(closing, entry.path)]
        rest = [entry.modified_seconds for entry in data if not matches(closing, entry.path)]
        return bool(last) and max(last) >= max(rest, default=0.0)

    def _outlived(self, draft: Checkpoint, beside: list[FileEntry]) -> bool:
        """Whether it is an older one, of the same make as the one that the marker names by now."""
        for entry in beside:
            for other in self.siblings.values():
                if other.parent is not self.found.parent or not _named_by(entry, other, self._family()):
                    continue
                _, order = parse_name(other)
                size = sum(file.bytes for file in other.files)
                return (
                    draft.order < order
                    and draft.newest_seconds <= entry.modified_seconds
                    and len(self.found.files) >= len(other.files)
                    and draft.bytes >= SAME_SIZE_RATIO * size
                )
        return False

    def _unfinished(self) -> bool:
        found = self.found
        if any(matches(TEMPORARY, part) for part in found.path.split("/")) or not shards_complete(
            entry.path for entry in found.files
        ):
            return True
        return found.parent is not None and f"{found.name}-unfinished" in found.parent.names

    def _beside(self) -> list[FileEntry]:
        parent, patterns = self.found.parent, self.found.layout.beside
        if parent is None or not patterns:
            return []
        return [entry for name, entry in (*parent.files.items(), *parent.links.items()) if matches(patterns, name)]

    def _names(self, entry: FileEntry) -> bool:
        return _named_by(entry, self.found, self._family())

    def _family(self) -> list[Found]:
        return [
            item
            for item in self.siblings.values()
            if item.parent is self.found.parent and item.layout.beside == self.found.layout.beside
        ]

    def _numbers(self) -> tuple[int | None, int]:
        """The step, from the name or from a link that points here, and the number that sorts."""
        step, order = parse_name(self.found)
        if step is None and self.found.parent is not None:
            steps = [_link_step(link) for link in self.found.parent.links_to(self.found.name)]
            step = max((number for number in steps if number is not None), default=None)
        return step, order


def _named_by(entry: FileEntry, found: Found, family: Iterable[Found]) -> bool:
    text = entry.link_target if entry.link_target is not None else entry.text
    _, order = parse_name(found)
    if text is None:  # it could not be read: the newest by number is the best that it can name
        return order == max((parse_name(item)[1] for item in family), default=order)
    named = posixpath.basename(text.strip().rstrip("/"))
    return named == found.name or (named.isdecimal() and int(named) == order)


@cache
def _step_link() -> re.Pattern[str]:
    return re.compile(r".*(?:step|iter)[-_=]?(\d+)$")


def _link_step(link: FileEntry) -> int | None:
    match = _step_link().match(posixpath.basename(link.path))
    return int(match[1]) if match else None


def _others(root: Folder, found: Iterable[Found]) -> tuple[str, ...]:
    """Names directly in the directory that neither are nor hold nor mark a checkpoint, nor link to one."""
    taken = {entry.path for item in found for entry in item.files}
    holding = {path.split("/", 1)[0] for path in taken} | {item.path.split("/", 1)[0] for item in found}
    markers = tuple(pattern for layout in LAYOUTS for pattern in layout.beside)
    names = {name for name in root.names if name not in holding and not matches(markers, name)}
    return tuple(sorted(name for name in names if not _links_into(root, name, holding)))


def _links_into(root: Folder, name: str, holding: set[str]) -> bool:
    link = root.links.get(name)
    return link is not None and posixpath.normpath(link.link_target or "").split("/", 1)[0] in holding


def _event_bytes(entries: Iterable[FileEntry]) -> int:
    is_event = re.compile(translate(EVENT_FILES)).match
    return sum(entry.bytes for entry in entries if is_event(posixpath.basename(entry.path)))
