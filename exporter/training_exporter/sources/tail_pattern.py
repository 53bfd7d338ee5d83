"""Finds the files that a glob pattern names, below a root and with the rights of the run's owner."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from training_exporter.model import LogTarget
from training_exporter.sources.offload import EXHAUSTED
from training_exporter.sources.safe_open import Owner, open_below

MAX_MATCHES = 256  # files of one pattern: eight ranks with two streams, over many attempts
MAX_NAMES = 4096  # of one directory
MAX_DEPTH = 8  # of `**`
_MAGIC = re.compile(r"[*?\[]")


def is_pattern(path: str) -> bool:
    """Whether a path has glob characters."""
    return bool(_MAGIC.search(path))


def expand(target: LogTarget) -> tuple[str, ...]:
    """The files that the pattern names, sorted; `**` stands for any directories, up to eight deep. May block.

    Raises OSError where no descriptor or memory is left to look with.
    """
    owner = Owner.of(target.uid, target.gid)
    found = ["/"]
    guessed = False  # whether what was found so far came from a pattern: then the next part may not be there
    for part in (part for part in target.path.split("/") if part):
        above, found = found, []
        for path in above:
            found.extend(_matches(target.root, path, part, owner, check=guessed))
            if len(found) >= MAX_MATCHES:
                break
        guessed |= is_pattern(part)
    return tuple(sorted(set(found)))[:MAX_MATCHES]


def _matches(root: str, path: str, part: str, owner: Owner | None, *, check: bool) -> Iterator[str]:
    if part == "**":
        yield from _below(root, path, owner, MAX_DEPTH)
    elif not is_pattern(part):
        if not check or part in _names(root, path, owner):
            yield posixpath.join(path, part)
    else:
        for name in _names(root, path, owner):
            if fnmatchcase(name, part) and (part.startswith(".") or not name.startswith(".")):
                yield posixpath.join(path, name)


def _below(root: str, path: str, owner: Owner | None, depth: int) -> Iterator[str]:
    yield path
    if depth:
        for name in _names(root, path, owner, directories=True):
            yield from _below(root, posixpath.join(path, name), owner, depth - 1)


def _names(root: str, path: str, owner: Owner | None, *, directories: bool = False) -> list[str]:
    try:
        descriptor = open_below(root, path, os.O_RDONLY | os.O_DIRECTORY, owner, follow_last=True)
        try:
            return _listed(descriptor, directories=directories)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise  # that says nothing about the directory
        return []  # gone, or not the owner's to see: no files there


def _listed(descriptor: int, *, directories: bool) -> list[str]:
    names: list[str] = []
    with os.scandir(descriptor) as items:
        for item in items:
            if not directories or item.is_dir(follow_symlinks=False):
                names.append(item.name)
            if len(names) >= MAX_NAMES:
                break
    return sorted(names)
