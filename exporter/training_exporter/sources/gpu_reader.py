"""One GPU and its MIG instances, read again and again in a thread of its own."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from training_exporter.clock import Clock
from training_exporter.model import GpuDevice, GpuSample, Health
from training_exporter.sources.gpu_driver import (
    FastValues,
    FoundGpu,
    GpuDriver,
    GpuLostError,
    SessionLostError,
    SlowValues,
)
from training_exporter.sources.gpu_session import DriverSession, GpuLabels
from training_exporter.worker import Worker

SLOW_SECONDS = 5.0
IDENTIFY_SECONDS = 10.0

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Ground:
    """What the readers of all GPUs share."""

    driver: GpuDriver
    session: DriverSession
    labels: GpuLabels
    clock: Clock
    interval_seconds: float
    deadline_seconds: float

    def worker(self, name: str, collect: Callable[[], None]) -> Worker[None]:
        """A thread for calls of the driver, not started."""
        return Worker(
            name,
            collect,
            interval_seconds=self.interval_seconds,
            deadline_seconds=self.deadline_seconds,
            clock=self.clock,
        )


@dataclasses.dataclass(slots=True)
class _Tracked:
    """A device at the reader's index, under its label, with its slow values and when they are due again."""

    found: FoundGpu
    device: GpuDevice
    slow: SlowValues = dataclasses.field(default_factory=SlowValues)
    slow_due_seconds: float = 0.0


class GpuReader:
    """Reads the GPU at one index of the driver, and its MIG instances."""

    def __init__(self, index: int, ground: Ground, publish: Callable[[GpuSample], None]) -> None:
        self._index = index
        self._ground = ground
        self._publish = publish
        self._generation = 0
        self._identify_due_seconds = 0.0
        self._tracked: tuple[_Tracked, ...] = ()
        self.lost: tuple[GpuDevice, ...] = ()
        self.worker = ground.worker(f"gpu {index}", self._collect)

    @property
    def devices(self) -> tuple[GpuDevice, ...]:
        """What is read here, or was before it was lost, under its labels."""
        return self.lost or tuple(tracked.device for tracked in self._tracked)

    @property
    def health(self) -> Health:
        """How the reading fares; an error names the GPU."""
        health = self.worker.latest()[1].health
        error = health.error and f"{self.worker.name}: {health.error}"
        return dataclasses.replace(health, error=error)

    def _collect(self) -> None:
        try:
            with self._ground.session.inside() as generation:
                self._round(generation)
        except SessionLostError:
            return  # the session says so, once for all GPUs

    def _round(self, generation: int) -> None:
        now = self._ground.clock.now()
        try:
            if generation != self._generation or now >= self._identify_due_seconds:
                self._identify(generation, now)
            for tracked in self._tracked:
                self._sample(tracked)
        except GpuLostError as error:
            self._lose(generation, error)
        for device in self.lost:
            self._publish(GpuSample(self._ground.clock.now(), device, lost=True))

    def _identify(self, generation: int, now: float) -> None:
        found = self._ground.driver.identify(self._index)
        self._generation = generation
        self._identify_due_seconds = now + IDENTIFY_SECONDS
        devices = self._labelled(found, generation)
        self._tracked = tuple(map(_Tracked, found, devices))
        if self.lost and self.lost[0].gpu not in {device.gpu for device in devices}:
            self.lost = ()  # another GPU has this index now, or none: the source says which one vanished

    def _labelled(self, found: tuple[FoundGpu, ...], generation: int) -> list[GpuDevice]:
        if not found:
            return []
        physical = self._ground.labels.claim(self._index, generation, found[0].device)
        instances = (gpu.device for gpu in found[1:])
        return [physical, *(_renamed(instance, physical.gpu) for instance in instances)]

    def _sample(self, tracked: _Tracked) -> None:
        clock, driver = self._ground.clock, self._ground.driver
        began = clock.now()
        try:
            if began >= tracked.slow_due_seconds:
                tracked.slow = driver.sample_slow(tracked.found)
            asked = clock.now()
            fast = driver.sample_fast(tracked.found)
        except GpuLostError:
            if tracked.device.parent is None:
                raise
            self._identify_due_seconds = 0.0  # a MIG instance was destroyed, which is no fault
            return
        if clock.now() - began > self._ground.deadline_seconds:
            return  # what was read before a call that hung is of no use after it
        if began >= tracked.slow_due_seconds:
            tracked.slow_due_seconds = began + SLOW_SECONDS
        if self.lost and tracked.device.parent is None:
            logger.info("GPU %s is back", tracked.device.gpu)
            self.lost = ()
        self._publish(_sample(asked, tracked.device, fast, tracked.slow))

    def _lose(self, generation: int, error: GpuLostError) -> None:
        physical = self._ground.labels.claim_lost(self._index, generation)
        if not self.lost:
            logger.warning("GPU %s is lost: %s", physical.gpu, error)
            self.lost = physical, *(tracked.device for tracked in self._tracked if tracked.device.parent is not None)
        self._tracked = ()
        self._generation = generation
        self._identify_due_seconds = self._ground.clock.now() + IDENTIFY_SECONDS


def _renamed(instance: GpuDevice, parent: str) -> GpuDevice:
    _, _, number = instance.gpu.partition(":")
    return dataclasses.replace(instance, gpu=f"{parent}:{number}", parent=parent)


def _sample(time_seconds: float, device: GpuDevice, fast: FastValues, slow: SlowValues) -> GpuSample:
    return GpuSample(
        time_seconds,
        device,
        utilization_ratio=fast.utilization_ratio,
        memory_utilization_ratio=fast.memory_utilization_ratio,
        power_watts=fast.power_watts,
        power_limit_watts=slow.power_limit_watts,
        energy_joules=fast.energy_joules,
        memory_used_bytes=slow.memory_used_bytes,
        memory_total_bytes=slow.memory_total_bytes,
        temperature_celsius=slow.temperature_celsius,
        sm_clock_hertz=slow.sm_clock_hertz,
        clock_events=slow.clock_events,
        clock_events_known=slow.clock_events_known,
        processes=slow.processes,
        graphics_memory_bytes=slow.graphics_memory_bytes,
    )
