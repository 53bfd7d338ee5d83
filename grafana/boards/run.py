"""The one screen of a run: is it progressing, validating or dead, and how do we know."""

from __future__ import annotations

from boards import run_progress, run_resources, run_verdict
from boards.board import Band, Identity, Section, annotation, band, board_link, dashboard, datasource_variable, variable
from boards.panels import ACT, PLAIN, Json
from boards.queries import RUN
from training_exporter.palette import BY_STATE

IDENTITY = Identity(
    uid="training-run",
    title="Training / Run",
    about="Whether one run is progressing, validating or dead: its verdict, every sign of life against its budget, and "
    "what the log, the GPUs and the processes of all its nodes show. Needs prometheus/rules/recording.yml.",
    since="6h",
)


def build() -> Json:
    """The dashboard `training-run`."""
    return dashboard(
        IDENTITY,
        (
            Section(0, "", _verdict()),
            Section(101, "Progress", _progress()),
            Section(102, "Checkpoints and log", _saved()),
            Section(103, "GPUs", _gpus()),
            Section(104, "Processes", _processes()),
        ),
        variables=(
            datasource_variable(),
            variable("job", "Scrape job", "training_exporter_build_info", "job", many=True),
            variable("run", "Run", 'training_run_info{job=~"$job"}', "run", many=False),
            variable("node", "Node", 'training_run_info{run="$run"}', "instance", many=True),
        ),
        annotations=_annotations(),
        links=(board_link("Fleet", "training-fleet"), board_link("Node", "training-node")),
    )


def _verdict() -> tuple[Band, ...]:
    return (
        band(
            4,
            (5, run_verdict.verdict()),
            (4, run_verdict.silent_for()),
            (4, run_verdict.silence_used_up()),
            (4, run_verdict.progress_used_up()),
            (3, run_verdict.done()),
            (4, run_verdict.at_risk()),
        ),
        band(6, (24, run_verdict.states())),
        band(4, (7, run_verdict.cause()), (11, run_verdict.hard_facts()), (6, run_verdict.sight())),
        band(9, (10, run_verdict.signs_of_life()), (14, run_verdict.silence())),
    )


def _progress() -> tuple[Band, ...]:
    return (
        band(
            4,
            (5, run_progress.step_now()),
            (4, run_progress.epoch()),
            (4, run_progress.phase_progress()),
            (4, run_progress.speed()),
            (4, run_progress.time_left()),
            (3, run_progress.restarts()),
        ),
        band(8, (12, run_progress.steps()), (12, run_progress.steps_per_second())),
        band(9, (12, run_progress.validation_metrics()), (12, run_progress.losses())),
    )


def _saved() -> tuple[Band, ...]:
    return (
        band(8, (8, run_progress.checkpoint_age()), (8, run_progress.checkpoint_size()), (8, run_progress.log_lines())),
        band(7, (12, run_progress.bad_messages()), (12, run_progress.newest_values())),
    )


def _gpus() -> tuple[Band, ...]:
    return (
        band(8, (12, run_resources.busy_and_working()), (12, run_resources.effort())),
        band(8, (12, run_resources.power()), (12, run_resources.memory())),
    )


def _processes() -> tuple[Band, ...]:
    return (
        band(
            8,
            (8, run_resources.cores()),
            (8, run_resources.reads_and_writes()),
            (8, run_resources.processes()),
        ),
        band(9, (14, run_resources.ranks()), (10, run_resources.process_states())),
    )


def _annotations() -> tuple[Json, ...]:
    return (
        annotation(
            "Checkpoint saved",
            f"max(changes(training_checkpoint_last_timestamp_seconds{RUN}[$__rate_interval])) > 0"
            f" or max(delta(training_checkpoints{RUN}[$__rate_interval])) > 0",
            BY_STATE["checkpointing"].colour,
            "A checkpoint was completed",
        ),
        annotation(
            "Validation result",
            f"max(increase(training_validations_total{RUN}[$__rate_interval])) > 0",
            BY_STATE["validating"].colour,
            "A validation result was read",
        ),
        annotation(
            "Workers replaced",
            f"max(increase(training_run_restarts_total{RUN}[$__rate_interval])) > 0",
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
