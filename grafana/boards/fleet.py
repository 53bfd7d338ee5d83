"""Which run needs me: every run of every node on one screen."""

from __future__ import annotations

from boards import fleet_table
from boards.board import (
    Band,
    Identity,
    Section,
    annotation,
    band,
    board_link,
    dashboard,
    datasource_variable,
    run_link,
    variable,
)
from boards.panels import (
    ACT,
    NOTE,
    PLAIN,
    Field,
    Head,
    Json,
    bands,
    bars,
    fixed,
    now,
    override,
    stat,
    state_mappings,
    target,
    thresholds,
    value_mappings,
)
from boards.queries import FIRING, RECORDED, SCRAPED, state, while_scraped
from training_exporter.palette import BY_STATE, LOOKS

IDENTITY = Identity(
    uid="training-fleet",
    title="Training / Fleet",
    about="Which run needs a person: the state of every run, what would be lost with it, and whether the "
    "exporters that "
    "say so are there. Needs prometheus/rules/*.yml.",
    since="6h",
)
NOBODY = "No exporter answers"
FLEET = state(RECORDED)
NO_TARGET = -1
# The states in which a run holds its GPUs.
HOLDING = tuple(look for look in LOOKS if BY_STATE["starting"].code <= look.code < BY_STATE["failed"].code)
SUBQUERY_SECONDS = 60


def build() -> Json:
    """The dashboard `training-fleet`."""
    return dashboard(
        IDENTITY,
        (Section(0, "", (_tiles(), band(9, (24, _states())), band(9, (24, fleet_table.runs())), _below())),),
        variables=(
            datasource_variable(),
            variable("job", "Scrape job", "training_exporter_build_info", "job", many=True),
            variable("run", "Run", 'training_run_info{job=~"$job"}', "run", many=True),
        ),
        annotations=(
            annotation(
                "Alert",
                f"max by (alertname, run, severity) ({FIRING} == 1)",
                ACT,
                "{{alertname}} {{run}} ({{severity}}) is firing",
            ),
        ),
        links=(board_link("Run", "training-run"), board_link("Node", "training-node")),
    )


def _tiles() -> Band:
    return band(
        4,
        (4, _act_now()),
        (4, _look_today()),
        (3, _count(3, "training", "Steps are being made.")),
        (3, _count(4, "validating", "GPUs at 0 % can be normal here.")),
        (3, _count(5, "checkpointing", "A checkpoint is being written.")),
        (3, _not_reporting()),
        (4, _exporters_down()),
    )


def _act_now() -> Json:
    return stat(
        Head(
            1,
            "Stalled, degraded or failed",
            "Runs that a person has to act on: alive and silent past their budget, short of a rank or GPU, or ended by "
            "a failure within the hour.",
            NOBODY,
        ),
        [now(_between("stalled", "failed"))],
        Field(limits=thresholds((1, ACT), base="transparent")),
        fill=True,
    )


def _look_today() -> Json:
    return stat(
        Head(
            2,
            "No progress or unknown",
            "Runs that are busy and make no progress, and those about which a failing source leaves us in the dark.",
            NOBODY,
        ),
        [now(_between("unknown", "no_progress"))],
        Field(limits=thresholds((1, NOTE), base="transparent")),
        fill=True,
    )


def _count(number: int, state_name: str, about: str) -> Json:
    look = BY_STATE[state_name]
    return stat(
        Head(number, look.word, about, NOBODY),
        [now(while_scraped(f"count(({FLEET}) == {look.code})"))],
        Field(limits=thresholds((1, look.colour), base="text")),
    )


def _not_reporting() -> Json:
    gone = BY_STATE["absent"].code
    return stat(
        Head(
            6,
            "Absent or no data",
            "Runs that are expected and not there, and those of which nothing was heard for minutes.",
            NOBODY,
        ),
        [now(while_scraped(f"count(({FLEET}) <= {gone})"))],
        Field(limits=thresholds((1, NOTE), base="text")),
    )


def _exporters_down() -> Json:
    return stat(
        Head(
            7,
            "Exporters down",
            "Targets of the scrape job `training-exporter` that do not answer. Nothing on this screen is "
            "known of their "
            "nodes, whatever the other tiles say.",
            "Prometheus does not answer",
        ),
        [now(f"count({SCRAPED} == 0) or count({SCRAPED}) * 0 or vector({NO_TARGET})")],
        Field(
            limits=thresholds((0, "transparent"), (1, ACT), base=ACT),
            mappings=value_mappings((NO_TARGET, "No target is scraped", ACT)),
        ),
        fill=True,
    )


def _between(least: str, most: str) -> str:
    inside = f"(({FLEET}) >= {BY_STATE[least].code}) <= {BY_STATE[most].code}"
    return while_scraped(f"count({inside})")


def _states() -> Json:
    return bands(
        Head(
            10,
            "State of every run",
            "One band per run, by the rules over all its nodes. Blue is well, yellow is saving, orange and "
            "red are for a "
            "person; grey is not running or not known. A click opens the run.",
            "No run in this time. Is an exporter scraped?",
        ),
        [target(FLEET, "{{run}}")],
        Field(mappings=state_mappings(), links=[run_link("${__field.labels.run:percentencode}")]),
    )


def _below() -> Band:
    return band(9, (12, fleet_table.alerts()), (12, _gpu_hours()))


def _gpu_hours() -> Json:
    return bars(
        Head(
            30,
            "GPU-hours by state, last 24 h",
            "How long the GPUs of the chosen runs were held, by what their run was doing. Stalled and "
            "degraded hours are "
            "waste.",
            "No run in the last 24 h",
        ),
        [now(_hours(look.code), look.word) for look in HOLDING],
        Field("suffix: h", decimals=1, limits=thresholds(base=PLAIN)),
        overrides=[override(look.word, color=fixed(look.colour)) for look in HOLDING],
    )


def _hours(code: int) -> str:
    """Counted in samples a minute apart, for as long as the run was known: an average would stretch a short one."""
    held = f"sum_over_time((run:training_state:code{RECORDED} == bool {code})[24h:{SUBQUERY_SECONDS}s])"
    gpus = f"max by (run) (max_over_time(run:training_gpus:count{RECORDED}[24h]))"
    return f"sum({held} * on (run) group_left () {gpus}) * {SUBQUERY_SECONDS} / 3600"
