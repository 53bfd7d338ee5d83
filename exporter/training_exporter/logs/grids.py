"""Grids of names and values: framed ones without a header, and two splits side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence

from training_exporter.logs.lexer import N

_FRAMED = re.compile(r"^\s*[│┃](?P<inside>.*)[│┃]\s*$")
_CELLS = re.compile(r"\s*[│┃]\s*")
_NAME = re.compile(r"[A-Za-z][\w/@.:() -]{0,200}")
_NUMBER = re.compile(r"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|nan|inf)\.?%?")
_TITLE = re.compile(r"^[A-Za-z][\w ]{0,60}\b(?:results?|metrics|stats|statistics|config|configuration)$", re.IGNORECASE)
_SETTINGS = re.compile(r"\bconfig(?:uration)?$", re.IGNORECASE)
# AllenNLP: `Training |  Validation` above `accuracy |  0.651  |  0.712`
_SPLITS = re.compile(
    r"^\s*train(?:ing)?\s*\|\s*(?P<other>val(?:id(?:ation)?)?|dev|test|eval(?:uation)?)\s*$", re.IGNORECASE
)
_SPLIT_ROW = re.compile(r"^(?P<name>[A-Za-z][^|]{0,200}?)\s*\|\s*(?P<train>\S+)\s*\|\s*(?P<other>\S+)\s*$")
# Of W&B, what was logged before, once more; or what the run was told
_SUMMARY = re.compile(
    r"^\s*(?:Run (?:summary|history)|"
    r"(?:[A-Za-z]+ )?(?:config(?:uration)?|arg(?:ument)?s|settings|hyper-?parameters|options)):\s*$",
    re.IGNORECASE,
)
_CLOSING = re.compile(r"[└╰╘╚┗]")
_LAST = 2  # cells of a name and its value


def kind(message: str) -> str:
    """What a masked message begins: a `grid`, `splits`, or a `summary` of which nothing is read; else empty."""
    if _SPLITS.match(message) or _SUMMARY.match(message):
        return "splits" if "|" in message else "summary"
    inside = _inside(message)
    if inside is None:
        return ""
    text = re.sub(N, "0", inside)
    return "grid" if _TITLE.match(text) or _framed_pairs(text) else ""


def belongs(kind: str, message: str) -> bool:
    """Whether a printed message is a row of an open grid."""
    return bool(_SPLIT_ROW.match(message.strip())) if kind == "splits" else _inside(message) is not None


def closes(message: str) -> bool:
    """Whether a line of ruling is the lower edge of the frame."""
    return bool(_CLOSING.search(message))


def joined(kind: str, rows: Sequence[str]) -> str:
    """The printed rows as one line of pairs, behind the title; empty for a list of settings."""
    if kind == "splits":
        match = _SPLITS.match(rows[0])
        other = "val" if match is None else match["other"].lower()
        return " | ".join(pair for row in rows[1:] for pair in _split_pairs(row, other))
    inside = [_inside(row) or "" for row in rows]
    title = inside.pop(0) if _TITLE.match(inside[0]) else ""
    if _SETTINGS.search(title):
        return ""
    return " | ".join(
        [*([title] if title else []), *(f"{name}={value}" for row in inside for name, value in _pairs(row))]
    )


def _inside(message: str) -> str | None:
    match = _FRAMED.match(message)
    return None if match is None else match["inside"].strip()


def _framed_pairs(inside: str) -> bool:
    """Whether cells of names and of numbers stand in turns."""
    return len(_CELLS.split(inside)) >= _LAST and bool(_pairs(inside))


def _pairs(inside: str) -> list[tuple[str, str]]:
    cells = _CELLS.split(inside)
    if len(cells) < _LAST:  # one cell: the value stands at its right edge
        name, _, value = inside.rpartition(" ")
        cells = [name.strip(), value]
    while len(cells) > _LAST and not cells[-1] and not cells[-2]:  # the last row need not be full
        del cells[-2:]
    turns = list(zip(cells[::2], cells[1::2], strict=False))
    named = len(cells) % 2 == 0 and all(_NAME.fullmatch(name) for name, _ in turns)
    return [(name, value) for name, value in turns if _NUMBER.fullmatch(value)] if named else []


def _split_pairs(row: str, other: str) -> list[str]:
    match = _SPLIT_ROW.match(row.strip())
    if match is None:
        return []
    values = (("train", match["train"]), (other, match["other"]))
    return [f"{split} {match['name']}={value}" for split, value in values if _NUMBER.fullmatch(value)]
