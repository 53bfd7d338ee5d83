"""Whether every piece of a checkpoint that was cut into numbered pieces is there."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable

# model-00001-of-00003.safetensors, pytorch_model-00001-of-00002.bin; one-based
_OF = re.compile(r"(?P<stem>.*)-(?P<index>\d{4,5})-of-(?P<total>\d{4,5})(?P<rest>\..*)")
# zero-based, as in model_world_size_8_rank_3.pt of verl
_WORLD = re.compile(r"(?P<stem>.*)_world_size_(?P<total>\d+)_rank_(?P<index>\d+)(?P<rest>\..*)")
# torch.distributed.checkpoint: __<rank>_<file>.distcp, one rank at least
_DISTCP = re.compile(r"__(?P<index>\d+)_\d+\.distcp")
# of deepspeed, one per rank of the data parallel group and model parallel part
_ZERO = re.compile(r"(?:bf16_)?zero_pp_rank_(?P<index>\d+)_mp_rank_(?P<part>\d+)_(?P<kind>model|optim)_states\.pt")
_MODEL = re.compile(r"mp_rank_(?P<index>\d+)(?:_\d+)*_model_states\.pt")
_RANDOM = re.compile(r"random_states_(?P<index>\d+)\.pkl")


def shards_complete(paths: Iterable[str]) -> bool:
    """Whether no numbered piece is missing among the files `paths` of one checkpoint; true where none is numbered."""
    paths = list(paths)
    return _counted(paths) and _unbroken(paths) and _paired(paths) and _indexed(paths)


def _counted(paths: list[str]) -> bool:
    """Pieces that say how many there are."""
    sets: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for path in paths:
        if match := _OF.fullmatch(path) or _WORLD.fullmatch(path):
            sets[match["stem"], match["total"], match["rest"]].add(int(match["index"]))
    return all(len(indices) >= int(total) for (_, total, _), indices in sets.items())


def _unbroken(paths: list[str]) -> bool:
    """Pieces that are numbered from 0 without a gap."""
    sets: dict[tuple[str, str], set[int]] = defaultdict(set)
    for path in paths:
        folder, name = posixpath.split(path)
        for pattern in (_DISTCP, _MODEL, _RANDOM):
            if match := pattern.fullmatch(name):
                sets[folder, pattern.pattern].add(int(match["index"]))
        if match := _ZERO.fullmatch(name):
            sets[folder, match["kind"] + match["part"]].add(int(match["index"]))
    return all(max(indices) == len(indices) - 1 for indices in sets.values())


def _paired(paths: list[str]) -> bool:
    """DeepSpeed stage 3 writes one model and one optimizer file per rank; every part has as many ranks."""
    ranks: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in paths:
        folder, name = posixpath.split(path)
        if match := _ZERO.fullmatch(name):
            ranks[folder, match["kind"]].add(f"{match['index']}/{match['part']}")
    folders = {folder for folder, _ in ranks}
    return all(
        not ranks.get((folder, "model")) or ranks[folder, "model"] == ranks.get((folder, "optim")) for folder in folders
    )


def _indexed(paths: list[str]) -> bool:
    """An index without a single piece of what it lists is not the whole."""
    for path in paths:
        if path.endswith(".index.json"):
            stem, extension = posixpath.splitext(path.removesuffix(".index.json"))
            if not any(other.startswith(stem) and other.endswith(extension) for other in paths):
                return False
    return True
