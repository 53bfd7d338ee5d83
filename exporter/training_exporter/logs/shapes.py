"""Remembers what a shape of line means, so that the second line of a shape costs little."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import Generic, TypeVar

from training_exporter.logs.heads import take_head
from training_exporter.logs.lexer import is_time, lex, mask
from training_exporter.logs.plan import Plan
from training_exporter.logs.understand import statements, understand

MAX_SHAPES = 4096
MAX_KEPT = 1 << 20  # about the bytes of all shapes of a kind: room for hundreds, where a log has dozens
MAX_PLACES = 1024
MAX_PLACES_KEPT = 1 << 21  # about the bytes of the memory of where the numbers of lines stand
MAX_PLACES_JOINED = 1 << 18  # the same of joined records: those of side files are hardly ever alike
MAX_JOINED = 64 * 1024  # characters of a record joined of several lines
MAX_PLACED = 2048  # characters of a line whose numbers are remembered by place
MAX_BLANKS = 24
_BLANKS = re.compile(rf"(\s{{{MAX_BLANKS}}})\s+")
_DIGIT = re.compile("[0-9]")
_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)

Literals = tuple[str, ...]
Cut = Callable[[str], tuple[str, ...]]  # takes parts out of a text, by their places
K = TypeVar("K")
V = TypeVar("V")


class Shapes:
    """Plans by the literals of a line. When full, all are forgotten: a log repeats a few shapes, or none."""

    def __init__(self) -> None:
        self._lines: _Bounded[Literals, Plan] = _Bounded(MAX_SHAPES)
        self._joined: _Bounded[Literals, Plan] = _Bounded(MAX_SHAPES)
        self.plan = _Places(self._line, MAX_PLACES_KEPT).plan  # what a line says, and its numbers
        self._records = _Places(self._record, MAX_PLACES_JOINED)

    def joined(self, text: str) -> tuple[Plan, Sequence[str]]:
        """What the record says that several lines make together."""
        return self._records.plan(text[:MAX_JOINED])

    def afresh(self, text: str) -> tuple[Plan, Sequence[str]]:
        """The plan of a line whose numbers are not of the kind that its shape had before."""
        literals, tokens = lex(text)
        narrow = _narrow(literals)
        return understand(narrow, tokens, mask(narrow, tokens))[0], tokens

    def __len__(self) -> int:
        return len(self._lines) + len(self._joined)

    def _line(self, literals: Literals, tokens: list[str]) -> tuple[Plan, bool]:
        """The plan, and whether it holds for every line of the same literals."""
        plan = self._lines.get(literals)
        if plan is not None and (not plan.times or all(map(is_time, map(tokens.__getitem__, plan.times)))):
            return plan, True
        narrow = _narrow(literals)
        plan, holds = understand(narrow, tokens, mask(narrow, tokens))
        if holds:
            self._lines.keep(literals, plan, _weight(literals))
        return plan, holds

    def _record(self, literals: Literals, tokens: list[str]) -> tuple[Plan, bool]:
        plan = self._joined.get(literals)
        if plan is None:
            head = take_head(mask(_narrow(literals), tokens))
            records = tuple(draft for draft in statements(head, tokens) if draft.kind == "record")
            plan = Plan(drafts=records, rank=head.rank)
            self._joined.keep(literals, plan, _weight(literals))
        return plan, True


class _Bounded(dict[K, V], Generic[K, V]):
    """A dictionary that starts anew when it is full: by the number of its keys, or by what they weigh together."""

    def __init__(self, size: int, most: int = MAX_KEPT) -> None:
        super().__init__()
        self._size = size
        self._most = most
        self._weight = 0

    def keep(self, key: K, value: V, weight: int) -> None:
        self._weight += weight
        if len(self) >= self._size or self._weight > self._most:
            self.clear()
            self._weight = weight
        self[key] = value


class _Places:
    """Plans by where the numbers of a text stand, which is remembered by the text with every digit made a zero.

    No rule of the lexer asks which digit it sees. So texts that are alike but for their digits have their numbers in
    the same places, and to cut them out there costs a fraction of the search. What is left between the numbers may
    still have digits (`loss_0`), which are compared as they are.
    """

    def __init__(self, find: Callable[[Literals, list[str]], tuple[Plan, bool]], most: int) -> None:
        self._find = find  # the plan of literals and numbers, and whether it holds for all of the same literals
        self._names: _Bounded[bytes, Cut] = _Bounded(MAX_PLACES, most // 4)
        self._plans: _Bounded[tuple[bytes, Sequence[str]], tuple[Plan, Cut]] = _Bounded(MAX_PLACES, 3 * most // 4)

    def plan(self, text: str) -> tuple[Plan, Sequence[str]]:
        """What a text says, and its numbers."""
        zeroed = text.encode(errors="surrogatepass").translate(_ZEROS)
        names = self._names.get(zeroed)
        if names is not None:
            known = self._plans.get((zeroed, names(text)))
            if known is not None:
                return known[0], known[1](text)
        literals, tokens = lex(text)
        plan, holds = self._find(literals, tokens)
        if holds and len(text) <= MAX_PLACED:
            self._remember(zeroed, text, plan, literals, tokens)
        return plan, tokens

    def _remember(self, zeroed: bytes, text: str, plan: Plan, literals: Literals, tokens: Sequence[str]) -> None:
        names, numbers = [], []
        position = 0
        for literal, token in zip_longest(literals, tokens, fillvalue=""):
            middle = position + len(literal)
            if _DIGIT.search(literal):
                names.append(slice(position, middle))
            position = middle + len(token)
            numbers.append(slice(middle, position))
        cut = _cut(names)
        self._names.keep(zeroed, cut, len(zeroed) + 120 * len(names) + 200)
        self._plans.keep((zeroed, cut(text)), (plan, _cut(numbers[:-1])), len(zeroed) + 120 * len(numbers) + 400)


def _cut(places: Sequence[slice]) -> Cut:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda text: tuple(text[place] for place in places)


def _weight(literals: Literals) -> int:
    """About how many bytes a shape takes: its texts, the masked line (four a character) and message, and its plan."""
    return 9 * sum(map(len, literals)) + 50 * len(literals) + 1000


def _narrow(literals: Literals) -> Literals:
    """The literals with no run of blanks longer than any column: what is searched behind blanks stays cheap."""
    return tuple(_BLANKS.sub(r"\1", part) if len(part) > MAX_BLANKS else part for part in literals)
