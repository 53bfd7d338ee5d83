"""What the judgement publishes: one immutable picture of the node, from which every output is drawn.

Times are on the steady scale (see `model`); the outputs add `wall_shift_seconds`. None or a missing key = absent
series. Field names follow the metric names of `catalogue` without the prefix `training_` and without `run_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from training_exporter.model import GpuDevice, Health, ProcessState, SourceName


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of a run as this node sees it (codes in `verdict.CODES`), and why."""

    state: str  # finished, failed, degraded, stalled, no_progress, unknown, quiet, checkpointing, ...
    code: int
    cause: str = ""  # of a stall: stopped, storage, collective, host; of degraded: rank, gpu, loss, memory
    since_seconds: float | None = None
    sentence: str = ""  # for a person


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A parsed quality metric: the newest printed value and when it was read."""

    value: float
    time_seconds: float


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank of a run on this node."""

    rank: int
    local_rank: int
    gpu: str | None
    up: bool
    pid: int | None
    state: ProcessState | None
    cpu_seconds_total: float | None
    wait_channel: str | None = None


@dataclass(frozen=True, slots=True)
class LogView:
    """The log of a run; absent as a whole where none was ever readable."""

    lines_total: int
    bytes_total: int
    redraws_total: int
    last_line_seconds: float | None
    unread_bytes: int
    dropped_bytes_total: int
    opens_total: int = 0
    rotations_total: int = 0
    truncations_total: int = 0
    messages_total: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (message, class)
    last_message_seconds: Mapping[str, float] = field(default_factory=dict)  # class
    last_line: str | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """The checkpoints of a run; absent as a whole until a directory is known."""

    count: int
    last_seconds: float | None = None  # steady scale
    last_wall_seconds: float | None = None  # the file's own mtime, exported as it is
    last_bytes: int | None = None
    last_step: int | None = None
    last_name: str | None = None
    in_progress: bool = False
    in_progress_bytes: int | None = None
    interval_seconds: float | None = None
    directories: tuple[str, ...] = ()
    not_checkpoints: tuple[str, ...] = ()  # names that lie there and are none


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as this node sees it. Signals and budgets are keyed by the label values of the metrics."""

    name: str
    launcher: str
    script: str
    job_id: str
    node_rank: str
    paging: bool
    alive: bool
    verdict: Verdict

    start_seconds: float | None = None
    end_seconds: float | None = None
    observed_since_seconds: float | None = None
    processes: Mapping[str, int] = field(default_factory=dict)  # role
    workers_expected: int | None = None
    process_states: Mapping[str, int] = field(default_factory=dict)  # state
    disk_sleep_seconds: float | None = None
    stopped_seconds: float | None = None
    cpu_seconds_total: Mapping[str, float] = field(default_factory=dict)  # role
    read_bytes_total: float | None = None
    written_bytes_total: float | None = None
    restarts_total: int = 0
    restarts_without_progress: int = 0
    outcome: str | None = None  # finished, failed, cancelled, unknown; None while alive
    ranks: tuple[RankView, ...] = ()
    gpus: tuple[str, ...] = ()  # labels of the run's GPUs, a lost one included
    gpu_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    shared_gpus: tuple[str, ...] = ()  # used by a process outside the run too

    log: LogView | None = None
    phase: str | None = None  # starting, training, validating, checkpointing, done; None = not exported
    phase_start_seconds: float | None = None
    phase_progress_ratio: float | None = None
    step: int | None = None
    steps_target: int | None = None
    steps_total: int | None = None
    epoch: float | None = None
    epochs_target: float | None = None
    step_interval_seconds: float | None = None
    loss_nonfinite_streak: int | None = None
    metrics: Mapping[tuple[str, str], MetricValue] = field(default_factory=dict)  # (split, metric)
    metrics_updated_seconds: Mapping[str, float] = field(default_factory=dict)  # split
    metrics_nonfinite_total: Mapping[str, int] = field(default_factory=dict)  # split
    validations_total: int | None = None
    metrics_dropped_total: int = 0  # new names past the ceiling

    checkpoints: CheckpointView | None = None

    activity_seconds: Mapping[str, float] = field(default_factory=dict)  # signal
    budgets_seconds: Mapping[str, float] = field(default_factory=dict)  # idle, progress
    blind: Mapping[SourceName, bool] = field(default_factory=dict)
    absent: Mapping[SourceName, bool] = field(default_factory=dict)
    idle_seconds: float | None = None
    no_progress_seconds: float | None = None
    weak_evidence: tuple[str, ...] = ()  # words for a person
    hints: tuple[str, ...] = ()
    last_phase_seconds: float | None = None  # how long the last completed phase of the present kind took


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU, sampled at 1 Hz; means are over the last few seconds."""

    device: GpuDevice
    lost: bool
    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    busy_seconds_total: float | None = None
    working_seconds_total: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules_total: float | None = None
    effort_ratio: float | None = None
    idle_watts: float | None = None  # learnt
    train_watts: float | None = None  # learnt
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    clock_events: Mapping[str, bool] = field(default_factory=dict)  # reason -> active
    xid_errors_total: Mapping[int, int] = field(default_factory=dict)
    xid_last_seconds: float | None = None
    last_working_seconds: float | None = None
    unowned_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeView:
    """Everything the exporter knows of this node at `time_seconds`."""

    time_seconds: float
    wall_shift_seconds: float
    runs: tuple[RunView, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    health: Mapping[SourceName, Health] = field(default_factory=dict)
