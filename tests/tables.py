"""Process tables made by hand, for the pure half of discovery."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from training_exporter.model import GpuDevice, GpuProcess, GpuSample, OutputTarget, ProcessRecord, ProcessTable

NOW_SECONDS = 1_700_000_000.0
CWD = "/data/job"


def process(pid: int, parent: int, command: str, **fields: Any) -> ProcessRecord:
    """A process as discovery sees it; its name is the program's unless given, its session its own."""
    words = tuple(shlex.split(command))
    defaults: dict[str, Any] = {
        "pid": pid,
        "start_ticks": pid * 10,
        "start_seconds": NOW_SECONDS - 1000 + pid,
        "parent_pid": parent,
        "session_id": pid,
        "name": words[0].rpartition("/")[2][:15] if words else "",
        "command": words or None,
        "environment": {},
        "working_directory": CWD,
        "uid": 1000,
        "gid": 1000,
        "cgroup": "/user.slice/x",
        "namespace_pid": pid,
    }
    return ProcessRecord(**{**defaults, **fields})


def ranks_below(
    launcher: ProcessRecord, count: int, command: str = "python3 -u train.py", **environment: str
) -> list[ProcessRecord]:
    """Ranks as torchrun starts them, with PIDs that follow the launcher's by tens."""
    return [
        process(
            launcher.pid + 10 * (number + 1),
            launcher.pid,
            command,
            environment={**rank_environment(number, count), **environment},
        )
        for number in range(count)
    ]


def rank_environment(rank: int, count: int = 2) -> dict[str, str]:
    """What torchrun tells a rank on a single node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_ERROR_FILE": f"errors/{rank}/error.json",
    }


def child(rank: ProcessRecord, pid: int, **fields: Any) -> ProcessRecord:
    """A fork of a rank: command, environment and session are the rank's."""
    return replace(rank, **{"pid": pid, "start_ticks": pid * 10, "parent_pid": rank.pid, **fields})


def torchrun(pid: int = 100, arguments: str = "--nproc-per-node=2 train.py", **fields: Any) -> ProcessRecord:
    """A torchrun launcher."""
    return process(pid, 1, f"python3 /usr/bin/torchrun {arguments}", **{"name": "pt_elastic", **fields})


def table(*processes: ProcessRecord | Iterable[ProcessRecord], **fields: Any) -> ProcessTable:
    """A table of processes and lists of them."""
    flat = [r for given in processes for r in ([given] if isinstance(given, ProcessRecord) else given)]
    return ProcessTable(NOW_SECONDS, {record.pid: record for record in flat}, **fields)


def gpu(number: int, *pids: int, memory_bytes: int = 10**10, **fields: Any) -> GpuSample:
    """A GPU that the processes hold, as the driver lists them."""
    device = GpuDevice(str(number), f"GPU-{number:08d}-aaaa")
    processes = tuple(GpuProcess(pid, memory_bytes) for pid in pids)
    return GpuSample(NOW_SECONDS, device, **{"processes": processes, **fields})


def to_file(path: str) -> tuple[OutputTarget, ...]:
    """Descriptors 1 and 2 that go to one file."""
    return OutputTarget(1, "file", path), OutputTarget(2, "file", path)


def to_pipe(number: int) -> tuple[OutputTarget, ...]:
    """Descriptors 1 and 2 that go into one pipe."""
    return OutputTarget(1, "pipe", f"pipe:[{number}]"), OutputTarget(2, "pipe", f"pipe:[{number}]")
