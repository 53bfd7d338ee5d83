"""What /metrics says, within ten seconds, of what happens to the processes of a run."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from e2e.harness import Exporter, free_port, wait_until
from jobs import Job, job

WITHIN_SECONDS = 10.0
START_SECONDS = 30.0  # of a job, which is not what is measured

# Rank 0 prints steps, rank 1 is half a step behind it; the file `command` says how it goes on. `record` does what
# torchelastic's @record does.
TRAINER = """
import json, os, time
rank = os.environ["RANK"]
time.sleep(0.1 * int(rank))
for step in range(1, 10_000):
    if rank == "0":
        print(f"step {step}/10000 loss 0.51", flush=True)
        if os.path.isdir("runs/a"):
            with open(f"runs/a/events.out.tfevents.1700000000.host.{os.getpid()}.0", "ab") as events:
                events.write(b"event")
    time.sleep(0.2)
    command = open("command").read() if os.path.exists("command") else ""
    if command == "finish":
        break
    if rank == "1" and command in ("fail", "record"):
        if command == "record":
            with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
                json.dump({"message": {"message": "RuntimeError: no data", "extraInfo": {}}}, file)
        raise RuntimeError("no data")
if rank == "0":
    print("Training completed.", flush=True)
"""
RECORDED = """
import os, time
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    while not os.path.exists("command"):
        time.sleep(0.1)
    if os.environ["RANK"] == "1":
        os.remove("command")
        raise RuntimeError("no data")
    time.sleep(60)
main()
"""


class Scene:
    """A job under watch, told apart from all others on this machine by the name of its script."""

    def __init__(self, exporter: Exporter, made: Job, text: str = TRAINER) -> None:
        self.exporter = exporter
        self.job = made
        self.script = f"train_{secrets.token_hex(4)}.py"
        (made.directory / self.script).write_text(text)
        self.run = ""

    def start(self, *options: str, quiet: bool = False) -> subprocess.Popen[bytes]:
        """Start a launcher with two ranks, and wait until both are seen; `quiet`: nothing of the output is kept."""
        with (self.job.directory / "log").open("wb") as log:
            launcher = self.job.start(*options, self.script, output=subprocess.DEVNULL if quiet else log)
        self.wait_for_ranks(START_SECONDS)
        return launcher

    def wait_for_ranks(self, seconds: float) -> None:
        self.run = wait_until("the run is found", self._name, seconds=seconds)
        self.expect("launcher and workers are counted", lambda: self.processes() == (1, 2), seconds=seconds)

    def ranks(self) -> list[psutil.Process]:
        """The living ranks, by number."""
        assert self.job.process is not None
        children = psutil.Process(self.job.process.pid).children()
        return sorted(children, key=lambda child: child.environ().get("RANK", "") if child.is_running() else "")

    def command(self, word: str) -> None:
        """Say how the training goes on."""
        (self.job.directory / "command.new").write_text(word)
        (self.job.directory / "command.new").replace(self.job.directory / "command")

    def value(self, name: str, **labels: str) -> float | None:
        return self.exporter.value(name, run=self.run, **labels)

    def processes(self) -> tuple[float | None, ...]:
        """Launchers and workers."""
        return tuple(self.value("training_run_processes", role=role) for role in ("launcher", "worker"))

    def restarts(self) -> float | None:
        return self.value("training_run_restarts_total")

    def state(self, state: str) -> float | None:
        return self.value("training_run_process_state", state=state)

    def outcomes(self) -> dict[str, float]:
        """All outcomes that are exported for the run."""
        return {
            dict(labels)["outcome"]: value
            for (name, labels), value in self.exporter.samples().items()
            if name == "training_run_outcome" and ("run", self.run) in labels
        }

    def expect(self, what: str, condition: object, *, seconds: float = WITHIN_SECONDS) -> None:
        assert callable(condition)
        wait_until(what, condition, seconds=seconds)

    def expect_end(self, outcome: str) -> None:
        """No process is left, and exactly this outcome is 1."""
        expected = {name: float(name == outcome) for name in ("finished", "failed", "cancelled", "unknown")}
        self.expect(f"ended as {outcome}", lambda: self.outcomes() == expected)
        assert self.processes() == (0, 0)
        assert self.value("training_run_end_time_seconds") is not None

    def _name(self) -> str | None:
        names = [
            labels["run"] for labels in self.exporter.labels("training_run_info") if labels["script"] == self.script
        ]
        return names[0] if names else None


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    """One exporter without configuration for all jobs here."""
    program = Exporter(tmp_path_factory.mktemp("exporter"), "--no-collector.gpu")
    yield program
    program.stop()


@pytest.fixture
def scene(exporter: Exporter, tmp_path: Path) -> Iterator[Scene]:
    """A job that is not started yet; all of it is gone afterwards."""
    with job(tmp_path / "work") as made:
        played = Scene(exporter, made)
        yield played
        exporter.tell(played.run)


class TestWhileItRuns:
    def test_a_stopped_rank_and_a_zombie(self, scene: Scene) -> None:
        """Each is counted as what it is, for as long as it is; a zombie is no worker any more."""
        scene.start("--blind=1")
        stopped, killed = scene.ranks()
        stopped.suspend()
        killed.kill()
        scene.expect("both states", lambda: (scene.state("stopped"), scene.state("zombie")) == (1, 1))
        scene.expect("for a while", lambda: (scene.value("training_run_stopped_seconds") or 0) > 1)
        assert (scene.processes(), scene.value("training_rank_up", rank="0")) == ((1, 1), 1)
        stopped.resume()
        scene.expect("runs again", lambda: scene.state("stopped") == scene.value("training_run_stopped_seconds") == 0)

    def test_a_killed_launcher_leaves_its_ranks(self, scene: Scene) -> None:
        """They stay the run's under the same name until they end, too."""
        launcher = scene.start()
        ranks = scene.ranks()
        launcher.kill()
        launcher.wait()
        scene.expect("orphaned", lambda: scene.processes() == (0, 2))
        assert set(scene.outcomes().values()) == {0.0}
        for rank in ranks:
            rank.kill()
        scene.expect_end("unknown")


class TestTheEnd:
    def test_normal_after_two_restarts(self, scene: Scene) -> None:
        """Each new worker set counts once and is whole; at the end the log says that it was the end."""
        scene.start("--max-restarts=2")
        assert scene.value("training_run_restarts_total") == 0
        assert scene.value("training_run_workers_expected") == 2
        for count in (1, 2):
            scene.ranks()[1].kill()
            scene.expect(
                f"restart {count}",
                lambda count=count: scene.value("training_run_restarts_total") == count and scene.processes() == (1, 2),
            )
            assert set(scene.outcomes().values()) == {0.0}
        scene.command("finish")
        scene.expect_end("finished")

    def test_an_error_file_without_a_log(self, scene: Scene) -> None:
        """What torchelastic wrote about a rank says how it ended; before that, event files show progress."""
        (scene.job.directory / "runs/a").mkdir(parents=True)
        scene.start(quiet=True)
        scene.expect(
            "the growth of the event file is progress",
            lambda: scene.value("training_activity_timestamp_seconds", signal="log") is not None,
        )
        assert scene.value("training_log_lines_total") is None
        scene.command("record")
        scene.expect_end("failed")

    def test_an_error_file_of_the_worker_set_before(self, scene: Scene) -> None:
        """A failure that a restart got over is no failure of the run."""
        launcher = scene.start("--max-restarts=1", quiet=True)
        scene.command("record")
        scene.expect("the failed rank is replaced", (scene.job.directory / "job_x/attempt_1/1").exists)
        scene.command("")
        scene.expect("restart", lambda: scene.value("training_run_restarts_total") == 1)
        for process in [*scene.ranks(), psutil.Process(launcher.pid)]:
            process.kill()
        scene.expect_end("unknown")

    def test_an_exception_in_the_log_and_a_new_attempt(self, scene: Scene) -> None:
        """A traceback of one rank ended it; the next attempt takes its place at once, with a restart counted."""
        launcher = scene.start()
        scene.command("fail")
        scene.expect_end("failed")
        assert launcher.wait() == 1
        scene.command("")
        scene.start()
        scene.expect("alive", lambda: set(scene.outcomes().values()) == {0.0})
        assert scene.value("training_run_restarts_total") == 1


@pytest.mark.torch
class TestTorch:
    def test_exceptions_under_record(self, exporter: Exporter, tmp_path: Path) -> None:
        """With output that nobody kept, restarts of the real torchrun are counted and its error file tells the end."""
        with job(tmp_path / "work") as made:
            scene = Scene(exporter, made, RECORDED)
            launcher = str(Path(sys.executable).with_name("torchrun"))
            options = [f"--master-port={free_port()}", "--nproc-per-node=2", "--max-restarts=2"]
            made.start_command([sys.executable, launcher, *options, scene.script], environment={"OMP_NUM_THREADS": "1"})
            scene.wait_for_ranks(60)
            for count in (1, 2):
                scene.command("fail")
                scene.expect(f"restart {count}", lambda count=count: scene.restarts() == count, seconds=60)
                scene.expect("a whole worker set", lambda: scene.processes() == (1, 2))
            scene.command("fail")
            scene.expect("torchrun gives up", lambda: made.process is not None and made.process.poll(), seconds=60)
            scene.expect_end("failed")
