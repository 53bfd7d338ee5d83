"""`training-exporter status` on a real torchrun job: what a person is told, and the exit code that a script gets."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.harness import Exporter, wait_until
from e2e.job import GpuScript, Job
from training_exporter.status import BAD, CANNOT_TELL, FINE

pytestmark = pytest.mark.torch

RUN = "eagle3-status"
COMMAND = str(Path(sys.executable).with_name("training-exporter"))
LOOK = "--for=8s"
IDLE_SECONDS = 65  # a rank is called stopped after a minute: whoever only looks once with a debugger is gone by then
BUDGETS = {"idle": f"{IDLE_SECONDS}s", "validation": f"{IDLE_SECONDS}s", "checkpoint": f"{IDLE_SECONDS}s"}
# Changes the user after the start, because nobody might not be allowed to start this Python.
AS_NOBODY = """
import os, sys
from training_exporter import cli, status
os.chdir("/")
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
sys.exit(cli.main(sys.argv[1:]))
"""
HOSTILE = "<script>alert(1)</script> \x1b]0;owned\x07\x1b[2J\x1b[31m"


def status(*arguments: str, gpus: GpuScript, command: tuple[str, ...] = (COMMAND,)) -> subprocess.CompletedProcess[str]:
    """One call of `training-exporter status`."""
    environment = {**os.environ, **gpus.environment(), "COLUMNS": "200"}
    return subprocess.run(
        [*command, "status", *arguments], env=environment, capture_output=True, text=True, timeout=90, check=False
    )


def block_of(job: Job, text: str) -> str:
    """What is said of the job where other jobs of this machine may be told of too."""
    name = next(line.split()[0] for line in text.splitlines() if line.startswith(job.script.stem))
    return next(block for block in text.split("\n\n") if block.startswith(name))


def training_now(job: Job, gpus: GpuScript) -> subprocess.CompletedProcess[str] | None:
    """A look at a job that trains; None where it came while the job was in the short validation of each epoch."""
    shown = status(LOOK, gpus=gpus)
    state = block_of(job, shown.stdout).splitlines()[0].split()[1]
    assert state in ("TRAINING", "VALIDATING", "CHECKPOINTING")
    return shown if state == "TRAINING" else None


@pytest.fixture
def alone(training: Job, tmp_path: Path) -> str:
    """The flag for a configuration that knows this job only, so that the exit code is about it."""
    config = {
        "runs": [{"name": RUN, "match": {"cmdline": training.script.stem}, "budgets": BUDGETS}],
        "discovery": {"enabled": False},
    }
    path = tmp_path / "status.yml"
    path.write_text(yaml.safe_dump(config))
    return f"--config.file={path}"


@pytest.fixture
def start_watching(alone: str, tmp_path: Path, gpus: GpuScript, stack: contextlib.ExitStack) -> Callable[[], Exporter]:
    """Start an exporter, which knows the history that two looks cannot show."""

    def start() -> Exporter:
        exporter = Exporter(tmp_path, alone, env=gpus.environment())
        stack.callback(exporter.stop)
        return exporter

    return start


class TestVerdict:
    def test_training(self, training: Job, gpus: GpuScript) -> None:
        """Without configuration and server: the job trains, its witnesses speak, and its log cannot do harm."""
        with training.log.open("a") as log:
            log.write(f"{HOSTILE}\n")
        shown = wait_until("a look between two validations", lambda: training_now(training, gpus), seconds=90)
        block = block_of(training, shown.stdout)
        for witness in ("progress", "processes", "gpu 0", "gpu 1", "log"):
            assert f"\n  {witness:<18}" in block
        assert "1 launcher, 2 workers, 2 workers expected" in block
        assert "\x1b" not in shown.stdout
        assert "\x07" not in shown.stdout

    def test_validating(self, training: Job, gpus: GpuScript, alone: str) -> None:
        """While it only reads files at 0 % GPU: validating, the rate of reading is the evidence, exit code 0."""
        training.command("validate")
        training.wait_for_line("Validation epoch", after=len(training.text()))
        gpus.play("validate")
        shown = status(LOOK, alone, "--json", gpus=gpus)
        assert shown.returncode == FINE
        (run,) = json.loads(shown.stdout)["runs"]
        assert run["verdict"]["state"] == "validating"
        assert run["rates"]["read_bytes_per_second"] > 64 * 1024
        (witness,) = [line for line in run["evidence"] if line["witness"] == "io"]
        assert "/s read" in witness["text"]
        assert witness["age_seconds"] < 5
        assert [gpu["utilization_ratio"] for gpu in json.loads(shown.stdout)["gpus"]] == [0.0, 0.0]

    def test_stopped_rank(self, training: Job, gpus: GpuScript, start_watching: Callable[[], Exporter]) -> None:
        """A rank under SIGSTOP past the budget: stalled (stopped), exit code 2, and how to let it go on."""
        exporter = start_watching()
        wait_until("it trains", lambda: exporter.value("training_run_state_code", run=RUN) == 30, seconds=40)
        rank = training.ranks()[1]
        rank.suspend()
        gpus.play("idle")
        wait_until(
            "it is stalled",
            lambda: status(f"--url={exporter.url}", gpus=gpus).returncode == BAD,
            seconds=IDLE_SECONDS + 45,
        )
        shown = status(f"--url={exporter.url}", gpus=gpus)
        assert shown.stdout.startswith(f"{RUN}  STALLED (stopped)\n")
        assert f"kill -CONT {rank.pid}" in shown.stdout
        rank.resume()
        gpus.play("train")
        wait_until(
            "it trains again",
            lambda: status(f"--url={exporter.url}", gpus=gpus).returncode == FINE,
            seconds=40,
        )

    def test_stacks_of_a_blocked_rank(self, training: Job, gpus: GpuScript, alone: str) -> None:
        """The rank that waits for a FIFO stands on top, with the frame that reads it."""
        fifo = os.open(training.control / "fifo", os.O_RDWR)  # a writer: what blocks is the read, not the opening
        try:
            training.command("block")
            gpus.play("idle")
            line = training.script.read_text().splitlines().index("                fifo.read()") + 1
            frame = f"obey ({training.script.name}:{line})"

            def found() -> list[Any]:
                shown = status("--for=5s", alone, "--json", "--stacks", gpus=gpus)
                return [
                    one
                    for one in json.loads(shown.stdout)["stacks"][RUN]
                    if one["frames"] and one["frames"][0].endswith(frame)
                ]

            (stack,) = wait_until("the rank reads the FIFO", found, seconds=60)
            assert stack["ranks"] == [1]
            text = status("--for=5s", alone, "--stacks", gpus=gpus).stdout
        finally:
            training.command("train")
            os.write(fifo, b"go on")
            os.close(fifo)
        assert text.index("stack of rank 1:") < text.index(frame)


class TestHonesty:
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
    def test_somebody_else(self, training: Job, gpus: GpuScript, alone: str, tmp_path: Path) -> None:
        """A user without rights on somebody's job: what cannot be seen is named, and the exit code claims nothing."""
        for folder in (tmp_path, *tmp_path.parents[:2]):
            folder.chmod(0o711)
        (tmp_path / "status.yml").chmod(0o644)
        training.log.chmod(0o600)
        shown = status(
            LOOK,
            alone,
            "--stacks",
            "--no-collector.gpu",
            gpus=gpus,
            command=(sys.executable, "-c", AS_NOBODY),
        )
        assert shown.returncode == CANNOT_TELL, shown.stdout + shown.stderr
        assert shown.stdout.startswith(f"{RUN}  CANNOT TELL\n")
        assert "nothing yet by" in shown.stdout
        assert "checkpoints, gpu, logs" in shown.stdout
        assert "Cannot tell more than that its processes exist." in shown.stdout
        assert "reading and writing" not in shown.stdout
        assert "the process belongs to user 0: run as that user" in shown.stdout

    def test_no_job(self, gpus: GpuScript) -> None:
        """A machine without a job is fine: that is said, with what was looked for. Exit code 0."""
        alone = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]
        if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no process namespace of its own, and others may be training on this machine")
        shown = status(LOOK, gpus=gpus, command=(*alone, COMMAND))
        assert shown.returncode == FINE
        assert shown.stdout.startswith("No training run found. Looked for:\n")
