"""Refuses what no series has: a metric or label that neither the exporter nor the recording rules know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from training_exporter.catalogue import BY_NAME, LABELS

RECORDING_RULES = Path(__file__).parents[2] / "prometheus" / "rules" / "recording.yml"

SCRAPE_LABELS = frozenset({"job", "instance"})
# What Prometheus itself adds: the health of a target, and an alert with the labels that ours carry.
_BUILT_IN: Mapping[str, frozenset[str]] = {
    "up": SCRAPE_LABELS,
    "ALERTS": SCRAPE_LABELS | {"alertname", "alertstate", "severity", "run", "cause", "gpu", "reason", "source"},
}
_RECORD = re.compile(r"- record: (\S+)\n(.*?)(?=- record: |\Z)", re.DOTALL)
_GROUPED = re.compile(r"\bby \(([\w, ]+)\)")
_REPLACED = re.compile(r'"(\w+)", "\w*", "", ""')

_TOKEN = re.compile(
    r"""
    (?P<blank>\s+|\#[^\n]*) | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    | (?P<range>\[[^\]]*\]) | (?P<number>(?:0x[0-9a-fA-F]+|(?:\d+(?:ms|[smhdwy]))+|[\d.]+(?:e[+-]?\d+)?))
    | (?P<name>[a-zA-Z_:][\w:]*|\$\w+|\$\{\w+(?::\w+)?\}) | (?P<sign>[-+*/%^(){},]|[=!<>~]+)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan"})


class UnknownNameError(ValueError):
    """A query names what no series has; the message is for whoever changes a dashboard or a metric."""


def known_names() -> dict[str, frozenset[str]]:
    """Every name a query may use, with the labels it may ask for.

    The labels of a recording rule are those that its level (`run_gpu:`) and its own expression name.
    """
    exported = {name: SCRAPE_LABELS | set(spec.labels) for name, spec in BY_NAME.items()}
    rules = RECORDING_RULES.read_text(encoding="utf-8")
    recorded = {name: _labels_of_rule(name, body) for name, body in _RECORD.findall(rules)}
    return {**_BUILT_IN, **exported, **recorded}


def _labels_of_rule(name: str, body: str) -> frozenset[str]:
    grouped = {label.strip() for labels in _GROUPED.findall(body) for label in labels.split(",")}
    return frozenset(grouped | set(name.split(":", maxsplit=1)[0].split("_")) | set(_REPLACED.findall(body)))


def check_query(query: str, known: Mapping[str, frozenset[str]]) -> None:
    """Raises UnknownNameError for a metric that is not in `known`, and for a label that its series do not have."""
    for metric, labels in uses(query):
        if metric is None:
            _check_labels(labels, SCRAPE_LABELS | set(LABELS) | _free_labels(query), query)
        elif metric not in known:
            raise UnknownNameError(f"no metric or recording rule is called {metric}: {query}")
        else:
            _check_labels(labels, known[metric], query)


def _check_labels(labels: tuple[str, ...], allowed: frozenset[str] | set[str], query: str) -> None:
    for label in labels:
        if label not in allowed:
            raise UnknownNameError(f"no series has the label {label}: {query}")


def _free_labels(query: str) -> set[str]:
    """Labels that the query makes itself, and those of `_info` series and alerts."""
    made = set(re.findall(r'label_replace\((?:.*?),\s*"(\w+)",', query, re.DOTALL))
    informed = {label for spec in BY_NAME.values() if spec.name.endswith("_info") for label in spec.labels}
    return made | informed | _BUILT_IN["ALERTS"]


def uses(query: str) -> Iterator[tuple[str | None, tuple[str, ...]]]:
    """The metrics of a PromQL query with the labels that they are selected by, and (None, labels) per label list."""
    tokens = list(_tokens(query))
    place = 0
    while place < len(tokens):
        kind, text = tokens[place]
        following = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        place += 1
        if kind != "name" or text.lower() in _WORDS or text.startswith("$"):
            continue
        if text in _LISTS:
            labels, place = _inside(tokens, place, "(", ")")
            yield None, labels
        elif following == "{":
            labels, place = _inside(tokens, place, "{", "}")
            yield text, labels
        elif following != "(" and following not in _LISTS:
            yield text, ()


def _inside(tokens: list[tuple[str, str]], place: int, opening: str, closing: str) -> tuple[tuple[str, ...], int]:
    if place >= len(tokens) or tokens[place][1] != opening:
        return (), place
    end = next(index for index in range(place, len(tokens)) if tokens[index][1] == closing)
    return tuple(text for kind, text in tokens[place:end] if kind == "name"), end + 1


def _tokens(query: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(query):
        found = _TOKEN.match(query, place)
        if found is None:
            raise UnknownNameError(f"cannot read the query at {query[place : place + 20]!r}: {query}")
        place = found.end()
        if found.lastgroup not in {None, "blank", "string", "range"}:
            yield str(found.lastgroup), found.group()
