"""The driver while it is open, and the labels of the GPUs that it has ever shown."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from training_exporter.clock import Clock
from training_exporter.model import GpuDevice
from training_exporter.sources.gpu_driver import DriverMissingError, GpuDriver, GpuDriverError, SessionLostError

# A missing driver or an empty node is looked at slowly; a driver that fails, at once and then less and less often.
ABSENT_RETRY_SECONDS = 60.0
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 60.0

logger = logging.getLogger(__name__)


class NoGpuError(GpuDriverError):
    """The driver is there and knows no GPU (yet)."""


class DriverSession:
    """One opening of the driver after another, numbered, shared by all threads that call it.

    It is closed only while no call is under way; a driver whose calls hang is set up a second time instead.
    """

    def __init__(self, driver: GpuDriver, clock: Clock, *, deadline_seconds: float) -> None:
        self._driver = driver
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self._generation = 0
        self._open = False
        self._inside = 0
        self._lost_seconds = self._due_seconds = clock.now()
        self._failures = 0
        self._error: GpuDriverError | None = None

    @property
    def error(self) -> str | None:
        """Why there are no GPUs to read; None from the first answer of one on."""
        return None if self._error is None else str(self._error)

    @property
    def usable(self) -> bool:
        """Whether the driver is open, or is just being opened anew, and nothing is known to be wrong."""
        with self._lock:
            return self._error is None and (
                self._open or self._clock.now() - self._lost_seconds <= self._deadline_seconds
            )

    @contextmanager
    def inside(self) -> Iterator[int]:
        """Around every call of the driver: gives the number of the opening, raises SessionLostError without one."""
        with self._lock:
            if not self._open:
                raise SessionLostError("the driver is not open")
            self._inside += 1
            generation = self._generation
        try:
            yield generation
        except SessionLostError as error:
            self.lose(error, generation)
            raise
        finally:
            with self._lock:
                self._inside -= 1

    def ensure_open(self) -> bool:
        """Open the driver if that is due; whether it is open now. For the supervising thread alone."""
        now = self._clock.now()
        with self._lock:
            if self._open:
                return True
            waiting = self._inside > 0
            if now < self._due_seconds or (waiting and now - self._lost_seconds < self._deadline_seconds):
                return False
        try:
            if self._generation > 0 and not waiting:
                self._driver.close()
            self._driver.open()
        except GpuDriverError as error:
            self._fail(error)
            return False
        with self._lock:
            self._generation += 1
            self._open = True
        return True

    def lose(self, error: GpuDriverError, generation: int | None = None) -> None:
        """The opening (of that number) is of no use: open again after a pause that grows with each failure."""
        with self._lock:
            if not self._open or generation not in {None, self._generation}:
                return
            self._open = False
            self._lost_seconds = self._clock.now()
        self._fail(error)

    def renew(self) -> None:
        """Close and open at the next occasion, because the set of GPUs changed or one should be tried again."""
        with self._lock:
            self._open = False
            self._lost_seconds = self._due_seconds = self._clock.now()

    def answered(self) -> None:
        """A GPU gave an answer: whatever was wrong is over."""
        with self._lock:
            if self._error is None or not self._open:
                return
            self._error = None
            self._failures = 0
        logger.info("the GPUs can be read again")

    def _fail(self, error: GpuDriverError) -> None:
        absent = isinstance(error, (DriverMissingError, NoGpuError))
        pause = min(FIRST_RETRY_SECONDS * 2**self._failures, LAST_RETRY_SECONDS)
        self._due_seconds = self._clock.now() + (ABSENT_RETRY_SECONDS if absent else pause)
        self._failures = min(self._failures + 1, 16)
        if str(error) != self.error:  # one line per change of state
            logger.log(logging.INFO if absent else logging.WARNING, "no GPU can be read: %s", error)
        self._error = error


class GpuLabels:
    """Which GPU carries which label: once seen, a GPU keeps its label when those before it vanish."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._devices: dict[str, GpuDevice] = {}
        self._places: dict[int, tuple[int, str]] = {}  # index -> number of the opening, key of the device seen there

    def claim(self, index: int, generation: int, device: GpuDevice) -> GpuDevice:
        """The physical GPU found at this index, under its label."""
        key = key_of(device)
        with self._lock:
            known = self._devices.get(key)
            if known is None:
                self._forget_predecessor(index, device)
            label = known.gpu if known else self._free_label(device.gpu)
            self._devices[key] = labelled = dataclasses.replace(device, gpu=label)
            self._places[index] = generation, key
            return labelled

    def claim_lost(self, index: int, generation: int) -> GpuDevice:
        """The GPU at an index that only answers that it is lost: the one seen there before, or a nameless one."""
        with self._lock:
            key = self._places[index][1] if index in self._places else _nameless(index)
            if key not in self._devices:
                self._devices[key] = GpuDevice(gpu=self._free_label(str(index)), uuid="")
            self._places[index] = generation, key
            return self._devices[key]

    def of(self, device: GpuDevice) -> GpuDevice | None:
        """A device as the driver identified it, under its label."""
        return self._devices.get(key_of(device))

    def vanished(self, count: int, generation: int) -> tuple[GpuDevice, ...]:
        """Those seen before that are at none of `count` indices; empty until every index was looked at."""
        with self._lock:
            places = [self._places.get(index, (-1, "")) for index in range(count)]
            if any(seen != generation for seen, _ in places):
                return ()
            present = {key for _, key in places}
            return tuple(device for key, device in self._devices.items() if key not in present)

    def _forget_predecessor(self, index: int, device: GpuDevice) -> None:
        # A card in the slot of another replaces it; a GPU that was nameless so far is this one.
        self._devices.pop(_nameless(index), None)
        for key, other in list(self._devices.items()):
            if other.pci_bus_id is not None and other.pci_bus_id == device.pci_bus_id:
                del self._devices[key]

    def _free_label(self, wanted: str) -> str:
        taken = {device.gpu for device in self._devices.values()}
        return wanted if wanted not in taken else str(max(map(int, taken)) + 1)


def key_of(device: GpuDevice) -> str:
    """What identifies a device for as long as it exists."""
    return device.uuid or device.pci_bus_id or _nameless(int(device.gpu.partition(":")[0]))


def _nameless(index: int) -> str:
    return f"index {index}"
