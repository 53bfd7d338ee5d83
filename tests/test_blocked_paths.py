"""Paths that never answer, met by the running exporter: no scrape waits, and no other run is told less of."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.harness import Exporter, fetch, wait_until
from hanging_mount import can_mount, hanging, second_procfs
from jobs import Job, job

pytestmark = pytest.mark.skipif(not can_mount(), reason="mounting takes root and /dev/fuse")

SCRAPES = 20
SCRAPE_SECONDS = 1.0  # far above what one takes on a busy machine, far below any deadline
PATIENCE_SECONDS = 20.0

TRAINER = """
import os, time
for step in range(1, 10_000):
    if os.environ["RANK"] == "0":
        print(f"step {step}/10000 loss 0.51", flush=True)
    time.sleep(0.2)
"""


class Training:
    """A job of two ranks with a script name of its own."""

    def __init__(self, made: Job, name: str, output: Path) -> None:
        self.script = f"{name}_{os.getpid()}.py"
        self.output = output
        (made.directory / self.script).write_text(TRAINER)
        with (made.directory / "log").open("wb") as log:
            made.start(self.script, "--output_dir", str(output), output=log)

    def save(self, number: int) -> None:
        """A checkpoint of the HF Trainer, marker last."""
        folder = self.output / f"checkpoint-{number}"
        folder.mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json"):
            (folder / name).write_text("{}")

    def value(self, exporter: Exporter, metric: str, **labels: str) -> float | None:
        """A series of this job's run; None while there is none."""
        runs = [found["run"] for found in exporter.labels("training_run_info") if found["script"] == self.script]
        return exporter.value(metric, run=runs[0], **labels) if runs else None


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
    healthy = Training(first, "healthy", first.directory / "out")
    victim = subprocess.Popen(["sleep", "300"])
    stack.callback(victim.wait)
    stack.callback(victim.kill)
    stack.enter_context(hanging(dead))
    stack.enter_context(hanging(procfs / str(victim.pid)))
    exporter = Exporter(tmp_path, "--no-collector.gpu", f"--path.procfs={procfs}")
    stack.callback(exporter.stop)
    blocked = Training(second, "blocked", dead / "out")

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
    late = Training(third, "late", third.directory / "out")
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
