"""The one table of metrics: exposition, documentation, golden file and dashboard checks derive from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from training_exporter.model import PROCESS_STATES, SOURCES

ROLES = ("launcher", "worker", "loader", "other")
OUTCOMES = ("finished", "failed", "cancelled", "unknown")
PHASES = ("starting", "training", "validating", "checkpointing", "done")
SIGNALS = ("step", "validation", "checkpoint", "log", "gpu", "io", "cpu")
BUDGETS = ("idle", "progress")

LABELS: Mapping[str, str] = {
    "run": "Name of the run, the same on every node of it.",
    "gpu": "NVML index; a MIG instance is `0:1`. Unique on the node.",
    "rank": "Global rank of a worker process.",
    "local_rank": "Rank of a worker on its node.",
    "role": f"What a process is to its run: {', '.join(ROLES)}.",
    "state": f"State of a process: {', '.join(PROCESS_STATES)}.",
    "phase": f"What the run is doing: {', '.join(PHASES)}.",
    "signal": f"A sign of life: {', '.join(SIGNALS)}; the first four are progress.",
    "split": "Which data a parsed metric was computed on: train, validation, test.",
    "metric": "Normalised name of a parsed metric, for example `full_acc_0`.",
    "message": "Name of a known log message.",
    "class": "How bad a message is: benign, suspect, fatal.",
    "reason": "Why the driver lowered the clocks.",
    "xid": "Number of a critical driver error.",
    "source": f"Where knowledge comes from: {', '.join(SOURCES)}.",
    "collector": f"The worker of a source: {', '.join(SOURCES)}.",
    "budget": f"Which of the two clocks: {', '.join(BUDGETS)}.",
    "outcome": f"How the run ended: {', '.join(OUTCOMES)}.",
}


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One row: a metric family as it is exposed."""

    group: str
    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    help: str


def _rows(group: str, *rows: tuple[str, str, str]) -> tuple[MetricSpec, ...]:
    """Rows (name, labels separated by blanks, help); a name that ends in `_total` is a counter."""
    return tuple(
        MetricSpec(group, name, "counter" if name.endswith("_total") else "gauge", tuple(labels.split()), text)
        for name, labels, text in rows
    )


_RUN = _rows(
    "Run and processes",
    ("training_run_info", "run launcher script job_id node_rank", "What a run is; always 1."),
    (
        "training_run_paging",
        "run",
        "1 if alerts may page for this run, 0 if its configuration says `page: false`; guards every run alert.",
    ),
    ("training_run_start_time_seconds", "run", "Unix time at which the run started. Absent until it was seen alive."),
    ("training_run_end_time_seconds", "run", "Unix time at which the run ended. Absent while it is alive."),
    (
        "training_run_observed_since_timestamp_seconds",
        "run",
        "Unix time since when this node watches the run without a gap of over 60 s, at the earliest the run's start.",
    ),
    (
        "training_run_processes",
        "run role",
        (
            "Living processes of the run on this node; 0 for an expected run that is absent and for one that ended, "
            "until it is forgotten after an hour. Absent while the process table cannot be read."
        ),
    ),
    ("training_run_workers_expected", "run", "Workers that the launcher should run on this node. Absent if unknown."),
    (
        "training_run_process_state",
        "run state",
        "Launcher and workers by process state. Absent while the process table cannot be read, and after the end.",
    ),
    (
        "training_run_disk_sleep_seconds",
        "run",
        "Longest unbroken disk sleep (state D) of a process of the run now, 0 if none. Absent after the end.",
    ),
    (
        "training_run_stopped_seconds",
        "run",
        "Longest unbroken stop (state T) of a process of the run now, 0 if none. Absent after the end.",
    ),
    (
        "training_run_cpu_seconds_total",
        "run role",
        "CPU time of the run's processes, processes that ended included. Absent where /proc may not be read.",
    ),
    (
        "training_run_read_bytes_total",
        "run",
        "Bytes read by system calls of the whole process tree, page cache included. Absent without the right to know.",
    ),
    (
        "training_run_written_bytes_total",
        "run",
        "Bytes written by system calls of the whole process tree. Absent without the right to know.",
    ),
    ("training_run_restarts_total", "run", "How often the set of workers was replaced, a new launcher included."),
    (
        "training_run_restarts_without_progress",
        "run",
        "Replacements of the workers in a row that made no step beyond the one before.",
    ),
    ("training_run_outcome", "run outcome", "All 0 while the run is alive; 1 on exactly one outcome after its end."),
    ("training_rank_info", "run rank local_rank gpu", "Which GPU a rank uses, empty if unknown; always 1."),
    (
        "training_rank_up",
        "run rank",
        "0 once a rank was dead, zombie or gone for 60 s under a living launcher, until workers are replaced; else 1.",
    ),
    ("training_rank_cpu_seconds_total", "run rank", "CPU time of a rank. Absent where /proc may not be read."),
)

_GPU = _rows(
    "GPU",
    ("training_gpu_info", "gpu uuid name pci_bus_id driver_version", "What a GPU is; always 1."),
    (
        "training_gpu_utilization_ratio",
        "gpu",
        (
            "Share of time in which a kernel was resident, 0-1, mean of the last seconds. Resident is not working: a "
            "hung collective reads 1. Absent where the driver cannot say (MIG) and while the GPU source fails."
        ),
    ),
    (
        "training_gpu_memory_utilization_ratio",
        "gpu",
        "Share of time in which device memory was read or written, 0-1, mean of the last seconds. Absent as above.",
    ),
    ("training_gpu_busy_seconds_total", "gpu", "Time in which a kernel was resident, from samples once a second."),
    (
        "training_gpu_working_seconds_total",
        "gpu",
        "Time in which the GPU did work by power and memory traffic; busy without working is spinning.",
    ),
    ("training_gpu_power_watts", "gpu", "Power drawn, mean of the last seconds. Absent where the driver cannot say."),
    ("training_gpu_power_limit_watts", "gpu", "Power limit enforced now. Absent where the driver cannot say."),
    ("training_gpu_energy_joules_total", "gpu", "Energy used since the driver was loaded. Absent on older GPUs."),
    (
        "training_gpu_effort_ratio",
        "gpu",
        "Power between the learnt levels at rest (0) and in training (1). Absent until both are known and 40 W apart.",
    ),
    ("training_gpu_memory_used_bytes", "gpu", "Device memory in use by any process."),
    ("training_gpu_memory_total_bytes", "gpu", "Device memory installed."),
    ("training_gpu_temperature_celsius", "gpu", "Temperature of the GPU core. Absent where the driver cannot say."),
    ("training_gpu_sm_clock_hertz", "gpu", "Clock of the multiprocessors now. Absent where the driver cannot say."),
    (
        "training_gpu_clock_event_active",
        "gpu reason",
        "1 while the driver lowers the clocks for this reason, else 0. Absent for reasons the driver cannot report.",
    ),
    ("training_gpu_xid_errors_total", "gpu xid", "Critical driver errors seen since the exporter started, by number."),
    (
        "training_gpu_xid_last_timestamp_seconds",
        "gpu",
        "Unix time of the last critical driver error, because a new counter series has no zero. Absent until one came.",
    ),
    (
        "training_gpu_last_working_timestamp_seconds",
        "gpu",
        "Unix time at which the GPU last did work: tells which fell silent first. Absent until it did.",
    ),
    (
        "training_gpu_unowned_memory_bytes",
        "gpu",
        "Device memory held by no process of this node. Absent where the list of processes cannot be read.",
    ),
    ("training_gpu_lost", "gpu", "1 when the driver says that the GPU is lost or the device vanished, else 0."),
    ("training_run_gpu_info", "run gpu", "Joins GPU series to runs; always 1. Stays while the GPU is lost."),
    ("training_run_gpu_memory_bytes", "run gpu", "Device memory held by the run. Absent where the driver hides it."),
)

_LOG = _rows(
    "Log and progress",
    ("training_log_lines_total", "run", "Lines read from the run's logs. Absent as long as no log is readable."),
    ("training_log_bytes_total", "run", "Bytes read from the run's logs."),
    ("training_log_redraws_total", "run", "Carriage-return redraws of progress bars, which are not counted as lines."),
    ("training_log_last_line_timestamp_seconds", "run", "Unix time at which the last line was read."),
    (
        "training_log_messages_total",
        "run message class",
        "Known messages read; the suspect and fatal ones are there at 0 once the run has a log.",
    ),
    (
        "training_log_last_message_timestamp_seconds",
        "run class",
        "Unix time of the last known message of a class. Absent until one came.",
    ),
    ("training_log_unread_bytes", "run", "Bytes written to the logs and not yet read; near 0 in normal use."),
    ("training_log_dropped_bytes_total", "run", "Bytes of the logs that were skipped unread; 0 in normal use."),
    ("training_log_opens_total", "run", "Log files opened, again after a rotation included."),
    ("training_log_rotations_total", "run", "Log files that were replaced under the same name."),
    ("training_log_truncations_total", "run", "Log files that were cut and begun again."),
    (
        "training_phase",
        "run phase",
        (
            "1 on the phase the run is in. Absent on a node whose own sources never showed a step, validation, epoch "
            "or end of a run of several nodes."
        ),
    ),
    ("training_phase_start_time_seconds", "run", "Unix time at which the phase began. Absent with the phase."),
    ("training_phase_progress_ratio", "run", "Progress within the phase, 0-1. Absent unless the log tells."),
    (
        "training_step",
        "run",
        "Step as the log counts it; may start again with each epoch. Absent until one was read.",
    ),
    ("training_steps_target", "run", "Steps the log announces, on the scale of training_step. Absent if it does not."),
    ("training_epoch", "run", "Epoch as the log counts it, made 0-based. Absent until one was read."),
    ("training_epochs_target", "run", "Epochs the log announces. Absent if it does not."),
    ("training_steps_total", "run", "Steps by which the run was seen to advance. Absent until one was read."),
    (
        "training_step_interval_seconds",
        "run",
        "Median time between two steps of this set of workers. Absent until some were seen.",
    ),
    (
        "training_loss_nonfinite_streak",
        "run",
        "Records in a row whose loss was NaN or infinite, 0 after a finite one. Absent until a loss was read.",
    ),
    (
        "training_metric_value",
        "run split metric",
        "Newest value of a metric parsed from the log. Absent while the newest value is not finite.",
    ),
    (
        "training_metric_last_update_timestamp_seconds",
        "run split",
        "Unix time at which a value of this split was last read.",
    ),
    ("training_validations_total", "run", "Validations whose result was read. Absent as long as no log is readable."),
    ("training_metric_nonfinite_total", "run split", "Parsed values that were NaN or infinite."),
    ("training_metric_dropped_total", "run", "Values not exported because the run has too many metric names."),
)

_CHECKPOINT = _rows(
    "Checkpoints",
    (
        "training_checkpoint_last_timestamp_seconds",
        "run",
        "Modification time of the last complete checkpoint, on the file system's clock. Absent until there is one.",
    ),
    (
        "training_checkpoint_age_seconds",
        "run",
        "Age of the last complete checkpoint; safe where the clocks of storage and scraper differ.",
    ),
    ("training_checkpoint_last_bytes", "run", "Size of the last complete checkpoint."),
    ("training_checkpoint_last_step", "run", "Step of the last complete checkpoint. Absent if nothing tells it."),
    ("training_checkpoints", "run", "Complete checkpoints. 0 once a directory is known, absent before."),
    ("training_checkpoint_in_progress", "run", "1 while a checkpoint is being written, else 0."),
    ("training_checkpoint_in_progress_bytes", "run", "Size so far of the checkpoint being written. Absent if none is."),
    ("training_checkpoint_interval_seconds", "run", "Typical time between checkpoints. Absent until two were seen."),
)

_JUDGEMENT = _rows(
    "Judgement inputs",
    (
        "training_activity_timestamp_seconds",
        "run signal",
        "Unix time at which a sign of life last moved; kept over restarts of the exporter, absent until it moved.",
    ),
    (
        "training_exporter_time_seconds",
        "",
        "The node's clock at the scrape; ages are taken on it, so that skew and slow scrapes do not matter.",
    ),
    (
        "training_budget_seconds",
        "run budget",
        "How long the run may stay without activity (idle) or progress in this phase, learnt or configured.",
    ),
    (
        "training_run_blind",
        "run source",
        "1 while a source that once gave this run a signal fails, 0 while it works. Absent if it never gave one.",
    ),
    (
        "training_run_absent",
        "run source",
        "1 while a source never gave this run anything (no readable log, MIG, no driver). Shown, never alerted on.",
    ),
    (
        "training_run_state_code",
        "run",
        (
            "Verdict from this node's view: 100 failed, 90 degraded, 80 stalled, 70 no progress, 65 unknown, 60 quiet, "
            "50 checkpointing, 40 validating, 30 training, 20 starting, 15 ended, 10 finished, 5 absent, 0 no data."
        ),
    ),
)

_EXPORTER = _rows(
    "Exporter",
    ("training_exporter_build_info", "version python_version", "Version of the exporter; always 1."),
    (
        "training_exporter_collector_success",
        "collector",
        "1 if the last call of a source succeeded and is not past its deadline. Absent for a source switched off.",
    ),
    ("training_exporter_collector_stuck", "collector", "1 while the running call of a source is past its deadline."),
    (
        "training_exporter_collector_duration_seconds",
        "collector",
        "Duration of the last call that ended. Absent until one did.",
    ),
    (
        "training_exporter_collector_last_success_timestamp_seconds",
        "collector",
        "Unix time of the last call that succeeded. Absent until one did.",
    ),
    (
        "training_exporter_series_dropped",
        "",
        "Series left out of this scrape, because a run or the node has more than the ceiling; 0 in normal use.",
    ),
    (
        "training_exporter_config_last_reload_successful",
        "",
        "1 if the configuration in force is the one last asked for, 0 if its last reload failed.",
    ),
    (
        "training_exporter_config_last_reload_success_timestamp_seconds",
        "",
        "Unix time of the last successful load of the configuration.",
    ),
)

CATALOGUE: tuple[MetricSpec, ...] = (*_RUN, *_GPU, *_LOG, *_CHECKPOINT, *_JUDGEMENT, *_EXPORTER)

BY_NAME: Mapping[str, MetricSpec] = {spec.name: spec for spec in CATALOGUE}
