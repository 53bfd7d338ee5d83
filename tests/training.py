"""A job that trains for ever, as the metrics of the running exporter show it."""

from __future__ import annotations

import secrets
from pathlib import Path

from e2e.harness import Exporter
from jobs import Job

TRAINER = """
import os, time
for step in range(1, 10_000):
    if os.environ["RANK"] == "0":
        print(f"step {step}/10000 loss 0.51", flush=True)
    time.sleep(0.2)
"""


class Training:
    """A job of two ranks with a script name of its own."""

    def __init__(self, made: Job, output: Path) -> None:
        self.script = f"train_{secrets.token_hex(4)}.py"
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
