"""A mount that dies under a running job: its log, its checkpoints and the directory that it works in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.harness import Exporter, fetch, wait_until
from hanging_mount import can_mount, hanging
from jobs import job
from training import Training

pytestmark = pytest.mark.skipif(not can_mount(), reason="mounting takes root and /dev/fuse")

PATIENCE_SECONDS = 40.0
SCRAPE_TIMEOUT_SECONDS = 10.0  # of Prometheus unless it says otherwise


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what was started, last first."""
    with ExitStack() as exits:
        yield exits


def test_everything_of_one_job_is_on_it(tmp_path: Path, stack: ExitStack) -> None:
    """Scrapes, the other job, and the processes of this one go on; what lies there is unknown until it is back."""
    first, second = (stack.enter_context(job(tmp_path / name)) for name in ("a", "b"))
    healthy, struck = Training(first, first.directory / "out"), Training(second, second.directory / "out")
    struck.save(10)
    exporter = Exporter(tmp_path, "--no-collector.gpu")
    stack.callback(exporter.stop)
    for training in (healthy, struck):
        wait_until(
            "its log is read",
            lambda training=training: training.value(exporter, "training_step"),
            seconds=PATIENCE_SECONDS,
        )
    wait_until(
        "its checkpoint is seen",
        lambda: struck.value(exporter, "training_checkpoints") == 1,
        seconds=PATIENCE_SECONDS,
    )
    with hanging(second.directory):
        wait_until(
            "the log is unknown",
            lambda: struck.value(exporter, "training_run_blind", source="logs") == 1,
            seconds=PATIENCE_SECONDS,
        )
        wait_until(
            "the directory does not answer",
            lambda: exporter.value("training_exporter_collector_stuck", collector="checkpoints") == 1,
            seconds=2 * PATIENCE_SECONDS,
        )
        wait_until(
            "its log says so",
            lambda: exporter.text().count("source checkpoints does not answer") == 1,
            seconds=PATIENCE_SECONDS,
        )
        assert struck.value(exporter, "training_run_processes", role="worker") == 2
        before = healthy.value(exporter, "training_step") or 0.0
        wait_until(
            "the other job's log goes on",
            lambda: (healthy.value(exporter, "training_step") or 0.0) > before,
            seconds=PATIENCE_SECONDS,
        )
        began = time.monotonic()
        fetch(f"{exporter.url}/metrics")
        assert time.monotonic() - began < SCRAPE_TIMEOUT_SECONDS
    wait_until(
        "everything is back",
        lambda: (
            struck.value(exporter, "training_run_blind", source="logs") == 0
            and exporter.value("training_exporter_collector_stuck", collector="checkpoints") == 0
            and struck.value(exporter, "training_checkpoints") == 1
        ),
        seconds=2 * PATIENCE_SECONDS,
    )
    assert exporter.terminate() == 0
