"""User patterns: checked when the configuration is read, searched before anything else."""

from __future__ import annotations

import re
from collections.abc import Sequence

try:
    from re import _constants as _codes  # type: ignore[attr-defined]
    from re import _parser
except ImportError:  # Python 3.10
    import sre_constants as _codes  # type: ignore[no-redef]
    import sre_parse as _parser  # type: ignore[no-redef]

MAX_TEXT = 4096  # characters of a line that a pattern sees
_REPEATS = (_codes.MAX_REPEAT, _codes.MIN_REPEAT)


class PatternError(ValueError):
    """A pattern of the configuration that cannot be used; the message names it."""


def compile_patterns(patterns: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """Compiled patterns. PatternError for one that is no pattern, lacks the groups `name` and `value`, or may
    backtrack without bound because a repetition stands inside another."""
    return tuple(_compile(pattern) for pattern in patterns)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
        tree = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"pattern {pattern!r}: {error}") from error
    missing = {"name", "value"} - set(compiled.groupindex)
    if missing:
        raise PatternError(
            f"pattern {pattern!r}: the named groups `name` and `value` are needed, missing: {sorted(missing)}"
        )
    if _nested(tree, inside=False):
        raise PatternError(f"pattern {pattern!r}: a repetition inside a repetition can take for ever on some lines")
    return compiled


def _nested(tree: object, *, inside: bool) -> bool:
    for code, argument in tree:  # type: ignore[attr-defined]
        if code in _REPEATS:
            low, high, body = argument
            many = high is _codes.MAXREPEAT or high > max(low, 1) or high > 16  # noqa: PLR2004 - a fixed count is none
            if (many and inside) or _nested(body, inside=inside or many):
                return True
        elif any(_nested(body, inside=inside) for body in _bodies(argument)):
            return True
    return False


def _bodies(argument: object) -> list[object]:
    if hasattr(argument, "data"):
        return [argument]
    if isinstance(argument, (list, tuple)):
        return [body for item in argument for body in _bodies(item)]
    return []
