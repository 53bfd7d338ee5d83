"""What the GPU source asks of a driver: NVML, a simulated one, or another vendor's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from training_exporter.model import GpuDevice, GpuProcess


class GpuDriverError(Exception):
    """The driver answered with an error that concerns this call; the text is for a person."""


class DriverMissingError(GpuDriverError):
    """There is no driver on this machine: a state, and no fault."""


class SessionLostError(GpuDriverError):
    """What was opened is no longer valid (driver reloaded): everything must be opened again."""


class GpuLostError(GpuDriverError):
    """The driver says that this GPU is lost, or that it is no longer there."""


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A device as the driver lists it now, with the driver's own handle, valid until the driver is closed."""

    device: GpuDevice
    handle: object = None


@dataclass(frozen=True, slots=True)
class FastValues:
    """What is read every second; units as in `model.GpuSample`, None = not supported."""

    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None


@dataclass(frozen=True, slots=True)
class SlowValues:
    """What is read every few seconds; units as in `model.GpuSample`, None = not supported."""

    power_limit_watts: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    clock_events: frozenset[str] | None = None
    clock_events_known: frozenset[str] = frozenset()
    processes: tuple[GpuProcess, ...] | None = None
    graphics_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """A critical error of one device, told once; `device` is the one that `identify` gave."""

    device: GpuDevice
    xid: int


class GpuDriver(Protocol):
    """A driver library. Any call may block for ever and may come from any thread, also while another is under way.

    Every call raises GpuDriverError or one of its kinds; a value that the driver does not support is None instead.
    """

    def open(self) -> None:
        """Set the library up, also a second time; raises DriverMissingError where there is none."""

    def close(self) -> None:
        """Give up what `open` set up. Never called while another call is under way."""

    def count(self) -> int:
        """How many physical GPUs there are: indices 0 .. count - 1."""

    def identify(self, index: int) -> tuple[FoundGpu, ...]:
        """The physical GPU at this index and then its MIG instances; empty where there is none. Watches its events."""

    def sample_fast(self, gpu: FoundGpu) -> FastValues:
        """What changes from second to second."""

    def sample_slow(self, gpu: FoundGpu) -> SlowValues:
        """The rest."""

    def wait_for_events(self, timeout_seconds: float) -> tuple[GpuEvent, ...]:
        """The events since the call before; waits that long for a first one."""
