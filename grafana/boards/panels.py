"""House style: each function makes one panel of Grafana's classic JSON, with the defaults that we want everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from training_exporter.palette import BY_STATE, LOOKS

Json = dict[str, Any]

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}

CALM = BY_STATE["training"].colour
NOTE = BY_STATE["no_progress"].colour
ACT = BY_STATE["stalled"].colour
PLAIN = BY_STATE[""].colour

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


def _panel(number: int, kind: str, title: str, about: str, targets: Sequence[Json], **parts: Any) -> Json:
    letters = (f"{'' if index < 26 else 'A'}{chr(ord('A') + index % 26)}" for index in range(len(targets)))
    return {
        "id": number,
        "type": kind,
        "title": title,
        "description": about,
        "datasource": DATASOURCE,
        "targets": [{**query, "refId": letter} for query, letter in zip(targets, letters, strict=True)],
        **parts,
    }


def _defaults(unit: str, empty: str, limits: Json | None, mappings: Iterable[Json], **more: Any) -> Json:
    defaults: Json = {"unit": unit, "noValue": empty, "mappings": list(mappings), **more}
    if limits is not None:
        defaults["thresholds"] = limits
    return defaults


def stat(
    number: int,
    title: str,
    about: str,
    targets: Sequence[Json],
    *,
    unit: str,
    empty: str,
    limits: Json | None = None,
    mappings: Sequence[Json] = (),
    decimals: int | None = None,
    fill: bool = False,
    links: Sequence[Json] = (),
) -> Json:
    """A tile with the current value; `fill` colours the whole of it, for tiles that call for action."""
    more: Json = {"color": {"mode": "thresholds"}, "links": list(links)}
    if decimals is not None:
        more["decimals"] = decimals
    return _panel(
        number,
        "stat",
        title,
        about,
        targets,
        fieldConfig={"defaults": _defaults(unit, empty, limits or thresholds(base="text"), mappings, **more), "overrides": []},
        options={
            "colorMode": "background" if fill else "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "auto",
            "wideLayout": True,
        },
    )


def series(
    number: int,
    title: str,
    about: str,
    targets: Sequence[Json],
    *,
    unit: str,
    empty: str,
    least: float | None = 0,
    most: float | None = None,
    overrides: Sequence[Json] = (),
    fill: int = 0,
    step: bool = False,
) -> Json:
    """Lines over time; the axis starts at `least` unless that is None."""
    more: Json = {
        "color": {"mode": "palette-classic"},
        "custom": {
            "drawStyle": "line",
            "fillOpacity": fill,
            "lineInterpolation": "stepAfter" if step else "linear",
            "lineWidth": 2,
            "pointSize": 4,
            "showPoints": "auto",
            "spanNulls": False,
        },
        "links": [],
    }
    more.update({key: value for key, value in (("min", least), ("max", most)) if value is not None})
    return _panel(
        number,
        "timeseries",
        title,
        about,
        targets,
        fieldConfig={"defaults": _defaults(unit, empty, None, (), **more), "overrides": list(overrides)},
        options={
            "legend": {"calcs": ["lastNotNull"], "displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    )


def bands(
    number: int,
    title: str,
    about: str,
    targets: Sequence[Json],
    *,
    empty: str,
    mappings: Sequence[Json],
    links: Sequence[Json] = (),
) -> Json:
    """A state timeline. It has no thresholds and a fixed colour mode, or Grafana colours it by value and not by word."""
    more: Json = {
        "color": {"mode": "fixed", "fixedColor": "text"},
        "custom": {"fillOpacity": 90, "lineWidth": 0, "spanNulls": False},
        "links": list(links),
    }
    return _panel(
        number,
        "state-timeline",
        title,
        about,
        targets,
        fieldConfig={"defaults": _defaults("none", empty, None, mappings, **more), "overrides": []},
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
    number: int,
    title: str,
    about: str,
    targets: Sequence[Json],
    *,
    names: Mapping[str, str],
    empty: str,
    overrides: Sequence[Json] = (),
    sort: str = "",
    merge: bool = True,
) -> Json:
    """A table of instant queries joined on their common labels; `names` renames, orders and selects the columns."""
    steps: list[Json] = [{"id": "merge", "options": {}}] if merge else []
    steps.append(
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True},
                "indexByName": {name: index for index, name in enumerate(names)},
                "renameByName": dict(names),
            },
        }
    )
    more: Json = {"color": {"mode": "thresholds"}, "custom": {"align": "auto", "cellOptions": {"type": "auto"}}}
    return _panel(
        number,
        "table",
        title,
        about,
        targets,
        fieldConfig={
            "defaults": _defaults("short", empty, thresholds(base="text"), [NOT_AVAILABLE_MAPPING], **more),
            "overrides": list(overrides),
        },
        options={
            "cellHeight": "sm",
            "footer": {"show": False},
            "showHeader": True,
            "sortBy": [{"displayName": sort, "desc": True}] if sort else [],
        },
        transformations=steps,
    )


def bars(
    number: int,
    title: str,
    about: str,
    targets: Sequence[Json],
    *,
    unit: str,
    empty: str,
    overrides: Sequence[Json] = (),
    limits: Json | None = None,
    most: float | None = None,
) -> Json:
    """Horizontal bars of current values, one per query or series."""
    more: Json = {"color": {"mode": "thresholds"}, "min": 0}
    if most is not None:
        more["max"] = most
    return _panel(
        number,
        "bargauge",
        title,
        about,
        targets,
        fieldConfig={
            "defaults": _defaults(unit, empty, limits or thresholds(base=PLAIN), (), **more),
            "overrides": list(overrides),
        },
        options={
            "displayMode": "basic",
            "orientation": "horizontal",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "showUnfilled": True,
            "valueMode": "color",
        },
    )


def override(name: str, **properties: Any) -> Json:
    """Properties of the one field with this name; `__` in a property stands for a dot, `_` stays."""
    found = [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": found}


def override_matching(pattern: str, **properties: Any) -> Json:
    """Like `override`, for every field whose name matches."""
    return {**override("", **properties), "matcher": {"id": "byRegexp", "options": f"/{pattern}/"}}


def fixed(colour: str) -> Json:
    """A colour that does not depend on the value."""
    return {"mode": "fixed", "fixedColor": colour}
