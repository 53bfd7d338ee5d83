"""One second of a rank: every span of its segment drawn, always in the same order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from training_exporter.scenario.records import RankSegment, Span


class Moment(NamedTuple):
    """What holds for one rank in one second; percent, W, MiB, MHz, degrees C, cores, and amounts a second."""

    util: float
    mem_util: float
    watts: float
    memory_mib: float
    other_mib: float
    sm_mhz: float | None
    temp_c: float | None
    rank_cores: float
    loader_cores: float
    other_cores: float
    read_bytes: float
    written_bytes: float
    faults: float
    children_cores: tuple[float, ...]


def drawer(rank: RankSegment, generator: random.Random) -> Callable[[], Moment]:
    """What draws the next second of a rank in this segment."""
    spans = (
        rank.gpu.util,
        rank.gpu.mem_util,
        rank.gpu.watts,
        rank.gpu.memory_mib,
        rank.gpu.other_mib,
        rank.gpu.sm_mhz,
        rank.gpu.temp_c,
        rank.rank_cores,
        rank.loader_cores,
        rank.other_cores,
        rank.read,
        rank.write,
        rank.faults,
        *(child.cores for child in rank.children),
    )
    values = [None if span is None else span.low for span in spans]
    drawn = [(index, span) for index, span in enumerate(spans) if span is not None and span.low < span.high]
    first_child = len(spans) - len(rank.children)

    def draw() -> Moment:
        for index, span in drawn:
            values[index] = _uniform(span, generator)
        return Moment(*values[:first_child], tuple(values[first_child:]))  # type: ignore[call-arg, arg-type]  # by position

    return draw


def _uniform(span: Span, generator: random.Random) -> float:
    return span.low + (span.high - span.low) * generator.random()
