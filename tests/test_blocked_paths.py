"""Paths that never answer, met by the running exporter: no scrape waits, and no other run is told less of."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.harness import Exporter, fetch, wait_until
from hanging_mount import can_mount, hanging, second_procfs
from jobs import job
from training import Training

pytestmark = pytest.mark.skipif(not can_mount(), reason="mounting takes root and /dev/fuse")

SCRAPES = 20
SCRAPE_SECONDS = 1.0  # far above what one takes on a busy machine, far below any deadline
PATIENCE_SECONDS = 20.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what was started, last first."""
    with ExitStack() as exits:
        yield exits


def _assert_quick_scrapes(exporter: Exporter) -> None:
    slowest = 0.0
    for _ in range(SCRAPES):
        began = time.monotonic()
        fetch(f"{exporter.url}/metrics")
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < SCRAPE_SECONDS


def test_checkpoint_path_and_process_directory(tmp_path: Path, stack: ExitStack) -> None:
    """A checkpoint directory and a directory of procfs hang: scrapes, other runs and later ones do not."""
    dead = tmp_path / "dead"
    dead.mkdir()
    procfs = stack.enter_context(second_procfs(tmp_path / "proc"))
    first, second, third = (stack.enter_context(job(tmp_path / name)) for name in ("a", "b", "c"))
    healthy = Training(first, first.directory / "out")
    victim = subprocess.Popen(["sleep", "300"])
    stack.callback(victim.wait)
    stack.callback(victim.kill)
    stack.enter_context(hanging(dead))
    stack.enter_context(hanging(procfs / str(victim.pid)))
    exporter = Exporter(tmp_path, "--no-collector.gpu", f"--path.procfs={procfs}")
    stack.callback(exporter.stop)
    blocked = Training(second, dead / "out")

    def found(training: Training) -> bool:
        return training.value(exporter, "training_run_processes", role="worker") == 2

    wait_until("the healthy run is found", lambda: found(healthy), seconds=PATIENCE_SECONDS)
    wait_until("so is the one with the dead path", lambda: found(blocked), seconds=PATIENCE_SECONDS)
    healthy.save(10)
    wait_until(
        "the healthy run's checkpoint is seen",
        lambda: healthy.value(exporter, "training_checkpoints") == 1,
        seconds=PATIENCE_SECONDS,
    )
    _assert_quick_scrapes(exporter)
    late = Training(third, third.directory / "out")
    wait_until("a later run is found", lambda: found(late), seconds=PATIENCE_SECONDS)
    for training in (healthy, blocked):
        step = training.value(exporter, "training_step") or 0.0
        wait_until(
            "the log goes on",
            lambda training=training, step=step: (training.value(exporter, "training_step") or 0.0) > step,
            seconds=PATIENCE_SECONDS,
        )
    assert blocked.value(exporter, "training_checkpoints") is None
    assert exporter.value("training_exporter_collector_success", collector="processes") == 1
    assert exporter.value("training_exporter_collector_stuck", collector="processes") == 0
    assert exporter.terminate() == 0
