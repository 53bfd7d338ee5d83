"""The NVML adapter, through the unmodified binding, on a driver library made for tests."""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fake_nvml import probe as probe_module
from fake_nvml.build import build
from fake_nvml.state import MIB, FakeDevice, FakeGpu, FakeProcess, FakeState, gpu_at_work, set_state

ALL_ONES_32 = 2**32 - 1
ALL_ONES_64 = 2**64 - 1
UNKNOWN_ERROR = 999
NO_PERMISSION = 4
VERSION_MISMATCH = 18
WAIT_SECONDS = 20.0

IDENTITY = {"gpu", "uuid", "name", "pci_bus_id", "driver_version", "parent", "mig"}
CLOCK_EVENTS = [
    (0x001, "gpu_idle"),
    (0x002, "applications_clocks_setting"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal_slowdown"),
    (0x040, "hw_thermal_slowdown"),
    (0x080, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
]
# What goes with each symbol that an older driver may lack; an empty set where another symbol answers instead.
MISSING_SYMBOLS: list[tuple[Sequence[str], set[str]]] = [
    (["nvmlDeviceGetUtilizationRates"], {"utilization_ratio", "memory_utilization_ratio"}),
    (["nvmlDeviceGetPowerUsage"], {"power_watts"}),
    (["nvmlDeviceGetTotalEnergyConsumption"], {"energy_joules"}),
    (["nvmlDeviceGetEnforcedPowerLimit"], set()),
    (["nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"], {"power_limit_watts"}),
    (["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"], {"memory_used_bytes", "memory_total_bytes"}),
    (["nvmlDeviceGetTemperatureV"], set()),
    (["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"], {"temperature_celsius"}),
    (["nvmlDeviceGetClockInfo"], {"sm_clock_hertz"}),
    (["nvmlDeviceGetCurrentClocksEventReasons"], set()),
    (
        ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"],
        {"clock_events", "clock_events_known"},
    ),
    (["nvmlDeviceGetSupportedClocksEventReasons"], set()),
    (
        ["nvmlDeviceGetSupportedClocksEventReasons", "nvmlDeviceGetSupportedClocksThrottleReasons"],
        {"clock_events_known"},
    ),
    (["nvmlDeviceGetComputeRunningProcesses_v3"], set()),
    (
        ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"],
        {"processes", "graphics_memory_bytes"},
    ),
    (["nvmlDeviceGetGraphicsRunningProcesses_v3"], {"graphics_memory_bytes"}),
    (["nvmlDeviceGetUUID"], {"uuid"}),
    (["nvmlDeviceGetName"], {"name"}),
    (["nvmlDeviceGetPciInfo_v3"], {"pci_bus_id"}),
    (["nvmlSystemGetDriverVersion"], {"driver_version"}),
    (["nvmlDeviceGetMigMode"], set()),
    (["nvmlEventSetCreate"], set()),
    (["nvmlDeviceRegisterEvents"], set()),
    (["nvmlEventSetWait_v2"], set()),
]


class Probe:
    """A process that reads the GPUs of a state through the binding."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self._process = process
        self._path = path

    def ask(self, request: str, state: FakeState | None = None) -> Any:
        """The answer to a request, after the state became this one."""
        if state is not None:
            state.write(self._path)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def read(self, *gpus: FakeGpu) -> list[dict[str, Any]]:
        """What is read of these GPUs."""
        answer: list[dict[str, Any]] = self.ask("read", FakeState(list(gpus)))
        return answer

    def drain_until(self, wanted: Any) -> dict[str, Any]:
        """Drain until a report satisfies `wanted`."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            report: dict[str, Any] = self.ask("drain")
            if wanted(report):
                return report
            assert time.monotonic() < deadline, report
            time.sleep(0.02)

    def leave(self) -> int:
        """End of input; the exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(WAIT_SECONDS)


@contextlib.contextmanager
def started_probe(library: Path, folder: Path, state: FakeState) -> Iterator[Probe]:
    """A probe on the library in that folder; killed at the end."""
    path = folder / "state"
    process = subprocess.Popen(
        [sys.executable, probe_module.__file__],
        env=set_state(path, state, os.environ, library),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Probe(process, path)
        process.kill()


@pytest.fixture(scope="module")
def opened(fake_nvml: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    """A probe that opened the library, shared by the tests that leave it open."""
    with started_probe(fake_nvml, tmp_path_factory.mktemp("opened"), FakeState([gpu_at_work(0)])) as probe:
        assert probe.ask("open") is None
        yield probe


@pytest.fixture
def fresh(fake_nvml: Path, tmp_path: Path) -> Iterator[Probe]:
    """A probe of the test's own, not yet opened, on a node with one GPU."""
    with started_probe(fake_nvml, tmp_path, FakeState([gpu_at_work(0)])) as probe:
        yield probe


class TestValues:
    def test_every_value_of_eight_gpus_is_the_one_that_the_driver_has(self, opened: Probe) -> None:
        """Units are converted, and no value of one GPU shows at another."""
        read = opened.read(*(gpu_at_work(index, pids=[100 + index]) for index in range(8)))
        expected = [
            {
                "gpu": str(index),
                "uuid": f"GPU-{index:08d}-0000-0000-0000-000000000000",
                "name": "NVIDIA H100 80GB HBM3",
                "pci_bus_id": f"00000000:{index:02X}:00.0",
                "driver_version": "580.82.07",
                "parent": None,
                "mig": False,
                "utilization_ratio": (90 + index) / 100,
                "memory_utilization_ratio": (40 + index) / 100,
                "power_watts": 360.0 + index,
                "power_limit_watts": 600.0,
                "energy_joules": 5000 + index / 1000,
                "memory_used_bytes": (39_791 + index) * MIB,
                "memory_total_bytes": 97_887 * MIB,
                "temperature_celsius": 60.0 + index,
                "sm_clock_hertz": (1900 + index) * 1e6,
                "clock_events": [],
                "clock_events_known": sorted(name for _, name in CLOCK_EVENTS),
                "processes": [{"pid": 100 + index, "memory_bytes": 39_791 * MIB, "sm_ratio": 0.9}],
                "graphics_memory_bytes": 0,
            }
            for index in range(8)
        ]
        assert expected == read

    def test_zero_is_data(self, opened: Probe) -> None:
        """An idle GPU has values of 0, an empty process list and no active clock event."""
        [read] = opened.read(
            gpu_at_work(
                0,
                utilization=0,
                memory_utilization=0,
                energy_millijoules=0,
                memory_used=0,
                temperature=0,
                sm_clock_mhz=0,
            )
        )
        values = [read[key] for key in ("utilization_ratio", "memory_utilization_ratio", "energy_joules")]
        assert values == [0.0, 0.0, 0.0]
        assert [read[key] for key in ("memory_used_bytes", "temperature_celsius", "sm_clock_hertz")] == [0, 0.0, 0.0]
        assert read["processes"] == []

    def test_what_is_not_supported_is_absent(self, opened: Probe) -> None:
        """A board that supports nothing but its identity yields no value at all, and no error."""
        [read] = opened.read(FakeGpu("GPU-bare", mig_mode=None))
        values = {key: value for key, value in read.items() if key not in IDENTITY}
        assert {value for key, value in values.items() if key != "clock_events_known"} == {None}
        assert values["clock_events_known"] == []

    @pytest.mark.parametrize(
        ("field", "sentinel", "absent"),
        [
            ("utilization", ALL_ONES_32, ["utilization_ratio"]),
            ("utilization", 101, ["utilization_ratio"]),
            ("memory_utilization", ALL_ONES_32, ["memory_utilization_ratio"]),
            ("power_milliwatts", ALL_ONES_32, ["power_watts"]),
            ("power_milliwatts", 2**31 - 1, ["power_watts"]),
            ("power_limit_milliwatts", ALL_ONES_32, ["power_limit_watts"]),
            ("energy_millijoules", ALL_ONES_64, ["energy_joules"]),
            ("memory_used", ALL_ONES_64, ["memory_used_bytes"]),
            ("memory_total", ALL_ONES_64, ["memory_used_bytes", "memory_total_bytes"]),
            ("temperature", ALL_ONES_32, ["temperature_celsius"]),
            ("temperature", 2**31 - 1, ["temperature_celsius"]),
            ("sm_clock_mhz", ALL_ONES_32, ["sm_clock_hertz"]),
            ("clock_events", ALL_ONES_64, ["clock_events", "clock_events_known"]),
        ],
    )
    def test_a_sentinel_makes_its_value_absent(
        self, opened: Probe, field: str, sentinel: int, absent: list[str]
    ) -> None:
        """All ones, or a number that no board can reach, is no reading; the other values stay."""
        [usual] = opened.read(gpu_at_work(0))
        [read] = opened.read(gpu_at_work(0, **{field: sentinel}))
        assert {**usual, **dict.fromkeys(absent), **_nothing_known(absent)} == read

    def test_memory_does_not_count_what_the_driver_reserves(self, opened: Probe) -> None:
        """As `nvidia-smi` shows it: used by processes, without the driver's own part."""
        [read] = opened.read(gpu_at_work(0, memory_used=5 * MIB, memory_reserved=600 * MIB))
        assert read["memory_used_bytes"] == 5 * MIB

    @pytest.mark.parametrize(("bit", "name"), CLOCK_EVENTS)
    def test_a_clock_event_has_its_name(self, opened: Probe, bit: int, name: str) -> None:
        """Each bit of the driver's mask is one reason; a driver that supports one reason knows one."""
        [read] = opened.read(gpu_at_work(0, clock_events=bit, clock_events_supported=bit))
        assert [read["clock_events"], read["clock_events_known"]] == [[name], [name]]


class TestProcesses:
    def test_memory_that_the_driver_does_not_tell_is_absent(self, opened: Probe) -> None:
        """The process is listed all the same: that it holds a context is known."""
        [read] = opened.read(gpu_at_work(0, processes=[FakeProcess(77)]))
        assert read["processes"] == [{"pid": 77, "memory_bytes": None, "sm_ratio": None}]

    def test_a_process_without_a_sample_did_no_work(self, opened: Probe) -> None:
        """The driver's samples name only processes with work, so another one beside them has a share of 0."""
        [read] = opened.read(gpu_at_work(0, processes=[FakeProcess(77, MIB, 35), FakeProcess(78, MIB)]))
        assert [process["sm_ratio"] for process in read["processes"]] == [0.35, 0.0]

    def test_entries_that_are_no_process_are_left_out(self, opened: Probe) -> None:
        """PID 0 and all ones are fillers of the driver."""
        entries = [FakeProcess(0, MIB), FakeProcess(ALL_ONES_32, MIB), FakeProcess(78, MIB)]
        [read] = opened.read(gpu_at_work(0, processes=entries))
        assert [process["pid"] for process in read["processes"]] == [78]

    def test_memory_of_a_display_server_is_told_apart(self, opened: Probe) -> None:
        """What only draws is no compute process; what does both is one, and counts there alone."""
        both = FakeProcess(77, 5 * MIB)
        [read] = opened.read(
            gpu_at_work(0, processes=[both], graphics=[both, FakeProcess(80, 3 * MIB), FakeProcess(81)])
        )
        assert [process["pid"] for process in read["processes"]] == [77]
        assert read["graphics_memory_bytes"] == 3 * MIB

    def test_a_share_above_one_is_no_share(self, opened: Probe) -> None:
        """Drivers are known to return garbage in a sample."""
        [read] = opened.read(gpu_at_work(0, processes=[FakeProcess(77, MIB, 4711), FakeProcess(78, MIB, 20)]))
        assert [process["sm_ratio"] for process in read["processes"]] == [None, 0.2]


class TestMig:
    def test_instances_are_devices_and_nothing_is_counted_twice(self, opened: Probe) -> None:
        """Memory and processes are the instances', the rest is the physical GPU's."""
        instances = [
            FakeDevice("MIG-a", memory_used=MIB, memory_total=9 * MIB, processes=[FakeProcess(7, MIB)]),
            FakeDevice("MIG-b", memory_used=0, memory_total=9 * MIB, processes=[]),
        ]
        gpu = gpu_at_work(1, pids=[7], mig_mode=1, instances=instances)
        _, physical, first, second = opened.read(gpu_at_work(0), gpu)
        assert [device["gpu"] for device in (physical, first, second)] == ["1", "1:0", "1:1"]
        assert [device["parent"] for device in (physical, first, second)] == [None, "1", "1"]
        assert [device["mig"] for device in (physical, first, second)] == [True, True, True]
        assert [device["uuid"] for device in (first, second)] == ["MIG-a", "MIG-b"]
        assert [physical["memory_used_bytes"], physical["processes"]] == [None, None]
        assert [first["memory_used_bytes"], second["memory_used_bytes"]] == [MIB, 0]
        assert [process["pid"] for process in first["processes"]] == [7]
        assert [physical["power_watts"], first["power_watts"], second["power_watts"]] == [361.0, None, None]


class TestErrors:
    def test_a_lost_gpu_is_told_apart_and_the_others_answer(self, opened: Probe) -> None:
        """GPU_IS_LOST concerns one GPU."""
        read = opened.read(gpu_at_work(0), gpu_at_work(1, lost=True))
        assert [entry.get("error") for entry in read] == [None, "GpuLostError"]

    def test_one_failing_call_costs_one_value(self, opened: Probe) -> None:
        """An unknown error of one symbol leaves the others."""
        [usual] = opened.read(gpu_at_work(0))
        [read] = opened.read(gpu_at_work(0, errors={"nvmlDeviceGetPowerUsage": UNKNOWN_ERROR}))
        assert {**usual, "power_watts": None} == read

    def test_no_permission_costs_one_value(self, opened: Probe) -> None:
        """What this user may not read is absent."""
        [read] = opened.read(gpu_at_work(0, errors={"nvmlDeviceGetComputeRunningProcesses_v3": NO_PERMISSION}))
        assert read["power_watts"] == 360.0

    def test_a_gpu_on_which_every_call_fails_is_an_error(self, opened: Probe) -> None:
        """Then there is no sample, instead of one without values."""
        fast = ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption"]
        [read] = opened.read(gpu_at_work(0, errors=dict.fromkeys(fast, UNKNOWN_ERROR)))
        assert read == {"error": "GpuDriverError", "text": "NVML: Unknown Error (code 999)"}

    def test_a_gpu_that_may_not_be_opened_is_an_error(self, opened: Probe) -> None:
        """Permission denied on the handle is said, not taken for an absent GPU."""
        [read] = opened.read(gpu_at_work(0, errors={"nvmlDeviceGetHandleByIndex_v2": NO_PERMISSION}))
        assert read["error"] == "GpuDriverError"

    def test_a_mismatch_of_driver_and_library_is_an_error_of_the_session(self, fresh: Probe) -> None:
        """After an upgrade of the driver under a running system nothing can be opened."""
        state = FakeState(errors={"nvmlInitWithFlags": VERSION_MISMATCH})
        assert fresh.ask("open", state)["error"] == "SessionLostError"
        assert fresh.ask("open", FakeState([gpu_at_work(0)])) is None

    def test_a_driver_reload_ends_the_session_and_opening_again_repairs_it(self, fresh: Probe) -> None:
        """Uninitialised is told apart from a failing GPU."""
        fresh.ask("open")
        reloaded = FakeState([gpu_at_work(0)], driver_generation=1)
        assert fresh.ask("count", reloaded)["error"] == "SessionLostError"
        assert fresh.ask("close") is None
        assert fresh.ask("open") is None
        assert fresh.ask("count") == 1

    @pytest.mark.skipif(ctypes.util.find_library("nvidia-ml") is not None, reason="this machine has a driver library")
    def test_no_library_is_no_driver(self, tmp_path: Path) -> None:
        """A machine without GPUs is told apart from one whose driver fails."""
        with started_probe(tmp_path / "nothing", tmp_path, FakeState()) as probe:
            expected = {"error": "DriverMissingError", "text": "no NVIDIA driver library (libnvidia-ml.so.1)"}
            assert expected == probe.ask("open")


class TestMissingSymbols:
    @pytest.mark.parametrize(("missing", "gone"), MISSING_SYMBOLS, ids=lambda value: "+".join(sorted(value)) or "none")
    def test_only_its_values_go(self, opened: Probe, tmp_path: Path, missing: Sequence[str], gone: set[str]) -> None:
        """A driver that lacks a symbol costs what only this symbol tells."""
        state = FakeState([gpu_at_work(index, pids=[100 + index]) for index in range(2)])
        usual = opened.ask("read", state)
        with started_probe(build(tmp_path / "lib", missing=missing), tmp_path, state) as probe:
            probe.ask("open")
            read = probe.ask("read")
            assert probe.ask("events") == []
        for before, after in zip(usual, read, strict=True):
            assert gone == {key for key in before if before[key] != after[key]}
            assert not any(after[key] for key in gone)

    def test_the_older_memory_call_counts_the_reserved_part(self, tmp_path: Path) -> None:
        """What cannot be told apart is not corrected by a guess."""
        library = build(tmp_path / "lib", missing=["nvmlDeviceGetMemoryInfo_v2"])
        state = FakeState([gpu_at_work(0, memory_used=5 * MIB, memory_reserved=600 * MIB)])
        with started_probe(library, tmp_path, state) as probe:
            probe.ask("open")
            assert probe.ask("read")[0]["memory_used_bytes"] == 605 * MIB

    def test_the_share_of_a_process_goes_alone(self, tmp_path: Path) -> None:
        """Without samples per process the list of processes stays."""
        library = build(tmp_path / "lib", missing=["nvmlDeviceGetProcessUtilization"])
        with started_probe(library, tmp_path, FakeState([gpu_at_work(0, pids=[7])])) as probe:
            probe.ask("open")
            assert probe.ask("read")[0]["processes"] == [{"pid": 7, "memory_bytes": 39_791 * MIB, "sm_ratio": None}]


class TestEvents:
    def test_a_critical_error_is_told_once(self, fresh: Probe) -> None:
        """Those from before the start are not told, a repeat of the same code is, and so is one of a lost GPU."""
        state = FakeState([gpu_at_work(0, xids=[13]), gpu_at_work(1)])
        fresh.ask("open", state)
        fresh.ask("read")
        assert fresh.ask("events") == []
        state.gpus[0].xids += [13, 79]
        state.gpus[0].lost = True
        state.gpus[1].xids.append(31)
        assert sorted(fresh.ask("events", state)) == [["0", 13], ["0", 79], ["1", 31]]
        assert fresh.ask("events") == []


class TestSource:
    """The whole source on the library: threads, deadline, recovery."""

    def test_a_gpu_that_hangs_hides_only_itself_until_it_answers(self, fake_nvml: Path, tmp_path: Path) -> None:
        """The seven others go on with new values, the source is stuck, and it recovers by itself."""
        state = FakeState([gpu_at_work(index) for index in range(8)])
        with started_probe(fake_nvml, tmp_path, state) as probe:
            probe.drain_until(lambda report: _seen(report) == set("01234567"))
            state.gpus[3].hangs.add("nvmlDeviceGetPowerUsage")
            state.gpus[4].power_milliwatts = 111_000
            state.write(tmp_path / "state")
            probe.drain_until(lambda report: report["health"]["stuck"])
            alone = "gpu 3: no answer within 0.5 s"
            report = probe.drain_until(
                lambda report: _seen(report) == set("0124567") and report["health"]["error"] == alone
            )
            assert report["health"]["success"]
            assert {s["power_watts"] for s in report["samples"] if s["device"]["gpu"] == "4"} == {111.0}
            state.gpus[3].hangs.clear()
            state.gpus[3].power_milliwatts = 222_000
            state.write(tmp_path / "state")
            report = probe.drain_until(lambda report: "3" in _seen(report))
            assert {s["power_watts"] for s in report["samples"] if s["device"]["gpu"] == "3"} == {222.0}
            assert not probe.drain_until(lambda report: not report["health"]["stuck"])["health"]["error"]

    @pytest.mark.parametrize(
        "symbol",
        ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo_v2"],
    )
    def test_a_driver_that_hangs_from_the_start_is_stuck_and_holds_nothing_up(
        self, fake_nvml: Path, tmp_path: Path, symbol: str
    ) -> None:
        """No data, a stuck mark, an ordinary end of the process."""
        state = FakeState([gpu_at_work(index) for index in range(2)], hangs={symbol})
        with started_probe(fake_nvml, tmp_path, state) as probe:
            report = probe.drain_until(lambda report: report["health"]["stuck"])
            assert [report["samples"], report["health"]["success"]] == [None, False]
            assert probe.leave() == 0

    @pytest.mark.parametrize(
        ("symbol", "hidden"),
        [("nvmlDeviceGetPowerUsage", True), ("nvmlDeviceGetCount_v2", False), ("nvmlEventSetWait_v2", False)],
    )
    def test_a_driver_that_hangs_on_all_gpus_recovers_by_itself(
        self, fake_nvml: Path, tmp_path: Path, symbol: str, *, hidden: bool
    ) -> None:
        """Data is withdrawn only where the call that hangs is one that reads it, and is back after the release."""
        state = FakeState([gpu_at_work(index) for index in range(2)])
        with started_probe(fake_nvml, tmp_path, state) as probe:
            probe.drain_until(lambda report: _seen(report) == {"0", "1"})
            state.hangs.add(symbol)
            state.write(tmp_path / "state")
            probe.drain_until(lambda report: report["health"]["stuck"])
            shown = None if hidden else {"0", "1"}
            report = probe.drain_until(lambda report: report["health"]["stuck"] and _seen_or_none(report) == shown)
            assert report["health"]["success"] == (not hidden)
            state.hangs.clear()
            state.write(tmp_path / "state")
            probe.drain_until(lambda report: not report["health"]["stuck"] and _seen(report) == {"0", "1"})

    def test_everything_returns_after_a_driver_reload(self, fake_nvml: Path, tmp_path: Path) -> None:
        """Uninitialised is a state; the source sets the library up again."""
        state = FakeState([gpu_at_work(0)])
        with started_probe(fake_nvml, tmp_path, state) as probe:
            probe.drain_until(lambda report: _seen(report) == {"0"})
            state.driver_generation = 1
            state.gpus.append(gpu_at_work(1))
            state.write(tmp_path / "state")
            probe.drain_until(lambda report: not report["health"]["success"])
            report = probe.drain_until(lambda report: _seen(report) == {"0", "1"})
            assert report["health"]["success"]


def _seen(report: dict[str, Any]) -> set[str]:
    return {sample["device"]["gpu"] for sample in report["samples"] or ()}


def _seen_or_none(report: dict[str, Any]) -> set[str] | None:
    return None if report["samples"] is None else _seen(report)


def _nothing_known(absent: list[str]) -> dict[str, object]:
    return {"clock_events_known": []} if "clock_events_known" in absent else {}
