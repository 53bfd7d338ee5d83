"""Which GPU a rank works on: by the driver's list of processes, else by CUDA_VISIBLE_DEVICES and the local rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from training_exporter.model import GpuSample, ProcessRecord, ProcessTable, Rank


class Devices:
    """The GPUs of the node and who holds them, at one moment. `holders` is PID of this table -> {label: bytes}."""

    def __init__(self, samples: Sequence[GpuSample], table: ProcessTable) -> None:
        self._samples = samples
        self._seen: dict[str | None, Sequence[str]] = {}  # CUDA_VISIBLE_DEVICES -> labels: most ranks have the same
        self._parents = {sample.device.parent for sample in samples if sample.device.parent is not None}
        self.lost = frozenset(sample.device.gpu for sample in samples if sample.lost)
        alive = [sample for sample in samples if not sample.lost]
        # A list that the driver gives of the host's PIDs settles who is on a GPU, also for those it does not name.
        self.authoritative = bool(alive) and table.host_pids and all(s.processes is not None for s in alive)
        self.holders: dict[int, dict[str, int]] = {}
        if table.host_pids:
            inner = _inner_pids(table.processes.values())
            for sample in alive:
                self._note(sample, table, inner)

    def of_environment(self, environment: Mapping[str, str] | None, local_rank: int) -> str | None:
        """The GPU that CUDA gives to a rank: the LOCAL_RANK-th visible one, the only one if there is one."""
        value = (environment or {}).get("CUDA_VISIBLE_DEVICES")
        visible = self._seen.get(value)
        if visible is None:
            visible = self._seen[value] = self._visible(value)
        if len(visible) == 1:
            return visible[0]
        return visible[local_rank] if 0 <= local_rank < len(visible) else None

    def _visible(self, value: str | None) -> list[str]:
        labels = {sample.device.gpu for sample in self._samples}
        if value is None:
            whole = [s.device for s in self._samples if s.device.parent is None and s.device.gpu not in self._parents]
            return sorted((device.gpu for device in whole), key=_order)
        visible: list[str] = []
        for word in value.split(","):
            label = word.strip() if word.strip().isdigit() else self._by_uuid(word.strip())
            if label not in labels:
                break  # CUDA ignores an invalid entry and everything after it
            visible.append(label)
        return visible

    def _by_uuid(self, text: str) -> str:
        matching = [s.device.gpu for s in self._samples if len(text) >= 8 and s.device.uuid.startswith(text)]
        return matching[0] if len(matching) == 1 else ""

    def _note(self, sample: GpuSample, table: ProcessTable, inner: Mapping[int, int]) -> None:
        for process in sample.processes or ():
            # a driver that speaks of PIDs inside a container names none of this table
            pid = process.pid if process.pid in table.processes else inner.get(process.pid, process.pid)
            held = self.holders.setdefault(pid, {})
            held[sample.device.gpu] = held.get(sample.device.gpu, 0) + (process.memory_bytes or 0)


def bind(rank: Rank, descendants: Iterable[ProcessRecord], devices: Devices) -> str | None:
    """Label of the rank's GPU, or None. Of several that it or a child holds: CUDA's choice, else the fullest."""
    own = devices.holders.get(rank.process.pid)
    held = dict(own or {})
    if own is None:
        for child in descendants:
            for label, size in devices.holders.get(child.pid, {}).items():
                held[label] = held.get(label, 0) + size
    by_environment = devices.of_environment(rank.process.environment, rank.local_rank)
    if held:
        told = "LOCAL_RANK" in (rank.process.environment or {}) and by_environment in held
        return by_environment if told else max(held, key=lambda label: (held[label], label))
    return None if devices.authoritative else by_environment


def _inner_pids(records: Iterable[ProcessRecord]) -> dict[int, int]:
    """PID inside a container -> PID here, where only one process has it."""
    found: dict[int, list[int]] = {}
    for record in records:
        if record.namespace_pid is not None and record.namespace_pid != record.pid:
            found.setdefault(record.namespace_pid, []).append(record.pid)
    return {inner: pids[0] for inner, pids in found.items() if len(pids) == 1}


def _order(label: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", label))
