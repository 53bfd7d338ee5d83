"""The parts of an end-to-end test as fixtures; every process they start is gone at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from e2e.alerting import Alertmanager, Inbox
from e2e.harness import SCALE, Exporter, Prometheus, wait_until
from e2e.job import GpuScript, Job

BUDGETS = {"idle": "20s", "validation": "20s", "checkpoint": "20s", "start": "60s", "progress": "600s"}


@pytest.fixture(scope="session", autouse=True)
def _real_parts() -> None:
    """Without the real parts these tests say nothing: skipped by name, an error in CI."""
    missing = [name for name in ("prometheus", "promtool", "cc") if shutil.which(name) is None]
    if importlib.util.find_spec("torch") is None:
        missing.append("torch (make test TORCH=1)")
    if missing:
        reason = f"missing: {', '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """Ends what was started, last first."""
    with contextlib.ExitStack() as exits:
        yield exits


@pytest.fixture
def gpus(tmp_path: Path, fake_nvml: Path, stack: contextlib.ExitStack) -> GpuScript:
    """Two fake GPUs at rest."""
    script = GpuScript(tmp_path / "nvml-state", fake_nvml)
    stack.callback(script.stop)
    return script


@pytest.fixture
def start_job(tmp_path: Path, stack: contextlib.ExitStack) -> Callable[..., Job]:
    """Start a training job of two ranks."""

    def start(*arguments: str) -> Job:
        job = Job(tmp_path / "job", *arguments)
        stack.callback(job.stop)
        return job

    return start


@pytest.fixture
def start_exporter(tmp_path: Path, gpus: GpuScript, stack: contextlib.ExitStack) -> Callable[..., Exporter]:
    """Start the exporter on the fake GPUs, or without a driver; with a `job`, it is `run` and its budgets are short."""

    def start(
        job: Job | None = None, *, run: str = "e2e", budgets: dict[str, str] = BUDGETS, driver: bool = True
    ) -> Exporter:
        arguments = []
        if job:
            config = {"runs": [{"name": run, "match": {"cmdline": job.script.stem}, "budgets": budgets}]}
            (tmp_path / "config.yml").write_text(yaml.safe_dump(config))
            arguments = [f"--config.file={tmp_path / 'config.yml'}"]
        exporter = Exporter(tmp_path, *arguments, env=gpus.environment() if driver else None)
        stack.callback(exporter.stop)
        return exporter

    return start


@pytest.fixture
def start_prometheus(tmp_path: Path, stack: contextlib.ExitStack) -> Callable[..., Prometheus]:
    """Start a Prometheus with the shipped rules that scrapes one exporter."""

    def start(exporter: Exporter, *, alertmanager: str | None = None, scale: int = SCALE) -> Prometheus:
        prometheus = Prometheus(tmp_path, [f"127.0.0.1:{exporter.port}"], alertmanager=alertmanager, scale=scale)
        stack.callback(prometheus.stop)
        return prometheus

    return start


@pytest.fixture
def alertmanager(tmp_path: Path, stack: contextlib.ExitStack) -> Alertmanager:
    """A running Alertmanager that tells its inbox."""
    inbox = Inbox()
    stack.callback(inbox.stop)
    alertmanager = Alertmanager(tmp_path, inbox)
    stack.callback(alertmanager.stop)
    return alertmanager


@pytest.fixture
def training(gpus: GpuScript, start_job: Callable[..., Job]) -> Job:
    """A job that trains, its ranks on the two GPUs."""
    job = start_job()
    ranks = wait_until("two ranks", job.ranks, seconds=60)
    gpus.play("idle", [rank.pid for rank in ranks])
    job.wait_for_line("global_step=5")
    gpus.play("train")
    return job
