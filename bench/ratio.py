"""Runs what is compared in turns, so that a busy minute of the machine hits all alike, and shows what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

T = TypeVar("T")

JUDGED: Mapping[str, Callable[[list[float]], float]] = {"median": median, "best": min, "worst": max}


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was measured of ours and of what it is held against, round by round, and how much of it ours may take.

    `bound` None: shown, not judged. `judged`: which round counts, "median", "best" (least ratio) or "worst".
    """

    what: str
    ours: Sequence[float]
    other: Sequence[float]
    unit: str
    bound: float | None = None
    judged: str = "median"

    @property
    def ratios(self) -> list[float]:
        """Ours over the other, round by round."""
        return [mine / theirs for mine, theirs in zip(self.ours, self.other, strict=True)]

    @property
    def ratio(self) -> float:
        """The ratio that counts."""
        return JUDGED[self.judged](self.ratios)

    @property
    def met(self) -> bool:
        """Whether it is within its bound."""
        return self.bound is None or self.ratio <= self.bound

    def row(self) -> str:
        """A row of the table."""
        cells = [
            self.what,
            _spread(self.ours, self.unit),
            _spread(self.other, self.unit),
            f"{self.ratio:.3g} ({min(self.ratios):.3g} to {max(self.ratios):.3g}, {self.judged} of {len(self.ratios)})",
            "" if self.bound is None else f"{self.bound:g}",
            "" if self.bound is None else "yes" if self.met else "**NO**",
        ]
        return f"| {' | '.join(cells)} |"


def table(comparisons: Iterable[Comparison], other: str) -> str:
    """A Markdown table; `other` says what ours is held against."""
    head = f"| | ours: median (min to max) | {other} | ratio | at most | met |"
    return "\n".join([head, "| --- | --- | --- | --- | --- | --- |", *(row.row() for row in comparisons)])


def _spread(values: Sequence[float], unit: str) -> str:
    low, middle, high = (f"{value:.3g}" for value in (min(values), median(values), max(values)))
    return f"{middle} ({low} to {high}) {unit}"
