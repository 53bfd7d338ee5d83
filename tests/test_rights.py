"""The rights that unit, compose file and manifest give suffice to see the job of another user, and fewer do not."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from e2e.harness import Program, fetch, free_port, wait_until
from jobs import Job, job
from tools import ROOT, tool

SOMEBODY, EXPORTER = 12_345, 14_311  # numbers without an entry in /etc/passwd
PYTHON = "/usr/bin/python3"  # one that anybody may run
START_SECONDS, PATIENCE_SECONDS = 30.0, 30.0

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(PYTHON).exists(), reason="takes root and a Python that everybody may run"
)

TRAINER = """
import time
for step in range(1, 5000):
    print(f"step {step}/5000 loss 0.51", flush=True)
    time.sleep(0.2)
"""


def of_unit() -> set[str]:
    """The capabilities of the systemd service."""
    lines = (ROOT / "deploy/systemd/training-exporter.service").read_text(encoding="utf-8").splitlines()
    (given,) = [line.partition("=")[2] for line in lines if line.startswith("AmbientCapabilities=")]
    return {word.removeprefix("CAP_").lower() for word in given.split()}


def of_compose() -> set[str]:
    """The capabilities of the container; those of the DaemonSet are held against the same list."""
    service = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]["exporter"]
    return {name.lower() for name in service["cap_add"]}


@pytest.fixture
def hidden_job() -> Iterator[Job]:
    """A job of somebody else whose directory, log and environment nobody but its owner may read."""
    folder = Path(tempfile.mkdtemp(prefix="rights-"))
    folder.chmod(0o755)
    with job(folder / "work") as made:
        (made.directory / "train.py").unlink()
        script = made.directory / f"train_{secrets.token_hex(4)}.py"
        script.write_text(TRAINER)
        for path in (made.directory, *made.directory.iterdir()):
            os.chown(path, SOMEBODY, SOMEBODY)
        made.directory.chmod(0o700)
        command = f"umask 077; exec {PYTHON} torchrun --nproc-per-node=2 {script.name} > train.log 2>&1"
        drop = [tool("setpriv"), f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"]
        made.start_command([*drop, "sh", "-c", command])
        yield made
    shutil.rmtree(folder)


def runs_for_everybody() -> bool:
    """Whether a stranger may enter the folders in which the exporter and its Python are; a home may be closed."""
    drop = [tool("setpriv"), f"--reuid={EXPORTER}", f"--regid={EXPORTER}", "--clear-groups"]
    return subprocess.run([*drop, tool("training-exporter"), "--version"], check=False).returncode == 0


class Confined(Program):
    """The exporter with mounts of its own, as in a container and behind systemd's ProtectSystem, and few rights."""

    def __init__(self, folder: Path, capabilities: set[str], *, as_root: bool) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        rights = ",".join(["-all", *(f"+{name}" for name in sorted(capabilities))])
        drop = [f"--bounding-set={rights}", "--no-new-privs"]
        if not as_root:
            drop += [f"--reuid={EXPORTER}", f"--regid={EXPORTER}", "--clear-groups"]
            drop += [f"--inh-caps={rights}", f"--ambient-caps={rights}"]
        state = folder / "state"
        state.mkdir()
        state.chmod(0o777)
        super().__init__(
            [
                *(tool("unshare"), "--mount", "--propagation=slave", tool("setpriv"), *drop),
                *(tool("training-exporter"), f"--web.listen-address={self.url.removeprefix('http://')}"),
                *(f"--state.dir={state}", "--no-collector.gpu"),
            ],
            folder / "exporter.log",
        )

    def lines(self, start: str, script: str) -> list[str]:
        """The series that begin so, of the run of a script."""
        assert self.process.poll() is None, self.text()
        try:
            text = fetch(f"{self.url}/metrics")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.startswith(start) and script.removesuffix(".py") in line]


def script_of(made: Job) -> str:
    """The name of the job's script, which no other job has."""
    (script,) = made.directory.glob("train_*.py")
    return script.name


@pytest.mark.parametrize(("capabilities", "as_root"), [(of_unit(), False), (of_compose(), True)], ids=["unit", "image"])
def test_the_shipped_rights_suffice(hidden_job: Job, open_folder: Path, capabilities: set[str], as_root: bool) -> None:
    """Its log is read, its bytes are counted, and nothing is refused."""
    script = script_of(hidden_job)
    with ExitStack() as stack:
        exporter = Confined(open_folder, capabilities, as_root=as_root)
        stack.callback(exporter.stop)
        wait_until("a step is read", lambda: exporter.lines("training_step{", script), seconds=PATIENCE_SECONDS)
        assert exporter.lines("training_run_read_bytes_total{", script)
        (blind,) = [line for line in exporter.lines("training_run_blind{", script) if "processes" in line]
        assert blind.endswith(" 0.0")


@pytest.mark.parametrize(
    ("missing", "as_root"),
    [(name, False) for name in sorted(of_unit())] + [(name, True) for name in sorted(of_compose())],
)
def test_none_of_them_is_there_for_nothing(hidden_job: Job, open_folder: Path, missing: str, as_root: bool) -> None:
    """Without one of them the run is seen, and its log is not."""
    if not as_root and missing == "dac_read_search" and not runs_for_everybody():
        pytest.skip("without this capability a stranger cannot start the exporter from where it is installed")
    script = script_of(hidden_job)
    with ExitStack() as stack:
        exporter = Confined(open_folder, (of_compose() if as_root else of_unit()) - {missing}, as_root=as_root)
        stack.callback(exporter.stop)
        wait_until(
            "its log is looked for in vain",
            lambda: [line for line in exporter.lines("training_run_absent{", script) if '"logs"' in line],
            seconds=PATIENCE_SECONDS,
        )
        assert not exporter.lines("training_step{", script)
