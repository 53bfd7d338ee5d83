"""The GPU metrics from the driver's library to the series of a scrape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fake_nvml import scrape as scrape_module
from fake_nvml.build import build
from fake_nvml.state import MIB, FakeProcess, FakeState, gpu_at_work
from training_exporter.catalogue import CATALOGUE

GPUS = 8
XID = 79
SW_POWER_CAP = 0x4
UNOWNED_MIB = 700  # held by nobody on each GPU
P = "training_gpu_"

# Every optional symbol that is removed, with the older names that would answer instead, and what goes with it.
UTILIZATION = {f"{P}{name}" for name in ("utilization_ratio", "memory_utilization_ratio", "busy_seconds_total",
    "working_seconds_total", "last_working_timestamp_seconds")}  # fmt: skip
ERRORS = {f"{P}xid_errors_total", f"{P}xid_last_timestamp_seconds"}
MEMORY = {f"{P}memory_used_bytes", f"{P}memory_total_bytes", f"{P}unowned_memory_bytes"}
CASES: list[tuple[Sequence[str], set[str]]] = [
    (["nvmlDeviceGetUtilizationRates"], UTILIZATION),
    (["nvmlDeviceGetPowerUsage"], {f"{P}power_watts", f"{P}effort_ratio"}),
    (["nvmlDeviceGetTotalEnergyConsumption"], {f"{P}energy_joules_total"}),
    (["nvmlDeviceGetEnforcedPowerLimit"], set()),
    (["nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"], {f"{P}power_limit_watts"}),
    (["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"], MEMORY),
    (["nvmlDeviceGetTemperatureV"], set()),
    (["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"], {f"{P}temperature_celsius"}),
    (["nvmlDeviceGetClockInfo"], {f"{P}sm_clock_hertz"}),
    (["nvmlDeviceGetCurrentClocksEventReasons"], set()),
    (
        ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"],
        {f"{P}clock_event_active"},
    ),
    (["nvmlDeviceGetSupportedClocksEventReasons"], set()),
    (["nvmlDeviceGetComputeRunningProcesses_v3"], set()),
    (
        ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"],
        {f"{P}unowned_memory_bytes"},
    ),
    (["nvmlDeviceGetMPSComputeRunningProcesses_v3"], set()),
    (["nvmlDeviceGetGraphicsRunningProcesses_v3"], set()),
    (["nvmlDeviceGetProcessUtilization"], set()),
    (["nvmlDeviceGetMigMode"], set()),
    (["nvmlEventSetCreate"], ERRORS),
    (["nvmlDeviceRegisterEvents"], ERRORS),
    (["nvmlEventSetWait_v2"], ERRORS),
]
IDENTITY = [
    ("nvmlDeviceGetName", "name"),
    ("nvmlDeviceGetPciInfo_v3", "pci_bus_id"),
    ("nvmlSystemGetDriverVersion", "driver_version"),
    ("nvmlDeviceGetUUID", "uuid"),
]

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Node:
    """Asks for a scrape of eight GPUs at work on a library."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder

    def scrape(self, library: Path, *, expect_error: bool = True) -> Series:
        """Every series of a GPU, after one of the GPUs had a critical error."""
        gpus = [
            gpu_at_work(
                index,
                processes=[FakeProcess(100 + index, (39_791 + index - UNOWNED_MIB) * MIB, 90)],
                clock_events=SW_POWER_CAP,
            )
            for index in range(GPUS)
        ]
        FakeState(gpus).write(self._folder / "state")
        gpus[3].xids.append(XID)
        FakeState(gpus).write(self._folder / "second")
        answer: list[tuple[str, dict[str, str], float]] = self._ask(
            library=str(library),
            state=str(self._folder / "state"),
            second=str(self._folder / "second"),
            uuids=[gpu.uuid for gpu in gpus],
            pids=[100 + index for index in range(GPUS)],
            expect_error=expect_error,
        )
        series = {(name, frozenset(labels.items())): value for name, labels, value in answer}
        assert len(series) == len(answer)
        return series

    def _ask(self, **request: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A process that answers for all tests here."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, scrape_module.__file__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Node(process, tmp_path_factory.mktemp("node"))
        process.kill()


@pytest.fixture(scope="module")
def healthy(node: Node, fake_nvml: Path) -> Series:
    """The scrape on a driver that has every symbol."""
    return node.scrape(fake_nvml)


def _only(series: Series, name: str, /, **labels: str) -> float:
    (value,) = [
        value for (metric, have), value in series.items() if metric == f"{P}{name}" and set(labels.items()) <= set(have)
    ]
    return value


class TestValues:
    @pytest.mark.parametrize("index", range(GPUS))
    def test_every_metric_has_the_value_that_was_set(self, healthy: Series, index: int) -> None:
        """In base units, each GPU's own."""
        gpu = str(index)
        expected = {
            "info": 1.0,
            "utilization_ratio": (90 + index) / 100,
            "memory_utilization_ratio": (40 + index) / 100,
            "power_watts": 360.0 + index,
            "power_limit_watts": 600.0,
            "energy_joules_total": 5000 + index / 1000,
            "effort_ratio": (360.0 + index - 60.0) / (400.0 - 60.0),
            "memory_used_bytes": (39_791 + index) * MIB,
            "memory_total_bytes": 97_887 * MIB,
            "temperature_celsius": 60.0 + index,
            "sm_clock_hertz": (1900 + index) * 1e6,
            "unowned_memory_bytes": UNOWNED_MIB * MIB,
            "lost": 0.0,
        }
        assert {name: _only(healthy, name, gpu=gpu) for name in expected} == pytest.approx(expected)
        assert _only(healthy, "clock_event_active", gpu=gpu, reason="sw_power_cap") == 1.0
        assert _only(healthy, "clock_event_active", gpu=gpu, reason="hw_slowdown") == 0.0
        busy, working = (_only(healthy, name, gpu=gpu) for name in ("busy_seconds_total", "working_seconds_total"))
        assert busy == working > 0.0

    def test_identity(self, healthy: Series) -> None:
        """The labels of the info metric."""
        identity = {"uuid": "GPU-00000003-0000-0000-0000-000000000000", "name": "NVIDIA H100 80GB HBM3"}
        place = {"pci_bus_id": "00000000:03:00.0", "driver_version": "580.82.07"}
        assert _only(healthy, "info", gpu="3", **identity, **place) == 1.0

    def test_a_critical_error_is_counted_where_it_was(self, healthy: Series) -> None:
        """The other GPUs have no such series."""
        assert _only(healthy, "xid_errors_total", xid=str(XID)) == _only(healthy, "xid_errors_total", gpu="3") == 1.0
        assert _only(healthy, "xid_last_timestamp_seconds", gpu="3") == pytest.approx(
            _only(healthy, "last_working_timestamp_seconds", gpu="3"), abs=10
        )

    def test_nothing_of_the_catalogue_is_left_out(self, healthy: Series) -> None:
        """Every GPU metric there is was looked at above."""
        assert {name for name, _ in healthy} == {spec.name for spec in CATALOGUE if spec.name.startswith(P)}


class TestMissingSymbols:
    @pytest.mark.parametrize(("missing", "gone"), CASES, ids=lambda value: "+".join(sorted(value)) or "nothing")
    def test_only_its_series_go(
        self, node: Node, healthy: Series, tmp_path: Path, missing: Sequence[str], gone: set[str]
    ) -> None:
        """Nothing else goes, and nothing comes."""
        left = node.scrape(build(tmp_path, missing=missing), expect_error=not gone & ERRORS)
        assert left.keys() == {key for key in healthy if key[0] not in gone}

    def test_the_supported_reasons(self, node: Node, healthy: Series, tmp_path: Path) -> None:
        """Without them only an active reason is known to exist."""
        names = ["nvmlDeviceGetSupportedClocksEventReasons", "nvmlDeviceGetSupportedClocksThrottleReasons"]
        left = node.scrape(build(tmp_path, missing=names))
        active = ("reason", "sw_power_cap")
        assert left.keys() == {key for key in healthy if key[0] != f"{P}clock_event_active" or active in key[1]}

    @pytest.mark.parametrize(("symbol", "label"), IDENTITY)
    def test_a_part_of_the_identity(self, node: Node, healthy: Series, tmp_path: Path, symbol: str, label: str) -> None:
        """The info metric stays, with that label empty."""
        left = node.scrape(build(tmp_path, missing=[symbol]))
        forgotten = f"{P}effort_ratio" if label == "uuid" else ""  # what was learnt is kept by UUID
        assert left.keys() == {
            (name, _without(labels, label) if name == f"{P}info" else labels)
            for name, labels in healthy
            if name != forgotten
        }


def _without(labels: frozenset[tuple[str, str]], empty: str) -> frozenset[tuple[str, str]]:
    return frozenset((key, "" if key == empty else value) for key, value in labels)
