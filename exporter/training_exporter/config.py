"""The optional configuration file: YAML in, frozen records out, every fault with its key and line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voluptuous import All, Invalid, MultipleInvalid, Optional, Required

from training_exporter.documents import DocumentError, Fault, mapping, parse, read, sequence
from training_exporter.patterns import ENDLESS, repeats_a_repetition


@dataclass(frozen=True, slots=True)
class Budgets:
    """Configured budgets in seconds; None = learnt."""

    idle: float | None = None
    validation: float | None = None
    start: float | None = None
    checkpoint: float | None = None
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """Which processes are meant: all that is given must hold.

    `cmdline` is a regular expression searched in the command line joined by blanks; `env` are exact values.
    """

    cmdline: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One entry of `runs:`."""

    name: str
    match: Match | None = None  # None: log and checkpoints only
    logs: tuple[str, ...] = ()  # glob patterns
    checkpoints: tuple[str, ...] = ()  # directories or glob patterns
    expected: bool = False
    page: bool = True
    budgets: Budgets = field(default_factory=Budgets)
    metrics: tuple[str, ...] = ()  # patterns with the named groups `name` and `value`


@dataclass(frozen=True, slots=True)
class Discovery:
    """The entry `discovery:`."""

    enabled: bool = True
    ignore: tuple[Match, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file; the default is what an exporter without a file does."""

    runs: tuple[RunConfig, ...] = ()
    discovery: Discovery = field(default_factory=Discovery)


def load(path: Path) -> Config:
    """The configuration in a file; DocumentError names every fault, an unreadable file included."""
    try:
        text = read(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DocumentError(str(path), [Fault(0, "", f"cannot be read: {reason}")]) from error
    faults: list[Fault]
    config: Config | None
    config, faults = parse(text, _config, empty={})
    if config is None:
        raise DocumentError(str(path), faults)
    return config


def check(text: str) -> list[Fault]:
    """Every fault of a configuration text, in the order of lines; none if it can be used."""
    return parse(text, _config, empty={})[1]


_DURATION_UNITS_SECONDS = {"w": 604_800.0, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
LONGEST_SECONDS = 10 * 365 * 86_400.0  # what is longer is a slip of the pen
_DURATION = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")


def duration_seconds(value: object) -> float:
    """Seconds of a duration as Prometheus writes it (`90s`, `1h30m`), or of a plain number of seconds."""
    seconds: float
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    elif isinstance(value, str) and (found := _DURATION.fullmatch(value)):
        counts = zip(found.groups(default="0"), _DURATION_UNITS_SECONDS.values(), strict=True)
        seconds = math.fsum(float(count) * unit for count, unit in counts)
    else:
        raise Invalid("expected a duration like 90s, 10m or 1h30m")
    if not seconds > 0:
        raise Invalid("must be longer than nothing")
    if seconds > LONGEST_SECONDS:
        raise Invalid("must not be longer than ten years")
    return float(seconds)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Invalid("expected text; put it in quotes")
    if not value.strip() or not value.isprintable():
        raise Invalid("must not be empty or hold control characters")
    return value


def _name(value: object) -> str:
    text = _text(value)
    if len(text) > LONGEST_NAME:
        raise Invalid(f"longer than {LONGEST_NAME} characters")
    return text


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise Invalid("expected true or false")
    return value


def _pattern(value: object) -> str:
    text = _text(value)
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise Invalid(f"no valid regular expression: {error}") from error
    return text


def _metric_pattern(value: object) -> str:
    text = _pattern(value)
    missing = {"name", "value"} - set(re.compile(text).groupindex)
    if missing:
        raise Invalid(f"lacks the named group {' and '.join(f'(?P<{group}>...)' for group in sorted(missing))}")
    if repeats_a_repetition(text):
        raise Invalid(ENDLESS)
    return text


def _path(value: object) -> str:
    text = _text(value)
    if not text.startswith("/"):
        raise Invalid("must be an absolute path, because the exporter runs in a directory of its own")
    return text


def _environment(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or not value:
        raise Invalid("expected a mapping of variables to values")
    for name, wanted in value.items():
        if isinstance(wanted, bool) or not isinstance(wanted, str | int):
            raise Invalid("expected text; put it in quotes", [str(name)])
    return {str(name): str(wanted) for name, wanted in value.items()}


def _match(value: object) -> Match:
    fields = _MATCH(value)
    if not fields:
        raise Invalid("matches everything; give cmdline or env")
    return Match(**fields)


def _run(value: object) -> RunConfig:
    run = RunConfig(**_RUN(value))
    if run.match is None and not run.logs and not run.checkpoints:
        raise Invalid("names nothing to watch; give match, logs or checkpoints")
    return run


def _runs(value: object) -> tuple[RunConfig, ...]:
    faults = _doubled_names(value)
    runs: tuple[RunConfig, ...] = ()
    try:
        runs = sequence(_run)(value)
    except MultipleInvalid as error:
        faults += error.errors
    if faults:
        raise MultipleInvalid(faults)
    return runs


def _doubled_names(value: object) -> list[Invalid]:
    names = [run.get("name") if isinstance(run, dict) else None for run in value] if isinstance(value, list) else []
    return [
        Invalid(f"is the name of runs[{names.index(name)}] too", [index, "name"])
        for index, name in enumerate(names)
        if isinstance(name, str) and names.index(name) < index
    ]


def _built(kind: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
    return lambda fields: kind(**fields)


# A label value; Prometheus has no limit, a legend has.
LONGEST_NAME = 200

_BUDGETS = All(
    mapping({Optional(key): duration_seconds for key in ("idle", "validation", "start", "checkpoint", "progress")}),
    _built(Budgets),
)
_MATCH = mapping({Optional("cmdline"): _pattern, Optional("env"): _environment})
_RUN = mapping(
    {
        Required("name"): _name,
        Optional("match"): _match,
        Optional("logs"): sequence(_path),
        Optional("checkpoints"): sequence(_path),
        Optional("expected"): _truth,
        Optional("page"): _truth,
        Optional("budgets"): _BUDGETS,
        Optional("metrics"): sequence(_metric_pattern),
    }
)
_DISCOVERY = All(
    mapping({Optional("enabled"): _truth, Optional("ignore"): sequence(_match)}),
    _built(Discovery),
)
_CONFIG = mapping({Optional("runs"): _runs, Optional("discovery"): _DISCOVERY})


def _config(value: object) -> Config:
    return Config(**_CONFIG(value))
