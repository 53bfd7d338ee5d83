"""From a descriptor to the file in which its text ends up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tables import CWD, gpu, process, rank_environment, ranks_below, table, to_file, to_pipe, torchrun
from training_exporter.config import Config
from training_exporter.model import DiscoveredRun, OutputTarget, ProcessRecord, ProcessTable
from training_exporter.runs import outputs
from training_exporter.runs.discovery import Discovery

CONTAINER_ID = "0123456789abcdef" * 4
POD_UID = "0a1b2c3d-0001-4002-8003-0123456789ab"


def _run(found: ProcessTable) -> DiscoveredRun:
    (run,) = Discovery(Config(), "node7").discover(found, ())
    return run


def _paths(run: DiscoveredRun) -> list[str]:
    return [target.path for target in run.log_targets]


def _piped(**fields: object) -> tuple[ProcessRecord, list[ProcessRecord]]:
    launcher = torchrun(outputs=to_pipe(7), **fields)
    return launcher, [replace(rank, outputs=to_pipe(7), **fields) for rank in ranks_below(launcher, 2)]  # type: ignore[arg-type]


class TestFiles:
    def test_one_file_for_all(self) -> None:
        """What launcher and ranks share is nobody's in particular, and is read as the run's owner."""
        launcher = torchrun(outputs=to_file("/logs/a"))
        run = _run(table(launcher, [replace(rank, outputs=to_file("/logs/a")) for rank in ranks_below(launcher, 2)]))
        (target,) = run.log_targets
        assert (target.path, target.root, target.uid, target.gid, target.rank) == ("/logs/a", "/", 1000, 1000, None)

    def test_a_file_for_each_rank(self) -> None:
        """A file that only one rank writes is that rank's."""
        launcher = torchrun(outputs=to_file("/logs/a"))
        ranks = [replace(rank, outputs=to_file(f"/logs/{rank.pid}")) for rank in ranks_below(launcher, 2)]
        run = _run(table(launcher, ranks))
        assert [(target.path, target.rank) for target in run.log_targets] == [
            ("/logs/a", None),
            ("/logs/110", 0),
            ("/logs/120", 1),
        ]

    def test_tee_of_torchrun_is_not_read_twice(self) -> None:
        """With --tee the launcher's output repeats the ranks' files line by line."""
        launcher = torchrun(arguments="--tee 3 --log-dir l train.py", outputs=to_file("/logs/a"))
        ranks = [replace(rank, outputs=to_file(f"/logs/{rank.pid}")) for rank in ranks_below(launcher, 2)]
        assert _paths(_run(table(launcher, ranks))) == ["/logs/a"]

    def test_tee_of_torchrun_on_a_terminal(self) -> None:
        """Where the console cannot be read the ranks' files are."""
        terminal = (OutputTarget(1, "terminal", "/dev/pts/0"),)
        launcher = torchrun(arguments="--tee 3 --log-dir l train.py", outputs=terminal)
        ranks = [replace(rank, outputs=to_file(f"/logs/{rank.pid}")) for rank in ranks_below(launcher, 2)]
        assert _paths(_run(table(launcher, ranks))) == ["/logs/110", "/logs/120"]

    def test_rights_are_the_writers(self) -> None:
        """A launcher of root's with ranks of a user: each file is read as who writes it."""
        launcher = torchrun(outputs=to_file("/logs/a"), uid=0, gid=0)
        ranks = [replace(rank, outputs=to_file(f"/logs/{rank.pid}")) for rank in ranks_below(launcher, 1)]
        assert [(target.path, target.uid) for target in _run(table(launcher, ranks)).log_targets] == [
            ("/logs/a", 0),
            ("/logs/110", 1000),
        ]

    def test_the_driver_of_ray_repeats_its_actors(self) -> None:
        """Ray prints what the actors say; their own files are read only where the driver's cannot be."""
        driver = process(100, 1, "python -m verl.trainer.main_ppo", outputs=to_file("/logs/driver"))
        raylet = process(101, 100, "/ray/raylet", session_id=100)
        actor = process(110, 101, "ray::WorkerDict.update", session_id=100, outputs=to_file("/tmp/ray/w.out"))  # noqa: S108  a name
        seen = [
            Discovery(Config(), "node7").discover(table(first, raylet, actor), (gpu(0, 110),))[0].log_targets
            for first in (driver, replace(driver, outputs=(OutputTarget(1, "terminal", "/dev/pts/0"),)))
        ]
        assert [[target.path for target in targets] for targets in seen] == [["/logs/driver"], ["/tmp/ray/w.out"]]  # noqa: S108  names

    def test_a_container_is_seen_through_its_root(self) -> None:
        """One file is one target, though every process has a root of its own."""
        launcher = torchrun(outputs=to_file("/logs/a"), root="/proc/100/root")
        ranks = [
            replace(rank, outputs=to_file("/logs/a"), root=f"/proc/{rank.pid}/root")
            for rank in ranks_below(launcher, 2)
        ]
        (target,) = _run(table(launcher, ranks)).log_targets
        assert (target.path, target.root) == ("/logs/a", "/proc/100/root")


class TestPipes:
    def test_tee(self) -> None:
        """One file of those that tee writes: all have the same text."""
        launcher, ranks = _piped()
        tee = process(90, 1, "tee -a x.log y.log", input_pipe="pipe:[7]", open_files=(f"{CWD}/x.log", f"{CWD}/y.log"))
        assert _paths(_run(table(launcher, ranks, tee))) == [f"{CWD}/x.log"]

    def test_tee_of_another_user(self) -> None:
        """Where descriptors cannot be seen, the command tells."""
        launcher, ranks = _piped()
        tee = process(90, 1, "tee -a x.log /y.log", input_pipe="pipe:[7]")
        assert _paths(_run(table(launcher, ranks, tee))) == [f"{CWD}/x.log"]

    @pytest.mark.parametrize(
        ("descriptors", "opened"),
        [
            pytest.param({1: "/nohup.out", 2: "/nohup.out"}, ("/nohup.out", "/x.log"), id="a-second-copy"),
            pytest.param({1: "/x.log", 2: "/shell.txt"}, ("/shell.txt", "/x.log"), id="complaints-elsewhere"),
        ],
    )
    def test_the_descriptors_of_tee(self, descriptors: dict[int, str], opened: tuple[str, ...]) -> None:
        """Its output repeats the file, and its complaints are no text of the run."""
        launcher, ranks = _piped()
        outputs = tuple(OutputTarget(number, "file", path) for number, path in descriptors.items())
        tee = process(90, 1, "tee /x.log", input_pipe="pipe:[7]", outputs=outputs, open_files=opened)
        assert _paths(_run(table(launcher, ranks, tee))) == ["/x.log"]

    @pytest.mark.parametrize("command", ["tee", "tee /dev/stderr", "cat", "ts '%H:%M'"])
    def test_output_of_a_reader_that_opens_nothing(self, command: str) -> None:
        """Its output is where the text is."""
        launcher, ranks = _piped()
        outputs = (OutputTarget(1, "file", "/nohup.out"), OutputTarget(2, "file", "/shell.txt"))
        reader = process(
            90, 1, command, input_pipe="pipe:[7]", outputs=outputs, open_files=("/nohup.out", "/shell.txt")
        )
        assert _paths(_run(table(launcher, ranks, reader))) == ["/nohup.out"]

    def test_two_tees_in_a_row(self) -> None:
        """The second has what the first has."""
        launcher, ranks = _piped()
        first = process(90, 1, "tee /a", input_pipe="pipe:[7]", outputs=to_pipe(8), open_files=("/a",))
        second = process(91, 1, "tee /b", input_pipe="pipe:[8]", open_files=("/b",))
        assert _paths(_run(table(launcher, ranks, first, second))) == ["/a"]

    def test_a_pipeline(self) -> None:
        """A filter in between is followed; a pipe that leads back into itself ends the search."""
        launcher, ranks = _piped()
        stamp = process(90, 1, "ts", input_pipe="pipe:[7]", outputs=to_pipe(8))
        loop = process(91, 1, "cat", input_pipe="pipe:[8]", outputs=to_pipe(7))
        tee = process(92, 1, "tee z.log", input_pipe="pipe:[8]", open_files=("/z.log",))
        assert _paths(_run(table(launcher, ranks, stamp, loop, tee))) == ["/z.log"]

    def test_nobody_writes_it_down(self) -> None:
        """A pipe without a file behind it is said to be one."""
        launcher, ranks = _piped()
        run = _run(table(launcher, ranks))
        assert (run.log_targets, run.hints) == ((), (outputs.HINT_PIPE,))


class TestSchedulers:
    JOB = {"SLURM_JOB_ID": "4311", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}  # noqa: RUF012  a constant

    def _step(self) -> tuple[ProcessRecord, ProcessRecord]:
        step = process(100, 1, "'slurmstepd: [4311.0]'", name="slurmstepd", uid=0, open_files=("/var/log/step.out",))
        return step, process(110, 100, "python train.py", environment=self.JOB, outputs=to_pipe(7))

    def test_output_of_srun(self) -> None:
        """On the first node srun writes what its tasks say, as a rule into the batch script's file."""
        step, task = self._step()
        srun = process(92, 1, "srun python train.py", environment=self.JOB, outputs=to_file("/home/u/slurm-4311.out"))
        assert _paths(_run(table(step, task, srun))) == ["/home/u/slurm-4311.out"]

    def test_rights_are_the_tasks(self) -> None:
        """The step's daemon is root's; what it writes for a task is read as the task's owner, or not at all."""
        step, task = self._step()
        (target,) = _run(table(step, task)).log_targets
        assert (target.path, target.uid, target.rank) == ("/var/log/step.out", 1000, 0)

    def test_a_task_that_hides_its_job(self) -> None:
        """Without a job number nothing of another process is taken for its output."""
        step, task = self._step()
        task = replace(task, environment={"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"})
        srun = process(92, 1, "srun python x.py", environment={}, outputs=to_file("/home/v/slurm-9.out"))
        assert _paths(_run(table(step, task, srun))) == ["/var/log/step.out"]

    def test_another_job_is_none_of_ours(self) -> None:
        """Another job's srun on the same node is not read."""
        step, task = self._step()
        other = {**self.JOB, "SLURM_JOB_ID": "9"}
        srun = process(92, 1, "srun python x.py", environment=other, outputs=to_file("/home/v/slurm-9.out"))
        assert _paths(_run(table(step, task, srun))) == ["/var/log/step.out"]


class TestContainers:
    @pytest.mark.parametrize(
        ("cgroup", "path"),
        [
            (
                f"/system.slice/docker-{CONTAINER_ID}.scope",
                f"/var/lib/docker/containers/{CONTAINER_ID}/{CONTAINER_ID}-json.log",
            ),
            (f"/docker/{CONTAINER_ID}", f"/var/lib/docker/containers/{CONTAINER_ID}/{CONTAINER_ID}-json.log"),
            (f"/kubepods/burstable/pod{POD_UID}/{CONTAINER_ID}", f"/var/log/pods/*_{POD_UID}/*/*.log"),
            (
                f"/kubepods.slice/kubepods-pod{POD_UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER_ID}.scope",
                f"/var/log/pods/*_{POD_UID}/*/*.log",
            ),
        ],
    )
    def test_the_runtimes_file(self, cgroup: str, path: str) -> None:
        """The output of a container is a pipe to its runtime, whose file the control group names."""
        launcher, ranks = _piped(cgroup=cgroup)
        (target,) = _run(table(launcher, ranks)).log_targets
        assert (target.path, target.root, target.uid) == (path, "/", None)

    def test_podman(self) -> None:
        """Its monitor was told the file."""
        monitor = process(50, 1, f"conmon -c {CONTAINER_ID} -l k8s-file:/c/ctr.log", name="conmon")
        launcher, ranks = _piped(cgroup="/machine.slice/libpod.scope")
        assert _paths(_run(table(monitor, replace(launcher, parent_pid=50), ranks))) == ["/c/ctr.log"]

    def test_a_user_cannot_pose_as_a_container(self) -> None:
        """A control group below a user's own slice may be called anything."""
        launcher, ranks = _piped(cgroup=f"/user.slice/user-1000.slice/docker-{CONTAINER_ID}.scope")
        assert _run(table(launcher, ranks)).log_targets == ()


class TestElsewhere:
    def test_the_copy_of_wandb(self) -> None:
        """On a terminal W&B's own copy of the console is the log, found by the file that its core holds open."""
        launcher = torchrun(outputs=(OutputTarget(1, "terminal", "/dev/pts/0"),))
        ranks = ranks_below(launcher, 1)
        core = process(300, 110, "wandb-core", open_files=("/w/wandb/run-1-x/run-x.wandb",))
        run = _run(table(launcher, ranks, core))
        assert (_paths(run), run.hints) == (["/w/wandb/run-1-x/files/output.log"], ())

    def test_a_log_of_the_programs_own(self) -> None:
        """Else a file called like a log that a rank writes."""
        launcher = torchrun(outputs=(OutputTarget(1, "null", "/dev/null"),))
        ranks = [replace(rank, open_files=("/w/train.log", "/w/data.bin")) for rank in ranks_below(launcher, 1)]
        (target,) = _run(table(launcher, ranks)).log_targets
        assert (target.path, target.rank) == ("/w/train.log", 0)

    @pytest.mark.parametrize(
        ("output", "hint"),
        [
            (OutputTarget(1, "terminal", "/dev/pts/0"), outputs.HINT_TERMINAL),
            (OutputTarget(1, "null", "/dev/null"), outputs.HINT_NULL),
            (OutputTarget(1, "socket", "socket:[7]"), outputs.HINT_SOCKET),
        ],
    )
    def test_hints(self, output: OutputTarget, hint: str) -> None:
        """Where there is no text, a person is told why and what to do."""
        assert _run(table(torchrun(outputs=(output,)))).hints == (hint,)

    def test_hint_without_rights(self) -> None:
        """Not being allowed to look is another reason than there being nothing."""
        launcher = torchrun(environment=None)
        rank = process(110, 100, "python train.py", environment=None)
        assert outputs.HINT_DENIED in _run(table(launcher, rank)).hints

    def test_nothing_is_said_before_anything_is_known(self) -> None:
        """A process whose descriptors show nothing odd gets no hint."""
        launcher = torchrun()
        assert _run(table(launcher, process(110, 100, "python t.py", environment=rank_environment(0)))).hints == ()
