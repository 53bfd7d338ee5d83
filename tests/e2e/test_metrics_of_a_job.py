"""What the exporter says of a real torchrun job that somebody else started, with no configuration."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from e2e.harness import Exporter, wait_until
from e2e.job import GpuScript, Job

pytestmark = pytest.mark.torch

SCAN_SECONDS = 7.0  # between two looks at the checkpoints, with what a look takes


def printed(job: Job, pattern: str) -> list[str]:
    """Everything in the log that the pattern's group caught."""
    return re.findall(pattern, job.text())


class TestWithoutConfiguration:
    def test_job_is_found_and_its_log_is_followed(self, training: Job, start_exporter: Callable[..., Exporter]) -> None:
        """Processes, log lines, step, checkpoint and validation result of a running job are right within 15 s."""
        exporter = start_exporter()
        started = time.monotonic()
        run = wait_until("the job is found", lambda: exporter.run_of(training.script.name), seconds=15)
        wait_until(
            "launcher and workers are counted",
            lambda: (
                exporter.value("training_run_processes", run=run, role="launcher") == 1
                and exporter.value("training_run_processes", run=run, role="worker") == 2
            ),
            seconds=15,
        )
        wait_until("a step is seen", lambda: exporter.value("training_step", run=run), seconds=15)
        assert time.monotonic() - started < 15

        training.wait_for_line("Validation epoch 2/")
        training.wait_for_line("val/loss_epoch", after=training.text().index("Validation epoch 2/"))
        self.expect_log_line_count(exporter, run, training)
        self.expect_step(exporter, run, training)
        self.expect_checkpoint(exporter, run, training)
        self.expect_validation(exporter, run, training)

    def expect_log_line_count(self, exporter: Exporter, run: str, job: Job) -> None:
        """Between two moments at which the job is held, the counter grows by exactly as many lines as the file."""
        with job.held():
            first_file, first_counter = self.settled(exporter, run, job)
        job.wait_for_line("Training epoch", after=len(job.text()))
        with job.held():
            last_file, last_counter = self.settled(exporter, run, job)
        assert last_file - first_file == last_counter - first_counter
        assert last_file - first_file > 10

    def settled(self, exporter: Exporter, run: str, job: Job) -> tuple[int, float]:
        """Lines in the file, which is at rest, and the counter once everything was read."""
        time_read = exporter.value("training_exporter_time_seconds") or 0.0

        def counter() -> float | None:
            if (exporter.value("training_exporter_time_seconds") or 0.0) < time_read + 3:
                return None
            unread = exporter.value("training_log_unread_bytes", run=run)
            return exporter.value("training_log_lines_total", run=run) if unread == 0 else None

        return job.text().count("\n"), wait_until("the log is read", counter, seconds=15)

    def expect_step(self, exporter: Exporter, run: str, job: Job) -> None:
        wait_until(
            "the step follows the log",
            lambda: exporter.value("training_step", run=run) == float(printed(job, r"global_step=(\d+)")[-1]),
            seconds=15,
        )

    def expect_checkpoint(self, exporter: Exporter, run: str, job: Job) -> None:
        def is_newest() -> bool:
            # the training may have saved again since the last look
            seen = exporter.value("training_checkpoint_last_timestamp_seconds", run=run) or 0.0
            now = time.time()
            times = [marker.stat().st_mtime for marker in job.checkpoints.glob("*/training_state.json")]
            due = [written for written in times if written < now - SCAN_SECONDS]
            return any(written == pytest.approx(seen, abs=0.01) for written in times) and max(due) < seen + 0.01

        wait_until("the checkpoint's time is the newest marker's mtime", is_newest, seconds=20)
        assert (exporter.value("training_checkpoints", run=run) or 0) >= 2

    def expect_validation(self, exporter: Exporter, run: str, job: Job) -> None:
        wait_until(
            "the validation metric is the printed number",
            lambda: (
                exporter.value("training_metric_value", run=run, split="validation", metric="full_acc_0")
                == float(printed(job, r"val/full_acc_0_epoch=([\d.]+)")[-1])
            ),
            seconds=15,
        )

    def test_gpus_belong_to_the_run(
        self, training: Job, gpus: GpuScript, start_exporter: Callable[..., Exporter]
    ) -> None:
        """Each rank's GPU is found by its PID and its work is counted."""
        exporter = start_exporter()
        run = wait_until("the job is found", lambda: exporter.run_of(training.script.name), seconds=15)

        def gpus_of(name: str) -> set[str]:
            return {labels["gpu"] for labels in exporter.labels(name) if labels["run"] == run}

        wait_until(
            "both GPUs are joined to the run", lambda: gpus_of("training_run_gpu_info") == {"0", "1"}, seconds=15
        )
        assert {"0", "1"} == gpus_of("training_rank_info")
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
