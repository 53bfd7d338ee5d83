"""House style: each function makes one panel of Grafana's classic JSON, with the defaults that we want everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any, Literal

from training_exporter.palette import BY_STATE, LOOKS

Json = dict[str, Any]

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}

CALM = BY_STATE["training"].colour
NOTE = BY_STATE["no_progress"].colour
ACT = BY_STATE["stalled"].colour
PLAIN = BY_STATE[""].colour

# As a part of an override: a line to compare with.
DASHED: Json = {"custom__lineStyle": {"fill": "dash", "dash": [10, 10]}}

# In tables one absent series would drop whole columns; -1 stands in for it and is shown as these words.
NOT_AVAILABLE = -1
NOT_AVAILABLE_MAPPING: Json = {
    "type": "value",
    "options": {str(NOT_AVAILABLE): {"text": "n/a", "color": PLAIN, "index": 0}},
}


def state_mappings() -> list[Json]:
    """Code to word and colour, for every state there is."""
    words = {
        str(look.code): {"text": look.word, "color": look.colour, "index": index} for index, look in enumerate(LOOKS)
    }
    return [{"type": "value", "options": words}]


def value_mappings(*words: tuple[float, str, str]) -> list[Json]:
    """Mappings (value, word, colour)."""
    options = {
        f"{value:g}": {"text": text, "color": colour, "index": index}
        for index, (value, text, colour) in enumerate(words)
    }
    return [{"type": "value", "options": options}]


def thresholds(*steps: tuple[float, str], base: str = CALM) -> Json:
    """Absolute steps (from, colour) over a base colour."""
    above = [{"color": colour, "value": value} for value, colour in steps]
    return {"mode": "absolute", "steps": [{"color": base, "value": None}, *above]}


def target(expr: str, legend: str = "", *, instant: bool = False, table: bool = False) -> Json:
    """A query; the panel gives it its letter."""
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": expr,
        "format": "table" if table else "time_series",
        "instant": instant,
        "legendFormat": legend or "__auto",
        "range": not instant,
    }


def now(expr: str, legend: str = "") -> Json:
    """A query for the current value."""
    return target(expr, legend, instant=True)


def column(expr: str) -> Json:
    """A query for one column of a table."""
    return target(expr, instant=True, table=True)


# Narrow enough for the twelve columns of a table on a laptop; Grafana's own default is 150.
NARROW_PIXELS = 80


@dataclass(frozen=True, slots=True)
class Head:
    """What every panel has: its number (stable, for links), title, description, and what it says when it is empty."""

    number: int
    title: str
    about: str
    empty: str


@dataclass(frozen=True, slots=True)
class Field:
    """How values are shown. `unit` is one of Grafana's ids; `least` and `most` bound the axis where they are given."""

    unit: str = "none"
    decimals: int | None = None
    mappings: Sequence[Json] = ()
    limits: Json | None = None
    least: float | None = None
    most: float | None = None
    soft_most: float | None = None  # shown even where no value is near
    links: Sequence[Json] = ()


def _panel(kind: str, head: Head, targets: Sequence[Json], **parts: object) -> Json:
    return {
        "id": head.number,
        "type": kind,
        "title": head.title,
        "description": head.about,
        "datasource": DATASOURCE,
        "targets": [{**query, "refId": letter} for query, letter in zip(targets, ascii_uppercase, strict=False)],
        **parts,
    }


def _config(head: Head, field: Field, overrides: Sequence[Json], **more: object) -> Json:
    defaults: Json = {
        "unit": field.unit,
        "noValue": head.empty,
        "mappings": list(field.mappings),
        "links": list(field.links),
        **more,
    }
    optional = {"decimals": field.decimals, "thresholds": field.limits, "min": field.least, "max": field.most}
    defaults.update({key: value for key, value in optional.items() if value is not None})
    return {"defaults": defaults, "overrides": list(overrides)}


def stat(
    head: Head, targets: Sequence[Json], field: Field, *, overrides: Sequence[Json] = (), fill: bool = False
) -> Json:
    """A tile with the current value; `fill` colours the whole of it, for tiles that call for action."""
    return _panel(
        "stat",
        head,
        targets,
        fieldConfig=_config(head, _with_limits(field, "text"), overrides, color={"mode": "thresholds"}),
        options={
            "colorMode": "background_solid" if fill else "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": _newest(),
            "textMode": "auto",
            "wideLayout": True,
        },
    )


def series(
    head: Head, targets: Sequence[Json], field: Field, *, overrides: Sequence[Json] = (), step: bool = False
) -> Json:
    """Lines over time; `step` for values that stay until they change. Limits are drawn as dashed lines."""
    drawn: Json = {
        "drawStyle": "line",
        "fillOpacity": 0,
        "lineInterpolation": "stepAfter" if step else "linear",
        "lineWidth": 2,
        "pointSize": 4,
        "showPoints": "auto",
        "spanNulls": False,
        **({"thresholdsStyle": {"mode": "dashed"}} if field.limits else {}),
        **({"axisSoftMax": field.soft_most} if field.soft_most is not None else {}),
    }
    return _panel(
        "timeseries",
        head,
        targets,
        fieldConfig=_config(head, field, overrides, color={"mode": "palette-classic"}, custom=drawn),
        options={
            "legend": {"calcs": ["lastNotNull"], "displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    )


def bands(head: Head, targets: Sequence[Json], field: Field) -> Json:
    """A state timeline.

    It has no thresholds and a fixed colour mode, or Grafana would colour it by value and not by word.
    """
    drawn: Json = {"fillOpacity": 90, "lineWidth": 0, "spanNulls": False}
    return _panel(
        "state-timeline",
        head,
        targets,
        fieldConfig=_config(head, field, (), color=fixed("text"), custom=drawn),
        options={
            "alignValue": "left",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "mergeValues": True,
            "rowHeight": 0.85,
            "showValue": "auto",
            "tooltip": {"mode": "single", "sort": "none"},
        },
    )


def table(
    head: Head,
    targets: Sequence[Json],
    *,
    names: Mapping[str, str],
    overrides: Sequence[Json] = (),
    sort: tuple[str, Literal["asc", "desc"]] | None = None,
) -> Json:
    """A table of instant queries joined on their common labels.

    `names` renames and orders the columns; one without a new name is hidden. `sort` is a column and its direction.
    """
    hidden = dict.fromkeys(("Time", *(name for name, title in names.items() if not title)), True)
    joined: Json = {
        "excludeByName": hidden,
        "indexByName": {name: index for index, name in enumerate(names)},
        "renameByName": {name: title for name, title in names.items() if title},
    }
    plain = Field("short", mappings=[NOT_AVAILABLE_MAPPING], limits=thresholds(base="text"))
    cells: Json = {"align": "auto", "cellOptions": {"type": "auto"}, "minWidth": NARROW_PIXELS}
    return _panel(
        "table",
        head,
        targets,
        fieldConfig=_config(head, plain, overrides, color={"mode": "thresholds"}, custom=cells),
        options={
            "cellHeight": "sm",
            "footer": {"show": False},
            "showHeader": True,
            "sortBy": [{"displayName": sort[0], "desc": sort[1] == "desc"}] if sort else [],
        },
        transformations=[{"id": "merge", "options": {}}, {"id": "organize", "options": joined}],
    )


def bars(head: Head, targets: Sequence[Json], field: Field, *, overrides: Sequence[Json] = ()) -> Json:
    """Horizontal bars of current values, one per query or series."""
    return _panel(
        "bargauge",
        head,
        targets,
        fieldConfig=_config(head, _with_limits(field, PLAIN), overrides, color={"mode": "thresholds"}),
        options={
            "displayMode": "basic",
            "orientation": "horizontal",
            "reduceOptions": _newest(),
            "showUnfilled": True,
            "valueMode": "text",
        },
    )


def _with_limits(field: Field, base: str) -> Field:
    return replace(field, limits=field.limits or thresholds(base=base))


def _newest() -> Json:
    return {"calcs": ["lastNotNull"], "fields": "", "values": False}


def override(name: str, **properties: object) -> Json:
    """Properties of the one field with this name; `__` in a property stands for a dot, `_` stays."""
    found = [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": found}


def override_matching(pattern: str, **properties: object) -> Json:
    """Like `override`, for every field whose name matches."""
    return {**override("", **properties), "matcher": {"id": "byRegexp", "options": f"/{pattern}/"}}


def fixed(colour: str) -> Json:
    """A colour that does not depend on the value."""
    return {"mode": "fixed", "fixedColor": colour}
