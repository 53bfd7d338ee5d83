"""A node at work, as every exporter sees it: eight fake GPUs, a torchrun of eight ranks, its log and checkpoints."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from e2e.harness import wait_until  # noqa: E402  the tests' tools are found by the line above
from fake_nvml.build import build  # noqa: E402
from fake_nvml.state import FakeState, gpu_at_work, set_state  # noqa: E402
from jobs import Job, job  # noqa: E402

GPUS = 8
CHECKPOINTS = 3
HANGING_CALL = "nvmlDeviceGetPowerUsage"
# Rank 0 prints at a steady pace, catching up where the machine made it late; every thousandth record is a validation.
TRAINER = """
import os, sys, time
pace = float(sys.argv[1])
began, step = time.monotonic(), 0
while os.environ["RANK"] == "0" and pace:
    time.sleep(max(0.0, began + step / pace - time.monotonic()))
    step += 1
    if step % 1000 == 10:
        print(f"eval: step {step} val_loss {2.5 - step * 1e-6:.4f} accuracy 0.{step % 97:02d}", flush=True)
    else:
        print(f"step {step}/1000000 loss {3.0 - step * 1e-6:.4f} lr 3.0e-04 grad_norm 0.{step % 89:02d}", flush=True)
time.sleep(100_000)
"""


class Node:
    """What runs there, and the environment in which a program sees the GPUs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._state_file = folder / "driver"
        self.state = FakeState([gpu_at_work(index) for index in range(GPUS)])
        self.environment = set_state(self._state_file, self.state, os.environ, build(folder / "library"))
        # of their own, so that each of the two can be made to hang
        self.logs = folder / "logs"
        self.output = folder / "output"
        self.log = self.logs / "train.log"
        self.launcher = 0  # PID while there is a job
        # so that other jobs of this machine are neither shown nor paid for
        self.script = f"train_{secrets.token_hex(4)}.py"
        self.config = folder / "config.yml"
        self.config.write_text(
            f"runs: [{{name: bench, match: {{cmdline: {self.script}}}}}]\ndiscovery: {{enabled: false}}\n"
        )
        self.logs.mkdir()
        self.output.mkdir()
        self.log.touch()

    def gpus_hang(self) -> None:
        """From now on a call to any GPU does not return."""
        self.state.hangs.add(HANGING_CALL)
        self.state.write(self._state_file)

    @contextmanager
    def training(self, lines_per_second: float) -> Iterator[Job]:
        """A job of eight ranks, one per GPU, that prints at that pace and has saved three checkpoints."""
        with job(self.folder / "work") as made, self.log.open("wb") as log:
            (made.directory / self.script).write_text(TRAINER)
            arguments = [self.script, str(lines_per_second), "--output_dir", str(self.output)]
            self.launcher = made.start(*arguments, ranks=GPUS, output=log).pid
            self._save()
            ranks = wait_until("the ranks are there", lambda: _ranks(self.launcher), seconds=60)
            self.state.gpus = [gpu_at_work(index, pids=[pid]) for index, pid in enumerate(ranks)]
            self.state.write(self._state_file)
            yield made

    def _save(self) -> None:
        for number in range(1, CHECKPOINTS + 1):
            folder = self.output / f"checkpoint-{number * 1000}"
            folder.mkdir(exist_ok=True)
            for name in ("config.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"):
                (folder / name).write_text("{}")


def _ranks(launcher: int) -> list[int]:
    try:
        found = {child.environ().get("RANK"): child.pid for child in psutil.Process(launcher).children()}
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
    names = [str(rank) for rank in range(GPUS)]
    return [found[name] for name in names] if set(names) <= set(found) else []
