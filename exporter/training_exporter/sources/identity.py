"""What is read of one process: once when it may belong to a run, and at every tick while it does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from training_exporter.sources import procfs as proc
from training_exporter.sources.offload import EXHAUSTED

T = TypeVar("T")

# The launchers' and schedulers' keys that tell who belongs to what; nothing else of an environment is ever kept.
ENVIRONMENT_KEYS = frozenset(
    {
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
        "MASTER_ADDR", "MASTER_PORT",
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE",
        "PET_RDZV_ID", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR", "PET_NNODES", "PET_NODE_RANK",
        "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_NNODES",
        "SLURM_STEP_ID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "PBS_JOBID", "LSB_JOBID",
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
        "CUDA_VISIBLE_DEVICES", "RAY_JOB_ID", "HOSTNAME", "KUBERNETES_SERVICE_HOST",
        "OUTPUT_DIR", "CHECKPOINT_DIR", "SM_MODEL_DIR",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Identity:
    """What is read once. None = not permitted or gone."""

    environment: Mapping[str, str] | None
    working_directory: str | None
    status: proc.Status
    cgroup: str | None
    descriptors: proc.Descriptors | None
    root: str
    denied: bool  # something of it was refused for want of rights


@dataclass(frozen=True, slots=True)
class Details:
    """What is read at every tick. None = not permitted or gone."""

    io: proc.Io | None
    status: proc.Status
    wait_channel: str | None
    position: int | None
    descriptors: proc.Descriptors | None


class _Reader:
    """Reads that may each be refused; remembers whether one was for want of rights."""

    def __init__(self) -> None:
        self.denied = False

    def __call__(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except PermissionError:
            self.denied = True
        except OSError as error:  # gone in the middle of it: the next listing says so
            if error.errno in EXHAUSTED:
                raise
        except (ValueError, LookupError):
            pass  # likewise, half of the file was read
        return None


def read_identity(procfs: str, pid: int, keys: Collection[str], *, calm: bool) -> Identity:
    """Read what stays the same; environment and descriptors only of a `calm` process, neither in D state nor dead.

    The kernel needs a process's memory map for them, which one that hangs may hold for ever.
    """
    directory = f"{procfs}/{pid}"
    attempt = _Reader()
    environment = descriptors = None
    if calm:
        environment = attempt(lambda: proc.parse_environment(proc.read_file(f"{directory}/environ"), keys))
        descriptors = attempt(lambda: proc.read_descriptors(directory))
    return Identity(
        environment=environment,
        working_directory=attempt(lambda: proc.read_link(f"{directory}/cwd")),
        status=attempt(lambda: proc.parse_status(proc.read_file(f"{directory}/status"))) or proc.Status(),
        cgroup=attempt(lambda: proc.parse_cgroup(proc.read_file(f"{directory}/cgroup"))),
        descriptors=descriptors,
        root=attempt(lambda: proc.visible_root(procfs, pid)) or "/",
        denied=attempt.denied,
    )


def read_details(procfs: str, pid: int, *, output: bool, descriptors: bool) -> Details:
    """Read what moves; `output`: the position of descriptor 1 too, `descriptors`: look through them all again."""
    directory = f"{procfs}/{pid}"
    attempt = _Reader()
    status = attempt(lambda: proc.parse_status(proc.read_file(f"{directory}/status"))) or proc.Status()
    return Details(
        io=attempt(lambda: proc.parse_io(proc.read_file(f"{directory}/io"))),
        status=status,
        wait_channel=attempt(lambda: proc.parse_wait_channel(proc.read_file(f"{directory}/wchan"))),
        position=attempt(lambda: proc.parse_position(proc.read_file(f"{directory}/fdinfo/1"))) if output else None,
        descriptors=attempt(lambda: proc.read_descriptors(directory)) if descriptors else None,
    )
