"""The tables of the fleet dashboard: one row per run, one row per alert."""

from __future__ import annotations

from boards.board import run_link
from boards.panels import (
    ACT,
    NOTE,
    Head,
    Json,
    column,
    override,
    override_matching,
    state_mappings,
    table,
    thresholds,
)
from boards.queries import FIRING, RECORDED, RUNS, or_not_available, state

FLEET = state(RECORDED)
BUDGET = 'run:training_budget:seconds{{run=~"$run", budget="{}"}}'
RATE = f"max by (run) (rate(training_steps_total{RUNS}[10m]))"
INTERVAL = f"max by (run) (training_step_interval_seconds{RUNS})"
LEFT = f"(max by (run) (training_steps_target{RUNS}) - max by (run) (training_step{RUNS}) >= 0)"

# Column, query. The letters of the queries are given in this order, the state first: each of the others has a value for
# every run that has a state, or the merge would drop the column.
COLUMNS = {
    "State": FLEET,
    "Silent for": f"max by (run) (run:training_idle:seconds{RECORDED})",
    "Silence used up": (
        f"max by (run) (run:training_idle:seconds{RECORDED}) / on (run) max by (run) ({BUDGET.format('idle')})"
    ),
    "No progress for": f"max by (run) (run:training_no_progress:seconds{RECORDED})",
    "Step": f"max by (run) (training_step{RUNS})",
    "Done": f"max by (run) (training_step{RUNS}) / max by (run) (training_steps_target{RUNS})",
    "Speed of its own median": f"{RATE} * on (run) {INTERVAL}",
    "Time left": f"{LEFT} * on (run) {INTERVAL}",
    "Checkpoint age": f"min by (run) (training_checkpoint_age_seconds{RUNS})",
    "GPU-hours at risk": f"max by (run) (run:training_at_risk:gpu_seconds{RECORDED}) / 3600",
    "GPUs": f"max by (run) (run:training_gpus:count{RECORDED})",
    "Nodes": f"count by (run) (training_run_info{RUNS})",
}
RULES_MISSING = "The recording rules are not loaded"


def runs() -> Json:
    """Every run with what decides whether to look at it, the worst first."""
    state_query, *others = COLUMNS.values()
    return table(
        Head(
            20,
            "Runs",
            "The worst first. Silence used up is the time since any activity as a share of what the phase may take: at "
            "100 % the run is stalled. Speed is of the last 10 minutes. n/a: the run does not tell.",
            "No run is known. Is an exporter scraped?",
        ),
        [column(state_query), *(column(or_not_available(query, FLEET)) for query in others)],
        names={"run": "run", **{f"Value #{chr(ord('A') + index)}": name for index, name in enumerate(COLUMNS)}},
        overrides=[
            override("run", links=[run_link("${__data.fields.run:percentencode}")], custom__minWidth=160),
            override("State", mappings=state_mappings(), custom__cellOptions={"type": "color-background"}),
            override("Silence used up", thresholds=thresholds((0.5, NOTE), (1, ACT), base="text")),
            override_matching("^(Silence used up|Done|Speed.*)$", unit="percentunit", decimals=0),
            override_matching("^(Silent for|No progress for|Time left|Checkpoint age)$", unit="s", decimals=0),
            override("GPU-hours at risk", unit="suffix: h", decimals=1),
            override("Step", unit="locale"),
        ],
        sort="State",
    )


def alerts() -> Json:
    """Every firing alert of ours. A table, because Grafana's alert list cannot take its data source from a variable."""
    missing = "absent(run:training_state:code) and on () count(training_run_info)"
    return table(
        Head(
            21,
            "Firing alerts",
            "Alerts of prometheus/rules/alerts.yml that fire now, of all runs and nodes.",
            "No alert is firing",
        ),
        [
            column(
                f"max by (alertname, severity, run, instance, cause) ({FIRING})"
                f' or label_replace({missing}, "alertname", "{RULES_MISSING}", "", "")'
            )
        ],
        names={
            "severity": "Severity",
            "alertname": "Alert",
            "run": "run",
            "cause": "Cause",
            "instance": "Node",
            "Value": "",
        },
        overrides=[override("run", links=[run_link("${__data.fields.run:percentencode}")])],
    )
