"""User patterns: checked when the configuration is read, searched before anything else."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

MAX_TEXT = 4096  # characters of a line that a pattern sees
ENDLESS = "a repetition inside a repetition can take for ever on some lines"
_MAX_FIXED = 16  # a repetition of at most so many times inside another cannot take long

# The parser of `re`: public until 3.10 as sre_parse, private since, but the same tree. There is no other way to look
# into a pattern, and a lock-step engine would be a compiled dependency.
_parser: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


class PatternError(ValueError):
    """A pattern of the configuration that cannot be used; the message names it."""


def compile_patterns(patterns: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """Compiled patterns.

    PatternError for one that is no pattern, lacks the groups `name` and `value`, or may backtrack without bound
    because a repetition stands inside another.
    """
    return tuple(_compile(pattern) for pattern in patterns)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled = re.compile(pattern)
        nested = repeats_a_repetition(pattern)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise PatternError(f"pattern {pattern!r}: {error}") from error
    missing = {"name", "value"} - set(compiled.groupindex)
    if missing:
        groups = " and ".join(f"(?P<{group}>...)" for group in sorted(missing))
        raise PatternError(f"pattern {pattern!r}: needs the named groups name and value, lacks {groups}")
    if nested:
        raise PatternError(f"pattern {pattern!r}: {ENDLESS}")
    return compiled


def repeats_a_repetition(pattern: str) -> bool:
    """Whether a repetition stands inside another, as in `(a+)+`; re.error where the text is no pattern."""
    return _nested(_parser.parse(pattern), inside=False)


def _nested(tree: Iterable[tuple[Any, Any]], *, inside: bool) -> bool:
    for code, argument in tree:
        if str(code) in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            low, high, body = argument
            many = high > max(low, _MAX_FIXED)
            if (many and inside) or _nested(body, inside=inside or many):
                return True
        elif any(_nested(body, inside=inside) for body in _bodies(argument)):
            return True
    return False


def _bodies(argument: object) -> list[Any]:
    """The patterns inside the argument of a group, a branch or a look-around."""
    if hasattr(argument, "data"):
        return [argument]
    if isinstance(argument, (list, tuple)):
        return [body for item in argument for body in _bodies(item)]
    return []
