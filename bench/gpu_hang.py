"""Latency of a scrape while the GPU driver hangs, against a healthy one, side by side.

    .venv/bin/python bench/gpu_hang.py [--rounds 200]

Three exporters watch the same job on eight fake GPUs each: a healthy driver, one GPU that hangs, all of them. They
are scraped in turns. The exit status is 1 if a hung median is over 1.2 healthy ones.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from e2e.harness import Exporter, fetch, wait_until  # noqa: E402  the tests' tools are found by the line above
from fake_nvml.build import build  # noqa: E402
from fake_nvml.state import FakeState, gpu_at_work, set_state  # noqa: E402
from jobs import job  # noqa: E402
from training import Training  # noqa: E402

GPUS = 8
SYMBOL = "nvmlDeviceGetPowerUsage"
MOST = 1.2
PATIENCE_SECONDS = 60.0


def one_hangs(state: FakeState) -> None:
    """The call does not return on one GPU."""
    state.gpus[5].hangs.add(SYMBOL)


def all_hang(state: FakeState) -> None:
    """It returns on none."""
    state.hangs.add(SYMBOL)


CASES: dict[str, tuple[Callable[[FakeState], None], int]] = {
    "healthy": (lambda _: None, GPUS),
    "one GPU hangs": (one_hangs, GPUS - 1),
    "all GPUs hang": (all_hang, 0),
}


def start(folder: Path, library: Path, break_driver: Callable[[FakeState], None], gpus: int) -> Exporter:
    """An exporter on a driver that works, then breaks; returned when so many GPUs are left and are shown."""
    folder.mkdir()
    state = FakeState([gpu_at_work(index) for index in range(GPUS)])
    exporter = Exporter(folder, env=set_state(folder / "driver", state, os.environ, library))

    def shown() -> int:
        return len(exporter.labels("training_gpu_power_watts"))

    wait_until("all GPUs are shown", lambda: shown() == GPUS, seconds=PATIENCE_SECONDS)
    break_driver(state)
    state.write(folder / "driver")
    wait_until(f"{gpus} GPUs are left", lambda: shown() == gpus, seconds=PATIENCE_SECONDS)
    return exporter


def scrape(exporter: Exporter) -> float:
    """Seconds of one scrape."""
    began = time.perf_counter()
    fetch(f"{exporter.url}/metrics")
    return time.perf_counter() - began


def measure(rounds: int) -> float:
    """Print the latencies; returns the worst ratio of a hung median to the healthy one."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = stack.enter_context(job(folder / "work"))
        training = Training(made, made.directory / "out")
        library = build(folder / "library")
        exporters = {}
        for name, (break_driver, gpus) in CASES.items():
            exporters[name] = start(folder / name, library, break_driver, gpus)
            stack.callback(exporters[name].stop)
        for exporter in exporters.values():
            wait_until(
                "the job is shown",
                lambda exporter=exporter: training.value(exporter, "training_step"),
                seconds=PATIENCE_SECONDS,
            )
        seconds: dict[str, list[float]] = {name: [] for name in exporters}
        for _ in range(rounds):
            for name, exporter in exporters.items():
                seconds[name].append(scrape(exporter))
    healthy = median(seconds["healthy"])
    for name, values in seconds.items():
        low, middle, p99, high = (1000 * f(values) for f in (min, median, _p99, max))
        print(f"{name:14} median {middle:6.2f} ms   min {low:6.2f}   p99 {p99:6.2f}   max {high:6.2f}")
        print(f"{'':14} ratio to the healthy median {median(values) / healthy:.3f}")
    return max(median(values) / healthy for values in seconds.values())


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    return int(measure(parser.parse_args().rounds) > MOST)


if __name__ == "__main__":
    sys.exit(main())
