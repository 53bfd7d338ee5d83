"""A real job, the real exporter, a real Prometheus with the shipped rules: what pages and what stays silent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from e2e.conftest import BUDGETS
from e2e.harness import Exporter, Prometheus, wait_until
from e2e.job import GpuScript, Job

pytestmark = pytest.mark.torch

IDLE_SECONDS = float(BUDGETS["idle"].rstrip("s"))
RUN = "eagle3-e2e"


@pytest.fixture
def exporter(training: Job, start_exporter: Callable[..., Exporter]) -> Exporter:
    """The exporter, once it sees the job train."""
    exporter = start_exporter(training, run=RUN)
    wait_until("the run trains", lambda: exporter.value("training_run_state_code", run=RUN) == 30, seconds=40)
    assert training.ranks()
    return exporter


@pytest.fixture
def prometheus(exporter: Exporter, start_prometheus: Callable[..., Prometheus]) -> Prometheus:
    """Prometheus, once it has scraped the run a few times."""
    prometheus = start_prometheus(exporter)
    wait_until(
        "Prometheus knows the run", lambda: prometheus.query(f'run:training_state:code{{run="{RUN}"}}'), seconds=30
    )
    return prometheus


def phase(exporter: Exporter) -> str | None:
    """The phase whose series is 1."""
    active = [
        dict(labels)["phase"]
        for (name, labels), value in exporter.samples().items()
        if name == "training_phase" and ("run", RUN) in labels and value == 1
    ]
    assert len(active) <= 1
    return active[0] if active else None


def expect_stall(prometheus: Prometheus, cause: str) -> None:
    """TrainingStalled fires for the run, with that cause and no other."""
    fired = wait_until(
        f"TrainingStalled fires ({cause})",
        lambda: prometheus.firing("TrainingStalled", run=RUN),
        seconds=IDLE_SECONDS + 60,
    )
    assert {cause} == {labels["cause"] for labels in fired}


def expect_recovery(prometheus: Prometheus) -> None:
    """No stall fires any more."""
    wait_until("TrainingStalled resolves", lambda: not prometheus.firing("TrainingStalled", run=RUN), seconds=60)


class TestHealthy:
    def test_training_and_a_long_validation_stay_silent(
        self, training: Job, gpus: GpuScript, exporter: Exporter, prometheus: Prometheus
    ) -> None:
        """Validation that only reads files at 0 % GPU, for three times the idle budget, raises nothing above info."""
        training.command("validate")
        training.wait_for_line("Validation epoch", after=len(training.text()))
        gpus.play("validate")
        prometheus.wait_for_evaluations(int(3 * IDLE_SECONDS) + 5)
        assert phase(exporter) == "validating"
        training.command("train")
        training.wait_for_line("val/loss_epoch", after=len(training.text()))
        gpus.play("train")
        training.wait_for_line("global_step", after=len(training.text()))
        prometheus.wait_for_evaluations(5)
        assert set() == prometheus.fired_above_info(RUN)


class TestStalls:
    def test_stopped_rank(self, training: Job, gpus: GpuScript, prometheus: Prometheus) -> None:
        """A rank under SIGSTOP stalls the run as stopped; SIGCONT resolves it."""
        training.ranks()[1].suspend()
        gpus.play("idle")
        expect_stall(prometheus, "stopped")
        training.ranks()[1].resume()
        gpus.play("train")
        expect_recovery(prometheus)

    def test_rank_blocked_on_a_fifo(self, training: Job, gpus: GpuScript, prometheus: Prometheus) -> None:
        """A rank that waits for a pipe, its peer in the collective, stalls the run on the host."""
        training.command("block")
        gpus.play("idle")
        expect_stall(prometheus, "host")
        training.command("train")
        with (training.control / "fifo").open("wb"):
            pass
        gpus.play("train")
        expect_recovery(prometheus)

    def test_hung_collective(self, training: Job, gpus: GpuScript, prometheus: Prometheus) -> None:
        """GPUs at 100 % and a quarter of the power, a rank that spins: a hung collective, until the job goes on."""
        training.command("spin")
        gpus.play("spin")
        expect_stall(prometheus, "collective")
        training.command("train")
        os.kill(training.ranks()[1].pid, signal.SIGUSR1)
        gpus.play("train")
        expect_recovery(prometheus)


class TestEnds:
    def test_killed_rank_fails_the_run(
        self, training: Job, gpus: GpuScript, exporter: Exporter, prometheus: Prometheus
    ) -> None:
        """SIGKILL of a rank makes torchrun print ChildFailedError and end: failed, and that pages."""
        training.ranks()[1].kill()
        gpus.play("off")
        training.process.wait(30)
        assert "ChildFailedError" in training.text()
        wait_until(
            "the outcome is failed",
            lambda: exporter.value("training_run_outcome", run=RUN, outcome="failed") == 1,
            seconds=20,
        )
        wait_until("TrainingRunFailed fires", lambda: prometheus.firing("TrainingRunFailed", run=RUN), seconds=60)

    def test_end_marker_finishes_the_run(
        self, training: Job, gpus: GpuScript, exporter: Exporter, prometheus: Prometheus
    ) -> None:
        """A job that ends by itself behind its end marker has finished, and nothing fires."""
        training.command("finish")
        training.process.wait(60)
        gpus.play("off")
        wait_until(
            "the outcome is finished",
            lambda: exporter.value("training_run_outcome", run=RUN, outcome="finished") == 1,
            seconds=20,
        )
        prometheus.wait_for_evaluations(40)  # long enough for every scaled `for` to pass
        assert exporter.value("training_run_state_code", run=RUN) == 10
        assert set() == prometheus.fired_above_info(RUN)
        assert prometheus.firing("TrainingRunEnded", run=RUN) == []

    def test_interrupted_launcher_is_a_cancellation(
        self, training: Job, gpus: GpuScript, exporter: Exporter, prometheus: Prometheus
    ) -> None:
        """Ctrl-C on the launcher cancels the run: an info alert says so and nothing pages."""
        training.process.send_signal(signal.SIGINT)
        training.process.wait(60)
        gpus.play("off")
        wait_until(
            "the outcome is cancelled",
            lambda: exporter.value("training_run_outcome", run=RUN, outcome="cancelled") == 1,
            seconds=20,
        )
        wait_until("TrainingRunEnded fires", lambda: prometheus.firing("TrainingRunEnded", run=RUN), seconds=60)
        prometheus.wait_for_evaluations(20)
        assert set() == prometheus.fired_above_info(RUN)
