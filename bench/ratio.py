"""Runs what is compared in turns, so that a busy minute of the machine hits all alike, and shows what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

T = TypeVar("T")


def in_turns(cases: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """What each case returned, round by round."""
    values: dict[str, list[T]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, measure in cases.items():
            values[name].append(measure())
    return values


def show(name: str, values: Sequence[float], unit: str) -> None:
    """One line: median, least and greatest."""
    low, middle, high = min(values), median(values), max(values)
    print(f"{name:44} median {middle:12,.1f} {unit}   min {low:12,.1f}   max {high:12,.1f}")
