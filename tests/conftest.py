"""What several test modules share, above all a picture of a node in which every metric has a series."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_nvml.build import build as build_fake_nvml
from training_exporter.model import GpuDevice, Health
from training_exporter.runs.view import (
    CheckpointView,
    GpuView,
    LogView,
    MetricValue,
    NodeView,
    RankView,
    RunView,
    Verdict,
)

NOW_SECONDS = 1_700_000_000.0
GPU_COUNT = 8
CLOCK_EVENTS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clocks_setting",
)
SIGNALS_AGES_SECONDS = {"step": 730, "validation": 9000, "checkpoint": 5400, "log": 30, "gpu": 700, "io": 5, "cpu": 5}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` rewrites golden files and generated documents; `--robustness` plays many more scenarios."""
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files and generated documents")
    parser.addoption("--robustness", action="store_true", help="every scenario under every bad condition, not a few")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The scenarios come first: they are half of all work, and are played behind the tests that mostly wait."""
    items.sort(key=lambda item: item.path.name != "test_rules_scenarios.py")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the stand-in for the NVIDIA driver library, for LD_LIBRARY_PATH."""
    return build_fake_nvml(tmp_path_factory.mktemp("fake_nvml"))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that everybody may enter: pytest's own are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="exporter-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def rich_view() -> NodeView:
    """A node with 8 GPUs and one run that validates; the wall clock was set forward by 5 s since the start."""
    return NodeView(
        time_seconds=NOW_SECONDS,
        wall_shift_seconds=5.0,
        runs=(_run(),),
        gpus=tuple(_gpu(index) for index in range(GPU_COUNT)),
        health={
            "gpu": Health(success=True, duration_seconds=0.004, last_success_seconds=NOW_SECONDS - 1),
            "processes": Health(success=True, duration_seconds=0.03, last_success_seconds=NOW_SECONDS - 2),
            "logs": Health(success=True, duration_seconds=0.001, last_success_seconds=NOW_SECONDS - 1),
            "checkpoints": Health(success=False, stuck=True, error="no answer within 20 s"),
        },
    )


def _run() -> RunView:
    return RunView(
        name="eagle3-synth100k",
        launcher="torchrun",
        script="train.py",
        job_id="4311",
        node_rank="0",
        paging=True,
        alive=True,
        verdict=Verdict("validating", 40, since_seconds=NOW_SECONDS - 720, sentence="Validating for 12 min."),
        start_seconds=NOW_SECONDS - 36_000,
        end_seconds=NOW_SECONDS - 35_000,
        observed_since_seconds=NOW_SECONDS - 35_900,
        processes={"launcher": 1, "worker": GPU_COUNT, "loader": 32},
        workers_expected=GPU_COUNT,
        process_states={"sleeping": 6, "running": 2, "disk_sleep": 1},
        disk_sleep_seconds=0.5,
        stopped_seconds=0.0,
        cpu_seconds_total={"worker": 1234.5, "loader": 99.0},
        read_bytes_total=5e9,
        written_bytes_total=1e9,
        restarts_total=1,
        ranks=tuple(_rank(rank) for rank in range(GPU_COUNT)),
        gpus=tuple(map(str, range(GPU_COUNT))),
        gpu_memory_bytes={str(gpu): 41_724_000_000 for gpu in range(GPU_COUNT)},
        log=_log(),
        phase="validating",
        phase_start_seconds=NOW_SECONDS - 720,
        phase_progress_ratio=0.25,
        step=4000,
        steps_target=10_000,
        steps_total=3900,
        epoch=0,
        epochs_target=5,
        step_interval_seconds=2.4,
        loss_nonfinite_streak=0,
        metrics={
            ("train", "loss"): MetricValue(1.25, NOW_SECONDS - 730),
            ("validation", "full_acc_0"): MetricValue(0.8125, NOW_SECONDS - 9000),
        },
        metrics_updated_seconds={"train": NOW_SECONDS - 730, "validation": NOW_SECONDS - 9000},
        metrics_nonfinite_total={"train": 0, "validation": 0},
        validations_total=2,
        checkpoints=_checkpoints(),
        activity_seconds={signal: NOW_SECONDS - age for signal, age in SIGNALS_AGES_SECONDS.items()},
        budgets_seconds={"idle": 600.0, "progress": 3600.0},
        blind={"checkpoints": True, "gpu": False},
        absent={"logs": False},
        idle_seconds=30.0,
        no_progress_seconds=30.0,
        hints=("pipe the output through `| tee FILE`",),
        last_phase_seconds=1500.0,
    )


def _rank(rank: int) -> RankView:
    return RankView(rank, rank, str(rank), up=True, pid=1000 + rank, state="sleeping", cpu_seconds_total=150.0 + rank)


def _log() -> LogView:
    return LogView(
        lines_total=12_345,
        bytes_total=2_345_678,
        redraws_total=1866,
        last_line_seconds=NOW_SECONDS - 30,
        unread_bytes=0,
        dropped_bytes_total=0,
        opens_total=1,
        messages_total={
            ("recompile_limit", "benign"): 3,
            **{(f"suspect_{index}", "suspect"): 0 for index in range(10)},
            **{(f"fatal_{index}", "fatal"): 0 for index in range(10)},
        },
        last_message_seconds={"benign": NOW_SECONDS - 30},
        last_line="torch._dynamo hit config.recompile_limit (8)",
        files=("/data/eagle3/logs/train.log",),
    )


def _checkpoints() -> CheckpointView:
    return CheckpointView(
        count=3,
        last_seconds=NOW_SECONDS - 5400,
        last_wall_seconds=NOW_SECONDS - 5395,
        last_bytes=17_000_000_000,
        last_step=3500,
        last_name="checkpoint-3500",
        in_progress=True,
        in_progress_bytes=1_000_000,
        interval_seconds=5000.0,
        directories=("/data/eagle3/output",),
        not_checkpoints=("train_config.json",),
    )


def _gpu(index: int) -> GpuView:
    return GpuView(
        device=GpuDevice(
            gpu=str(index),
            uuid=f"GPU-{index:08d}",
            name="NVIDIA RTX PRO 6000",
            pci_bus_id=f"00000000:{index:02X}:00.0",
            driver_version="580.82",
        ),
        lost=False,
        utilization_ratio=0.0,
        memory_utilization_ratio=0.0,
        busy_seconds_total=30_000.0,
        working_seconds_total=29_000.0,
        power_watts=197.0 + index,
        power_limit_watts=600.0,
        energy_joules_total=5e6,
        effort_ratio=0.1,
        idle_watts=80.0,
        train_watts=380.0,
        memory_used_bytes=41_724_000_000,
        memory_total_bytes=102_641_958_912,
        temperature_celsius=48.0,
        sm_clock_hertz=2.6e9,
        clock_events={reason: reason == "sw_power_cap" for reason in CLOCK_EVENTS},
        xid_errors_total={79: 1} if index == 0 else {},
        xid_last_seconds=NOW_SECONDS - 100 if index == 0 else None,
        last_working_seconds=NOW_SECONDS - 700,
        unowned_memory_bytes=0,
    )
