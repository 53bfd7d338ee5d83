"""Finds `name value` pairs in masked text: key=value, key: value, key value, whatever separates them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from training_exporter.logs.lexer import N, T, index_of
from training_exporter.logs.plan import Ref

# Wrappers that print around a number: tensor(7.5), np.float64(0.49), array(0.77), [2.1e-06], '0.57'.
_WRAP = r"(?:(?:(?:np|numpy|torch|jnp|jax)\.)?(?:tensor|array|Array|float\d*|bfloat16|int\d*|scalar)\()?"
_WORD_VALUE = r"[-+]?(?:nan|NaN|NAN|inf|Inf|INF|[iI]nfinity)(?![\w/])"
_NOTHING = r"(?:n/?a|N/?A|None|none|null|True|False|true|false)(?![\w/])"
# A unit sticks to the number, or is one of the few that stand apart.
_UNIT = r"(?P<unit>[A-Za-zµ%°][\w/%]*|\s(?:ms|s|sec|secs|seconds|min|[A-Za-z]{1,12}/s(?:ec)?|[KMG]i?B|%)(?![\w:=]))?"
_SIDE = rf"(?:\s?\(\s*(?:(?P<average>{N})%?|[^(){{}}]{{0,40}})\s*\))?"
_VALUE = (
    rf"(?:\[(?=[a-z]))?{_WRAP}[\[(]*['\"]?(?P<value>{N}|{_WORD_VALUE}|{_NOTHING}|{T})\.?{_UNIT}"
    rf"(?P<more>(?:\)?\s?[,/]\s?{_WRAP}{N}(?=[\s,\])/]))+(?=\)?\s?[\])]))?['\"]?(?:,\s?(?:device|dtype|grad_fn|weak_type)=[^)]*)?[\])]*(?P<of>/{N})?(?P<percent>%)?{_SIDE}"
)
_NAME = (
    rf"(?<![\w'\".])(?P<name>[A-Za-z#]"
    rf"(?:[^{N[1:-1]}{T[1:-1]}=:,|;\t\[\]{{}}'\"<>\s]|(?<=[a-z\d])'s(?=\s)|\s(?!\s)){{0,60}}?)"
)
_PAIR = re.compile(
    rf"(?:{_NAME}(?:\s*=\s*|\s*:\s*(?!//)|\s{{1,4}})(?![{N[1:-1]}][\w]*\.\w){_VALUE})|(?P<loose>(?:{N}|{T})[\w/%]*)"
)
_WORD_NUMBERS = {"nan": float("nan"), "inf": float("inf"), "infinity": float("inf")}
# More numbers behind the value without a name of their own: columns, not a pair.
_SEVERAL = re.compile(rf"\s+{N}\s+{N}")
MAX_PAIRS = 512
# A file that is printed before a name is no part of it.
_PATH_WORD = re.compile(
    r"^(?:[~.]{0,2}/|\w+:/)|\.(?:pt|pth|ckpt|safetensors|bin|npz?|json|ya?ml|py|txt|log|csv|parquet|h5)$", re.IGNORECASE
)
# A sentence that ended before it: `Evaluation done. val_loss=0.6`. Not `Grad. Norm: 0.2`.
_SENTENCE_END = re.compile(r"(?i)(?!(?:valid|train|eval|grad|norm|prec|mean)\.)[a-z]{4,}[.!?]|.*\.\.\.")
# Nor are the words of a sentence, where only a blank stands before the value: `epoch 3 with val loss 0.4`.
_PROSE = frozenset(
    {"with", "the", "a", "an", "and", "has", "have", "had", "got", "its", "our", "that", "where", "while"}
)
# `over N frames`: nothing is measured.
_PREPOSITIONS = frozenset({"over", "in", "at", "on", "of", "for", "after", "with", "by", "to", "from", "within", "per"})
_DASHES = frozenset({"--", "---", "->", "=>", ">>", "—"})
_VERBS = frozenset({"is", "was", "are", "were", "equals"})
_DENIES = frozenset({"not", "never", "isn't", "wasn't"})  # `loss is not nan`


@dataclass(frozen=True, slots=True)
class Pair:
    """A name and the value printed with it."""

    name: str
    value: Ref | None  # None: printed, but no number (a time, `n/a`, a boolean)
    unit: str = ""
    average: Ref | None = None  # the running average printed behind in brackets
    rest: tuple[Ref, ...] = ()  # further numbers of a list
    start: int = 0  # of the name, in the text that was searched
    end: int = 0
    words: int = 1
    tight: bool = True  # `=` or `:` stood between, not only a blank


def word_number(text: str) -> float | None:
    """Value of nan or inf in any spelling; None for another word."""
    sign = -1.0 if text.startswith("-") else 1.0
    found = _WORD_NUMBERS.get(text.lstrip("+-").lower())
    return None if found is None else sign * found


def ref_of(mark: str) -> Ref | None:
    """Reference for what stands where a value is expected; None for a time, a boolean, `n/a`."""
    if re.fullmatch(N, mark):
        return index_of(mark)
    return word_number(mark)


def scan(text: str) -> list[Pair]:
    """All pairs of a masked text, left to right. A name of more than five words is prose and skipped."""
    pairs: list[Pair] = []
    for match in _PAIR.finditer(text):
        if match["loose"] is not None:
            continue
        pair = _pair(match)
        if pair is not None:
            pairs.append(pair)
        if len(pairs) >= MAX_PAIRS:
            break
    return pairs


def _named(said: str, *, tight: bool) -> str:
    """The name in the words before a value, without the file and the sentence before it; empty where there is none."""
    words = said.split()
    if len(words) == 1 and "." not in said and ":" not in said:
        return "" if not tight and said.lower() in _PREPOSITIONS else said
    lowered = [word.lower() for word in words]
    if not tight and lowered and lowered[-1] in _PREPOSITIONS:  # `a loss of 3 parts`
        return ""
    if not _DENIES.isdisjoint(lowered):
        return ""
    starts = [
        index
        for index, word in enumerate(words)
        if word in _DASHES or _PATH_WORD.search(word) or (word is not words[-1] and _SENTENCE_END.fullmatch(word))
    ]
    if not tight:
        while lowered and lowered[-1] in _VERBS:
            lowered.pop()
        starts += [index for index, word in enumerate(lowered) if word in _PROSE]
    return (
        said
        if not starts and len(lowered) == len(words)
        else " ".join(words[max(starts, default=-1) + 1 : len(lowered)])
    )


def _pair(match: re.Match[str]) -> Pair | None:
    value = ref_of(match["value"])
    said = match["name"].strip(" -*•·#>")
    start = match.start()
    if match.string[start - 1 : start] == "=" and " " in said:  # `collection=eval/c4 loss=2.9`: a text, then the name
        said = said.partition(" ")[2]
        start = match.end("name") - len(said)
    words = len(said.split())
    between = match.string[match.end("name") : match.start("value")]
    tight = "=" in between or ":" in between
    name = _named(said, tight=tight)
    if not name or words > (5 if tight else 3) or _SEVERAL.match(match.string, match.end()):
        return None
    average = None if match["average"] is None else index_of(match["average"])
    if (
        value is not None and match["of"] and average is not None
    ):  # `Accuracy: 9908/10000 (99%)`: the share, not the count
        value, average = average, None
    more = tuple(index_of(mark) for mark in re.findall(N, match["more"] or ""))
    return Pair(
        name=name,
        value=value,
        unit=(match["unit"] or match["percent"] or "").strip(),
        average=average,
        rest=more,
        start=start,
        end=match.end(),
        words=words,
        tight=tight,
    )
