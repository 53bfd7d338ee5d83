"""Schemas of the Prometheus operator's resources: its own are in no package, these are ours and hold what we use."""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string", "minLength": 1}
DURATION = {"type": "string", "pattern": r"^([0-9]+(ms|[smhdwy]))+$"}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}


def closed(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """A schema of an object with these keys and no other."""
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def custom(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A schema of one of the operator's resources."""
    return closed(
        {
            "apiVersion": {"const": "monitoring.coreos.com/v1"},
            "kind": {"const": kind},
            "metadata": closed({"name": TEXT, "labels": LABELS}, {"namespace": TEXT}),
            "spec": spec,
        }
    )


RELABELING = closed(
    {},
    {
        "sourceLabels": {"type": "array", "items": TEXT},
        "targetLabel": TEXT,
        "regex": TEXT,
        "action": {"enum": ["replace", "keep", "drop", "labeldrop", "labelkeep", "labelmap"]},
    },
)
RULE = closed(
    {"expr": TEXT},
    {"record": TEXT, "alert": TEXT, "for": DURATION, "labels": LABELS, "annotations": LABELS},
) | {"oneOf": [{"required": ["record"]}, {"required": ["alert"]}]}
SCHEMAS = {
    "PodMonitor": custom(
        "PodMonitor",
        closed(
            {
                "selector": closed({"matchLabels": LABELS}),
                "podMetricsEndpoints": {
                    "type": "array",
                    "minItems": 1,
                    "items": closed(
                        {"port": TEXT},
                        {
                            "interval": DURATION,
                            "scrapeTimeout": DURATION,
                            "relabelings": {"type": "array", "items": RELABELING},
                        },
                    ),
                },
            },
            {"jobLabel": TEXT},
        ),
    ),
    "PrometheusRule": custom(
        "PrometheusRule",
        closed(
            {
                "groups": {
                    "type": "array",
                    "items": closed({"name": TEXT, "rules": {"type": "array", "items": RULE}}, {"interval": DURATION}),
                }
            }
        ),
    ),
}
