"""The status page: the document of `document` as HTML without any external asset."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import jinja2

from training_exporter.palette import BY_STATE
from training_exporter.report.document import Document
from training_exporter.words import duration, percent, size

# Instead of the phase of a run of which only the processes are seen: its state is the best guess and worth nothing.
CANNOT_TELL = "cannot tell"
_GUESSED = ("starting", "training", "validating", "checkpointing", "quiet", "unknown")

# How loud a state is on the page; what is not here is calm.
_TONES: Mapping[str, str] = {
    "failed": "bad",
    "degraded": "bad",
    "stalled": "bad",
    "no_progress": "warn",
    "unknown": "warn",
    CANNOT_TELL: "warn",
    "quiet": "note",
    "absent": "note",
    "ended": "note",
}

REFRESH_SECONDS = 10

LOOKED_FOR = (
    "launchers (torchrun, torch.distributed, accelerate, deepspeed, mpirun, Slurm, Ray) and processes with LOCAL_RANK",
    "processes that hold a GPU",
    "Python programs that look like a training (train.py, --lr, > train.log), once a step or checkpoint is seen",
    "the runs named in the configuration file",
)


@dataclass(frozen=True, slots=True)
class Curve:
    """Bars (left, width, height) in percent of the drawing; `most` is the value of the highest."""

    bars: list[tuple[float, float, float]]
    most: float
    last: float


def render(document: Document, *, telemetry_path: str, collectors: Iterable[str], refreshing: bool = True) -> str:
    """The whole page; every value is escaped. Who serves it makes it refresh, by a header instead of a script."""
    return _TEMPLATE.render(
        document=document,
        telemetry_path=telemetry_path,
        collectors=frozenset(collectors),
        looked_for=LOOKED_FOR,
        refreshing=refreshing,
        refresh_seconds=REFRESH_SECONDS,
    )


def headline(run: Document) -> str:
    """The state of a run as the first words of its block: that of the verdict, unless nothing of the run is seen."""
    state: str = run["verdict"]["state"]
    return CANNOT_TELL if run.get("unseen") and state in _GUESSED else state.replace("_", " ")


def tone(words: str) -> str:
    """The colour class of a state or headline: bad, warn, note or calm."""
    return _TONES.get(words.replace(" ", "_"), _TONES.get(words, "calm"))


def colour(state: str) -> str:
    """The colour of a state wherever its past is drawn, as on the dashboards; never without its word."""
    return BY_STATE.get(state, BY_STATE[""]).colour


def clock_time(seconds: float) -> str:
    """A Unix time as date and time of the server's time zone."""
    return dt.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def bands(history: list[dict[str, Any]]) -> list[tuple[str, float, str]]:
    """State, share of the shown time in percent, and words, for each unbroken stretch of one state."""
    if len(history) < 2:
        return []
    whole = history[-1]["time"] - history[0]["time"]
    starts = [next(group) for _, group in groupby(history, key=lambda moment: moment["state"])]
    ends = [start["time"] for start in starts[1:]] + [history[-1]["time"]]
    return [
        (
            start["state"],
            100 * (end - start["time"]) / whole,
            f"{start['state'].replace('_', ' ')} for {duration(end - start['time'])}",
        )
        for start, end in zip(starts, ends, strict=True)
        if end > start["time"]
    ]


def curve(history: list[dict[str, Any]], key: str) -> Curve | None:
    """The values of one key over the history, each from the moment before on; None where there is nothing to show."""
    known = [
        (before["time"], after["time"], after[key]) for before, after in pairwise(history) if after[key] is not None
    ]
    most = max((value for _, _, value in known), default=0.0)
    if most <= 0:
        return None
    first, share = history[0]["time"], 100 / (history[-1]["time"] - history[0]["time"])
    bars = [(share * (start - first), share * (end - start), 100 * value / most) for start, end, value in known]
    return Curve(bars, most, known[-1][2])


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("training_exporter.report"),
        autoescape=True,  # log lines are hostile
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "duration": duration,
        "size": size,
        "percent": percent,
        "headline": headline,
        "tone": tone,
        "colour": colour,
        "clock_time": clock_time,
        "bands": bands,
        "curve": curve,
    }
    return environment


_TEMPLATE = _environment().get_template("index.html.j2")
