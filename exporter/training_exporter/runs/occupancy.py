"""Whose a GPU is at a moment: the run's alone, shared with somebody, or held by nobody who is still there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from training_exporter.model import DiscoveredRun, GpuSample, ProcessTable

# A process that has only just appeared may be a child of the run that is not known yet.
OUTSIDER_SECONDS = 10.0
# Per-process SM share under which an outsider does not work.
OUTSIDER_SM_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class Occupancy:
    """One GPU. Memory in bytes; None = cannot be told."""

    runs: tuple[str, ...] = ()  # that hold a context here, or are bound to it
    memory_by_pid: Mapping[int, int] = field(default_factory=dict)  # of the processes of runs
    by_process: bool = False  # the driver's list of processes is of this PID namespace
    outsider: bool = False  # a process outside the only run works here too, or may
    unowned_bytes: int | None = None


class Occupants:
    """Keeps, per GPU, since when somebody else is seen there."""

    def __init__(self) -> None:
        self._outsider_since: dict[str, float] = {}

    def observe(
        self, samples: Iterable[GpuSample], runs: Iterable[DiscoveredRun], table: ProcessTable | None, now: float
    ) -> dict[str, Occupancy]:
        """Occupancy by GPU label, from the newest samples, runs and process table."""
        runs, samples = tuple(runs), tuple(samples)
        owner = {pid: run.name for run in runs for pid in pids_of(run)}
        foreign = _foreign_namespace(samples, table)
        occupancy = {}
        for sample in samples:
            gpu = sample.device.gpu
            bound = {run.name for run in runs if gpu in run.gpus.values()}
            if sample.processes is None or foreign:
                self._outsider_since.pop(gpu, None)
                occupancy[gpu] = Occupancy(runs=tuple(sorted(bound)), outsider=len(bound) > 1)
            else:
                here = None if table is None or not table.complete else table.processes.keys()
                shared = self._one(sample, owner, bound, here, now)
                occupancy[gpu] = replace(shared, unowned_bytes=_unowned(sample, table))
        return occupancy

    def _one(
        self, sample: GpuSample, owner: Mapping[int, str], runs: set[str], here: AbstractSet[int] | None, now: float
    ) -> Occupancy:
        """`here`: the PIDs of this node, None where not all can be seen; a PID that is listed and gone does no work."""
        gpu = sample.device.gpu
        memory: dict[int, int] = {}
        outsider = False
        for process in sample.processes or ():
            name = owner.get(process.pid)
            if name is not None:
                runs.add(name)
                memory[process.pid] = process.memory_bytes or 0
            elif here is None or process.pid in here:
                outsider |= process.sm_ratio is None or process.sm_ratio >= OUTSIDER_SM_RATIO
        if not outsider:
            self._outsider_since.pop(gpu, None)
        since = self._outsider_since.setdefault(gpu, now) if outsider else now
        shared = (outsider and now - since >= OUTSIDER_SECONDS) or len(runs) > 1
        return Occupancy(
            runs=tuple(sorted(runs)),
            memory_by_pid=memory,
            by_process=True,
            outsider=shared,
        )


def pids_of(run: DiscoveredRun) -> list[int]:
    """Every process of a run, the launcher included."""
    launcher = [] if run.launcher_process is None else [run.launcher_process.pid]
    ranks = [rank.process.pid for rank in run.ranks]
    return [*launcher, *ranks, *(process.pid for process in run.loaders), *(process.pid for process in run.others)]


def _foreign_namespace(samples: Iterable[GpuSample], table: ProcessTable | None) -> bool:
    """Whether the driver's PIDs are of another PID namespace: known so, or it lists some and none of them is here."""
    if table is not None and not table.host_pids:
        return True
    pids = [process.pid for sample in samples for process in sample.processes or ()]
    return table is not None and bool(pids) and not any(pid in table.processes for pid in pids)


def _unowned(sample: GpuSample, table: ProcessTable | None) -> int | None:
    if table is None or not table.complete or sample.memory_used_bytes is None or sample.processes is None:
        return None
    owned = 0
    for process in sample.processes:
        if process.pid in table.processes:
            if process.memory_bytes is None:
                return None
            owned += process.memory_bytes
    return max(0, sample.memory_used_bytes - owned)
