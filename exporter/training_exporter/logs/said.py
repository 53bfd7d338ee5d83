"""A draft together with the numbers of its line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from training_exporter.logs.plan import Draft, Record, Ref, value

MAX_STEP = 2**63
SURE_DIGITS = 18  # whole numbers of so many digits are below it

Refs = Sequence[tuple[str, Ref]]


class Counts(NamedTuple):
    """Epoch and step as printed."""

    epoch: float | None = None
    epoch_total: float | None = None
    step: int | None = None
    step_total: int | None = None


NO_COUNTS = Counts()


class Said:
    """A draft with the numbers of its line."""

    __slots__ = ("counts", "draft", "record")

    def __init__(self, draft: Draft, record: Record) -> None:
        self.draft = draft
        self.record = record
        tokens = record.tokens
        self.counts = Counts(
            None if draft.epoch is None else value(draft.epoch, tokens),
            None if draft.epoch_total is None else value(draft.epoch_total, tokens),
            None if draft.step is None else _whole(draft.step, tokens, draft.units[0]),
            None if draft.step_total is None else _whole(draft.step_total, tokens, draft.units[1]),
        )

    def numbers(self, refs: Refs) -> dict[str, float]:
        tokens = self.record.tokens
        if self.draft.suffix is None:
            return {name: value(ref, tokens) for name, ref in refs}
        index = int(value(self.draft.suffix, tokens))
        return {f"{name}_{index}": value(ref, tokens) for name, ref in refs}


def _whole(ref: Ref, tokens: Sequence[str], unit: int = 1) -> int | None:
    if unit == 1 and type(ref) is int and tokens[ref].isdigit() and len(tokens[ref]) <= SURE_DIGITS:
        return int(tokens[ref])
    number = value(ref, tokens) * unit
    if unit > 1 and math.isfinite(number):
        number = float(round(number))  # 1.28k is 1280, not 1280.0000001
    return int(number) if abs(number) < MAX_STEP and number.is_integer() else None
