"""Writes the state file of the stand-in for the NVIDIA driver library; the format is in README.md."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True)
class FakeProcess:
    """A compute process; None = the driver does not say."""

    pid: int
    bytes: int | None = None
    sm_percent: int | None = None


@dataclass
class FakeDevice:
    """What a GPU and a MIG instance have in common; None = the driver answers "not supported"."""

    uuid: str
    name: str | None = "NVIDIA H100 80GB HBM3"
    utilization: int | None = None
    memory_utilization: int | None = None
    power_milliwatts: int | None = None
    power_limit_milliwatts: int | None = None
    energy_millijoules: int | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    memory_reserved: int | None = None
    temperature: int | None = None
    sm_clock_mhz: int | None = None
    clock_events: int | None = None
    clock_events_supported: int | None = None
    processes: Sequence[FakeProcess] | None = None
    graphics: Sequence[FakeProcess] = ()
    xids: list[int] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    hangs: set[str] = field(default_factory=set)
    lost: bool = False


@dataclass
class FakeGpu(FakeDevice):
    """A physical GPU."""

    pci: str | None = None
    mig_mode: int | None = 0
    instances: list[FakeDevice] = field(default_factory=list)


@dataclass
class FakeState:
    """All that the library knows. A new `driver_generation` is a driver reload: the library must be set up anew."""

    gpus: list[FakeGpu] = field(default_factory=list)
    driver_version: str = "580.82.07"
    driver_generation: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    hangs: set[str] = field(default_factory=set)

    def write(self, path: Path) -> None:
        """Replace the state file in one step, so that the library never reads half of it."""
        new = path.with_name(path.name + ".new")
        new.write_text("\n".join(self._lines()) + "\n")
        new.rename(path)

    def _lines(self) -> Iterator[str]:
        yield f"driver_version {self.driver_version}"
        yield f"driver_generation {self.driver_generation}"
        yield from _fault_lines(self.errors, self.hangs)
        for gpu in self.gpus:
            yield f"gpu {gpu.uuid}"
            yield from _device_lines(gpu)
            for instance in gpu.instances:
                yield f"mig {instance.uuid}"
                yield from _device_lines(instance)


def gpu_at_work(index: int, *, pids: Sequence[int] = (), **changes: object) -> FakeGpu:
    """A GPU in training, each with numbers of its own; `changes` replaces fields."""
    processes = [FakeProcess(pid, 39_791 * MIB // len(pids), 90) for pid in pids]
    values: dict[str, object] = {
        "uuid": f"GPU-{index:08d}-0000-0000-0000-000000000000",
        "pci": f"00000000:{index:02X}:00.0",
        "utilization": 90 + index % 8,
        "memory_utilization": 40 + index % 8,
        "power_milliwatts": 360_000 + index * 1000,
        "power_limit_milliwatts": 600_000,
        "energy_millijoules": 5_000_000 + index,
        "memory_total": 97_887 * MIB,
        "memory_used": (39_791 + index) * MIB,
        "memory_reserved": 600 * MIB,
        "temperature": 60 + index,
        "sm_clock_mhz": 1900 + index,
        "clock_events": 0,
        "clock_events_supported": 0x1FF,
        "processes": processes,
    }
    return FakeGpu(**{**values, **changes})  # type: ignore[arg-type]  # the names are checked by the dataclass


def set_state(path: Path, state: FakeState, environment: Mapping[str, str], library: Path) -> dict[str, str]:
    """Write `state` and return `environment` with what makes a program run on the fake library in `library`."""
    state.write(path)
    search = os.pathsep.join([str(library), *filter(None, [environment.get("LD_LIBRARY_PATH")])])
    return {**environment, "LD_LIBRARY_PATH": search, "FAKE_NVML_STATE": str(path)}


_NUMBERS = tuple(f.name for f in fields(FakeGpu) if f.type == "int | None")


def _device_lines(device: FakeDevice) -> Iterator[str]:
    for key in ("name", "pci", *_NUMBERS):
        value = getattr(device, key, None)
        if value is not None:
            yield f"  {key} {value}"
    if device.processes is not None:
        yield "  processes"
    for key, processes in (("process", device.processes or ()), ("graphics", device.graphics)):
        for process in processes:
            numbers = ("-" if number is None else str(number) for number in (process.bytes, process.sm_percent))
            yield f"  {key} {process.pid} {' '.join(numbers)}"
    for xid in device.xids:
        yield f"  xid {xid}"
    yield from _fault_lines(device.errors, device.hangs, indent="  ")
    if device.lost:
        yield "  lost"


def _fault_lines(errors: Mapping[str, int], hangs: set[str], *, indent: str = "") -> Iterator[str]:
    for symbol, code in errors.items():
        yield f"{indent}error {symbol} {code}"
    for symbol in sorted(hangs):
        yield f"{indent}hang {symbol}"
