"""What /metrics would say on one driver library after another: a JSON request a line in, the series out.

The binding loads the library once for the life of a process, and starting an interpreter is slow: each request is
answered by a fork of this process, into which the library is loaded before the binding asks for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fake_nvml.build import LIBRARY
from training_exporter.clock import SystemClock
from training_exporter.config import Config
from training_exporter.metrics import families
from training_exporter.model import GpuDevice, Health, Observation, ProcessRecord, ProcessTable, Report
from training_exporter.runs.gpus import GpuTracker
from training_exporter.runs.memory import VERSION
from training_exporter.runs.node import Node
from training_exporter.sources.gpu import GpuSource
from training_exporter.sources.nvml import NvmlDriver

INTERVAL_SECONDS = 0.02
SAMPLES = 5  # of each GPU, before the errors are provoked
LATER_SAMPLES = 10  # after them, where none is expected
PATIENCE_SECONDS = 20.0
IDLE_WATTS, TRAIN_WATTS = 60.0, 400.0


def learnt(uuids: list[str], now: float) -> dict[str, Any]:
    """What a node remembers that saw these GPUs at rest and in training."""
    trackers = {uuid: GpuTracker(GpuDevice("0", uuid)) for uuid in uuids}
    for tracker in trackers.values():
        for second in range(15):
            tracker.idle.observe(float(second), IDLE_WATTS, at_rest=True)
        tracker.train.observe(TRAIN_WATTS, 60.0)
        tracker.train.confirm()
    memory = {uuid: tracker.remember(0.0) for uuid, tracker in trackers.items()}
    return {"version": VERSION, "time": now, "runs": {}, "owners": {}, "gpus": memory}


class Scrape:
    """GPU source and judgement as the exporter joins them, with a process table of the request's own."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._clock = SystemClock()
        self._source = GpuSource(NvmlDriver(), self._clock, interval_seconds=INTERVAL_SECONDS)
        self._node = Node(Config(), "host", learnt(request["uuids"], self._clock.now()))
        self._pids = request["pids"]
        self._counts: dict[str, int] = {}
        self._source.start()

    def until_sampled(self, gpus: int, samples: int) -> None:
        """Observe until each GPU gave so many more samples."""
        self._counts = {}
        self._observe_until(
            lambda: len(self._counts) >= gpus and all(count >= samples for count in self._counts.values())
        )

    def until_error(self) -> None:
        """Observe until a critical error was counted."""
        self._observe_until(lambda: any(name == "training_gpu_xid_errors_total" for name, _, _ in self.series()))

    def series(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Name, labels and value of every series of a GPU."""
        for family in families(self._view):
            for sample in family.samples:
                if "gpu" in sample.labels:
                    yield sample.name, sample.labels, sample.value

    def _observe_until(self, condition: Any) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        self._observe()
        while not condition() and time.monotonic() < deadline:
            time.sleep(INTERVAL_SECONDS)
            self._observe()

    def _observe(self) -> None:
        now = self._clock.now()
        gpu = self._source.drain()
        for sample in gpu.data or ():
            self._counts[sample.device.gpu] = self._counts.get(sample.device.gpu, 0) + 1
        records = {pid: ProcessRecord(pid, pid, now - 60.0, 1, pid, "worker") for pid in self._pids}
        table = Report(ProcessTable(now, records), Health(success=True))
        self._view = self._node.observe(Observation(now, gpu=gpu, processes=table))


def answer(request: Mapping[str, Any]) -> list[tuple[str, dict[str, str], float]]:
    """Scrape on the library and state of the request, then with the errors of its second state."""
    ctypes.CDLL(str(Path(request["library"]) / LIBRARY), mode=ctypes.RTLD_GLOBAL)
    os.environ["FAKE_NVML_STATE"] = request["state"]
    scrape = Scrape(request)
    gpus = len(request["uuids"])
    scrape.until_sampled(gpus, SAMPLES)
    Path(request["second"]).rename(request["state"])
    if request["expect_error"]:
        scrape.until_error()
    else:
        scrape.until_sampled(gpus, LATER_SAMPLES)
    return list(scrape.series())


def main() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
