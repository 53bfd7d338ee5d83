"""The GPUs: each read once a second in a thread of its own, so that one whose driver hangs hides only itself."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import deque

from training_exporter.clock import Clock
from training_exporter.model import GpuDevice, GpuSample, Health, Report, XidEvent
from training_exporter.sources.gpu_driver import GpuDriver, GpuDriverError, SessionLostError
from training_exporter.sources.gpu_reader import GpuReader, Ground
from training_exporter.sources.gpu_session import DriverSession, GpuLabels, NoGpuError, key_of
from training_exporter.worker import Worker

__all__ = ["GpuDriver", "GpuSource"]

DEADLINE_SECONDS = 5.0
EVENT_WAIT_SECONDS = 0.01
# A GPU that came back is often seen only by a library that was set up anew.
FIRST_RENEWAL_SECONDS = 60.0
LAST_RENEWAL_SECONDS = 600.0
MAX_SAMPLES = 16_384  # nobody drains for half an hour with 8 GPUs: then the oldest go

logger = logging.getLogger(__name__)


class GpuSource:
    """All GPUs of this node, sampled about every `interval_seconds`.

    A thread per GPU, one that opens the driver and counts, one for critical errors (Xid). A call that takes longer
    than `deadline_seconds` makes its GPU absent from the samples until it returns.
    """

    def __init__(
        self,
        driver: GpuDriver,
        clock: Clock,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
        interval_seconds: float = 1.0,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._session = DriverSession(driver, clock, deadline_seconds=deadline_seconds)
        self._labels = GpuLabels()
        self._ground = Ground(driver, self._session, self._labels, clock, interval_seconds, deadline_seconds)
        self._lock = threading.Lock()
        self._samples: deque[GpuSample] = deque(maxlen=MAX_SAMPLES)
        self._xids: dict[str, list[XidEvent]] = {}
        self._last_seconds: float | None = None
        self._readers: tuple[GpuReader, ...] = ()  # replaced, never changed: read from other threads
        self._count: tuple[int, int] = (0, 0)  # number of the opening, GPUs counted in it
        self._vanished: tuple[GpuDevice, ...] = ()
        self._renewal_due_seconds: float | None = None
        self._renewal_pause_seconds = FIRST_RENEWAL_SECONDS
        self._silent: frozenset[str] = frozenset()
        self._running = False
        self._supervisor = self._ground.worker("gpu driver", self._supervise)
        self._events = self._ground.worker("gpu events", self._collect_events)

    def start(self) -> None:
        """Start reading; returns at once, whatever the driver does."""
        self._running = True
        self._supervisor.start()
        self._events.start()

    def stop(self) -> None:
        """Ask all threads to end; never waits for one."""
        self._running = False
        for worker in self._workers():
            worker.stop()

    def drain(self) -> Report[tuple[GpuSample, ...]]:
        """All samples since the last call, oldest first; `data` is None while no GPU can be read.

        A GPU whose call is past its deadline has no samples (`health.stuck`) and the others go on. A critical error
        (Xid) is told with the next sample of its GPU, or in a sample without values if that GPU does not answer.
        """
        with self._lock:
            samples = tuple(sorted(self._samples, key=lambda sample: sample.time_seconds))
            self._samples.clear()
        self._note_silent()
        health = self.health()
        return Report(samples if samples or health.success else None, health)

    def health(self) -> Health:
        """How the source fares: success while at least one GPU answers, stuck while any call is past its deadline."""
        readers = [reader.health for reader in self._readers]
        others = [worker.latest()[1].health for worker in (self._supervisor, self._events)]
        errors = [self._session.error, *(health.error for health in (*others, *readers))]
        durations = [health.duration_seconds for health in readers if health.duration_seconds is not None]
        return Health(
            success=self._session.usable and any(health.success for health in readers),
            stuck=any(health.stuck for health in (*readers, *others)),
            duration_seconds=max(durations, default=None),
            last_success_seconds=self._last_seconds,
            error=next(filter(None, errors), None),
        )

    def _workers(self) -> tuple[Worker[None], ...]:
        return self._supervisor, self._events, *(reader.worker for reader in self._readers)

    def _publish(self, sample: GpuSample) -> None:
        with self._lock:
            xids = self._xids.pop(key_of(sample.device), None)
            self._samples.append(dataclasses.replace(sample, xids=tuple(xids)) if xids else sample)
            self._last_seconds = sample.time_seconds
        self._session.answered()

    def _supervise(self) -> None:
        if not self._session.ensure_open():
            return
        try:
            with self._session.inside() as generation:
                count = self._driver.count()
        except GpuDriverError as error:
            self._session.lose(error)
            return
        if count == 0:
            self._session.lose(NoGpuError("the driver knows no GPU"))
        elif self._count[0] == generation and self._count[1] != count:
            self._session.renew()  # indices have shifted: all must be identified anew
        else:
            self._count = generation, count
            self._read_up_to(count)
            self._look_for_vanished(count, generation)
            self._judge()

    def _read_up_to(self, count: int) -> None:
        for reader in self._readers[count:]:
            reader.worker.stop()
        kept = self._readers[:count]
        added = [GpuReader(index, self._ground, self._publish) for index in range(len(kept), count)]
        self._readers = (*kept, *added)  # before any of them runs, so that `stop` misses none
        for reader in self._readers:
            if self._running:
                reader.worker.start()  # does nothing where it runs

    def _look_for_vanished(self, count: int, generation: int) -> None:
        vanished = self._labels.vanished(count, generation)
        for device in vanished:
            if device not in self._vanished:
                logger.warning("GPU %s vanished", device.gpu)
            self._publish(GpuSample(self._clock.now(), device, lost=True))
        self._vanished = vanished

    def _judge(self) -> None:
        """Set the driver up anew when no GPU answers, and now and then while one is lost."""
        health = [reader.health for reader in self._readers]
        failed = [h.error for h in health if h.error is not None and not h.stuck]
        if failed and not any(h.success for h in health):
            self._session.lose(GpuDriverError(failed[0]))
        elif not self._vanished and not any(reader.lost for reader in self._readers):
            self._renewal_due_seconds = None
            self._renewal_pause_seconds = FIRST_RENEWAL_SECONDS
        elif self._renewal_due_seconds is None:
            self._renewal_due_seconds = self._clock.now() + self._renewal_pause_seconds
        elif self._clock.now() >= self._renewal_due_seconds and not any(h.stuck for h in health):
            self._renewal_pause_seconds = min(2 * self._renewal_pause_seconds, LAST_RENEWAL_SECONDS)
            self._renewal_due_seconds = None
            self._session.renew()

    def _collect_events(self) -> None:
        try:
            with self._session.inside():
                events = self._driver.wait_for_events(EVENT_WAIT_SECONDS)
        except SessionLostError:
            return
        now = self._clock.now()
        for event in events:
            device = self._labels.of(event.device) or event.device
            logger.warning("GPU %s: Xid %d", device.gpu, event.xid)
            with self._lock:
                self._xids.setdefault(key_of(device), []).append(XidEvent(event.xid, now))
            if any(device in reader.devices and reader.health.stuck for reader in self._readers):
                self._publish(GpuSample(now, device))

    def _note_silent(self) -> None:
        silent = frozenset(worker.name for worker in self._workers() if worker.latest()[1].health.stuck)
        for name in sorted(silent - self._silent):
            logger.warning("source %s does not answer within %g s", name, self._ground.deadline_seconds)
        for name in sorted(self._silent - silent):
            logger.info("source %s answers again", name)
        self._silent = silent
