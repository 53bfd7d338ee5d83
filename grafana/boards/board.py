"""Assembly of a dashboard: its variables, links and annotations, the grid, and the refusal of unknown names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from boards.names import check_query, known_names
from boards.panels import DATASOURCE, Json

# The classic schema that Grafana 10.4 to 13 read from a file alike; newer ones migrate it on load.
SCHEMA_VERSION = 39
WIDTH = 24
TAG = "training-exporter"


@dataclass(frozen=True, slots=True)
class Band:
    """Panels side by side, `height` grid units tall; each comes with its width, together at most 24."""

    height: int
    panels: tuple[tuple[int, Json], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Bands under a title; a collapsed one costs no query until it is opened."""

    number: int
    title: str
    bands: tuple[Band, ...]
    collapsed: bool = False


def band(height: int, *panels: tuple[int, Json]) -> Band:
    """Panels (width, panel) side by side."""
    return Band(height, panels)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a dashboard is called and shows; `uid` is part of every link to it, `since` the time range it opens with."""

    uid: str
    title: str
    about: str
    since: str


def dashboard(
    identity: Identity,
    sections: Sequence[Section],
    *,
    variables: Sequence[Json],
    annotations: Sequence[Json] = (),
    links: Sequence[Json] = (),
) -> Json:
    """The whole document. Raises UnknownNameError for a query that no series can answer."""
    found: Json = {
        "annotations": {"list": list(annotations)},
        "description": identity.about,
        "editable": True,
        "graphTooltip": 1,
        "id": None,
        "links": list(links),
        "panels": list(_placed(sections)),
        "refresh": "30s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": [TAG],
        "templating": {"list": list(variables)},
        "time": {"from": f"now-{identity.since}", "to": "now"},
        "timezone": "browser",
        "title": identity.title,
        "uid": identity.uid,
        "version": 1,
    }
    known = known_names()
    for query in queries_of(found):
        check_query(query, known)
    return found


def queries_of(board: Json) -> Iterator[str]:
    """Every PromQL text of a dashboard: panels, variables, annotations."""
    for panel in panels_of(board):
        yield from (query["expr"] for query in panel.get("targets", ()))
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield selector_of(variable)
    yield from (note["expr"] for note in board["annotations"]["list"])


def selector_of(variable: Json) -> str:
    """The series that a `label_values(...)` variable reads."""
    inside: str = variable["query"]["query"].removeprefix("label_values(").removesuffix(")")
    return inside.rpartition(",")[0]


def panels_of(board: Json) -> Iterator[Json]:
    """Every panel, those of collapsed rows included; the rows themselves are not."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def _placed(sections: Iterable[Section]) -> Iterator[Json]:
    top = 0
    for section in sections:
        inside, below = _grid(section.bands, top + 1 if section.title else top)
        if not section.title:
            yield from inside
            top = below
            continue
        yield {
            "id": section.number,
            "type": "row",
            "title": section.title,
            "collapsed": section.collapsed,
            "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top},
            "panels": inside if section.collapsed else [],
        }
        if not section.collapsed:
            yield from inside
        top = below


def _grid(bands: Iterable[Band], top: int) -> tuple[list[Json], int]:
    placed: list[Json] = []
    for row in bands:
        left = 0
        for width, panel in row.panels:
            placed.append({**panel, "gridPos": {"h": row.height, "w": width, "x": left, "y": top}})
            left += width
        if left > WIDTH:
            raise ValueError(f"panels are {left} wide together: {[panel['title'] for _, panel in row.panels]}")
        top += row.height
    return placed, top


def datasource_variable() -> Json:
    """Which Prometheus; filled on every way of importing, unlike `__inputs`."""
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
    }


def variable(name: str, label: str, selector: str, value: str, *, many: bool) -> Json:
    """A choice of the values that the label `value` has in `selector`; asked again when the time range changes."""
    query = f"label_values({selector}, {value})"
    more: dict[str, Any] = {"allValue": ".+", "current": {"selected": True, "text": "All", "value": "$__all"}}
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": f"{name}-values"},
        "hide": 0,
        "includeAll": many,
        "multi": many,
        "options": [],
        "refresh": 2,
        "regex": "",
        "sort": 1,
        **(more if many else {"current": {}}),
    }


def annotation(name: str, expr: str, colour: str, text: str, *, step: str = "30s") -> Json:
    """Marks the moments at which `expr` has a value; each can be switched off on the screen."""
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "expr": expr,
        "hide": False,
        "iconColor": colour,
        "step": step,
        "tagKeys": "",
        "textFormat": text,
        "titleFormat": name,
    }


def board_link(title: str, uid: str) -> Json:
    """A link at the top of the dashboard that keeps the time range and what is chosen."""
    return {
        "title": title,
        "type": "link",
        "icon": "dashboard",
        "url": f"/d/{uid}",
        "keepTime": True,
        "includeVars": True,
        "asDropdown": False,
        "tags": [],
        "targetBlank": False,
        "tooltip": "",
    }


def run_link(run: str) -> Json:
    """From a value to the run it belongs to; `run` is how Grafana names the label there."""
    url = f"/d/training-run?${{datasource:queryparam}}&${{job:queryparam}}&var-run={run}&${{__url_time_range}}"
    return {"title": "Open this run", "url": url, "targetBlank": False}


def node_link(node: str) -> Json:
    """From a value to the node it belongs to."""
    url = f"/d/training-node?${{datasource:queryparam}}&${{job:queryparam}}&var-node={node}&${{__url_time_range}}"
    return {"title": "Open this node", "url": url, "targetBlank": False}
