"""A root exporter and the job of an ordinary user that points it at files which that user may not read."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.harness import Exporter, fetch, wait_until
from jobs import Job, job

NOBODY = 65534
PYTHON = "/usr/bin/python3"  # one that anybody may run
PATIENCE_SECONDS = 30.0
LOOK_SECONDS = 8.0  # in which every source looks at every path at least once: they do every 5 s

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(PYTHON).exists() or shutil.which("setpriv") is None,
    reason="takes root, setpriv and a Python that everybody may run",
)

# Holds a file open as W&B does, so that `files/output.log` beside it is taken for the console.
TRAINER = """
import os, time
rank = os.environ["RANK"]
held = open("wandb/run.wandb", "w") if rank == "0" else None
for step in range(1, 500):
    if rank == "0":
        print(f"step {step}/500 loss 0.51 visible_metric=0.25", flush=True)
    time.sleep(0.2)
"""


class Secrets:
    """Files below a directory that only root may enter; each has the same word in it, and names have it too."""

    def __init__(self, folder: Path) -> None:
        self.word = f"secret{secrets.token_hex(6)}"
        self.folder = folder
        folder.mkdir(mode=0o700)
        self.log = self._file("console.log", f"step 777/1000 loss 0.1 {self.word}=0.5\nError: {self.word}\n" * 20)
        self.error = self._file("error.json", json.dumps({"message": {"message": f"RuntimeError: {self.word}"}}))
        self.checkpoints = folder / "checkpoints"
        for name in ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json"):
            self._file(f"checkpoints/checkpoint-777/{name}", json.dumps({"log_history": [{self.word: 0.5}]}))
        self._file(f"checkpoints/{self.word}.txt", self.word)
        self.name = self._file("latest", self.word)

    def _file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
        return path


def _prepare(work: Path, hidden: Secrets) -> None:
    """Every place where a run's files are looked for leads to root's."""
    for name in ("wandb/files", "out/checkpoint-5", "logs/job_x/attempt_0/0", "logs/job_x/attempt_0/1"):
        (work / name).mkdir(parents=True)
    (work / "train.py").write_text(TRAINER)
    (work / "wandb/files/output.log").symlink_to(hidden.log)
    (work / "out/latest").symlink_to(hidden.name)
    (work / "out/checkpoint-5/trainer_state.json").symlink_to(hidden.checkpoints / "checkpoint-777/trainer_state.json")
    (work / "saved").symlink_to(hidden.checkpoints)
    for rank in (0, 1):
        (work / f"logs/job_x/attempt_0/{rank}/error.json").symlink_to(hidden.error)
    for path in (work, *work.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def _start(made: Job, hidden: Secrets) -> None:
    arguments = f"--output_dir out --save saved --checkpoint_dir {hidden.checkpoints} --logging_dir {hidden.folder}"
    drop = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups"
    launch = f"{PYTHON} torchrun --nproc-per-node=2 --log-dir=logs train.py {arguments} 2>&1 | tee -a visible.log"
    made.start_command(["sh", "-c", f"exec {drop} sh -c '{launch} > /dev/null'"])


def _shown(exporter: Exporter, folder: Path) -> str:
    """All that the exporter tells anybody: pages, its own log, what it keeps."""
    pages = [fetch(f"{exporter.url}{path}") for path in ("/metrics", "/", "/api/v1/runs")]
    kept = [path.read_text(errors="replace") for path in (folder / "state").rglob("*") if path.is_file()]
    return "\n".join([*pages, exporter.text(), *kept])


def test_nothing_of_it_is_shown(tmp_path: Path, open_folder: Path) -> None:
    """Links and arguments that lead to root's files give neither text nor names nor numbers; the run's own log does."""
    hidden = Secrets(tmp_path / "hidden")
    with ExitStack() as stack:
        made = stack.enter_context(job(open_folder / "work"))
        _prepare(made.directory, hidden)
        exporter = Exporter(tmp_path, "--no-collector.gpu", "--log.level=debug")
        stack.callback(exporter.stop)
        _start(made, hidden)
        wait_until(
            "the run's own log is read",
            lambda: "visible_metric" in fetch(f"{exporter.url}/metrics"),
            seconds=PATIENCE_SECONDS,
        )
        (made.directory / "visible.log").unlink()
        (made.directory / "visible.log").symlink_to(hidden.log)
        _let_it_look(exporter)
        shown = _shown(exporter, tmp_path)
    assert hidden.word not in shown
    assert "777" not in {value for line in shown.splitlines() for value in line.split(" ")[1:2]}
    assert str(made.directory) in shown


def _let_it_look(exporter: Exporter) -> None:
    """Until every path was looked at again, by the exporter's own clock."""

    def clock() -> float:
        return exporter.value("training_exporter_time_seconds") or 0.0

    end = clock() + LOOK_SECONDS
    wait_until("it has looked", lambda: clock() >= end, seconds=LOOK_SECONDS + PATIENCE_SECONDS)
