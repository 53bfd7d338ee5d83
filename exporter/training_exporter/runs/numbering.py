"""Numbers of ranks where the processes alone do not settle them."""

from __future__ import annotations

from collections.abc import Iterable

from training_exporter.model import ProcessRecord, Rank
from training_exporter.runs.tree import age


def fill(ranks: list[Rank], nameless: Iterable[ProcessRecord]) -> list[Rank]:
    """Number what has no number: the free local ranks in the order of starting, as launchers count."""
    taken = {rank.local_rank for rank in ranks}
    offset = ranks[0].rank - ranks[0].local_rank if ranks else 0
    filled = []
    for record in nameless:
        local = next(number for number in range(len(taken) + 1) if number not in taken)
        taken.add(local)
        filled.append(Rank(local + offset, local, record))
    return filled


def unique(ranks: list[Rank]) -> list[Rank]:
    """One process a rank, sorted: the living one, and of two the newest (the older is dying of a restart)."""
    best: dict[int, Rank] = {}
    for rank in ranks:
        known = best.get(rank.rank)
        if known is None or _fitness(rank.process) > _fitness(known.process):
            best[rank.rank] = rank
    return sorted(best.values(), key=lambda rank: rank.rank)


def _fitness(record: ProcessRecord) -> tuple[bool, tuple[int, int]]:
    return record.state != "zombie", age(record)


def renumbered(ranks: list[Rank]) -> list[Rank]:
    """Ranks as they are if their numbers are all different, else numbered by the order of starting."""
    if len({rank.rank for rank in ranks}) == len(ranks):
        return sorted(ranks, key=lambda rank: rank.rank)
    return [Rank(position, position, rank.process) for position, rank in enumerate(ranks)]
