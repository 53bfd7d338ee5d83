"""Tracebacks, one for each rank: whether the program failed, was interrupted, or only told of an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

from training_exporter.logs import messages
from training_exporter.logs.block import MAX_FOREIGN, Block
from training_exporter.logs.lexer import unmask
from training_exporter.logs.plan import Draft, Record

MAX_OPEN = 64

_EXCEPTION = re.compile(
    r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Iteration|Timeout|Hit|Abort|"
    r"Fault)?\b(?::|$)"
)
# Behind a line of another rank only what is called like an exception is the end of a traceback: `Epoch: 3` is not.
_NAMED = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Abort|Fault)\b(?::|$)")
_CHAIN = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_HARMLESS_EXIT = re.compile(r"^(?:SystemExit: 0|SystemExit$|StopIteration\b|GeneratorExit\b)")


class Tracebacks:
    """The open ones of one stream. Each is judged by its last line, the exception."""

    def __init__(self) -> None:
        self._blocks: dict[float | None, Block] = {}

    @property
    def open(self) -> bool:
        return bool(self._blocks)

    def begin(self, record: Record, *, caught: bool) -> None:
        """Open one with its first line; `caught` where the program logged it itself."""
        if len(self._blocks) >= MAX_OPEN:
            self._blocks.clear()
        self._blocks[record.rank] = Block("traceback", record, record.end_line, record.time_seconds, caught=caught)

    def take(self, record: Record) -> Generator[Record, None, bool]:
        """Take the next line; yields the verdict where it is the end, and returns whether it was a part."""
        block = self._blocks.get(record.rank)
        if block is None:
            return False
        message = unmask(record.plan.message, record.tokens)
        if record.plan.opens == "traceback":
            return True
        if _goes_on(message):
            if not block.add("", record.end_line, record.time_seconds):
                del self._blocks[record.rank]
            return True
        if not _ends(message, mixed=bool(block.foreign)) and block.foreign < MAX_FOREIGN:
            block.foreign += 1
            return False
        del self._blocks[record.rank]
        yield _judged(block, message)
        return False

    def end(self, over: Callable[[Block], bool]) -> Iterator[Record]:
        """End those of which that is true without a last line."""
        for rank, block in list(self._blocks.items()):
            if over(block):
                del self._blocks[rank]
                yield _judged(block, None)


def _judged(block: Block, last: str | None) -> Record:
    draft = _verdict(last, mixed=bool(block.foreign), caught=block.caught)
    return replace(
        block.first,
        plan=replace(block.first.plan, drafts=(draft,)),
        end_line=block.last_line,
        time_seconds=block.seen_seconds,
    )


def _goes_on(message: str) -> bool:
    """Whether a line belongs to a traceback that is open, and is not its end."""
    blank = not message.strip() or message[:1].isspace()
    return blank or bool(_CHAIN.match(message)) or message.lstrip().startswith(("|", "+", ">"))


def _ends(message: str, *, mixed: bool) -> bool:
    """Whether a line is the exception at the end; `mixed` where lines of other ranks came between."""
    return bool((_NAMED if mixed else _EXCEPTION).match(message))


def _verdict(last: str | None, *, mixed: bool, caught: bool) -> Draft:
    """What a traceback means: an interrupt is no failure; without a last line nothing is known yet."""
    draft = Draft("message", event="warning", warning="traceback", severity="suspect")
    if last is None or caught or not _ends(last, mixed=mixed) or _HARMLESS_EXIT.match(last):
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
