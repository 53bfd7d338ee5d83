"""What one listing says of each checkpoint in it, before time is brought in: size, step, marker, missing pieces."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from training_exporter.model import FileEntry
from training_exporter.runs.folders import Folder, Found, matches, parse_name
from training_exporter.runs.layout_table import TEMPORARY
from training_exporter.runs.shards import shards_complete

# An older checkpoint that its marker no longer names must hold this share of the bytes of the one that it names.
SAME_SIZE_RATIO = 0.9

_STEP_LINK = re.compile(r".*(?:step|iter)[-_=]?(\d+)")


@dataclass(frozen=True, slots=True)
class Facts:
    """One checkpoint as far as a single listing tells; times are the file system's own."""

    path: str  # below the directory; "" is the directory itself
    name: str
    layout: str
    bytes: int
    files: int  # of data, under their final names
    newest_seconds: float  # of the data
    step: int | None
    order: int
    mark_seconds: float | None  # of the newest marker
    own_seconds: float  # of the newest data that no slow rank may write after the marker
    broken: bool  # a temporary name, a missing piece, or no data: cannot be whole
    rest_suffices: bool  # without a marker: whole once nothing changes any more


@dataclass(frozen=True, slots=True)
class _Company:
    """What stands beside a checkpoint: the markers there, and which checkpoint each names."""

    markers: tuple[FileEntry, ...] = ()
    named: tuple[tuple[FileEntry, Found], ...] = ()

    @classmethod
    def of(cls, parent: Folder, members: list[Found]) -> _Company:
        patterns = members[0].layout.beside
        entries = (*parent.files.items(), *parent.links.items())
        markers = tuple(entry for name, entry in entries if matches(patterns, name))
        top = max(parse_name(member)[1] for member in members)
        named = [(mark, member) for mark in markers for member in members if _names(mark, member, top)]
        return cls(markers, tuple(named))


def facts_of(found: Iterable[Found]) -> tuple[Facts, ...]:
    """The facts of all checkpoints of one listing, in the same order."""
    found = list(found)
    groups: dict[tuple[int, tuple[str, ...]], list[Found]] = defaultdict(list)
    for item in found:
        if item.parent is not None and item.layout.beside:
            groups[id(item.parent), item.layout.beside].append(item)
    companies = {key: _Company.of(members[0].parent, members) for key, members in groups.items() if members[0].parent}
    return tuple(_facts(item, companies) for item in found)


def _facts(found: Found, companies: Mapping[tuple[int, tuple[str, ...]], _Company]) -> Facts:
    layout = found.layout
    company = companies.get((id(found.parent), layout.beside), _Company())
    data = [entry for entry in found.files if not matches(layout.late + layout.markers, entry.path)]
    final = [entry for entry in data if not matches(TEMPORARY, entry.path)]
    step, order = _numbers(found)
    return Facts(
        path=found.path,
        name=found.name,
        layout=layout.name,
        bytes=sum(entry.bytes for entry in found.files),
        files=len(final),
        newest_seconds=_newest(data),
        step=step,
        order=order,
        mark_seconds=_mark(found, company),
        own_seconds=_newest(entry for entry in data if not matches(layout.stragglers, entry.path)),
        broken=not data or _unfinished(found),
        rest_suffices=len(final) == len(data) and _rest_suffices(found, company, data),
    )


def _mark(found: Found, company: _Company) -> float | None:
    """The time of the marker: the one beside that names this checkpoint, else the newest in it."""
    named = [mark for mark, member in company.named if member is found]
    within = [entry for entry in found.files if entry.bytes and matches(found.layout.markers, entry.path)]
    return _newest(named or within) if named or within else None


def _rest_suffices(found: Found, company: _Company, data: list[FileEntry]) -> bool:
    layout = found.layout
    alone = found.parent is None  # the listed directory itself: what lies beside it cannot be seen
    if layout.unmarked == "stable" or (layout.unmarked == "lone" and not company.markers):
        return True
    if layout.closing and (alone or not layout.beside):
        return _closed(layout.closing, data)
    return (alone and bool(layout.beside)) or _outlived(found, company)


def _closed(closing: tuple[str, ...], data: list[FileEntry]) -> bool:
    """Whether the file that is written last, where the marker is left out, is the newest."""
    last = [entry for entry in data if matches(closing, entry.path)]
    return bool(last) and _newest(last) >= _newest(entry for entry in data if not matches(closing, entry.path))


def _outlived(found: Found, company: _Company) -> bool:
    """Whether it is an older one, of the same make as the one that the marker names by now."""
    size = sum(entry.bytes for entry in found.files)
    _, order = parse_name(found)
    return any(
        order < parse_name(other)[1]
        and _newest(found.files) <= mark.modified_seconds
        and len(found.files) >= len(other.files)
        and size >= SAME_SIZE_RATIO * sum(entry.bytes for entry in other.files)
        for mark, other in company.named
    )


def _unfinished(found: Found) -> bool:
    if any(matches(TEMPORARY, part) for part in found.path.split("/")):
        return True
    if found.parent is not None and f"{found.name}-unfinished" in found.parent:
        return True
    return not shards_complete(entry.path for entry in found.files)


def _numbers(found: Found) -> tuple[int | None, int]:
    """The step, from the name or from a link that points here, and the number that sorts."""
    step, order = parse_name(found)
    if step is None and found.parent is not None:
        links = (_STEP_LINK.fullmatch(posixpath.basename(link.path)) for link in found.parent.links_to(found.name))
        step = max((int(match[1]) for match in links if match), default=None)
    return step, order


def _names(mark: FileEntry, found: Found, top: int) -> bool:
    """Whether a marker names this checkpoint; `top` is the highest number beside it."""
    text = mark.link_target if mark.link_target is not None else mark.text
    _, order = parse_name(found)
    if text is None:  # it could not be read: the newest by number is the best that it can name
        return order == top
    named = posixpath.basename(text.strip().rstrip("/"))
    return named == found.name or (named.isdecimal() and int(named) == order)


def _newest(entries: Iterable[FileEntry]) -> float:
    return max((entry.modified_seconds for entry in entries), default=0.0)
