"""From a real job to who is told of it: exporter, Prometheus, Alertmanager with the shipped inhibitions, receiver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.alerting import Alertmanager
from e2e.conftest import BUDGETS
from e2e.harness import Exporter, Prometheus, wait_until
from e2e.job import GpuScript, Job

pytestmark = pytest.mark.torch

RUN = "eagle3-e2e"
# A stall is known before TrainingGpuIdle: 6 min in the rules, 36 s divided by 10, time enough on a busy machine.
IDLE_SECONDS = 10
GPU_IDLE_SCALE = 10


def test_a_stall_is_told_alone_and_then_taken_back(
    training: Job,
    gpus: GpuScript,
    alertmanager: Alertmanager,
    start_exporter: Callable[..., Exporter],
    start_prometheus: Callable[..., Prometheus],
) -> None:
    """The pager hears of the stall once and of its end; that no GPU works reaches nobody meanwhile."""
    exporter = start_exporter(training, run=RUN, budgets=BUDGETS | {"idle": f"{IDLE_SECONDS}s"})
    wait_until("the run trains", lambda: exporter.value("training_run_state_code", run=RUN) == 30, seconds=40)
    prometheus = start_prometheus(exporter, alertmanager=alertmanager.address, scale=GPU_IDLE_SCALE)
    wait_until(
        "Prometheus knows the run", lambda: prometheus.query(f'run:training_state:code{{run="{RUN}"}}'), seconds=30
    )
    inbox = alertmanager.inbox
    training.ranks()[1].suspend()
    gpus.play("idle")
    wait_until("the pager is told", lambda: inbox.told("pager", run=RUN), seconds=IDLE_SECONDS + 60)
    wait_until("the idle GPUs are muted", lambda: alertmanager.muted("TrainingGpuIdle", RUN), seconds=90)
    prometheus.wait_for_evaluations(5)  # longer than the scaled group_wait
    told = inbox.told(run=RUN)
    assert [(alert["alertname"], alert["cause"]) for alert in inbox.told("pager", run=RUN)] == [
        ("TrainingStalled", "stopped")
    ]
    assert {alert["alertname"] for alert in told} & {"TrainingGpuIdle", "TrainingNoProgress"} == set()
    training.ranks()[1].resume()
    gpus.play("train")
    resolved = wait_until("the page is taken back", lambda: inbox.told("pager", run=RUN, status="resolved"), seconds=90)
    assert resolved[0]["alertname"] == "TrainingStalled"


def test_a_stall_without_gpu_metrics(
    start_job: Callable[..., Job],
    start_exporter: Callable[..., Exporter],
    start_prometheus: Callable[..., Prometheus],
) -> None:
    """On a node without a driver, log and processes alone show that a rank hangs, and that it goes on."""
    job = start_job()
    job.wait_for_line("global_step=5")
    exporter = start_exporter(job, run=RUN, driver=False)
    wait_until("the run trains", lambda: exporter.value("training_run_state_code", run=RUN) == 30, seconds=40)
    assert exporter.value("training_run_absent", run=RUN, source="gpu") == 1
    prometheus = start_prometheus(exporter)
    job.command("block")
    wait_until("the stall fires", lambda: prometheus.firing("TrainingStalled", run=RUN, cause="host"), seconds=90)
    job.command("train")
    with (job.control / "fifo").open("wb"):
        pass
    wait_until("it resolves", lambda: not prometheus.firing("TrainingStalled", run=RUN), seconds=60)
