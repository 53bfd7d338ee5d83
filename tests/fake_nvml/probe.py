"""Reads the GPUs through the real binding in a process of its own, on request: one word in, one JSON object out.

The binding loads the library once for the life of a process, so that each library under test needs its own.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable

from training_exporter.clock import SystemClock
from training_exporter.sources.gpu import GpuSource
from training_exporter.sources.gpu_driver import GpuDriverError
from training_exporter.sources.nvml import NvmlDriver

INTERVAL_SECONDS = 0.02
DEADLINE_SECONDS = 0.5


class Probe:
    """A driver, and a source on top of it that is started by the first `drain`."""

    def __init__(self) -> None:
        self._driver = NvmlDriver()
        self._source: GpuSource | None = None

    def open(self) -> object:
        self._driver.open()
        return None

    def close(self) -> object:
        self._driver.close()
        return None

    def count(self) -> object:
        return self._driver.count()

    def read(self) -> object:
        """Each device, or the error of its GPU: its identity and all its values in one flat object."""
        return [entry for index in range(self._driver.count()) for entry in self._read_gpu(index)]

    def events(self) -> object:
        return [[event.device.gpu, event.xid] for event in self._driver.wait_for_events(0.05)]

    def drain(self) -> object:
        if self._source is None:
            self._source = GpuSource(
                self._driver, SystemClock(), interval_seconds=INTERVAL_SECONDS, deadline_seconds=DEADLINE_SECONDS
            )
            self._source.start()
        report = self._source.drain()
        samples = None if report.data is None else [dataclasses.asdict(sample) for sample in report.data]
        return {"health": dataclasses.asdict(report.health), "samples": samples}

    def _read_gpu(self, index: int) -> list[dict[str, object]]:
        try:
            return [
                {
                    **dataclasses.asdict(found.device),
                    **dataclasses.asdict(self._driver.sample_slow(found)),
                    **dataclasses.asdict(self._driver.sample_fast(found)),
                }
                for found in self._driver.identify(index)
            ]
        except GpuDriverError as error:
            return [_failure(error)]


def _failure(error: GpuDriverError) -> dict[str, object]:
    return {"error": type(error).__name__, "text": str(error)}


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(value)


def main() -> None:
    """Answer requests until the input ends, then leave in the ordinary way."""
    probe = Probe()
    for line in sys.stdin:
        request: Callable[[], object] = getattr(probe, line.strip())
        try:
            answer = request()
        except GpuDriverError as error:
            answer = _failure(error)
        sys.stdout.write(json.dumps(answer, default=_plain) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
