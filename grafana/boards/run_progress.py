"""What the log, the checkpoints and the parsed metrics of a run say."""

from __future__ import annotations

from boards.panels import (
    DASHED,
    NOT_AVAILABLE_MAPPING,
    PLAIN,
    Field,
    Head,
    Json,
    column,
    fixed,
    now,
    override,
    series,
    stat,
    table,
    target,
)
from boards.queries import RUN, RUN_STATE, or_not_available

LEFT = f"(max by (run) (training_steps_target{RUN}) - max by (run) (training_step{RUN}))"
INTERVAL = f"max by (run) (training_step_interval_seconds{RUN})"
RATE = f"max by (run) (rate(training_steps_total{RUN}[10m]))"
LOSSES = ".*loss.*"
MESSAGES = 'training_log_messages_total{run="$run", class=~"suspect|fatal"}'
BAD = f"sum by (message, class) ({MESSAGES}) > 0"


def step_now() -> Json:
    """The newest step."""
    return stat(
        Head(40, "Step", "As the log counts it; may start again with each epoch.", "No step read"),
        [
            now(f"max by (run) (training_step{RUN})", "step"),
            now(or_not_available(f"max by (run) (training_steps_target{RUN})", RUN_STATE), "of"),
        ],
        Field(unit="locale", mappings=[NOT_AVAILABLE_MAPPING]),
    )


def epoch() -> Json:
    """The newest epoch."""
    return stat(
        Head(41, "Epoch", "Counted from 0.", "No series of this run"),
        [
            now(or_not_available(f"max by (run) (training_epoch{RUN})", RUN_STATE), "epoch"),
            now(or_not_available(f"max by (run) (training_epochs_target{RUN})", RUN_STATE), "of"),
        ],
        Field(unit="none", mappings=[NOT_AVAILABLE_MAPPING], decimals=0),
    )


def phase_progress() -> Json:
    """How far the phase is."""
    return stat(
        Head(
            42,
            "This phase",
            "Progress within the phase, where the log tells, such as a validation bar.",
            "No series of this run",
        ),
        [now(or_not_available(f"max by (run) (training_phase_progress_ratio{RUN})", RUN_STATE))],
        Field(unit="percentunit", mappings=[NOT_AVAILABLE_MAPPING], decimals=0),
    )


def speed() -> Json:
    """Speed in units of the median one."""
    return stat(
        Head(
            43,
            "Speed against its own median",
            "Steps of the last 10 minutes against the median of this set of workers. 0 % while validating.",
            "No series of this run",
        ),
        [now(or_not_available(f"{RATE} * on (run) {INTERVAL}", RUN_STATE))],
        Field(unit="percentunit", mappings=[NOT_AVAILABLE_MAPPING], decimals=0),
    )


def time_left() -> Json:
    """How long the announced steps take."""
    return stat(
        Head(
            44,
            "Time left at that median",
            "Steps left of those the log announces, times the median step; validations are not in it.",
            "No series of this run",
        ),
        [now(or_not_available(f"({LEFT} >= 0) * on (run) {INTERVAL}", RUN_STATE))],
        Field(unit="s", mappings=[NOT_AVAILABLE_MAPPING]),
    )


def restarts() -> Json:
    """How often the workers were replaced."""
    return stat(
        Head(45, "Workers replaced", "How often the launcher replaced the set of workers.", "No series of this run"),
        [now(f"max by (run) (training_run_restarts_total{RUN})")],
        Field(unit="none"),
    )


def steps() -> Json:
    """Steps over time."""
    return series(
        Head(
            46,
            "Steps over time",
            "A flat stretch is validation, checkpoint or trouble: the band above says which.",
            "No step read",
        ),
        [
            target(f"max by (run) (training_step{RUN})", "step"),
            target(f"max by (run) (training_steps_target{RUN})", "announced"),
        ],
        Field(unit="locale", least=0),
        overrides=[override("announced", **DASHED, color=fixed(PLAIN))],
    )


def steps_per_second() -> Json:
    """Speed over time."""
    return series(
        Head(47, "Steps per second", "Against the median of this set of workers.", "No step read"),
        [
            target(f"max by (run) (rate(training_steps_total{RUN}[$__rate_interval]))", "now"),
            target(f"1 / {INTERVAL}", "median"),
        ],
        Field(unit="suffix: steps/s", least=0),
        overrides=[override("median", **DASHED, color=fixed(PLAIN))],
    )


def validation_metrics() -> Json:
    """Validation metrics over time."""
    return series(
        Head(
            48,
            "Validation metrics",
            "Every metric that the log printed for the validation or test split, losses apart.",
            "No validation result read",
        ),
        [
            target(
                "max by (split, metric) (training_metric_value"
                f'{{run="$run", split=~"validation|test", metric!~"{LOSSES}"}})',
                "{{split}} {{metric}}",
            )
        ],
        Field(unit="short"),
        step=True,
    )


def losses() -> Json:
    """Losses over time."""
    return series(
        Head(
            49,
            "Losses",
            "Every loss that the log printed. A value that is not finite leaves a gap and counts above.",
            "No loss read",
        ),
        [
            target(
                f'max by (split, metric) (training_metric_value{{run="$run", metric=~"{LOSSES}"}})',
                "{{split}} {{metric}}",
            )
        ],
        Field(unit="short"),
    )


def checkpoint_age() -> Json:
    """What is not saved over time."""
    return series(
        Head(
            60,
            "Age of the last complete checkpoint",
            "Against the typical interval of this run. What is younger than the checkpoint is lost if the "
            "run ends now.",
            "No checkpoint and no start known",
        ),
        [
            target(f"min by (run) (training_checkpoint_age_seconds{RUN})", "age"),
            target(f"max by (run) (run:training_unsaved:seconds{RUN})", "unsaved work"),
            target(f"max by (run) (training_checkpoint_interval_seconds{RUN})", "typical interval"),
        ],
        Field(unit="s", least=0),
        overrides=[override("typical interval", **DASHED, color=fixed(PLAIN))],
    )


def checkpoint_size() -> Json:
    """Sizes over time, that of a checkpoint in progress too."""
    return series(
        Head(
            61,
            "Size of checkpoints",
            "The last complete one, and the one that is being written; a line that rises is being written.",
            "No checkpoint seen",
        ),
        [
            target(f"max by (run) (training_checkpoint_last_bytes{RUN})", "last complete"),
            target(
                f"max by (run) (training_checkpoint_in_progress_bytes{RUN})"
                f" or max by (run) (training_checkpoint_in_progress{RUN} == 0)",
                "being written",
            ),
        ],
        Field(unit="bytes", least=0),
    )


def log_lines() -> Json:
    """Log-line rate over time."""
    return series(
        Head(
            62,
            "Log lines per second",
            "Lines of every log of the run, and redraws of its progress bars.",
            "No log is readable",
        ),
        [
            target(f"sum(rate(training_log_lines_total{RUN}[$__rate_interval]))", "lines"),
            target(f"sum(rate(training_log_redraws_total{RUN}[$__rate_interval]))", "redraws"),
        ],
        Field(unit="suffix: /s", least=0),
    )


def bad_messages() -> Json:
    """Known messages of the worse classes."""
    return table(
        Head(
            63,
            "Suspect and fatal messages",
            "Known messages that the log printed since the exporter follows it.",
            "No log is readable",
        ),
        [
            column(
                f'({BAD}) or label_replace(sum by (class) ({MESSAGES}) * 0, "message", "none", "", "")'
                f" unless on () ({BAD})"
            )
        ],
        names={"message": "Message", "class": "Class", "Value": "Count"},
        sort=("Count", "desc"),
    )


def newest_values() -> Json:
    """Every parsed metric now."""
    return table(
        Head(64, "Newest values that the log printed", "Every parsed metric of the run.", "No value read"),
        [column(f"max by (split, metric) (training_metric_value{RUN})")],
        names={"split": "Split", "metric": "Metric", "Value": "Value"},
    )
