"""The shape of a scenario file: which keys there are, of which type and unit, and which may be left out."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable
from typing import Any

import voluptuous as vol

from training_exporter.config import duration_seconds
from training_exporter.documents import every, mapping, sequence
from training_exporter.model import SOURCES
from training_exporter.runs.layout_table import WRITING
from training_exporter.scenario.records import Span

STATES = ("running", "sleeping", "disk_sleep", "stopped", "zombie", "gone")
LAYOUTS = tuple(WRITING)

_DURATION = re.compile(r"([0-9.]+)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(B|KiB|MiB|GiB|TiB)")
_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}


def number(value: object) -> float:
    """A finite number that is no truth value. Raises vol.Invalid."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise vol.Invalid(f"not a number: {value!r}")
    return float(value)


def not_negative(value: object) -> float:
    """A number of at least 0. Raises vol.Invalid."""
    if (amount := number(value)) < 0:
        raise vol.Invalid(f"below zero: {value!r}")
    return amount


def duration(value: object) -> float:
    """Seconds of `90`, `90s` or `1h30m`. Raises vol.Invalid."""
    if not isinstance(value, str):
        return not_negative(value)
    parts = _DURATION.findall(value)
    if not parts or "".join(amount + unit for amount, unit in parts) != value.replace(" ", ""):
        raise vol.Invalid(f"not a duration: {value!r} (like 90s, 40m, 1h30m)")
    return sum(float(amount) * _SECONDS[unit] for amount, unit in parts)


def positive_duration(value: object) -> float:
    """A duration above 0, in seconds. Raises vol.Invalid."""
    if (seconds := duration(value)) <= 0:
        raise vol.Invalid(f"must last: {value!r}")
    return seconds


def amount(value: object) -> float:
    """Bytes of `512`, `64KiB`, `1.5GiB`. Raises vol.Invalid."""
    if not isinstance(value, str):
        return not_negative(value)
    match = _AMOUNT.fullmatch(value.strip())
    if match is None:
        raise vol.Invalid(f"not an amount of bytes: {value!r} (like 40MiB)")
    return float(match[1]) * _BYTES[match[2]]


def span(item: Callable[[object], float]) -> Callable[[object], Span]:
    """A constant, or `[low, high]`, of `item`."""

    def check(value: object) -> Span:
        if not isinstance(value, list):
            constant = item(value)
            return Span(constant, constant)
        if len(value) != 2:
            raise vol.Invalid(f"not [low, high]: {value!r}")
        low, high = item(value[0]), item(value[1])
        if low > high:
            raise vol.Invalid(f"low is above high: {value!r}")
        return Span(low, high)

    return check


def words(value: object) -> str:
    """A text; a bare number is taken as its text, as for a checkpoint named 0. Raises vol.Invalid."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise vol.Invalid(f"not a text: {value!r}")
    return str(value)


def whole(low: int) -> Callable[[object], int]:
    """A whole number of at least `low`."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise vol.Invalid(f"not a whole number from {low} on: {value!r}")
        return value

    return check


def listed(item: Callable[[object], Any]) -> Callable[[object], tuple[Any, ...]]:
    """A list of `item`, or one alone."""
    check = sequence(item)
    return lambda value: check(value if isinstance(value, list) else [value])


def text(value: object) -> str:
    """A text that is no number. Raises vol.Invalid."""
    if not isinstance(value, str):
        raise vol.Invalid(f"not a text: {value!r}")
    return value


def one_of(*known: str) -> vol.In:
    """One of these words."""
    return vol.In(known, msg=f"not one of {', '.join(known)}")


def line(value: dict[str, Any]) -> dict[str, Any]:
    """A log line whose own keys are right: when it is said, and whether it can be formatted. Raises vol.Invalid."""
    if ("at" in value) == ("every" in value):
        raise vol.Invalid("a line has either `at` or `every`")
    if "from" in value and "every" not in value:
        raise vol.Invalid("only a line with `every` has a `from`", path=["from"])
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(value["line"]) if name is not None}
        if unknown := fields - {"n", "x", "clock"} | {name for name in fields & {"n", "x"} if name not in value}:
            raise vol.Invalid(f"no value for {{{min(unknown)}}}; a literal brace is doubled", path=["line"])
        value["line"].format(n=0, x=0.0, clock="00:00:00")
    except ValueError as error:
        raise vol.Invalid(f"not a format: {error}; a literal brace is doubled", path=["line"]) from error
    return value


def by_rank(override: Callable[[object], Any]) -> Callable[[object], dict[int, Any]]:
    """A mapping from the number of a rank to its own words."""

    def check(value: object) -> dict[int, Any]:
        if not isinstance(value, dict):
            raise vol.Invalid("expected a mapping of ranks to their own words")
        for rank in value:
            whole(0)(rank)
        by_key = every(override, {str(rank): words for rank, words in value.items()})  # as paths of faults name keys
        return {int(rank): words for rank, words in by_key.items()}

    return check


def ranks_exist(value: dict[str, Any]) -> dict[str, Any]:
    """The whole scenario, when no segment speaks of a rank that there is not. Raises vol.MultipleInvalid."""
    faults = [
        vol.Invalid(f"there are ranks 0 to {value['ranks'] - 1}", path=["segments", index, "ranks", str(rank)])
        for index, segment in enumerate(value["segments"])
        for rank in segment.get("ranks", {})
        if rank >= value["ranks"]
    ]
    if faults:
        raise vol.MultipleInvalid(faults)
    return value


def _percent(value: object) -> float:
    if (share := not_negative(value)) > 100:
        raise vol.Invalid(f"above 100 %: {value!r}")
    return share


def _optional(**keys: Any) -> dict[vol.Marker, Any]:  # noqa: ANN401 - voluptuous schemas have no narrower type
    return {vol.Optional(key): schema for key, schema in keys.items()}


_quantity, _bytes = span(not_negative), span(amount)
_counter = mapping({vol.Required("start"): number, vol.Required("by"): number})

_LINE = vol.All(
    mapping(
        {
            vol.Required("line"): words,
            vol.Optional("from"): duration,
            **_optional(at=duration, every=positive_duration, n=_counter, x=_counter, cr=bool),
        }
    ),
    line,
)

_GPU = mapping(
    _optional(
        util=span(_percent),
        mem_util=span(_percent),
        watts=_quantity,
        memory_mib=_quantity,
        other_mib=_quantity,
        sm_mhz=_quantity,
        temp_c=_quantity,
        lost=bool,
        xid=listed(whole(1)),
        clock_event=listed(text),
    )
)

_CHILD = mapping(
    {
        vol.Required("name"): words,
        vol.Optional("cores", default=0): _quantity,
        vol.Optional("gpu", default=False): bool,
    }
)

_RANK = _optional(
    state=one_of(*STATES),
    gpu=_GPU,
    cores=mapping(_optional(rank=_quantity, loader=_quantity, other=_quantity)),
    read=_bytes,
    write=_bytes,
    faults=_quantity,
    children=sequence(_CHILD),
    log=sequence(_LINE),
)

_CHECKPOINT = mapping(
    {
        vol.Optional("at", default=0): duration,
        vol.Required("name"): words,
        vol.Required("layout"): one_of(*LAYOUTS),
        vol.Required("mib"): not_negative,
        vol.Required("takes"): positive_duration,
        vol.Optional("partial", default=False): bool,
    }
)

_SEGMENT = mapping(
    {
        **_RANK,
        vol.Required("for"): positive_duration,
        **_optional(
            label=words,
            ranks=by_rank(mapping(_RANK)),
            blind=listed(one_of(*SOURCES, "exporter")),
            launcher=one_of("gone"),
            restart=bool,
            attempt=whole(1),
            checkpoint=_CHECKPOINT,
        ),
    }
)

_BUDGETS = mapping(
    {vol.Optional(name): duration_seconds for name in ("idle", "validation", "start", "checkpoint", "progress")}
)

_RUN = mapping(
    {
        vol.Required("name"): words,
        vol.Optional("launcher", default="torchrun"): words,
        vol.Optional("script", default="train.py"): words,
        vol.Optional("budgets", default=dict): _BUDGETS,
        vol.Optional("absent", default=list): listed(one_of(*SOURCES)),
        vol.Optional("mig", default=False): bool,
    }
)

_HARDWARE = mapping(
    {
        vol.Required("idle_watts"): not_negative,
        vol.Required("limit_watts"): not_negative,
        vol.Required("memory_total_mib"): not_negative,
        vol.Optional("name", default="GPU"): words,
    }
)

_ALERT = mapping(
    {
        vol.Required("alert"): text,
        vol.Required("after"): duration,
        vol.Required("within"): duration,
        **_optional(cause=text, until=duration),
    }
)

_EXPECT = mapping(
    _optional(
        states=sequence(mapping({vol.Required("at"): duration, vol.Required("state"): text})),
        alerts=sequence(_ALERT),
        may=sequence(text),
    )
)

SCENARIO = vol.Schema(
    vol.All(
        mapping(
            {
                vol.Required("name"): words,
                vol.Optional("about", default=""): words,
                vol.Required("ranks"): whole(1),
                vol.Required("gpu"): _HARDWARE,
                vol.Required("run"): _RUN,
                vol.Required("segments"): vol.All(sequence(_SEGMENT), vol.Length(1, msg="a scenario has a segment")),
                vol.Optional("expect", default=dict): _EXPECT,
            }
        ),
        ranks_exist,
    )
)
