"""Lines that are one record so far, and may go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from training_exporter.logs.heads import rich_rest
from training_exporter.logs.plan import Record, Ref

MAX_LINES = 400
MAX_CHARACTERS = 64 * 1024
MAX_FOREIGN = 8  # lines of other ranks within a traceback, which Python writes line by line, or within a record


@dataclass(slots=True)
class Block:
    """An open block: its kind, its first line, and what was taken of the others."""

    kind: str
    first: Record
    last_line: int
    seen_seconds: float
    texts: list[str] = field(default_factory=list)
    size: int = 0
    depth: int = 0
    pairs: list[tuple[str, Ref, Sequence[str]]] = field(default_factory=list)
    rows: int = 0
    values: dict[str, Ref] = field(default_factory=dict)  # of pycocotools' summary
    caught: bool = False  # a traceback that the program logged itself
    foreign: int = 0  # lines of other ranks within a traceback or a record
    prefix: str = ""  # what stands before every line of a RichHandler's record

    def add(self, text: str, line: int, time_seconds: float) -> bool:
        """Take a line; False when the block is as long as a block may be."""
        self.texts.append(text)
        self.size += len(text)
        self.last_line, self.seen_seconds = line, time_seconds
        return self.room

    @property
    def room(self) -> bool:
        return len(self.texts) < MAX_LINES and self.size < MAX_CHARACTERS

    def wrap(self, text: str, line: int, time_seconds: float) -> bool:
        """Take a line that goes on where RichHandler cut the one before; False for any other."""
        rest = rich_rest(text, self.prefix) if self.room else None
        if rest is not None:
            self.add(rest, line, time_seconds)
        return rest is not None
