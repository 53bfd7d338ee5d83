"""Recognises progress bars of tqdm, rich and Keras in masked text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from training_exporter.logs.lexer import N, T, index_of
from training_exporter.logs.plan import BarRole, Ref

_SCALE = "[kKMGT]?"
_UNITS = {"k": 1000, "K": 1000, "M": 10**6, "G": 10**9, "T": 10**12}
_TQDM = re.compile(
    rf"^(?P<desc>(?:(?!%\|).){{0,400}}?)\s{{0,8}}(?:{N}%)?\s?\|[^|]*\|\s*(?P<n>{N})(?P<n_unit>{_SCALE})/(?P<total>{N}|\?)(?P<total_unit>{_SCALE})"
    r"(?:\s*\[(?P<meta>[^\]]*)\])?"
)
_TQDM_OPEN = re.compile(
    rf"^(?P<desc>[^|]{{0,80}}?)\s*(?:{N}%)?\s*(?P<n>{N})(?P<n_unit>{_SCALE})(?:/(?P<total>{N}|\?)(?P<total_unit>{_SCALE}))?(?:it|\s?[a-z]+|ex)?"
    rf"\s\[(?P<meta>{T}[^\]]*/(?:s|it|[a-z]+)[^\]]*)\]"
)
_RICH = re.compile(
    rf"^(?P<desc>[^|━]{{0,400}}?)\s{{0,8}}(?:{N}%)?\s?[━╸╺╴─]{{3,}}\s*(?:{N}%)?\s*(?P<n>{N})/(?P<total>{N}|--|\?)\s*"
    r"(?:\[(?P<meta>[^\]]*)\])?"
)
# fastprogress: `Epoch 1/2 : |███-----| 25.00% [100/400 00:10<00:30 2.1012]`
_FASTPROGRESS = re.compile(
    rf"^(?P<desc>[^|]{{0,80}}?)\s?:?\s?\|[█\s-]{{0,200}}\|\s?{N}%\s\[(?P<n>{N})/(?P<total>{N})\s(?P<meta>{T}<{T}[^\]]{{0,200}})\]"
)
# tqdm-loggable: `Progress on:train 100it/2.00kit rate:3.1it/s remaining:10:11 elapsed:00:31 postfix:loss=4.12`
_LOGGABLE = re.compile(
    rf"^Progress on:\s?(?P<desc>[\w /.-]{{1,80}}?) (?P<n>{N})(?P<n_unit>{_SCALE})[a-z]{{0,20}}"
    rf"/(?P<total>{N})(?P<total_unit>{_SCALE})[a-z]{{0,20}}"
    rf" rate:\S+ remaining:\S+ elapsed:\S+(?: postfix:(?P<meta>.{{0,1000}}))?$"
)
# mmcv: `[>>>>>>] 5000/5000, 41.2 task/s, elapsed: 121s, ETA:     0s`
_MMCV = re.compile(rf"^\[[>\s]{{1,400}}\]\s(?P<n>{N})/(?P<total>{N}), (?P<meta>{N} task/s, elapsed: .{{0,80}})$")
_KERAS = re.compile(
    rf"^\s*(?P<n>{N})/(?P<total>{N})\s{{0,8}}(?P<glyphs>\[[=>.\s]*\]|[━╸╺─]+)?\s{{0,8}}(?:-\s)?\s{{0,8}}"
    rf"(?P<meta>(?:(?:ETA: )?(?:{T}|{N}(?:h|m|s|ms|us|µs))\s?)+(?:{N}(?:h|m|s|ms|us|µs)/(?:step|epoch|"
    rf"sample))?)(?P<rest>\s+-\s.*|\s*$)"
)
_SETUP = re.compile(
    r"\b(?:map|filter|tokeni[sz]\w*|running tokenizer|load\w*|download\w*|generating (?:\w+ )?(?:split|examples)|"
    r"sanity check\w*|group\w*|pre-?process\w*|fetch\w*|creat\w*|build\w*|pack\w*|extract\w*|resolv\w*|prepar\w*|"
    r"cach\w*|"
    r"convert\w*|flatten\w*|adding|appl(?:y|ies|ying)|truncat\w*|encod\w*|read\w*|scan\w*|index\w*|collect\w*|stag\w*|"
    r"num_proc|checkpoint shards|shards|warm(?:ing)?[- ]?up|captur\w*|copying|setting|initiali[sz]\w*|parsing|"
    r"import\w*|"
    r"quantiz\w*|materiali[sz]\w*|verify\w*|casting|sort\w*|dedup\w*|shuffl\w*|formatt\w*|drop\w*)",
    re.IGNORECASE,
)
_VALIDATION = re.compile(r"\b(?:val(?:id(?:at\w*)?)?|eval\w*|test\w*|predict\w*|inference|dev)\b", re.IGNORECASE)
_TRAIN = re.compile(r"\b(?:train\w*|epochs?|steps?|iter\w*|fit\w*|updates?|optimi[sz]\w*)\b|loss", re.IGNORECASE)
_SAVE = re.compile(r"\b(?:sav(?:e|ing)|writ(?:e|ing)|upload\w*|push\w*)\b.*|\bcheckpoint\w*\s*$", re.IGNORECASE)
# What a loop of reinforcement learning does between its steps.
_AROUND_TRAINING = re.compile(
    r"\b(?:updat\w*|sync\w*|broadcast\w*|transfer\w*) weights\b|\brollout|^\s*generating\b", re.IGNORECASE
)
# First match wins; the second pattern must not match.
_ROLES: tuple[tuple[BarRole, re.Pattern[str], re.Pattern[str] | None], ...] = (
    ("setup", re.compile(r"sanity|\breference log prob", re.IGNORECASE), None),
    (
        "validation",
        _VALIDATION,
        re.compile(
            r"^\s*(?:train|map|filter|generating (?:\w+ )?(?:split|examples)|tokeni|appl(?:y|ying)|packing|truncating|"
            r"adding|extracting|converting|formatting)|:\s(?:scanning|caching)\b",
            re.IGNORECASE,
        ),
    ),
    ("save", _SAVE, _TRAIN),
    ("setup", _SETUP, None),
    ("train", _TRAIN, _AROUND_TRAINING),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One drawing of a bar: where it stands, and what is printed around it."""

    description: str
    count: Ref
    total: Ref | None
    postfix: str  # masked text with the metrics behind
    rest: str  # masked text glued behind the bar
    role: BarRole
    units: tuple[int, int] = (1, 1)  # what count and total are printed in: 1.20k/5.00k
    whole: bool = False  # of Keras: all that is printed of an epoch, or of an evaluation


def find(text: str) -> Bar | None:
    """The bar that a masked line is, with what follows it; None where it is none."""
    for pattern in (_TQDM, _RICH, _KERAS, _TQDM_OPEN, _FASTPROGRESS, _LOGGABLE, _MMCV):
        match = pattern.match(text)
        if match is not None:
            return _bar(match, text)
    return None


def _bar(match: re.Match[str], text: str) -> Bar:
    groups = match.groupdict()
    description = (groups.get("desc") or "").strip(" :\t")
    keras = match.re is _KERAS
    postfix = (groups.get("rest") or "") if keras else (groups.get("meta") or "")
    rest = "" if keras else text[match.end() :]
    if match.re is _RICH and "/" not in postfix:  # rich puts its columns, metrics last, behind the bar
        postfix, rest = f"{postfix} {rest}", ""
    total = groups.get("total")
    return Bar(
        description=description,
        count=index_of(match["n"]),
        total=index_of(total) if total and re.fullmatch(N, total) else None,
        postfix=postfix,
        rest=rest,
        role=role_of(description, postfix),
        units=(_UNITS.get(groups.get("n_unit") or "", 1), _UNITS.get(groups.get("total_unit") or "", 1)),
        whole=keras,
    )


def role_of(description: str, postfix: str = "") -> BarRole:
    """What a bar counts, by its description; `plain` for none, `other` for one that says nothing known."""
    if not description:
        return "plain"
    for role, wanted, unwanted in _ROLES:
        if wanted.search(description) and not (unwanted and unwanted.search(description)):
            return role
    return "train" if "loss" in postfix else "other"
