"""What a structured record says in words: `event=eval_end`, `"message": "training finished"`, `split: dev`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from training_exporter.model import LogPhase

# Keys whose text names what happened, and keys whose text names the part of the run that a record belongs to.
_HAPPENED = "event|msg|message|action|type"
_PLACE = "split|mode|phase|stage|subset"
_LABEL = re.compile(
    rf"(?<![\w.-])[\"']?(?P<key>{_HAPPENED}|{_PLACE})[\"']?"
    r"(?:\s?[=:]\s?(?:\"(?P<double>[^\"]{1,80})\"|'(?P<single>[^']{1,80})')|=(?P<bare>[A-Za-z][\w.:/-]{0,80}))"
)
# Texts of other keys are names that somebody chose: `"name": "test_eval_7"` makes no evaluation of a record.
_CHOSEN = frozenset({"tag", "name", "set", "dataset", "kind"})
_BEGINS = r"(?:begins?|begun|start(?:s|ed|ing)?)"
_ENDS = r"(?:ends?|ended|finish(?:es|ed)?|complete[ds]?|done|stop(?:s|ped)?)"
_TRAINING = r"(?:train(?:ing|er)?|fit)(?: run| loop)?"
_VALIDATION = r"(?:val|valid|validation|eval|evaluation)(?: epoch| loop| run)?"
_SAVE = r"(?:checkpoint|ckpt|model)(?: save| write)?"
_EVENTS: tuple[tuple[str, str, LogPhase | None], ...] = (
    (rf"{_TRAINING} {_ENDS}", "train_end", "done"),
    (rf"{_TRAINING} {_BEGINS}", "train_begin", "train"),
    (rf"{_VALIDATION} {_ENDS}", "val_end", None),
    (rf"{_VALIDATION} {_BEGINS}", "val_begin", "validation"),
    (rf"(?:train(?:ing)? )?epoch {_BEGINS}", "epoch_begin", "train"),
    (rf"(?:train(?:ing)? )?epoch {_ENDS}", "epoch_end", None),
    (rf"{_SAVE} (?:saved|written|{_ENDS})|saved? (?:checkpoint|model)", "checkpoint_saved", "checkpoint"),
    (rf"{_SAVE} {_BEGINS}|saving (?:checkpoint|model)", "checkpoint_begin", "checkpoint"),
)
_NAMED = tuple(
    (re.compile(rf"(?:on )?(?:{pattern})", re.IGNORECASE), event, phase) for pattern, event, phase in _EVENTS
)
_JOINTS = re.compile(r"[_./:-]+|(?<=[a-z])(?=[A-Z])")


def happened(masked: str) -> Iterator[str]:
    """What happened, in the words of each key that says so: `validation.done` as `validation done`."""
    for match in _LABEL.finditer(masked):
        if match["key"] in _HAPPENED.split("|"):
            yield _words(match["double"] or match["single"] or match["bare"])


def event(words: str) -> tuple[str, LogPhase | None] | None:
    """The event that these words are the name of, and the phase behind it: `eval end`, `on train epoch begin`."""
    for pattern, name, phase in _NAMED:
        if pattern.fullmatch(words):
            return name, phase
    return None


def context(masked: str) -> str:
    """The words that say what a record in `key=value` is about."""
    return " ".join(
        _spoken(match["key"], match["double"] or match["single"] or match["bare"]) for match in _LABEL.finditer(masked)
    )


def context_of(strings: dict[str, str]) -> str:
    """The same of the strings in a JSON object or a dict."""
    keys = (*_HAPPENED.split("|"), *_PLACE.split("|"))
    return " ".join(
        text if key.lower() in _CHOSEN else _spoken(key, text)
        for key, text in strings.items()
        if key.lower() in keys or key.lower() in _CHOSEN
    )


def _spoken(key: str, text: str) -> str:
    return "validation" if text.lower() == "dev" and key.lower() in _PLACE.split("|") else _words(text)


def _words(text: str) -> str:
    return text if " " in text else _JOINTS.sub(" ", text)
