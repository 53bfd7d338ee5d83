"""Decides whether a line is news: a shape never seen in this run, or a counter of an unknown format that advances."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_MASKS = 4096
_VARIABLE = re.compile(
    r"'[^']*'|\"[^\"]*\"|`[^`]*`|(?:\w{1,20}:/)?/[^\s,;:'\")\]]+|(?:[\w.-]{1,80}/)[\w./-]*|\b[0-9a-fA-F]{8,}\b|"
    r"\S{0,80}\d\S*|"
    r"\b(?:[0-9a-f]{2,}-){2,}[0-9a-f]+\b"
)
_BLANKS = re.compile(r"\s+")
_MAX_SOURCE = 1000  # characters of a line that make its mask
# Lines that say only that something still lives; what counts in them is the number of lines, or the time.
_HEARTBEAT = re.compile(r"(?i)heart-?beat|keep-?alive|\b(?:is|status\W*)\s*alive\b")
# In a line that reports nothing these say that something waits.
_WAITING = re.compile(
    r"(?i)\b(?:still (?:running|alive|waiting|working)|uptime|alive|watchdog|waiting (?:for|on)|elapsed|idle|ping)\b"
)
# A counter that advances by these a second counts time: s, ms, us, ns, minutes, hours.
_CLOCK_RATES = (1.0, 1e3, 1e6, 1e9, 1 / 60, 1 / 3600)
_TOLERANCE = 0.1
_MIN_SECONDS = 5.0  # below this a rate says nothing
_MIN_STREAK = 2  # advances in a row: a duration that happens to grow is no counter


def masked_line(literals: Sequence[str]) -> str:
    """The line with every token that has a digit, every hash, path and quoted text replaced."""
    return _BLANKS.sub(" ", _VARIABLE.sub("#", "#".join(literals)[:_MAX_SOURCE]))[:400]


def is_heartbeat(text: str, *, reports: bool) -> bool:
    """Whether a line only says that something still lives; `reports`: it is of a known format."""
    text = text[:_MAX_SOURCE]
    return bool(_HEARTBEAT.search(text)) or (not reports and bool(_WAITING.search(text)))


@dataclass(slots=True)
class _Counter:
    value: float
    anchor: float
    anchor_seconds: float
    rises: int = 0
    falls: int = 0
    streak: int = 0


class Novelty:
    """The masks that one run has printed, and the counters in lines of unknown format. Memory is bounded."""

    def __init__(self, max_masks: int = MAX_MASKS) -> None:
        self._max_masks = max_masks
        self._masks: set[str] = set()
        self._counters: dict[tuple[str, int], _Counter] = {}

    def new_mask(self, mask: str) -> bool:
        """Whether this mask is new; never once the bound is reached, so that noise cannot look like progress."""
        if mask in self._masks or len(self._masks) >= self._max_masks:
            return False
        self._masks.add(mask)
        return True

    def knows(self, mask: str) -> bool:
        """Whether this mask was printed before."""
        return mask in self._masks

    def advanced(self, mask: str, tokens: Sequence[str], time_seconds: float) -> bool:
        """Whether a counter of this line advanced since the last line of the mask, other than with the clock."""
        moved = False
        for index, token in enumerate(tokens[:8]):
            plain = token.replace(",", "")
            if plain.isdigit() and len(plain) < 16:
                moved |= self._note((mask, index), float(plain), time_seconds)
        return moved

    def _note(self, key: tuple[str, int], value: float, time_seconds: float) -> bool:
        counter = self._counters.get(key)
        if counter is None:
            if len(self._counters) < self._max_masks:
                self._counters[key] = _Counter(value, value, time_seconds)
            return False
        before, counter.value = counter.value, value
        if value <= before:
            counter.falls += value < before
            counter.streak = 0
            counter.anchor, counter.anchor_seconds = value, time_seconds
            return False
        counter.rises += 1
        counter.streak += 1
        seconds = time_seconds - counter.anchor_seconds
        if seconds < _MIN_SECONDS or counter.streak < _MIN_STREAK or counter.falls * 5 > counter.rises:
            return False
        rate = (value - counter.anchor) / seconds
        return not any(abs(rate / clock - 1) <= _TOLERANCE for clock in _CLOCK_RATES)
