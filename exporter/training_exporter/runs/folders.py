"""Finding the checkpoints in a tree of files: which folder is one of which layout, which file is one by itself."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache

from training_exporter.model import DirectoryListing, FileEntry
from training_exporter.runs.layout_table import ANY_NAME, BEGUN, LAYOUTS, NOT_DATA, NOT_WEIGHTS, WEIGHTS, Layout

# no training keeps so many whole checkpoints in one folder; caches of hidden states come by the thousand
MAX_SINGLE_FILES = 500

_TEMPORARY_END = re.compile(r"\.(?:tmp|part|incomplete)$")


@dataclass(slots=True)
class Folder:
    """A directory of a listing with what lies directly in it, by name."""

    name: str
    path: str = ""  # below the listed directory
    files: dict[str, FileEntry] = field(default_factory=dict)
    links: dict[str, FileEntry] = field(default_factory=dict)
    folders: dict[str, Folder] = field(default_factory=dict)

    @classmethod
    def of(cls, listing: DirectoryListing) -> Folder:
        """The tree of a listing."""
        root = cls(posixpath.basename(listing.target.path.rstrip("/")))
        known = {"": root}
        for entry in listing.entries:
            if entry.directory:
                _folder_at(known, entry.path)
                continue
            path, name = posixpath.split(entry.path)
            folder = _folder_at(known, path)
            (folder.files if entry.link_target is None else folder.links)[name] = entry
        return root

    @property
    def names(self) -> set[str]:
        """Of all that lies directly in it."""
        return {*self.files, *self.links, *self.folders}

    def __contains__(self, name: str) -> bool:
        return name in self.files or name in self.links or name in self.folders

    def all_files(self) -> Iterator[FileEntry]:
        """The files in it and below."""
        yield from self.files.values()
        for folder in self.folders.values():
            yield from folder.all_files()

    def links_to(self, name: str) -> list[FileEntry]:
        """The links in it whose target is its entry `name`."""
        return [link for link in self.links.values() if posixpath.basename(link.link_target or "") == name]


@dataclass(frozen=True, slots=True)
class Found:
    """What may be a checkpoint: a folder with what belongs to it, or one file. All paths are of the listing."""

    path: str
    name: str
    layout: Layout
    files: tuple[FileEntry, ...]
    parent: Folder | None = None


@lru_cache(maxsize=256)
def _union(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern) for pattern in patterns) or r"(?!)")


@lru_cache(maxsize=256)
def _has_slash(patterns: tuple[str, ...]) -> bool:
    return any("/" in pattern for pattern in patterns)


def matches(patterns: tuple[str, ...], path: str) -> bool:
    """Whether one of the globs fits the file's name, or its path where one of them has a slash."""
    if _has_slash(patterns) and _union(patterns).match(path) is not None:
        return True
    return _union(patterns).match(path.rpartition("/")[2]) is not None


def parse_name(found: Found) -> tuple[int | None, int]:
    """The step that a name holds (None where the number is something else), and the number that sorts (else -1)."""
    for pattern in found.layout.names:
        if match := re.fullmatch(pattern, found.name):
            groups = {key: int(value) for key, value in match.groupdict().items() if value is not None}
            step = groups.get("step")
            return step, step if step is not None else groups.get("order", -1)
    return None, -1


def find(folder: Folder, parent: Folder | None = None) -> list[Found]:
    """Every checkpoint in a folder, itself included; what belongs to one is not looked at a second time."""
    strict = _recognise(folder, loose=False)
    if strict is not None and not _is_any_name(strict, folder.name):
        return [_found(folder, parent, strict, folder.all_files())]
    loose = _recognise(folder, loose=True) if strict is None else None
    if loose is not None and loose.name == "folder":
        if parent is not None:
            return [_found(folder, parent, loose, folder.all_files())]
        loose = None  # the name of the listed directory itself is no sign
    inner = [item for child in folder.folders.values() for item in find(child, folder)]
    layout = strict or loose
    if layout is None:
        return [*inner, *_single_files(folder)]
    # under any name at all only what is known to belong to a checkpoint: a log may lie beside it
    known = (*BEGUN, *layout.content, *layout.markers, *layout.closing, *layout.stragglers, *layout.late)
    own = (entry for name, entry in folder.files.items() if matches(known, name))
    return [*inner, _found(folder, parent, layout, own)]


def _found(folder: Folder, parent: Folder | None, layout: Layout, files: Iterable[FileEntry]) -> Found:
    own = tuple(entry for entry in files if not matches(NOT_DATA, entry.path))
    return Found(folder.path, folder.name, layout, own, parent)


def _recognise(folder: Folder, *, loose: bool) -> Layout | None:
    """The first row whose name and content fit, else one whose name says it already; None for any other folder."""
    rows = [layout for layout in LAYOUTS if layout.folder and layout.loose == loose]
    content = _signature(folder)
    for layout in rows:
        if _name_fits(layout.names, folder.name) and any(_fits_content(layout, path) for path in content):
            return layout
    begun = [row for row in rows if row.begins and not _is_any_name(row, folder.name)]
    return next((row for row in begun if any(matches(row.begins, path) for path in content)), None)


def _signature(folder: Folder) -> list[str]:
    """What tells the layout: files directly in it, and one level below as folder/file."""
    below = (f"{child.name}/{name}" for child in folder.folders.values() for name in child.files)
    return [*folder.files, *below]


def _fits_content(layout: Layout, path: str) -> bool:
    # a glob without a slash speaks of files directly in the folder
    return _union(layout.content).match(path) is not None and (
        "/" not in path or any("/" in glob and _union((glob,)).match(path) for glob in layout.content)
    )


def _name_fits(patterns: tuple[str, ...], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _is_any_name(layout: Layout, name: str) -> bool:
    return not _name_fits(tuple(pattern for pattern in layout.names if pattern not in ANY_NAME), name)


def _single_files(folder: Folder) -> list[Found]:
    """Files that are a checkpoint each; so many in one folder are a data set."""
    found = [
        Found(
            entry.path,
            name,
            next(row for row in LAYOUTS if not row.folder and _name_fits(row.names, name)),
            (entry,),
            folder,
        )
        for name, entry in folder.files.items()
        if _is_weights(name)
    ]
    return found if len(found) <= MAX_SINGLE_FILES else []


def _is_weights(name: str) -> bool:
    plain = _TEMPORARY_END.sub("", name)
    return matches(WEIGHTS, plain) and not matches(NOT_WEIGHTS, plain)


def _folder_at(known: dict[str, Folder], path: str) -> Folder:
    folder = known.get(path)
    if folder is None:
        above, name = posixpath.split(path)
        folder = known[path] = Folder(name, path)
        _folder_at(known, above).folders[name] = folder
    return folder
