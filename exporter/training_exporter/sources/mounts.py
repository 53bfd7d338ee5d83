"""Which file system a path is on, told from the mount table alone: the path itself is never touched."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class MountTable:
    """Type of the file system by mount point."""

    types: Mapping[str, str]

    @classmethod
    def read(cls) -> MountTable:
        """The mounts of this process's namespace; a later one over the same point hides the earlier."""
        return cls({mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)})

    def point(self, path: str) -> str:
        """The mount point that an absolute path is below, as far as its text tells (links are not followed)."""
        while path not in self.types:
            above = posixpath.dirname(path)
            if above in {path, ""}:  # the root, which is its own parent and may be written `//`
                return "/"
            path = above
        return path

    def type_of(self, path: str) -> str:
        """Type of the file system, such as `ext4` or `nfs4`; empty if unknown."""
        return self.types.get(self.point(path), "")
