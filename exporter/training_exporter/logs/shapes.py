"""Remembers what a shape of line means, so that the second line of a shape costs little."""

from __future__ import annotations

import re

from training_exporter.logs.heads import take_head
from training_exporter.logs.lexer import is_time, lex, mask
from training_exporter.logs.plan import Plan
from training_exporter.logs.understand import statements, understand

MAX_SHAPES = 4096
MAX_JOINED = 64 * 1024  # characters of a record joined of several lines
MAX_BLANKS = 24
_BLANKS = re.compile(rf"(\s{{{MAX_BLANKS}}})\s+")

Key = tuple[str, ...]


class Shapes:
    """Plans by the literals of a line. When full, all are forgotten: a log repeats a few shapes, or none."""

    def __init__(self) -> None:
        self._lines: dict[Key, Plan] = {}
        self._joined: dict[Key, Plan] = {}

    def plan(self, text: str) -> tuple[Plan, list[str]]:
        """What a line says, and its numbers."""
        key, tokens = lex(text)
        plan = self._lines.get(key)
        if plan is not None and (not plan.times or all(map(is_time, map(tokens.__getitem__, plan.times)))):
            return plan, tokens
        literals = _narrow(key)
        plan, holds = understand(literals, tokens, mask(literals, tokens))
        if holds:
            _keep(self._lines, key, plan)
        return plan, tokens

    def afresh(self, text: str) -> tuple[Plan, list[str]]:
        """The same for a line whose numbers are not of the kind that its shape had before."""
        key, tokens = lex(text)
        literals = _narrow(key)
        return understand(literals, tokens, mask(literals, tokens))[0], tokens

    def joined(self, text: str) -> tuple[Plan, list[str]]:
        """What the record says that several lines make together."""
        key, tokens = lex(text[:MAX_JOINED])
        plan = self._joined.get(key)
        if plan is None:
            head = take_head(mask(_narrow(key), tokens))
            records = tuple(draft for draft in statements(head, tokens) if draft.kind == "record")
            plan = Plan(drafts=records, rank=head.rank)
            _keep(self._joined, key, plan)
        return plan, tokens

    def __len__(self) -> int:
        return len(self._lines) + len(self._joined)


def _narrow(literals: Key) -> Key:
    """The literals with no run of blanks longer than any column: what is searched behind blanks stays cheap."""
    return tuple(_BLANKS.sub(r"\1", part) if len(part) > MAX_BLANKS else part for part in literals)


def _keep(plans: dict[Key, Plan], key: Key, plan: Plan) -> None:
    if len(plans) >= MAX_SHAPES:
        plans.clear()
    plans[key] = plan
