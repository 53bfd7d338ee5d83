"""The document of `document` as text for a terminal."""

from __future__ import annotations

import datetime as dt
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from training_exporter import redact
from training_exporter.report.document import Document
from training_exporter.report.page import LOOKED_FOR, headline, tone
from training_exporter.words import duration, percent, size

_COLOURS: Mapping[str, str] = {"bad": "1;31", "warn": "1;33", "note": "1", "calm": "1;32"}
WIDEST = 140
LABEL_WIDTH = 18
AGE_WIDTH = 14


def render(document: Document, *, colour: bool) -> str:
    """One block per run, then the GPUs without a run and the sources that fail. Every word is made printable."""
    return "\n".join(_lines(document, colour=colour)) + "\n"


def _lines(document: Document, *, colour: bool) -> Iterator[str]:
    for run in document["runs"]:
        yield from _run(run, colour=colour)
        yield ""
    if not document["runs"]:
        yield "No training run found. Looked for:"
        yield from (f"  - {thing}" for thing in LOOKED_FOR)
        yield ""
    yield from _gpus(document)
    yield from _sources(document)


def _run(run: Document, *, colour: bool) -> Iterator[str]:
    verdict = run["verdict"]
    state = headline(run)
    cause = f" ({verdict['cause']})" if verdict["cause"] else ""
    yield f"{redact.printable(run['name'])}  {_coloured(state.upper() + cause, tone(state), colour=colour)}"
    for label, text in _sentences(run):
        yield from _wrapped(label, text)
    for line in run["evidence"]:
        age = "" if line["age_seconds"] is None else f"{duration(line['age_seconds'])} ago"
        yield from _wrapped(line["witness"], line["text"], age)
    for source in run["blind"]:
        yield from _wrapped("blind", f"{source} told of this run before and fails now")
    if run["absent"]:
        yield from _wrapped("nothing yet by", ", ".join(run["absent"]))
    for label, texts in (("hint", run["hints"]), ("next", run["next"])):
        for text in texts:
            yield from _wrapped(label, text)


def _sentences(run: Document) -> Iterator[tuple[str, str]]:
    if run["verdict"]["sentence"]:
        yield "verdict", run["verdict"]["sentence"]
    if run["expected"]:
        pages = run["pages_at"]
        when = "" if pages is None else f" If nothing moves, it pages at {_clock_time(pages)}."
        yield "expected", run["expected"] + when
    if run["at_risk"]:
        yield "at risk", run["at_risk"]


def _wrapped(label: str, text: str, age: str = "") -> Iterator[str]:
    width = min(shutil.get_terminal_size((100, 24)).columns, WIDEST)
    room = max(30, width - LABEL_WIDTH - 4 - (AGE_WIDTH if age else 0))
    lines = textwrap.wrap(redact.printable(text), room, break_on_hyphens=False) or [""]
    yield f"  {redact.printable(label):<{LABEL_WIDTH}}  {lines[0]:<{room}}{age:>{AGE_WIDTH}}".rstrip()
    yield from (f"  {'':<{LABEL_WIDTH}}  {line}" for line in lines[1:])


def _gpus(document: Document) -> Iterator[str]:
    if not document["gpus"]:
        yield "No GPU."
    for gpu in document["gpus"]:
        if not gpu["runs"]:
            yield from _wrapped(f"gpu {gpu['gpu']}, no run", _gpu_words(gpu))


def _gpu_words(gpu: Mapping[str, Any]) -> str:
    if gpu["lost"]:
        return "lost: the driver cannot reach it"
    words = [
        "" if gpu["utilization_ratio"] is None else f"{percent(gpu['utilization_ratio'])} busy",
        "" if gpu["power_watts"] is None else f"{gpu['power_watts']:.0f} W",
        "" if gpu["memory_used_bytes"] is None else f"{size(gpu['memory_used_bytes'])} in use",
    ]
    return ", ".join(word for word in words if word) or "the driver tells nothing"


def _sources(document: Document) -> Iterator[str]:
    for name, source in document["sources"].items():
        if not source["success"]:
            state = "hangs" if source["stuck"] else "fails"
            yield from _wrapped(f"source {name}", f"{state}: {source['error'] or 'no answer yet'}")


def _clock_time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M")


def _coloured(text: str, kind: str, *, colour: bool) -> str:
    return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if colour else text
