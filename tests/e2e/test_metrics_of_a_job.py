"""What the exporter says of a real torchrun job that somebody else started, with no configuration."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import pytest

from e2e.harness import Exporter, GpuScript, Job, wait_until

pytestmark = pytest.mark.torch


def printed(job: Job, pattern: str) -> list[str]:
    """Everything in the log that the pattern's group caught."""
    return re.findall(pattern, job.text())


class TestWithoutConfiguration:
    def test_job_is_found_and_its_log_is_followed(self, training: Job, start_exporter: Callable[..., Exporter]) -> None:
        """Processes, log lines, step, checkpoint and validation result of a running job are right within 15 s."""
        exporter = start_exporter()
        started = time.monotonic()
        wait_until(
            "launcher and workers are counted",
            lambda: (
                exporter.value("training_run_processes", role="launcher") == 1
                and exporter.value("training_run_processes", role="worker") == 2
            ),
            seconds=15,
        )
        wait_until("a step is seen", lambda: exporter.value("training_step"), seconds=15)
        assert time.monotonic() - started < 15

        training.wait_for_line("Validation epoch 2/")
        training.wait_for_line("val/loss_epoch", after=training.text().index("Validation epoch 2/"))
        self.expect_log_line_count(exporter, training)
        self.expect_step(exporter, training)
        self.expect_checkpoint(exporter, training)
        self.expect_validation(exporter, training)

    def expect_log_line_count(self, exporter: Exporter, job: Job) -> None:
        """The counter grows by exactly as many lines as the file."""
        # between two looks at the file around one scrape, so that a line written meanwhile does not matter
        begin_low = job.text().count("\n")
        first = exporter.value("training_log_lines_total") or 0
        begin_high = job.text().count("\n")
        job.wait_for_line("Training epoch", after=len(job.text()))
        job.process.send_signal(signal.SIGSTOP)
        for rank in job.ranks():
            rank.suspend()
        try:
            end = job.text().count("\n")
            grown = wait_until(
                "the counter reaches the file",
                lambda: (
                    (exporter.value("training_log_lines_total") or 0) - first
                    if exporter.value("training_log_unread_bytes") == 0
                    else None
                ),
                seconds=10,
            )
            # the exporter may be up to a read behind at the first scrape
            assert end - begin_high <= grown
            total = exporter.value("training_log_lines_total")
            assert exporter.value("training_log_lines_total") == total
            assert grown <= end - begin_low + 40
        finally:
            for rank in job.ranks():
                rank.resume()
            job.process.send_signal(signal.SIGCONT)

    def expect_step(self, exporter: Exporter, job: Job) -> None:
        wait_until(
            "the step follows the log",
            lambda: exporter.value("training_step") == float(printed(job, r"global_step=(\d+)")[-1]),
            seconds=15,
        )

    def expect_checkpoint(self, exporter: Exporter, job: Job) -> None:
        def newest() -> float:
            return max(marker.stat().st_mtime for marker in job.checkpoints.glob("*/training_state.json"))

        wait_until(
            "the checkpoint's time is the newest marker's mtime",
            lambda: (
                (exporter.value("training_checkpoint_last_timestamp_seconds") or 0) == pytest.approx(newest(), abs=0.01)
            ),
            seconds=20,
        )
        assert (exporter.value("training_checkpoints") or 0) >= 2

    def expect_validation(self, exporter: Exporter, job: Job) -> None:
        wait_until(
            "the validation metric is the printed number",
            lambda: (
                exporter.value("training_metric_value", split="validation", metric="full_acc_0")
                == float(printed(job, r"val/full_acc_0_epoch=([\d.]+)")[-1])
            ),
            seconds=15,
        )

    @pytest.mark.usefixtures("training")
    def test_gpus_belong_to_the_run(self, gpus: GpuScript, start_exporter: Callable[..., Exporter]) -> None:
        """Each rank's GPU is found by its PID and its work is counted."""
        exporter = start_exporter()
        wait_until(
            "both GPUs are joined to the run", lambda: len(exporter.labels("training_run_gpu_info")) == 2, seconds=15
        )
        assert {"0", "1"} == {labels["gpu"] for labels in exporter.labels("training_rank_info")}
        wait_until(
            "the GPUs count working seconds",
            lambda: (exporter.value("training_gpu_working_seconds_total", gpu="1") or 0) > 3,
            seconds=20,
        )
        gpus.play("spin")
        wait_until(
            "utilisation is what the driver says",
            lambda: exporter.value("training_gpu_utilization_ratio", gpu="0") == 1.0,
            seconds=20,
        )


class TestWithoutAnything:
    def test_ends_on_sigterm(self, start_exporter: Callable[..., Exporter]) -> None:
        """The exporter ends within 2 s when asked, with status 0."""
        exporter = start_exporter()
        began = time.monotonic()
        assert exporter.terminate() == 0
        assert time.monotonic() - began < 2
