"""Discovery on real processes: what a launcher leaves in /proc, from the first look to the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import Job, Watch, complete, job
from tables import gpu
from training_exporter.config import Config, Discovery, Match, RunConfig
from training_exporter.model import DiscoveredRun, ProcessRecord

SPAWNER = """
import multiprocessing, os, time
def work():
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} ")
    time.sleep(120)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    for _ in range(2):
        context.Process(target=work).start()
"""

BIN = Path(sys.executable).parent
ROOT = os.geteuid() == 0


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Job]:
    """A job in a directory of its own, ended by force afterwards."""
    with job(tmp_path / "work") as made:
        yield made


@pytest.fixture
def watch() -> Watch:
    """The exporter without configuration."""
    return Watch()


def _rank(runs: list[DiscoveredRun], number: int) -> int:
    return next(rank.process.pid for rank in runs[0].ranks if rank.rank == number)


def _launcher(runs: list[DiscoveredRun]) -> ProcessRecord:
    assert runs[0].launcher_process is not None
    return runs[0].launcher_process


class TestOneRun:
    def test_roles_log_and_checkpoint_directory(self, work: Job, watch: Watch) -> None:
        """Everything of a run is found with no configuration: roles, numbers, log, checkpoint directory, owner."""
        with (work.directory / "train.log").open("wb") as log:
            launcher = work.start("train.py", "--output_dir", "out", output=log)
        # the helpers start behind the loaders
        (run,) = watch.until(
            work.directory,
            lambda runs: complete()(runs) and len(runs[0].others) == 2 and bool(_launcher(runs).outputs),
        )
        assert run.launcher_process is not None
        assert (run.launcher, run.script, run.launcher_process.pid) == ("torchrun", "train.py", launcher.pid)
        assert [(rank.rank, rank.local_rank) for rank in run.ranks] == [(0, 0), (1, 1)]
        assert [record.name for record in run.others] == ["sleep", "sleep"]
        assert sorted(run.owner.values()) == [0, 0, 1, 1]
        assert (run.workers_expected, run.world_size, run.restart_count) == (2, 2, 0)
        (target,) = run.log_targets
        assert (target.path, target.root, target.uid, target.rank) == (log.name, "/", os.geteuid(), None)
        assert [target.path for target in run.checkpoint_targets] == [str(work.directory / "out")]
        assert run.error_files[1].path == str(work.directory / "job_x/attempt_0/1/error.json")
        assert (run.hints, run.provisional) == ((), False)

    def test_two_runs_at_once(self, tmp_path: Path, watch: Watch) -> None:
        """Two launchers of the same script in two directories are two runs, each with its own processes."""
        with job(tmp_path / "a") as first, job(tmp_path / "b") as second:
            for started in (first, second):
                with (started.directory / "log").open("wb") as log:
                    started.start("train.py", output=log)
            (a,) = watch.until(first.directory, complete())
            (b,) = watch.until(second.directory, complete())
        assert a.name != b.name
        assert [target.path for target in a.log_targets] == [str(first.directory / "log")]
        assert [target.path for target in b.log_targets] == [str(second.directory / "log")]

    def test_the_same_command_twice(self, work: Job, watch: Watch) -> None:
        """Two runs that nothing tells apart still have two names, the older one without a number."""
        work.start("train.py", environment={"LOADERS": "0"})
        (first,) = watch.until(work.directory, complete(loaders=0))
        second = Job(work.directory)
        second.start("train.py", environment={"LOADERS": "0"})
        runs = watch.until(work.directory, lambda runs: sum(len(run.ranks) for run in runs) == 4)
        assert second.process is not None
        second.process.kill()
        second.process.wait()
        assert [run.name for run in runs] == [first.name, f"{first.name}-2"]

    def test_redirects(self, work: Job, watch: Watch) -> None:
        """With --redirects the ranks' files are read, each as its rank's."""
        work.start("--redirects=3", "--log-dir=logs", "train.py")
        # a rank that has just forked is in D state for a moment, and its descriptors are not read then
        (run,) = watch.until(work.directory, lambda runs: complete()(runs) and len(runs[0].log_targets) > 1)
        assert [(target.path, target.rank) for target in run.log_targets] == [
            (str(work.directory / f"logs/job_x/attempt_0/{rank}/stdout.log"), rank) for rank in (0, 1)
        ]

    def test_through_tee(self, work: Job, watch: Watch) -> None:
        """Behind a pipe, the file that tee writes is the log; tee itself is no part of the run."""
        command = f"{sys.executable} torchrun --nproc-per-node=2 train.py 2>&1 | cat | tee -a some.log >/dev/null"
        work.start_command(["sh", "-c", command])
        (run,) = watch.until(work.directory, lambda runs: complete()(runs) and bool(runs[0].log_targets))
        assert [target.path for target in run.log_targets] == [str(work.directory / "some.log")]
        assert "tee" not in [record.name for record in run.others]

    def test_open_checkpoint(self, work: Job, watch: Watch) -> None:
        """A checkpoint that is being written gives its directory away, without any argument."""
        path = work.directory / "results" / "checkpoint-100"
        path.mkdir(parents=True)
        work.start("train.py", ranks=1, environment={"CHECKPOINT": str(path / "model.safetensors")})
        (run,) = watch.until(work.directory, lambda runs: complete(1)(runs) and bool(runs[0].checkpoint_targets))
        assert [target.path for target in run.checkpoint_targets] == [str(path.parent)]

    def test_spawned_workers_that_hold_gpus(self, work: Job, watch: Watch) -> None:
        """What multiprocessing spawned is a run by its GPUs, named after the program that spawned it."""
        (work.directory / "main.py").write_text(SPAWNER)
        work.start_command([sys.executable, "main.py"])
        pids = work.directory / "pids"
        deadline = time.monotonic() + 20
        while not pids.exists() or len(pids.read_text().split()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)  # between two looks
        workers = sorted(int(word) for word in pids.read_text().split())
        (run,) = watch.look(work.directory, [gpu(number, pid) for number, pid in enumerate(workers)])
        assert (run.launcher, run.script, run.provisional) == ("spawn", "main.py", True)
        assert [(rank.rank, rank.process.pid) for rank in run.ranks] == list(enumerate(workers))
        assert run.gpus == {0: "0", 1: "1"}

    @pytest.mark.skipif(not ROOT, reason="namespaces take root here")
    def test_in_a_container(self, work: Job, watch: Watch) -> None:
        """In PID and mount namespaces of its own, paths lead through /proc/PID/root and numbers still fit."""
        script = (
            "mkdir hidden && mount -t tmpfs none hidden && "
            f"{sys.executable} torchrun --nproc-per-node=2 train.py --save hidden/out > hidden/log"
        )
        work.start_command(["unshare", "-mpf", "--mount-proc", "sh", "-c", script])
        # a launcher that has just forked is in D state for a moment, and is not read then
        (run,) = watch.until(work.directory, lambda runs: complete()(runs) and bool(_launcher(runs).outputs))
        assert run.launcher_process is not None
        assert run.launcher_process.namespace_pid != run.launcher_process.pid
        assert [target.path for target in run.checkpoint_targets] == [str(work.directory / "hidden/out")]
        (target,) = run.log_targets
        assert target.root == f"/proc/{run.launcher_process.pid}/root"
        assert "step 1" in Path(target.root + target.path).read_text()
        assert not Path(target.path).exists()


class TestEvents:
    def test_stopped_and_killed_rank(self, work: Job, watch: Watch) -> None:
        """A stopped rank shows as stopped, a dead one that nobody waits for as a zombie, each under its number."""
        work.start("--blind=1", "train.py")
        runs = watch.until(work.directory, complete())
        os.kill(_rank(runs, 0), signal.SIGSTOP)
        os.kill(_rank(runs, 1), signal.SIGKILL)
        wanted = [(0, "stopped"), (1, "zombie")]
        (run,) = watch.until(
            work.directory, lambda runs: [(rank.rank, rank.process.state) for rank in runs[0].ranks] == wanted
        )
        assert run.workers_expected == 2
        assert {run.owner[loader.pid] for loader in run.loaders} == {0, 1}

    def test_a_zombie_that_was_never_seen_alive(self, work: Job, watch: Watch) -> None:
        """An exporter that starts later still knows which rank is the dead one."""
        work.start("--blind=1", "train.py", environment={"LOADERS": "0"})
        runs = watch.until(work.directory, complete(loaders=0))
        os.kill(_rank(runs, 0), signal.SIGKILL)
        watch.until(work.directory, lambda runs: runs[0].ranks[0].process.state == "zombie")
        (run,) = Watch().until(work.directory, lambda runs: bool(runs) and len(runs[0].ranks) == 2)
        assert (run.ranks[0].rank, run.ranks[0].process.state) == (0, "zombie")

    def test_worker_set_replaced(self, work: Job, watch: Watch) -> None:
        """After a restart the new ranks are the ranks, under the same name, and the count is torchelastic's."""
        work.start("--max-restarts=1", "train.py")
        before = watch.until(work.directory, complete())
        os.kill(_rank(before, 1), signal.SIGKILL)
        after = watch.until(work.directory, lambda runs: bool(runs) and runs[0].restart_count == 1 and complete()(runs))
        assert after[0].name == before[0].name
        assert not {rank.process.key for rank in after[0].ranks} & {rank.process.key for rank in before[0].ranks}
        assert not {loader.key for loader in after[0].loaders} & {loader.key for loader in before[0].loaders}
        assert {loader.key for loader in before[0].loaders} <= {other.key for other in after[0].others}

    def test_launcher_killed(self, work: Job, watch: Watch) -> None:
        """Ranks that outlive their launcher stay the run's, with name, numbers and no launcher."""
        launcher = work.start("train.py")
        before = watch.until(work.directory, complete())
        launcher.kill()
        launcher.wait()
        (run,) = watch.until(work.directory, lambda runs: bool(runs) and runs[0].launcher_process is None)
        assert (run.name, run.launcher, [rank.rank for rank in run.ranks]) == (before[0].name, "torchrun", [0, 1])
        assert len(run.loaders) == 2

    def test_launcher_killed_before_the_exporter_came(self, work: Job, watch: Watch) -> None:
        """An exporter that starts later finds the orphans by their environment, and under the same name."""
        launcher = work.start("train.py")
        before = watch.until(work.directory, complete())
        launcher.kill()
        launcher.wait()
        (run,) = Watch().until(work.directory, complete())
        assert (run.name, run.launcher_process, [rank.rank for rank in run.ranks]) == (before[0].name, None, [0, 1])

    def test_end(self, work: Job, watch: Watch) -> None:
        """Once every process is gone there is no run."""
        (work.directory / "train.py").write_text("import time; time.sleep(0.5)")
        work.start("train.py")
        watch.until(work.directory, lambda runs: bool(runs) and len(runs[0].ranks) == 2)
        assert work.process is not None
        work.process.wait()
        assert watch.until(work.directory, lambda runs: not runs) == []


class TestConfigured:
    def test_match_names_the_run(self, work: Job) -> None:
        """A configured run that matches a launcher gives it its name."""
        config = Config(runs=(RunConfig("eagle3", Match(cmdline=r"train\.py --marker")),))
        work.start("train.py", "--marker", environment={"LOADERS": "0"})
        (run,) = Watch(config).until(work.directory, complete(loaders=0))
        assert run.name == "eagle3"

    def test_match_by_environment(self, work: Job) -> None:
        """A program that no rule knows is a run when the configuration knows its environment."""
        config = Config(runs=(RunConfig("mine", Match(env={"MY_JOB": "7"})),), discovery=Discovery(enabled=False))
        work.start_command(["sleep", "60"], environment={"MY_JOB": "7"})
        (run,) = Watch(config).until(work.directory, bool)
        assert (run.name, run.launcher, run.provisional) == ("mine", "process", False)


@pytest.mark.torch
class TestTorch:
    """The same with the real launchers; importing torch costs seconds, so once each."""

    @pytest.mark.parametrize(
        ("launcher", "kind"),
        [
            ([str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2"], "torchrun"),
            (["-m", "torch.distributed.run", "--master-port=29711", "--nproc_per_node", "2"], "torchrun"),
            ([str(BIN / "accelerate"), "launch", "--cpu", "--num_processes", "1"], "accelerate"),
        ],
    )
    def test_launchers(self, work: Job, watch: Watch, launcher: list[str], kind: str) -> None:
        """Real launchers of plain Python ranks: every rank is found below them, the log too."""
        ranks = 1 if kind == "accelerate" else 2
        with (work.directory / "log").open("wb") as log:
            work.start_command([sys.executable, *launcher, "train.py", "--save-dir=out"], output=log)
        (run,) = watch.until(work.directory, complete(ranks))
        assert (run.launcher, run.script, [rank.rank for rank in run.ranks]) == (kind, "train.py", list(range(ranks)))
        assert [target.path for target in run.log_targets] == [log.name]
        assert [target.path for target in run.checkpoint_targets] == [str(work.directory / "out")]

    def test_redirected_tree(self, work: Job, watch: Watch) -> None:
        """The files of the real `--redirects 3 --log-dir` are the ranks' logs."""
        options = ["--standalone", "--nproc-per-node=2", "--redirects", "3", "--log-dir", "logs"]
        work.start_command([str(BIN / "torchrun"), *options, "train.py"])
        (run,) = watch.until(work.directory, complete())
        assert [(Path(target.path).name, target.rank) for target in run.log_targets] == [
            (name, rank) for rank in (0, 1) for name in ("stdout.log", "stderr.log")
        ]
        assert all(target.path.startswith(f"{work.directory}/logs/") for target in run.log_targets)


def test_children_end_with_the_job(tmp_path: Path) -> None:
    """The helper of these tests leaves nothing running behind."""
    with job(tmp_path / "work") as made:
        made.start("train.py")
        Watch().until(made.directory, complete())
    left = subprocess.run(["pgrep", "-f", str(made.directory)], capture_output=True, text=True, check=False).stdout
    assert left == ""
