"""Splits a line into literals and numbers, so that lines that differ in their numbers only share one understanding."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Every number of a line is replaced by one private-use character that carries its position among the line's tokens:
# what is worked out on the masked text holds for every line of the same literals.
_NUMBER_BASE = 0xF0000
_TIME_BASE = 0x100000
MAX_TOKENS = 4096  # longer lines are data dumps, not reports

N = "[\U000f0000-\U000ffffd]"  # a number, in regular expressions over masked text
T = "[\U00100000-\U0010fffd]"  # a date, time or duration
_N_OR_T = re.compile(f"{N}|{T}")

# A token begins with one of these. Each pattern below goes on behind it: one that begins with a set of characters
# is searched for several times as fast as one that begins with a condition.
_FIRST = "[-+.0-9]"
_TIME = (
    r"\d{3}[-/]\d\d[-/]\d\d(?:[T _,]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\d[-/]\d\d(?:[-/]\d{2,4})?[ ]\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"|\d{7}-\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"|\d*(?: days?, \d+)?:\d\d(?::\d\d)?(?:\.\d+)?"
)
# thousands separators only behind one to three digits: `[1000,200]` are two numbers
_REST = r"(?:(?<!\d{4})(?:[,_]\d{3}){1,8}(?!\d))?(?:\.\d+)?"
_NUMBER = rf"(?:(?<=\d)\d*{_REST}|(?<=[-+])(?:\d+{_REST}|\.\d+)|(?<=\.)\d+)(?:[eE][-+]?\d+)?"
# A digit inside a word belongs to a name (loss_0, mAP50-95, Acc@1, gsm8k, copa/5-shot/acc), not to a value.
_TOKEN = re.compile(
    rf"({_FIRST}(?<![\w.@]{_FIRST})(?<!\w[-+]{_FIRST})"
    rf"(?:(?<=\d)(?=\d*(?:[-/:]\d|[ ]d))(?:{_TIME})|{_NUMBER})(?![\d_]|-shot\b|(?<=/\d)-[a-zA-Z]|(?<=/\d\d)-[a-zA-Z]))",
    re.ASCII,
)


def lex(line: str) -> tuple[tuple[str, ...], list[str]]:
    """The literals around the numbers (their shape; one more than numbers) and the numbers as printed."""
    parts = _TOKEN.split(line)
    return tuple(parts[::2]), parts[1::2]


def is_time(token: str) -> bool:
    """Whether a token is a date, a time of day or a duration."""
    return ":" in token or (len(token) > 7 and token[4] in "-/" and token[7] in "-/")


def mask(literals: tuple[str, ...], tokens: list[str]) -> str:
    """The line with each token replaced by its private-use character."""
    parts = [literals[0]]
    for index, token in enumerate(tokens[:MAX_TOKENS]):
        parts.append(chr((_TIME_BASE if is_time(token) else _NUMBER_BASE) + index))
        parts.append(literals[index + 1])
    return "".join(parts)


def index_of(mark: str) -> int:
    """Position, among the line's tokens, of the token that a private-use character stands for."""
    code = ord(mark)
    return code - (_TIME_BASE if code >= _TIME_BASE else _NUMBER_BASE)


def unmask(text: str, tokens: Sequence[str]) -> str:
    """The printed text again."""
    return _N_OR_T.sub(lambda match: tokens[index_of(match[0])], text)


def number(token: str) -> float:
    """Value of a number token; raises ValueError for a time."""
    return float(token.replace(",", "") if "," in token else token)
