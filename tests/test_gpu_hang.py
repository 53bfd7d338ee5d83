"""The running exporter while the GPU driver hangs: what goes, what stays, what comes back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.harness import Exporter, wait_until
from fake_nvml.state import FakeState, gpu_at_work, set_state
from jobs import job
from training import Training
from training_exporter.sources.gpu import DEADLINE_SECONDS

GPUS = 4
SYMBOL = "nvmlDeviceGetPowerUsage"
# A call begins up to a second after the state says so, and the tick sees its deadline up to a second late; the rest is
# for a busy machine.
GONE_SECONDS = DEADLINE_SECONDS + 2.0 + 3.0
PATIENCE_SECONDS = 20.0
EXIT_SECONDS = 2.0
# What does not go stale: who the GPU is, and when something last happened on it.
LASTING = {"training_gpu_info", "training_gpu_lost", "training_gpu_last_working_timestamp_seconds"}


class Stage:
    """A job, the exporter on fake GPUs, and the state of their driver."""

    def __init__(self, folder: Path, library: Path, stack: ExitStack) -> None:
        self._path = folder / "driver"
        environment = set_state(self._path, self._state(), os.environ, library)
        made = stack.enter_context(job(folder / "work"))
        self.training = Training(made, made.directory / "out")
        self.exporter = Exporter(folder, env=environment)
        stack.callback(self.exporter.stop)

    def hang(self, *gpus: int, everywhere: bool = False) -> None:
        """The symbol does not return on these GPUs, or on any."""
        state = self._state()
        state.hangs |= {SYMBOL} if everywhere else set()
        for gpu in gpus:
            state.gpus[gpu].hangs.add(SYMBOL)
        state.write(self._path)

    def series(self) -> dict[str, set[str]]:
        """Names of the GPU series that can go stale, by GPU."""
        found: dict[str, set[str]] = {}
        for name, labels in self.exporter.samples():
            if name.startswith("training_gpu_") and name not in LASTING:
                found.setdefault(dict(labels)["gpu"], set()).add(name)
        return found

    def collector(self, name: str) -> float | None:
        return self.exporter.value(f"training_exporter_collector_{name}", collector="gpu")

    def silent_seconds(self) -> float:
        """How long no GPU gave a sample; they do every second."""
        now = self.exporter.value("training_exporter_time_seconds") or 0.0
        return now - (self.collector("last_success_timestamp_seconds") or now)

    def wait_until_whole(self) -> dict[str, set[str]]:
        """Until every GPU has as many series as any, and nothing is stuck; the series."""

        def whole() -> dict[str, set[str]] | None:
            series = self.series()
            same = len(series) == GPUS and len({frozenset(names) for names in series.values()}) == 1
            return (
                series if same and self.collector("stuck") == 0 and "training_gpu_power_watts" in series["0"] else None
            )

        return wait_until("all GPUs are there", whole, seconds=PATIENCE_SECONDS)

    def expect_rest_goes_on(self) -> None:
        """Log and processes of the job are still followed."""
        before = {
            name: self.training.value(self.exporter, name) or 0.0
            for name in ("training_step", "training_log_lines_total")
        }
        seen = self._processes_seen()
        wait_until("the process source goes on", lambda: self._processes_seen() > seen, seconds=PATIENCE_SECONDS)
        for name, value in before.items():
            wait_until(
                f"{name} goes on",
                lambda name=name, value=value: (self.training.value(self.exporter, name) or 0.0) > value,
                seconds=PATIENCE_SECONDS,
            )
        assert self.training.value(self.exporter, "training_run_processes", role="worker") == 2

    def _processes_seen(self) -> float:
        name = "training_exporter_collector_last_success_timestamp_seconds"
        return self.exporter.value(name, collector="processes") or 0.0

    @staticmethod
    def _state() -> FakeState:
        return FakeState([gpu_at_work(index) for index in range(GPUS)])


@pytest.fixture(scope="module")
def stage(fake_nvml: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One exporter for all tests here, which go on from where the one before left it."""
    with ExitStack() as stack:
        made = Stage(tmp_path_factory.mktemp("stage"), fake_nvml, stack)
        made.wait_until_whole()
        wait_until(
            "the log is read", lambda: made.training.value(made.exporter, "training_step"), seconds=PATIENCE_SECONDS
        )
        yield made


def test_one_gpu_hides_exactly_its_own_series(stage: Stage) -> None:
    """Within the deadline; the others keep theirs, and it comes back by itself."""
    whole = stage.wait_until_whole()
    stage.hang(2)
    began = time.monotonic()
    wait_until("its series are gone", lambda: "2" not in stage.series(), seconds=PATIENCE_SECONDS)
    assert time.monotonic() - began < GONE_SECONDS
    assert stage.series() == {gpu: names for gpu, names in whole.items() if gpu != "2"}
    assert (stage.collector("stuck"), stage.collector("success")) == (1, 1)
    stage.hang()
    assert stage.wait_until_whole() == whole


def test_all_gpus_go_and_the_rest_goes_on(stage: Stage) -> None:
    """Log and processes are followed all the while, and after the release everything is back without a restart."""
    whole = stage.wait_until_whole()
    stage.hang(everywhere=True)
    began = time.monotonic()
    wait_until("all series are gone", lambda: not stage.series(), seconds=PATIENCE_SECONDS)
    assert time.monotonic() - began < GONE_SECONDS
    assert (stage.collector("stuck"), stage.collector("success")) == (1, 0)
    stage.expect_rest_goes_on()
    assert stage.series() == {}
    stage.hang()
    assert stage.wait_until_whole() == whole


def test_it_ends_while_the_driver_hangs(stage: Stage) -> None:
    """SIGTERM waits for no call."""
    stage.wait_until_whole()
    stage.hang(everywhere=True)
    wait_until("no call returns", lambda: stage.silent_seconds() > 2.5, seconds=PATIENCE_SECONDS)
    began = time.monotonic()
    assert stage.exporter.terminate() == 0
    assert time.monotonic() - began < EXIT_SECONDS
