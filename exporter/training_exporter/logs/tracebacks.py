"""What the last line of a traceback says: whether the program failed, was interrupted, or only told of an error."""

from __future__ import annotations

import re

from training_exporter.logs import messages
from training_exporter.logs.plan import Draft

_EXCEPTION = re.compile(
    r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Iteration|Timeout|Hit|Abort|"
    r"Fault)?\b(?::|$)"
)
# Behind a line of another rank only what is called like an exception is the end of a traceback: `Epoch: 3` is not.
_NAMED = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Abort|Fault)\b(?::|$)")
_CHAIN = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_HARMLESS_EXIT = re.compile(r"^(?:SystemExit: 0|SystemExit$|StopIteration\b|GeneratorExit\b)")


def goes_on(message: str) -> bool:
    """Whether a line belongs to a traceback that is open, and is not its end."""
    blank = not message.strip() or message[:1].isspace()
    return blank or bool(_CHAIN.match(message)) or message.lstrip().startswith(("|", "+", ">"))


def ends(message: str, *, mixed: bool) -> bool:
    """Whether a line is the exception at the end; `mixed` where lines of other ranks came between."""
    return bool((_NAMED if mixed else _EXCEPTION).match(message))


def verdict(last: str | None, *, mixed: bool, caught: bool) -> Draft:
    """What a traceback means: an interrupt is no failure; without a last line nothing is known yet."""
    draft = Draft("message", event="warning", warning="traceback", severity="suspect")
    if last is None or caught or not ends(last, mixed=mixed) or _HARMLESS_EXIT.match(last):
        return draft
    found = messages.find(last)
    cancelled = found is not None and found.outcome == "cancelled"
    return Draft(
        "message",
        event="warning",
        warning="traceback",
        severity="suspect" if cancelled else "fatal",
        outcome="cancelled" if cancelled else "failed",
        reason=found.reason if found is not None and cancelled else None,
    )
