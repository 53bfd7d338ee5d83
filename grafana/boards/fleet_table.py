"""The tables of the fleet dashboard: one row per run, one row per alert."""

from __future__ import annotations

from boards.board import run_link
from boards.panels import (
    ACT,
    NOTE,
    PLAIN,
    Head,
    Json,
    column,
    override,
    override_matching,
    state_mappings,
    table,
    thresholds,
    value_mappings,
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
    "Silence": f"max by (run) (run:training_idle:seconds{RECORDED})",
    "Used up": (
        f"max by (run) (run:training_idle:seconds{RECORDED}) / on (run) max by (run) ({BUDGET.format('idle')})"
    ),
    "No progress": f"max by (run) (run:training_no_progress:seconds{RECORDED})",
    "Step": f"max by (run) (training_step{RUNS})",
    "Done": f"max by (run) (training_step{RUNS}) / max by (run) (training_steps_target{RUNS}) <= 1",
    "Speed": f"{RATE} * on (run) {INTERVAL}",
    "Time left": f"{LEFT} * on (run) {INTERVAL}",
    "Saved ago": f"min by (run) (training_checkpoint_age_seconds{RUNS})",
    "At risk": f"max by (run) (run:training_at_risk:gpu_seconds{RECORDED}) / 3600",
    "GPUs": f"max by (run) (run:training_gpus:count{RECORDED})",
    "Nodes": f"count by (run) (training_run_info{RUNS})",
}
SEVERITIES = ((3, "critical", ACT), (2, "warning", NOTE), (1, "info", PLAIN))
RULES_MISSING = "The recording rules are not loaded"


def runs() -> Json:
    """Every run with what decides whether to look at it, the worst first."""
    state_query, *others = COLUMNS.values()
    return table(
        Head(
            20,
            "Runs",
            "The worst first. Silence is the time since anything of the run moved, used up as a share of "
            "what its phase "
            "may take: at 100 % it is stalled. Speed is that of the last 10 minutes against the run's own median. At "
            "risk is what was computed since the last complete checkpoint. n/a: the run does not tell.",
            "No run is known. Is an exporter scraped?",
        ),
        [column(state_query), *(column(or_not_available(query, FLEET)) for query in others)],
        names={"run": "run", **{f"Value #{chr(ord('A') + index)}": name for index, name in enumerate(COLUMNS)}},
        overrides=[
            override("run", links=[run_link("${__data.fields.run:percentencode}")], custom__minWidth=140),
            override(
                "State", mappings=state_mappings(), custom__cellOptions={"type": "color-background", "mode": "basic"}
            ),
            override("Used up", thresholds=thresholds((0.5, NOTE), (1, ACT), base="text")),
            override_matching("^(Used up|Done|Speed)$", unit="percentunit", decimals=0),
            override_matching("^(Silence|No progress|Time left|Saved ago)$", unit="s"),
            override("At risk", unit="suffix: GPU-h", decimals=1),
            override("Step", unit="locale"),
        ],
        sort=("State", "desc"),
    )


def alerts() -> Json:
    """Every firing alert of ours. A table, because Grafana's alert list cannot take its data source from a variable."""
    missing = "absent(run:training_state:code) and on () count(training_run_info)"
    ranked = " or ".join(
        f'max by (alertname, run, instance, cause) ({FIRING[:-1]}, severity="{word}", run=~"$run|"}}) * {rank}'
        for rank, word, _ in SEVERITIES
    )
    return table(
        Head(
            21,
            "Firing alerts",
            "Alerts of prometheus/rules/alerts.yml that fire now, of the chosen runs and of all nodes, the "
            "most severe first.",
            "No alert is firing",
        ),
        [column(f'{ranked} or label_replace({missing}, "alertname", "{RULES_MISSING}", "", "")')],
        names={"Value": "Severity", "alertname": "Alert", "run": "run", "cause": "Cause", "instance": "Node"},
        sort=("Severity", "desc"),
        overrides=[
            override("run", links=[run_link("${__data.fields.run:percentencode}")]),
            override(
                "Severity",
                mappings=value_mappings(*SEVERITIES),
                custom__cellOptions={"type": "color-background", "mode": "basic"},
            ),
            # an alert has only some of them; the words for an empty table would stand in their cells
            override_matching("^(run|Cause|Node)$", noValue="-"),
        ],
    )
