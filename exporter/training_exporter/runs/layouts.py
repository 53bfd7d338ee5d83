"""Which checkpoints stand in a directory, whether each is whole, and how old: a pure judgement of a listing."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import translate

from training_exporter.model import DirectoryListing, FileEntry
from training_exporter.runs.checkpoint_facts import Facts, facts_of
from training_exporter.runs.folders import Folder, Found, find, matches
from training_exporter.runs.layout_table import EVENT_FILES, LAYOUTS, SMALL_BYTES, WRITING, Written

# Nothing changed over two scans and for this long: complete, where the layout has no better sign.
STABLE_SECONDS = 60.0
# A file that was already there at the first look counts as stable at once when it is this old. Not less, because the
# file server's clock may be behind this node's.
OLD_SECONDS = 600.0
# Files of slower ranks may be younger than the marker by this much; what comes later is the next save in place.
STRAGGLE_SECONDS = 120.0


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
    facts: tuple[Facts, ...] = field(default=(), repr=False, compare=False)
    entries: tuple[FileEntry, ...] = field(default=(), repr=False, compare=False)  # what the facts were drawn from


def judge(listing: DirectoryListing, previous: Judgement | None = None) -> Judgement:
    """Judge a readable listing; `previous` is the judgement of the look before, which stability is measured against."""
    if previous is not None and previous.entries == listing.entries:
        drawn = previous  # most looks find nothing new, and a large tree takes a while to read
    else:
        root = Folder.of(listing)
        found = find(root)
        drawn = Judgement((), _others(root, found), _event_bytes(listing.entries), facts_of(found), listing.entries)
    before = {checkpoint.path: checkpoint for checkpoint in previous.checkpoints} if previous else {}
    checkpoints = tuple(_judge(listing, facts, before.get(facts.path), previous is None) for facts in drawn.facts)
    return replace(drawn, checkpoints=checkpoints)


def _judge(listing: DirectoryListing, facts: Facts, old: Checkpoint | None, first: bool) -> Checkpoint:
    draft = _over_time(listing, facts, old, first=first)
    if facts.broken or draft.files < draft.most_files:
        return draft
    if facts.mark_seconds is None:
        return replace(draft, complete=facts.rest_suffices and _at_rest(listing, draft))
    behind = facts.newest_seconds - facts.mark_seconds
    complete = facts.own_seconds <= facts.mark_seconds and (
        behind <= 0 or (behind <= STRAGGLE_SECONDS and _at_rest(listing, draft))
    )
    return replace(draft, complete=complete)


def _over_time(listing: DirectoryListing, facts: Facts, old: Checkpoint | None, *, first: bool) -> Checkpoint:
    """The checkpoint with its history, not complete yet."""
    now = listing.time_seconds
    draft = Checkpoint(
        path=facts.path,
        name=facts.name,
        layout=facts.layout,
        complete=False,
        wall_seconds=facts.newest_seconds if facts.mark_seconds is None else facts.mark_seconds,
        bytes=facts.bytes,
        files=facts.files,
        newest_seconds=facts.newest_seconds,
        step=facts.step,
        order=facts.order,
        unchanged_since_seconds=now,
        changed=not first,
        most_files=facts.files,
    )
    if old is None:
        return draft
    same = (draft.bytes, draft.files, draft.newest_seconds) == (old.bytes, old.files, old.newest_seconds)
    rewritten = draft.newest_seconds > old.newest_seconds
    return replace(
        draft,
        unchanged_since_seconds=old.unchanged_since_seconds if same else now,
        looks=old.looks + 1 if same else 1,
        changed=old.changed or not same,
        most_files=draft.files if rewritten else max(draft.files, old.most_files),
    )


def _at_rest(listing: DirectoryListing, draft: Checkpoint) -> bool:
    if draft.looks < 2:
        return False
    watched = listing.time_seconds - draft.unchanged_since_seconds
    age = listing.wall_seconds - draft.newest_seconds
    return watched >= STABLE_SECONDS or (not draft.changed and age >= OLD_SECONDS)


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
