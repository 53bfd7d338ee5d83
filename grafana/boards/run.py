"""The one screen of a run: is it progressing, validating or dead, and how do we know."""

from __future__ import annotations

from boards.board import Section, annotation, band, board_link, dashboard, datasource_variable, node_link, variable
from boards.panels import (
    ACT,
    CALM,
    NOTE,
    NOT_AVAILABLE_MAPPING,
    PLAIN,
    Json,
    bands,
    column,
    fixed,
    now,
    override,
    override_matching,
    series,
    stat,
    state_mappings,
    table,
    target,
    thresholds,
)
from boards.queries import HERE, RUN, age, or_not_available, state
from training_exporter.palette import BY_STATE

UID = "training-run"
TITLE = "Training / Run"

IDLE = f"max by (run) (run:training_idle:seconds{RUN})"
NO_PROGRESS = f"max by (run) (run:training_no_progress:seconds{RUN})"
KNOWN = state(RUN)
# From here on half of what the run may take is gone.
HALF = 0.5
SHARE = thresholds((HALF, NOTE), (1, ACT))


def build() -> Json:
    """The dashboard `training-run`."""
    return dashboard(
        UID,
        TITLE,
        "Whether one run is progressing, validating or dead: its verdict, every sign of life against its budget, and "
        "what the log, the GPUs and the processes of all its nodes show. Needs prometheus/rules/recording.yml.",
        (
            Section(0, "", (_verdict(), _phases(), _evidence())),
            Section(1, "Progress", _progress()),
            Section(2, "Checkpoints and log", _saved()),
            Section(3, "GPUs", _gpus()),
            Section(4, "Processes", _processes()),
        ),
        variables=(
            datasource_variable(),
            variable("job", "Scrape job", "training_exporter_build_info", "job", many=True),
            variable("run", "Run", 'training_run_info{job=~"$job"}', "run", many=False),
            variable("node", "Node", 'training_run_info{run="$run"}', "instance", many=True),
        ),
        annotations=_annotations(),
        links=(board_link("Fleet", "training-fleet"), board_link("Node", "training-node")),
        since="6h",
    )


def budget(which: str) -> str:
    """The run's budget, in seconds."""
    return f'max by (run) (run:training_budget:seconds{{run="$run", budget="{which}"}})'


def _verdict() -> object:
    return band(
        4,
        (
            5,
            stat(
                10,
                "Verdict",
                "What the rules make of all nodes of this run. Validating with idle GPUs is fine; Stalled is alive and "
                "silent past its budget; Degraded has lost a rank, a GPU, its memory or a finite loss.",
                [now(state(RUN), "{{run}}")],
                unit="none",
                empty="No series of this run",
                mappings=state_mappings(),
                fill=True,
            ),
        ),
        (
            4,
            stat(
                11,
                "Silent for",
                "Time since anything of the run moved: progress, GPU work, reading, writing or computing, on any node.",
                [now(IDLE)],
                unit="s",
                empty="No sign of life recorded",
                decimals=0,
            ),
        ),
        (
            4,
            stat(
                12,
                "Silence used up",
                "Silence as a share of what this phase may take, learnt from the run or configured. At 100 % the run "
                "is stalled and TrainingStalled pages.",
                [now(f"{IDLE} / on (run) {budget('idle')}")],
                unit="percentunit",
                empty="No budget recorded",
                limits=SHARE,
                decimals=0,
            ),
        ),
        (
            4,
            stat(
                13,
                "No progress, used up",
                "Time since a step, validation result, checkpoint byte or new log line, as a share of what this phase "
                "may take. At 100 % a run that is still busy makes no progress.",
                [now(f"{NO_PROGRESS} / on (run) {budget('progress')}")],
                unit="percentunit",
                empty="No budget recorded",
                limits=SHARE,
                decimals=0,
            ),
        ),
        (
            3,
            stat(
                14,
                "Done",
                "Step of the announced number of steps, on the scale of the log: of the epoch where the log counts so.",
                [now(or_not_available(f"max(training_step{RUN}) / max(training_steps_target{RUN})", KNOWN, ""))],
                unit="percentunit",
                empty="No step read",
                mappings=[NOT_AVAILABLE_MAPPING],
                decimals=1,
            ),
        ),
        (
            4,
            stat(
                15,
                "GPU time at risk",
                "GPU-hours since the last complete checkpoint, or since the workers started: lost if the run ends now.",
                [now(f"max by (run) (run:training_at_risk:gpu_seconds{RUN}) / 3600", "GPU-hours")],
                unit="h",
                empty="No GPU or start known",
                decimals=1,
            ),
        ),
    )


def _phases() -> object:
    return band(
        6,
        (
            24,
            bands(
                20,
                "State of the run and of each node",
                "The first band is the verdict on the whole run, each other one what that node sees by itself. A band "
                "that differs from the rest is the node to look at.",
                [
                    target(state(RUN), "whole run"),
                    target(f"max by (instance) (training_run_state_code{HERE})", "{{instance}}"),
                ],
                empty="No series of this run in this time",
                mappings=state_mappings(),
                links=[node_link("${__field.labels.instance:percentencode}")],
            ),
        ),
    )


def _evidence() -> object:
    signals = f'training_activity_timestamp_seconds{RUN}'
    progress = f'training_activity_timestamp_seconds{{run="$run", signal=~"step|validation|checkpoint|log"}}'
    return band(
        9,
        (
            10,
            table(
                30,
                "Signs of life",
                "When each sign last moved. The youngest of all is the silence, the youngest of step, validation, "
                "checkpoint and log is the lack of progress. A sign that is not listed never moved.",
                [
                    column(age(signals, "signal")),
                    column(f"{age(signals, 'signal')} / scalar({budget('idle')})"),
                    column(
                        or_not_available(
                            f"{age(progress, 'signal')} / scalar({budget('progress')})", age(signals, "signal"), "signal"
                        )
                    ),
                ],
                names={
                    "signal": "Sign",
                    "Value #A": "Moved ago",
                    "Value #B": "Of the silence allowed",
                    "Value #C": "Of the lack of progress allowed",
                },
                empty="No sign of life recorded",
                overrides=[
                    override("Moved ago", unit="s", decimals=0),
                    override_matching("^Of the", unit="percentunit", decimals=0, thresholds=SHARE),
                ],
            ),
        ),
        (
            14,
            series(
                31,
                "Silence and lack of progress against their budgets",
                "Lines that rise without a break are a run in which nothing moves. A slow validation that reads, "
                "computes or prints falls back to 0 again and again; a dead one crosses its budget.",
                [
                    target(IDLE, "silent for"),
                    target(budget("idle"), "silence allowed"),
                    target(NO_PROGRESS, "without progress for"),
                    target(budget("progress"), "lack of progress allowed"),
                ],
                unit="s",
                empty="No sign of life recorded",
                overrides=[
                    override("silent for", color=fixed(ACT), custom__fillOpacity=15),
                    override("silence allowed", color=fixed(ACT), custom__lineStyle={"fill": "dash", "dash": [10, 10]}),
                    override("without progress for", color=fixed(CALM)),
                    override(
                        "lack of progress allowed",
                        color=fixed(CALM),
                        custom__lineStyle={"fill": "dash", "dash": [10, 10]},
                    ),
                ],
            ),
        ),
    )


def _progress() -> tuple:
    rate = f"max(rate(training_steps_total{RUN}[$__rate_interval]))"
    return ()


def _saved() -> tuple:
    return ()


def _gpus() -> tuple:
    return ()


def _processes() -> tuple:
    return ()


def _annotations() -> tuple[Json, ...]:
    return (
        annotation(
            "Checkpoint saved",
            f"max(changes(training_checkpoint_last_timestamp_seconds{RUN}[1m])) > 0",
            BY_STATE["checkpointing"].colour,
            "A checkpoint was completed",
        ),
        annotation(
            "Validation result",
            f"max(increase(training_validations_total{RUN}[1m])) > 0",
            BY_STATE["validating"].colour,
            "A validation result was read",
        ),
        annotation(
            "Workers replaced",
            f"max(increase(training_run_restarts_total{RUN}[1m])) > 0",
            PLAIN,
            "The launcher started its workers anew",
        ),
        annotation(
            "Alert",
            'max by (alertname, severity) (ALERTS{alertstate="firing", run="$run"})',
            ACT,
            "{{alertname}} ({{severity}}) is firing",
        ),
    )
