"""Values with nothing but a split before them: `LOSS train 0.83 valid 0.50`, `Train: 0.28, Val: 0.29`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from training_exporter.logs.lexer import N, index_of

_BOTH = re.compile(
    r"\btrain(?:ing)?\s?/\s?val(?:id(?:ation)?)? (?P<name>[A-Za-z]\w{0,30})\s?[:=]\s?"
    rf"(?P<train>{N})\s?/\s?(?P<val>{N})",
    re.IGNORECASE,
)
_ALONE = re.compile(
    r"(?<![\w/.-])(?P<split>train(?:ing)?|val(?:id(?:ation)?)?|test)(?:\s?[:=]\s?|\s)"
    rf"(?P<value>{N})(?![/\w])",
    re.IGNORECASE,
)
_STEP = re.compile(r"\b(?:iter|step)", re.IGNORECASE)  # litgpt prints the last result in every step's line
_BEFORE = re.compile(r"\b(loss|acc\w*|error|ppl|perplexity|f1|score)\s?:?\s$", re.IGNORECASE)


def listed(masked: str) -> bool:
    """Whether a line has values behind two splits: the numbers decide whether they are results or sizes."""
    return len({match["split"].lower() for match in _ALONE.finditer(masked)}) > 1


def named(masked: str, tokens: Sequence[str]) -> str:
    """The text with a split and a name before each such value; without a name the split is the name, `Val: 0.28`.

    Whole numbers are sizes: `train 5000, val 500`.
    """
    text = _BOTH.sub(
        lambda match: f"train {match['name']}: {match['train']}, val {match['name']}: {match['val']}", masked
    )
    found = list(_ALONE.finditer(text))
    if _STEP.search(text) or not listed(text) or not all("." in tokens[index_of(match["value"])] for match in found):
        return text
    begin = found[0].start()
    before = _BEFORE.search(text[:begin])
    name = before[1] if before else ""
    lead = text[: before.start()] if before else text[:begin]
    return lead + _ALONE.sub(lambda match: f"{match['split']} {name or match['split']}: {match['value']}", text[begin:])
