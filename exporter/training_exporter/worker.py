"""One thread per source with a deadline, so that a call that hangs costs one thread and one source."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from training_exporter.clock import Clock
from training_exporter.model import Health, Report

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Worker(Generic[T]):
    """Calls `collect` every `interval_seconds` in a daemon thread and keeps the last answer.

    Past `deadline_seconds` the running call is reported stuck and its data withdrawn; no second call is started
    until the first returns, and that return alone clears the mark. Daemon, because a thread that sleeps
    uninterruptibly must not keep the process from ending.
    """

    def __init__(
        self,
        name: str,
        collect: Callable[[], T],
        *,
        interval_seconds: float,
        deadline_seconds: float,
        clock: Clock,
    ) -> None:
        self.name = name
        self._collect = collect
        self._interval_seconds = interval_seconds
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._began_seconds: float | None = None
        self._data: T | None = None
        self._sequence = 0
        self._success = False
        self._duration_seconds: float | None = None
        self._last_success_seconds: float | None = None
        self._error: str | None = None

    def start(self) -> None:
        """Start the thread, unless it runs; does not wait for a first answer.

        Called again it replaces a thread that died, and tries anew where the system allowed no more threads.
        """
        if self._stop.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        thread = threading.Thread(target=self._run, name=f"source-{self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self._note_change(f"RuntimeError: {error}")
            return
        if self._thread is not None:
            logger.warning("the thread of source %s died and was replaced", self.name)
        self._thread = thread

    def stop(self) -> None:
        """Ask the thread to end after the call it is in; never waits for it."""
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        """Cut the current pause short."""
        self._wake.set()

    def run_once(self) -> None:
        """One call of `collect` in this thread; an exception of any kind becomes health."""
        with self._lock:
            self._began_seconds = began = self._clock.now()
        data: T | None = None
        error: str | None = None
        try:
            data = self._collect()
        except BaseException as exc:  # a source may fail in any way, and must fail alone and be heard of
            error = f"{type(exc).__name__}: {exc}".splitlines()[0]
            logger.debug("source %s", self.name, exc_info=True)
        ended = self._clock.now()
        with self._lock:
            self._began_seconds = None
            self._duration_seconds = ended - began
            self._data = data
            self._sequence += 1
            self._note_change(error)
            if error is None:
                self._last_success_seconds = ended

    def latest(self) -> tuple[int, Report[T]]:
        """The number of the last finished call, and what it said; data only while fresh and not past a deadline."""
        with self._lock:
            began = self._began_seconds
            stuck = began is not None and self._clock.now() - began > self._deadline_seconds
            health = Health(
                success=self._success and not stuck,
                stuck=stuck,
                duration_seconds=self._duration_seconds,
                last_success_seconds=self._last_success_seconds,
                error=f"no answer within {self._deadline_seconds:g} s" if stuck else self._error,
            )
            return self._sequence, Report(None if stuck or not self._success else self._data, health)

    def _note_change(self, error: str | None) -> None:
        # one line per change of state, not per call
        if error is not None and (self._success or error != self._error):
            logger.warning("source %s fails: %s", self.name, error)
        elif error is None and self._error is not None:
            logger.info("source %s works again", self.name)
        self._success = error is None
        self._error = error

    def _run(self) -> None:
        while not self._stop.is_set():
            self.run_once()
            self._wake.wait(self._interval_seconds)
            self._wake.clear()
