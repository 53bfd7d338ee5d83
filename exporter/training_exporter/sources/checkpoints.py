"""What stands in the checkpoint directories of all runs, each looked at in its own thread with a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from training_exporter.clock import Clock
from training_exporter.model import CheckpointTarget, DirectoryListing
from training_exporter.sources.directory_scan import DirectoryScanner
from training_exporter.worker import Worker

INTERVAL_SECONDS = 5.0
# A first look at a large tree on a slow network file system takes seconds; a dead mount takes for ever.
DEADLINE_SECONDS = 30.0
MAX_THREADS = 64


class Scanner(Protocol):
    """Lists what one target names."""

    def scan(self) -> tuple[DirectoryListing, ...]:
        """Newest listings; may raise OSError and may block."""


class CheckpointSource:
    """The listings of every watched target. A path that does not answer costs its own thread and nothing else."""

    def __init__(
        self,
        clock: Clock,
        *,
        scanner: Callable[[CheckpointTarget, Clock], Scanner] = DirectoryScanner,
        interval_seconds: float = INTERVAL_SECONDS,
        deadline_seconds: float = DEADLINE_SECONDS,
        max_threads: int = MAX_THREADS,
    ) -> None:
        self._clock = clock
        self._scanner = scanner
        self._interval_seconds = interval_seconds
        self._deadline_seconds = deadline_seconds
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._targets: tuple[CheckpointTarget, ...] = ()
        self._scans: dict[CheckpointTarget, _Scan] = {}

    def watch(self, targets: Sequence[CheckpointTarget]) -> None:
        """Replace the set of watched targets; returns at once."""
        with self._lock:
            self._targets = tuple(dict.fromkeys(targets))
            for target in self._scans.keys() - set(self._targets):
                self._scans[target].stop()
            self._start_missing()

    def collect(self) -> tuple[DirectoryListing, ...]:
        """The newest listings of all targets; none yet of a target whose first look has not come back."""
        with self._lock:
            self._start_missing()
            pairs = [(target, self._scans.get(target)) for target in self._targets]
        return tuple(listing for target, scan in pairs for listing in self._listings(target, scan))

    @property
    def stuck(self) -> bool:
        """Whether the look at any target is past its deadline."""
        with self._lock:
            return any(scan.worker.latest()[1].health.stuck for scan in self._scans.values() if not scan.stopped)

    def close(self) -> None:
        """Ask all threads to end; never waits for them."""
        self.watch(())

    def _start_missing(self) -> None:
        # a thread that was asked to end counts until it comes back, and its target waits for it
        self._scans = {target: scan for target, scan in self._scans.items() if scan.running or not scan.stopped}
        for scan in self._scans.values():
            scan.worker.start()  # does nothing where it runs
        for target in self._targets:
            if target not in self._scans and len(self._scans) < self._max_threads:
                self._scans[target] = _Scan(
                    self._scanner(target, self._clock),
                    name=f"checkpoints {target.path}",
                    interval_seconds=self._interval_seconds,
                    deadline_seconds=self._deadline_seconds,
                    clock=self._clock,
                )

    def _listings(self, target: CheckpointTarget, scan: _Scan | None) -> tuple[DirectoryListing, ...]:
        now = self._clock.now()
        failed = DirectoryListing(target, now, now + self._clock.wall_shift(), readable=False)
        if scan is None:
            return (replace(failed, error=f"more than {self._max_threads} directories"),)
        sequence, report = scan.worker.latest()
        if report.data is not None:
            return report.data
        if report.health.stuck or report.health.error or sequence:
            # a pattern's directories fail one by one, so that each is known to be the one that worked before
            failed = replace(failed, stuck=report.health.stuck, error=report.health.error)
            return tuple(replace(failed, target=target) for target in scan.listed) or (failed,)
        return ()


class _Scan:
    """One target's thread."""

    def __init__(
        self, scanner: Scanner, *, name: str, interval_seconds: float, deadline_seconds: float, clock: Clock
    ) -> None:
        self._scanner = scanner
        self.running = False
        self.stopped = False
        self.listed: tuple[CheckpointTarget, ...] = ()  # what the target named when it last answered
        self.worker = Worker(
            name, self._call, interval_seconds=interval_seconds, deadline_seconds=deadline_seconds, clock=clock
        )
        self.worker.start()

    def stop(self) -> None:
        self.stopped = True
        self.worker.stop()

    def _call(self) -> tuple[DirectoryListing, ...]:
        self.running = True
        try:
            listings = self._scanner.scan()
            self.listed = tuple(listing.target for listing in listings)
            return listings
        finally:
            self.running = False
