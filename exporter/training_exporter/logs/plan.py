"""What a shape of line says: drafts of events whose values are positions among the line's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from training_exporter.logs import names
from training_exporter.logs.lexer import number
from training_exporter.model import LogEvent, LogPhase, MessageClass, Split

# A value of a shape: an int is the position of the number among the line's tokens, a float is the value itself
# (nan, inf, or digits that are part of the shape, as in `checkpoint-500`).
Ref = int | float

DraftKind = Literal["record", "bar", "mark", "message"]
BarRole = Literal["train", "validation", "setup", "save", "other", "plain"]


@dataclass(frozen=True, slots=True)
class Draft:
    """One statement of a line, before the state of the log decides what it means."""

    kind: DraftKind
    event: str = ""  # of a mark; a hint for a record
    phase: LogPhase | None = None
    split: Split | None = None
    epoch: Ref | None = None
    epoch_total: Ref | None = None
    step: Ref | None = None
    step_total: Ref | None = None
    rank: Ref | None = None
    plain: tuple[tuple[str, Ref], ...] = ()  # metrics whose name says no split
    train: tuple[tuple[str, Ref], ...] = ()
    validation: tuple[tuple[str, Ref], ...] = ()
    test: tuple[tuple[str, Ref], ...] = ()
    averages: tuple[tuple[str, Ref], ...] = ()  # running averages printed behind the values
    suffix: Ref | None = None  # an index that belongs into every name (EAGLE's `position 0`)
    role: BarRole = "plain"
    partial: bool = False  # values over a part of the set: no result
    lone: bool = False  # a counter and nothing else: a report only where steps are printed anyway
    sure: bool = False  # a record that is a report even without counter or split; a bar of Keras
    units: tuple[int, int] = (1, 1)  # what step and total are printed in: 1.20k/5.00k, `step:20K`
    warning: str | None = None
    severity: MessageClass | None = None
    outcome: Literal["finished", "failed", "cancelled"] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Quick:
    """The values of a plain training record, ready to be read: every reference is a position among the tokens."""

    names: tuple[str, ...]
    positions: tuple[int, ...]
    step: int | None
    step_total: int | None
    epoch: int | None
    epoch_total: int | None
    rank: Ref | None

    def event(self, tokens: Sequence[str], line: int, time_seconds: float) -> LogEvent | None:
        """The training step that a line of these tokens tells; None where a number is not as plain as it was."""
        try:
            return LogEvent(
                line,
                line,
                "train_step",
                "train",
                time_seconds,
                "train",
                None if self.epoch is None else float(tokens[self.epoch]),
                None if self.epoch_total is None else float(tokens[self.epoch_total]),
                None if self.step is None else int(tokens[self.step]),
                None if self.step_total is None else int(tokens[self.step_total]),
                dict(zip(self.names, [float(tokens[position]) for position in self.positions], strict=True)),
                rank=None if self.rank is None else int(value(self.rank, tokens)),
            )
        except (ValueError, OverflowError):  # thousands separators, a fraction, a time
            return None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is known of a shape once and for all."""

    drafts: tuple[Draft, ...] = ()
    masked: str = ""
    message: str = ""  # masked text behind the head
    opens: str = ""  # the kind of block that such a line begins
    columns: tuple[str, ...] = ()  # names of a table's header
    rule: bool = False  # nothing but ruling
    headed: bool = False  # a logger head stood before the message
    rich: bool = False  # a RichHandler head
    complaint: bool = False  # logged by the program itself as a warning or error
    rank: Ref | None = None
    times: tuple[int, ...] = ()  # positions that were times when the plan was made
    novelty: str = ""  # the line with everything variable masked
    trouble: bool = False  # a message of class suspect or fatal
    joins: bool = False  # may begin a block, or names what the next table is about
    counting: bool = False  # of no known format, or a bar of none: a counter in it that advances is news
    quick: Quick | None = None
    quiet: bool = False  # of class suspect or fatal, or a heartbeat: never progress by being new


@dataclass(slots=True)  # not frozen, as made for each line; nothing writes to it
class Record:
    """A line or a block joined to one line, with its plan."""

    plan: Plan
    tokens: Sequence[str] = ()
    line: int = 0
    end_line: int = 0
    time_seconds: float = 0.0
    text: str = ""

    @property
    def rank(self) -> float | None:
        """The rank that stands before the line."""
        if self.plan.rank is None:
            return None
        try:
            return value(self.plan.rank, self.tokens)
        except ValueError:  # a time where this shape had a rank
            return None


def quick_of(drafts: Sequence[Draft], rank: Ref | None) -> Quick | None:
    """The short way for a line that can only be one training record, with finite values; else None."""
    if len(drafts) != 1:
        return None
    draft = drafts[0]
    pairs = (*draft.plain, *draft.train)
    positions = tuple(ref for _, ref in pairs if isinstance(ref, int))
    counts = (draft.step, draft.step_total, draft.epoch, draft.epoch_total)
    special = draft.validation or draft.test or draft.sure or draft.lone or draft.event or draft.suffix is not None
    special = special or draft.units != (1, 1)
    if draft.kind != "record" or draft.split in ("val", "test") or draft.role != "plain" or special:
        return None
    if len(positions) != len(pairs) or any(isinstance(count, float) for count in counts):
        return None
    if draft.step is None and not _trains(draft):
        return None
    step, total, epoch, epochs = (count if isinstance(count, int) else None for count in counts)
    return Quick(tuple(name for name, _ in pairs), positions, step, total, epoch, epochs, rank)


def _trains(draft: Draft) -> bool:
    """Whether a record without a step is of training whatever the state of the log: `{'loss': 1.9, 'lr': 2e-05}`."""
    of_training = draft.split == "train" or draft.train or any(name in names.RATES for name, _ in draft.plain)
    return bool(of_training) and any(names.is_loss(name) for name, _ in draft.plain)


def value(ref: Ref, tokens: Sequence[str]) -> float:
    """The number behind a reference; ValueError when the token there is none."""
    return number(tokens[ref]) if type(ref) is int else ref
