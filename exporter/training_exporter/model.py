"""The records that cross a border between two parts of the exporter.

All are frozen and slotted, carry the unit in the field name, and say None where nothing is known: zero is data.
Times named `*_seconds` without further words are on the steady scale of `clock.Clock.now()`: Unix time as the
exporter saw it at its start, advanced by the monotonic clock, so that a jump of the wall clock moves no age.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

SourceName = Literal["gpu", "processes", "logs", "checkpoints"]
SOURCES: tuple[SourceName, ...] = ("gpu", "processes", "logs", "checkpoints")

ProcessState = Literal["running", "sleeping", "disk_sleep", "stopped", "zombie"]
PROCESS_STATES: tuple[ProcessState, ...] = ("running", "sleeping", "disk_sleep", "stopped", "zombie")

LogPhase = Literal["setup", "compile", "train", "validation", "checkpoint", "done", "failed"]
MessageClass = Literal["benign", "suspect", "fatal"]
Split = Literal["train", "val", "test"]


@dataclass(frozen=True, slots=True)
class Health:
    """How a source fares, apart from what it says: never guessed from missing data."""

    success: bool
    stuck: bool = False  # the running call is past its deadline
    duration_seconds: float | None = None  # of the last call that ended
    last_success_seconds: float | None = None
    error: str | None = None  # one line, for the log and `status`


@dataclass(frozen=True, slots=True)
class Report(Generic[T]):
    """What a source last learnt. `data` is None unless its last attempt succeeded and is not past its deadline."""

    data: T | None
    health: Health


# --- gpu -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """What does not change while a device is there. A MIG instance is a device of its own with a `parent`."""

    gpu: str  # label: the NVML index, a MIG instance is "0:1"
    uuid: str
    name: str | None = None
    pci_bus_id: str | None = None
    driver_version: str | None = None
    parent: str | None = None  # label of the physical GPU of a MIG instance
    mig: bool = False  # a MIG instance, or a physical GPU in MIG mode: its work cannot be told apart by run


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A compute process as the driver lists it; the PID is of the host's PID namespace."""

    pid: int
    memory_bytes: int | None = None
    sm_ratio: float | None = None  # share of the SMs over the last samples, 0-1, where the driver tells


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A critical error event of the driver (NVML event type XidCriticalError)."""

    xid: int
    time_seconds: float


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment, about once a second; None where the driver could not say.

    Slow values (memory, temperature, processes, ...) are carried on from the last time they were read.
    """

    time_seconds: float
    device: GpuDevice
    utilization_ratio: float | None = None  # 0-1: share of the driver's window in which a kernel was resident
    memory_utilization_ratio: float | None = None  # 0-1: share in which device memory was read or written
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None  # since the driver was loaded
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    clock_events: frozenset[str] | None = None  # names of the active clock event reasons
    clock_events_known: frozenset[str] = frozenset()  # every reason that this driver can report
    processes: tuple[GpuProcess, ...] | None = None
    xids: tuple[XidEvent, ...] = ()  # new since the sample before
    graphics_memory_bytes: int | None = None  # held by processes that only draw, such as a display server
    lost: bool = False  # the driver says lost, or the device vanished; nothing but xids is set then


# --- processes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """Where one of a process's file descriptors 1 and 2 goes."""

    descriptor: int
    kind: Literal["file", "pipe", "terminal", "socket", "null", "other"]
    path: str | None = None  # as the process sees it; of the file for a file, of the pipe ("pipe:[123]") for a pipe
    position: int | None = None  # /proc/PID/fdinfo `pos`, where it could be read


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process of interest: what was read once at discovery, and what it did since.

    Identity is (pid, start_ticks). Fields of the first block are read once, in the source's own worker, and the
    command a second time when the name changes. None = not permitted or gone.
    """

    pid: int
    start_ticks: int
    start_seconds: float
    parent_pid: int
    session_id: int
    name: str  # comm
    command: tuple[str, ...] | None = None
    environment: Mapping[str, str] | None = None  # only the keys that discovery needs
    working_directory: str | None = None
    uid: int | None = None
    gid: int | None = None
    cgroup: str | None = None
    namespace_pid: int | None = None  # innermost NSpid; differs from pid inside a container
    outputs: tuple[OutputTarget, ...] = ()
    open_files: tuple[str, ...] = ()  # regular files open for writing, as the process sees them

    state: ProcessState = "sleeping"
    cpu_seconds: float | None = None
    read_bytes: int | None = None  # rchar: system calls, page cache hits included
    written_bytes: int | None = None  # wchar
    storage_read_bytes: int | None = None
    storage_written_bytes: int | None = None
    major_faults: int | None = None
    context_switches: int | None = None
    wait_channel: str | None = None

    root: str = "/"  # /proc/PID/root where its mounts are not the exporter's; read once
    input_pipe: str | None = None  # "pipe:[123]" where descriptor 0 is the reading end of one (tee); read once

    @property
    def key(self) -> tuple[int, int]:
        """Identity that survives PID reuse."""
        return self.pid, self.start_ticks


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """The processes of interest of this node at one moment, by PID, with their whole descent."""

    time_seconds: float
    processes: Mapping[int, ProcessRecord]
    complete: bool = True  # False where other users' processes could not be read (no rights)
    oom_kills: int | None = None
    host_pids: bool = True  # False in a PID namespace of its own: the driver's PIDs mean nothing here


@dataclass(frozen=True, slots=True)
class Rank:
    """A worker process with its number."""

    rank: int
    local_rank: int
    process: ProcessRecord


@dataclass(frozen=True, slots=True)
class LogTarget:
    """A log file, or a glob pattern, of a run. `root` is where its file system is seen from this process."""

    run: str
    path: str
    root: str = "/"  # /proc/PID/root for a container
    uid: int | None = None  # owner of the run: a file is read with this right only
    gid: int | None = None
    rank: int | None = None
    configured: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointTarget:
    """A directory (or glob pattern) in which a run leaves checkpoints; fields as in LogTarget."""

    run: str
    path: str
    root: str = "/"
    uid: int | None = None
    gid: int | None = None
    configured: bool = False


@dataclass(frozen=True, slots=True)
class DiscoveredRun:
    """Which processes, GPUs, logs and checkpoints of this node are one run, at one moment."""

    name: str  # label `run`, the same on every node of the run
    launcher: str  # torchrun, accelerate, deepspeed, mpirun, slurm, ray, spawn, python, ...
    script: str
    job_id: str = ""
    node_rank: str = ""
    launcher_process: ProcessRecord | None = None
    ranks: tuple[Rank, ...] = ()
    loaders: tuple[ProcessRecord, ...] = ()
    others: tuple[ProcessRecord, ...] = ()
    owner: Mapping[int, int] = field(default_factory=dict)  # pid of a loader or other -> rank it descends from
    workers_expected: int | None = None  # local world size
    world_size: int | None = None
    restart_count: int | None = None
    gpus: Mapping[int, str] = field(default_factory=dict)  # rank -> gpu label
    log_targets: tuple[LogTarget, ...] = ()
    checkpoint_targets: tuple[CheckpointTarget, ...] = ()
    hints: tuple[str, ...] = ()  # for a person, e.g. "output goes to a terminal: | tee FILE"
    error_files: tuple[LogTarget, ...] = ()  # TORCHELASTIC_ERROR_FILE of the ranks of this worker set
    provisional: bool = False  # no launcher and not configured: a run only once a step, epoch or checkpoint was seen
    event_files: tuple[LogTarget, ...] = ()  # patterns of the TensorBoard event files that its ranks write


# --- logs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TailChunk:
    """Bytes appended to one log file, and what happened to the file, since the chunk before of that file."""

    run: str
    file: str  # the path, one endless stream whatever rotates behind it
    time_seconds: float
    data: bytes = b""
    restored: bool = False  # the last few MiB of a log that was there before: sets the state, counts nothing
    restart: bool = False  # the stream starts anew here (rotation, truncation): a partial line before it is over
    rank: int | None = None
    opens: int = 0
    rotations: int = 0
    truncations: int = 0
    dropped_bytes: int = 0
    unread_bytes: int = 0  # still to be read after this chunk
    readable: bool = True
    error: str | None = None


@dataclass(slots=True)  # not frozen as its like: made for each line, of which freezing would be a third of the cost
class LogEvent:
    """What one record of a log says; nothing writes to it. Counts are as printed (0- or 1-based)."""

    line: int  # 1-based physical line of the record's first line, within this reading of the file
    end_line: int
    event: str  # train_step, validation, val_begin, ... : the words of docs/cli.md, `parse-log --json`
    phase: LogPhase  # after this record
    time_seconds: float = 0.0  # when its last byte was read
    split: Split | None = None
    epoch: float | None = None
    epoch_total: float | None = None
    step: int | None = None
    step_total: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  # normalised name -> number, nan and inf included
    warning: str | None = None  # name of the known message
    severity: MessageClass | None = None
    rank: int | None = None
    outcome: Literal["finished", "failed", "cancelled"] | None = None  # evidence about how the run ended
    setup: bool = False  # a set-up bar (Map, Tokenizing, Loading shards): moves the log signal only
    reason: str | None = None  # of a cancellation: scheduler, interrupt, signal
    text: str | None = None  # the line itself, for messages
    file: str | None = None  # the error file that says it, which speaks for one worker set alone
    by_value: bool = False  # a message about a printed value alone: the program itself says nothing of it


@dataclass(frozen=True, slots=True)
class LogBatch:
    """What was read of one run's logs since the batch before."""

    run: str
    time_seconds: float
    events: tuple[LogEvent, ...] = ()
    lines: int = 0
    bytes: int = 0
    redraws: int = 0
    novel: bool = False  # a line new for this run once masked, or whose own counter advanced; never suspect or fatal
    restored: bool = False  # the state of an existing log, entered at its end: sets values, moves and counts nothing
    last_line: str | None = None
    unread_bytes: int = 0
    dropped_bytes: int = 0  # since the batch before
    opens: int = 0
    rotations: int = 0
    truncations: int = 0
    files: tuple[str, ...] = ()  # those that are being read
    readable: bool = True  # False: there are targets and none can be read
    error: str | None = None
    outlived: bool = False  # restored: a file shows how an attempt ended, and then the training of a later one


# --- checkpoints -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file below a checkpoint directory. `path` is relative to it; times are the file system's own."""

    path: str
    bytes: int
    modified_seconds: float
    directory: bool = False
    link_target: str | None = None  # of a symbolic link, relative to the directory or absolute
    text: str | None = None  # of the small marker files that name another (`latest`, ...)


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """What stands in a checkpoint directory at one moment, bounded; or why that could not be read."""

    target: CheckpointTarget
    time_seconds: float
    wall_seconds: float  # this node's wall clock at the scan, to compare with file times
    entries: tuple[FileEntry, ...] = ()
    truncated: bool = False
    readable: bool = True
    exists: bool = True
    stuck: bool = False  # the scan of this path is past its deadline
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """All that the sources said since the observation before. A report may be None when there is nothing new."""

    time_seconds: float
    wall_shift_seconds: float = 0.0  # wall clock minus steady clock now
    gpu: Report[tuple[GpuSample, ...]] | None = None  # oldest first
    processes: Report[ProcessTable] | None = None
    logs: Report[tuple[LogBatch, ...]] | None = None
    checkpoints: Report[tuple[DirectoryListing, ...]] | None = None
