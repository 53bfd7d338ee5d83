"""Reads dicts and lists in masked text: JSON, Python literals, and what repr prints that neither would accept."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from training_exporter.logs.fields import ref_of
from training_exporter.logs.lexer import N, T
from training_exporter.logs.plan import Ref

MAX_DEPTH = 12
MAX_ENTRIES = 2000
_STRING = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_BARE = re.compile(rf"{N}|{T}|[-+]?[\w.]+%?")
_FRACTION = re.compile(rf"({N})/({N})")  # `'global_step/max_steps': '5/148'`, `'iteration': '5/148'`
_COUNTER = re.compile(r"(?:^|_)(?:step|iter(?:ation)?)s?$")
_STRUCTURE = re.compile(r"[{}\[\]'\"]")
_BLANK = re.compile(r"\s*")


@dataclass(slots=True)
class Literal:
    """A dict flattened with `/`: numbers, and the short strings that say what they are about."""

    numbers: list[tuple[str, Ref]] = field(default_factory=list)
    strings: dict[str, str] = field(default_factory=dict)
    entries: int = 0  # leaves of any kind
    listed: bool = False  # a list of dicts: a history, not a report


class UnreadableError(ValueError):
    """The text is no literal."""


class _Reader:
    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position
        self.found = Literal()

    def peek(self) -> str:
        match = _BLANK.match(self.text, self.position)
        self.position = match.end() if match else self.position
        return self.text[self.position : self.position + 1]

    def expect(self, characters: str) -> str:
        character = self.peek()
        if not character or character not in characters:
            raise UnreadableError
        self.position += 1
        return character

    def value(self, path: str, depth: int) -> None:
        character = self.peek()
        if depth > MAX_DEPTH or self.found.entries > MAX_ENTRIES:
            raise UnreadableError
        if character == "{":
            self.mapping(path, depth)
        elif character in "[(" and character:
            self.sequence(path, depth)
        elif character in "'\"" and character:
            self.leaf(path, self.string(), quoted=True)
        else:
            self.bare(path, depth)

    def mapping(self, path: str, depth: int) -> None:
        self.expect("{")
        while self.peek() != "}":
            key = self.string() if self.peek() in "'\"" and self.peek() else self.word()
            self.expect(":=")
            self.value(f"{path}/{key}" if path else key, depth + 1)
            if self.peek() == ",":
                self.position += 1
            elif self.peek() != "}":
                raise UnreadableError
        self.position += 1

    def sequence(self, path: str, depth: int) -> None:
        closing = {"[": "]", "(": ")"}[self.expect("[(")]
        first = len(self.found.numbers)
        count = 0
        while self.peek() != closing:
            if self.peek() == "{":
                self.found.listed = True
            self.value(f"{path}/{count}", depth + 1)
            count += 1
            if self.peek() == ",":
                self.position += 1
            elif self.peek() != closing:
                raise UnreadableError
        self.position += 1
        if count == 1 and len(self.found.numbers) == first + 1:  # a list of one is the value itself
            self.found.numbers[first] = (path, self.found.numbers[first][1])

    def string(self) -> str:
        match = _STRING.match(self.text, self.position)
        if match is None:
            raise UnreadableError
        self.position = match.end()
        return match[1] if match[1] is not None else match[2]

    def word(self) -> str:
        match = _BARE.match(self.text, self.position)
        if match is None:
            raise UnreadableError
        self.position = match.end()
        return match[0]

    def bare(self, path: str, depth: int) -> None:
        word = self.word()
        if self.text[self.position : self.position + 1] == "(":  # tensor(1.2, device='cuda:0'), EvalArgs(interval=100)
            self.call(path, depth)
            return
        self.leaf(path, word, quoted=False)

    def call(self, path: str, depth: int) -> None:
        self.expect("(")
        first = True
        while self.peek() != ")":
            if first and (match := re.compile(rf"({N})\s*[,)]").match(self.text, self.position)):
                self.leaf(path, match[1], quoted=False)
                self.position += 1
            elif match := re.compile(r"\w+\s*=").match(self.text, self.position):
                self.position = match.end()
                self.skip(depth)
            else:
                self.skip(depth)
            first = False
            if self.peek() == ",":
                self.position += 1
            elif self.peek() != ")":
                raise UnreadableError
        self.position += 1

    def skip(self, depth: int) -> None:
        kept = self.found
        self.found = Literal(entries=kept.entries)
        self.value("", depth + 1)
        kept.entries = self.found.entries
        self.found = kept

    def leaf(self, path: str, word: str, *, quoted: bool) -> None:
        self.found.entries += 1
        ref = ref_of(word.strip())
        if ref is not None:
            self.found.numbers.append((path, ref))
        elif quoted and (fraction := _FRACTION.fullmatch(word)):
            name, _, total = path.rpartition("/") if "/" in path else (path, "", "total_steps")
            if name != path or _COUNTER.search(path):
                self.found.numbers += [(name, ref_of(fraction[1]) or 0), (total, ref_of(fraction[2]) or 0)]
        elif quoted and re.fullmatch(rf"{N}%", word):
            self.found.numbers.append((path, ref_of(word[0]) or 0))
        elif quoted and len(word) <= 80:
            self.found.strings[path.rpartition("/")[2]] = word


def read(text: str, start: int) -> tuple[Literal, int] | None:
    """The literal that begins at `start` of a masked text and where it ends; None where there is none."""
    reader = _Reader(text, start)
    try:
        reader.value("", 0)
    except (UnreadableError, RecursionError):
        return None
    return reader.found, reader.position


def depth_change(text: str) -> int:
    """Opened minus closed braces and brackets outside quotes: not 0 where a literal goes on in the next line."""
    depth = position = 0
    unclosed = ""
    while (found := _STRUCTURE.search(text, position)) is not None:
        mark, position = found[0], found.end()
        if mark in "{[}]":
            depth += 1 if mark in "{[" else -1
        elif mark not in unclosed:
            quoted = _STRING.match(text, found.start())
            if quoted is None:
                unclosed += mark  # an apostrophe: nor will another one be closed
            else:
                position = quoted.end()
    return depth
