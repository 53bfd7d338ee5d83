"""Which runs a table of processes holds: launchers, roles, remains, configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tables import NOW_SECONDS, child, gpu, process, rank_environment, ranks_below, table, to_file, to_pipe, torchrun
from training_exporter import config
from training_exporter.config import Config, Match, RunConfig
from training_exporter.model import DiscoveredRun, GpuSample, ProcessRecord, ProcessTable
from training_exporter.runs.discovery import HINT_NUMBERS, Discovery, environment_keys, interesting


def _discover(found: ProcessTable, *gpus: GpuSample, configuration: Config | None = None) -> list[DiscoveredRun]:
    return list(Discovery(configuration or Config(), "node7").discover(found, gpus))


def _numbers(run: DiscoveredRun) -> list[tuple[int, int, int]]:
    return [(rank.rank, rank.local_rank, rank.process.pid) for rank in run.ranks]


class TestLaunchers:
    @pytest.mark.parametrize(
        ("command", "name", "kind"),
        [
            ("python3 /usr/bin/torchrun --nproc-per-node=2 train.py", "pt_elastic", "torchrun"),
            ("python -m torch.distributed.run --nproc_per_node 2 train.py", "pt_elastic", "torchrun"),
            ("python -m torch.distributed.launch --nproc_per_node=2 train.py", "python", "torchrun"),
            ("python3 /usr/bin/accelerate launch --multi_gpu train.py", "pt_elastic", "accelerate"),
            ("python3 -m accelerate.commands.launch train.py", "python3", "accelerate"),
            ("python3 -u -m deepspeed.launcher.launch --world_info=e30= train.py", "python3", "deepspeed"),
            ("my-own-title", "pt_elastic", "torchrun"),
        ],
    )
    def test_kinds(self, command: str, name: str, kind: str) -> None:
        """Every launcher of ranks with RANK is found, also one that goes by another title."""
        launcher = process(100, 1, command, name=name)
        (run,) = _discover(table(launcher, ranks_below(launcher, 2)))
        assert (run.launcher, run.script, _numbers(run)) == (kind, "train.py", [(0, 0, 110), (1, 1, 120)])
        assert not run.provisional

    @pytest.mark.parametrize(
        "command",
        [
            "grep torchrun",
            "vim /usr/bin/torchrun",
            "bash -c 'torchrun train.py'",
            "docker run image torchrun train.py",
            "tmux new-session -d torchrun train.py",
            "python3 accelerate config",
        ],
    )
    def test_a_word_in_a_command_makes_no_launcher(self, command: str) -> None:
        """Only what a process itself runs counts."""
        assert _discover(table(process(100, 1, command))) == []

    def test_a_launcher_without_ranks_is_a_run(self) -> None:
        """While it waits for its rendezvous a run has no rank yet, and already its name."""
        launcher = torchrun()
        discovery = Discovery(Config(), "node7")
        (waiting,) = discovery.discover(table(launcher), ())
        (started,) = discovery.discover(table(launcher, ranks_below(launcher, 2)), ())
        assert (waiting.ranks, waiting.workers_expected) == ((), 2)
        assert waiting.name == started.name

    def test_a_launcher_that_may_have_more_nodes(self) -> None:
        """Accelerate may know of other nodes from a file: until a rank tells, its name would be a guess."""
        launcher = process(100, 1, "python3 /usr/bin/accelerate launch train.py", name="pt_elastic")
        told = process(100, 1, "python3 /usr/bin/accelerate launch --num_machines 2 train.py", name="pt_elastic")
        assert _discover(table(launcher)) == []
        assert len(_discover(table(told))) == 1

    def test_one_plain_child_of_accelerate(self) -> None:
        """`accelerate launch --cpu` starts one child that is told no rank."""
        launcher = process(100, 1, "python3 /usr/bin/accelerate launch --cpu train.py", name="accelerate")
        rank = process(110, 100, "python3 train.py", session_id=100)
        (run,) = _discover(table(launcher, rank))
        assert (run.launcher, _numbers(run), run.workers_expected) == ("accelerate", [(0, 0, 110)], 1)

    def test_deepspeed_runs_below_its_runner(self) -> None:
        """Of two launchers the one with the ranks makes the run."""
        runner = process(90, 1, "python3 /usr/bin/deepspeed --num_gpus 2 train.py", name="deepspeed")
        launcher = process(100, 90, "python3 -u -m deepspeed.launcher.launch --world_info=e30= train.py")
        (run,) = _discover(table(runner, launcher, ranks_below(launcher, 2, "python3 -u train.py --local_rank=0")))
        assert run.launcher_process == launcher

    def test_ranks_behind_a_shell(self) -> None:
        """With `--no-python run.sh` the program below the script is the rank, and the shell is not."""
        launcher = torchrun(arguments="--no-python run.sh")
        shell = process(110, 100, "bash run.sh", environment=rank_environment(0))
        program = process(111, 110, "python3 train.py", environment=rank_environment(0), session_id=110)
        (run,) = _discover(table(launcher, shell, program))
        assert _numbers(run) == [(0, 0, 111)]
        assert run.others == (shell,)

    def test_a_launcher_inside_a_rank_is_not_a_run(self) -> None:
        """An evaluation that a rank starts with torchrun is the rank's own work."""
        launcher = torchrun()
        ranks = ranks_below(launcher, 2)
        inner = torchrun(200, "--nproc-per-node=1 eval.py", parent_pid=110)
        (run,) = _discover(table(launcher, ranks, inner, ranks_below(inner, 1, "python3 eval.py")))
        assert run.launcher_process == launcher
        assert {record.pid: run.owner[record.pid] for record in run.others} == {200: 0, 210: 0}

    def test_a_fork_before_its_exec_is_no_launcher(self) -> None:
        """For a moment a rank looks like its launcher."""
        launcher = torchrun()
        (run,) = _discover(table(launcher, replace(launcher, pid=110, parent_pid=100)))
        assert (run.launcher_process, run.ranks) == (launcher, ())

    def test_two_runs_at_once(self) -> None:
        """Each launcher has its own ranks."""
        first, second = torchrun(100, "train.py"), torchrun(500, "other.py")
        runs = _discover(table(first, second, ranks_below(first, 2), ranks_below(second, 3)))
        assert sorted((run.script, len(run.ranks)) for run in runs) == [("other.py", 3), ("train.py", 2)]


class TestSchedulers:
    def test_tasks_of_srun(self) -> None:
        """Direct children of slurmstepd with SLURM_PROCID are ranks; the batch script is none."""
        step = process(100, 1, "'slurmstepd: [4311.0]'", name="slurmstepd", uid=0)
        batch = process(90, 1, "'slurmstepd: [4311.batch]'", name="slurmstepd", uid=0)
        job = {"SLURM_JOB_ID": "4311", "SLURM_PROCID": "0"}
        script = process(91, 90, "/bin/bash /var/spool/slurmd/job04311/slurm_script", environment=job)
        srun = process(92, 91, "srun python train.py", environment=job)
        tasks = [
            process(
                110 + number,
                100,
                "python train.py",
                environment={
                    **job, "SLURM_STEP_ID": "0", "SLURM_PROCID": str(4 + number), "SLURM_LOCALID": str(number),
                    "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "8",
                },
            )
            for number in range(4)
        ]  # fmt: skip
        (run,) = _discover(table(step, batch, script, srun, tasks))
        assert (run.name, run.launcher, run.job_id, run.node_rank) == ("slurm-4311", "slurm", "4311", "1")
        assert _numbers(run) == [(4 + number, number, 110 + number) for number in range(4)]
        assert run.world_size == 8

    def test_torchrun_below_srun(self) -> None:
        """The inner launcher makes the run; the job gives the name."""
        step = process(100, 1, "'slurmstepd: [4311.0]'", name="slurmstepd", uid=0)
        job = {"SLURM_JOB_ID": "4311", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}
        launcher = torchrun(200, parent_pid=100, environment=job)
        (run,) = _discover(table(step, launcher, ranks_below(launcher, 2, **job)))
        assert (run.name, run.launcher, len(run.ranks)) == ("slurm-4311", "torchrun", 2)

    def test_second_launcher_in_one_allocation(self) -> None:
        """It gets a number, and the next attempt of the first script has the first name again."""
        job = {"SLURM_JOB_ID": "4311"}
        discovery = Discovery(Config(), "node7")
        train = torchrun(100, "train.py", environment=job)
        evaluation = torchrun(500, "eval.py", environment=job)
        again = torchrun(900, "train.py --resume", environment=job)
        names = [
            [run.name for run in discovery.discover(table(launcher), ())] for launcher in (train, evaluation, again)
        ]
        assert names == [["slurm-4311"], ["slurm-4311-2"], ["slurm-4311"]]

    def test_mpirun(self) -> None:
        """Open MPI's keys number the ranks."""
        launcher = process(100, 1, "mpirun -np 2 python train.py")
        keys = [
            {"OMPI_COMM_WORLD_RANK": n, "OMPI_COMM_WORLD_LOCAL_RANK": n, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
            for n in "01"
        ]
        ranks = [process(110 + i, 100, "python train.py", environment=keys[i], session_id=100) for i in range(2)]
        (run,) = _discover(table(launcher, ranks))
        assert (run.launcher, _numbers(run), run.workers_expected) == ("mpirun", [(0, 0, 110), (1, 1, 111)], 2)

    def test_an_mpi_simulation_is_not_taken_for_training(self) -> None:
        """The launcher of MPI starts anything: what is no Python becomes a run only once it shows progress."""
        launcher = process(100, 1, "mpirun -np 1 ./fluid")
        (run,) = _discover(table(launcher, process(110, 100, "./fluid", environment={"OMPI_COMM_WORLD_RANK": "0"})))
        assert run.provisional


class TestRoles:
    def test_loaders_carry_the_rank_and_are_none(self) -> None:
        """The parent decides: named workers, forks and spawned workers of a rank are loaders, a tracker is not."""
        launcher = torchrun()
        ranks = ranks_below(launcher, 2)
        spawn = "python3 -c 'from multiprocessing.spawn import spawn_main; spawn_main(7)' --multiprocessing-fork"
        environment = ranks[0].environment
        named = child(ranks[0], 201, name="pt_data_worker")
        forked = child(ranks[0], 202)
        spawned = process(203, 110, spawn, environment=environment, session_id=110)
        tracker = process(
            204, 110, "python3 -c 'from multiprocessing.resource_tracker import main;main(5)'", environment=environment
        )
        (run,) = _discover(table(launcher, ranks, named, forked, spawned, tracker))
        assert run.loaders == (named, forked, spawned)
        assert run.others == (tracker,)
        assert run.owner == {201: 0, 202: 0, 203: 0, 204: 0}
        assert len(run.ranks) == 2

    @pytest.mark.parametrize("command", ["py-spy dump", "nvidia-smi -l", "wandb-core --port", "tensorboard --logdir x"])
    def test_companions_are_no_ranks(self, command: str) -> None:
        """A tool under the launcher inherits nothing that would make it a rank."""
        launcher = torchrun()
        tool = process(150, 100, command, environment=rank_environment(1))
        (run,) = _discover(table(launcher, ranks_below(launcher, 1), tool))
        assert (_numbers(run), run.others) == ([(0, 0, 110)], (tool,))

    def test_a_zombie_keeps_its_number(self) -> None:
        """A dead rank under a living launcher stays visible as what it was, also when it was never seen alive."""
        launcher = torchrun()
        alive, dead = ranks_below(launcher, 2)
        dead = replace(dead, state="zombie", command=None, environment=None)
        (run,) = _discover(table(launcher, alive, dead))
        assert [(rank.rank, rank.process.state) for rank in run.ranks] == [(0, "sleeping"), (1, "zombie")]

    def test_no_more_ranks_than_there_are(self) -> None:
        """A child in a session of its own beside a whole set of ranks is something else."""
        launcher = torchrun()
        (run,) = _discover(table(launcher, ranks_below(launcher, 2), process(190, 100, "daemon")))
        assert len(run.ranks) == 2

    def test_a_restarted_rank_replaces_the_dying_one(self) -> None:
        """Of two processes with one number the newer living one is the rank."""
        launcher = torchrun()
        old = replace(ranks_below(launcher, 1)[0], state="zombie")
        new = child(old, 190, parent_pid=100, session_id=190, state="running")
        (run,) = _discover(table(launcher, old, new))
        assert _numbers(run) == [(0, 0, 190)]

    def test_ranks_of_another_user(self) -> None:
        """Without the right to read environments, ranks are counted in the order of starting, and that is said."""
        launcher = torchrun()
        ranks = [replace(rank, environment=None) for rank in ranks_below(launcher, 2)]
        (run,) = _discover(table(launcher, ranks, complete=False))
        assert _numbers(run) == [(0, 0, 110), (1, 1, 120)]
        assert HINT_NUMBERS in run.hints

    def test_error_files_are_absolute(self) -> None:
        """Relative ones lie under the rank's directory, those of a container are read below its root."""
        launcher = torchrun()
        ranks = [replace(rank, root=f"/proc/{rank.pid}/root") for rank in ranks_below(launcher, 1)]
        (run,) = _discover(table(launcher, ranks))
        (target,) = run.error_files
        assert (target.path, target.root) == ("/data/job/errors/0/error.json", "/proc/110/root")
        assert (target.uid, target.rank) == (ranks[0].uid, 0)


class TestRemains:
    def test_what_dead_ranks_wrote(self) -> None:
        """A launcher that is left alone still has its ranks' logs and error files to be read."""
        discovery = Discovery(Config(), "node7")
        launcher = torchrun(outputs=to_file("/logs/console"))
        ranks = [replace(rank, outputs=to_file(f"/logs/{rank.pid}")) for rank in ranks_below(launcher, 1)]
        (before,) = discovery.discover(table(launcher, ranks), ())
        (after,) = discovery.discover(table(launcher), ())
        assert [target.path for target in after.log_targets] == ["/logs/console", "/logs/110"]
        assert (after.ranks, after.error_files) == ((), before.error_files)

    def test_ranks_outlive_their_launcher(self) -> None:
        """They stay the run's, loaders too, until they end."""
        discovery = Discovery(Config(), "node7")
        launcher = torchrun()
        ranks = ranks_below(launcher, 2)
        (before,) = discovery.discover(table(launcher, ranks), ())
        orphans = [replace(rank, parent_pid=1) for rank in ranks]
        loader = child(orphans[0], 201, name="pt_data_worker")
        (after,) = discovery.discover(table(orphans, loader), ())
        assert (after.name, after.launcher_process, _numbers(after)) == (before.name, None, _numbers(before))
        assert (after.loaders, after.provisional) == ((loader,), False)

    def test_a_loader_outlives_its_rank(self) -> None:
        """Re-parented to PID 1 it still belongs to the dead rank's run, and is no phantom rank."""
        discovery = Discovery(Config(), "node7")
        launcher = torchrun()
        ranks = ranks_below(launcher, 2)
        discovery.discover(table(launcher, ranks), ())
        stray = child(ranks[1], 201, parent_pid=1)
        (run,) = discovery.discover(table(launcher, ranks[0], stray), ())
        assert (_numbers(run), run.owner[201]) == ([(0, 0, 110)], 1)

    def test_a_new_attempt_beside_old_orphans(self) -> None:
        """The attempt has the run's name; the orphans are extra processes of it."""
        discovery = Discovery(Config(), "node7")
        launcher = torchrun()
        ranks = ranks_below(launcher, 2)
        (before,) = discovery.discover(table(launcher, ranks), ())
        orphans = [replace(rank, parent_pid=1) for rank in ranks]
        again = torchrun(500)
        (after,) = discovery.discover(table(orphans, again, ranks_below(again, 2)), ())
        assert (after.name, after.launcher_process, len(after.ranks)) == (before.name, again, 2)
        assert {record.pid for record in after.others} == {110, 120}

    def test_a_reused_pid_is_somebody_else(self) -> None:
        """Identity is PID and start: a shell with a dead rank's PID is no orphan."""
        discovery = Discovery(Config(), "node7")
        launcher = torchrun()
        discovery.discover(table(launcher, ranks_below(launcher, 1)), ())
        assert discovery.discover(table(process(110, 1, "bash", start_ticks=99999)), ()) == ()


class TestWithoutLauncher:
    def test_lightning(self) -> None:
        """Rank 0 is the parent of the others, and nobody told it a number."""
        first = process(100, 1, "python fit.py")
        second = process(
            110, 100, "/usr/bin/python fit.py", session_id=100, environment={"LOCAL_RANK": "1", "WORLD_SIZE": "2"}
        )
        loader = child(first, 120, name="pt_data_worker")
        (run,) = _discover(table(first, second, loader))
        assert (run.launcher, _numbers(run), run.provisional) == ("lightning", [(0, 0, 100), (1, 1, 110)], True)
        assert run.owner == {120: 0}

    def test_spawned_workers_on_gpus(self) -> None:
        """mp.spawn: the workers that hold GPUs, grouped by the program that spawned them, in order."""
        parent = process(100, 1, "python main.py")
        spawn = "python -c 'from multiprocessing.spawn import spawn_main; spawn_main(7)' --multiprocessing-fork"
        workers = [process(110 + n, 100, spawn, session_id=100) for n in range(2)]
        (run,) = _discover(table(parent, workers), gpu(0, 110), gpu(1, 111))
        assert (run.launcher, run.script, _numbers(run)) == ("spawn", "main.py", [(0, 0, 110), (1, 1, 111)])
        assert run.gpus == {0: "0", 1: "1"}

    def test_plain_python_on_a_gpu(self) -> None:
        """A run only once it shows progress; of several GPUs its rank's is the one that it fills most."""
        program = process(100, 1, "python main.py")
        (run,) = _discover(table(program), gpu(0, 100, memory_bytes=5), gpu(1, 100, memory_bytes=9))
        assert (run.launcher, run.provisional, run.workers_expected) == ("python", True, 1)
        assert run.gpus == {0: "1"}

    def test_by_script_name(self) -> None:
        """`python train.py` without a GPU is a candidate, its own children are not."""
        program = process(100, 1, "python pretrain_gpt.py")
        (run,) = _discover(table(program, child(program, 110), process(200, 1, "python serve.py")))
        assert (run.script, run.provisional, [record.pid for record in run.loaders]) == ("pretrain_gpt.py", True, [110])

    def test_by_the_name_of_its_log(self) -> None:
        """`python job.py > train.log`, also through tee, is a candidate; with a log of another name it is none."""
        to_log = process(100, 1, "python job.py", outputs=to_file("/w/train.log"))
        to_tee = process(200, 1, "python job.py", outputs=to_pipe(7), working_directory="/x")
        tee = process(201, 1, "tee sft_1.log", session_id=200, input_pipe="pipe:[7]")
        other = process(300, 1, "python job.py", outputs=to_file("/w/job.log"), working_directory="/y")
        runs = _discover(table(to_log, to_tee, tee, other))
        assert sorted((run.ranks[0].process.pid, run.provisional) for run in runs) == [(100, True), (200, True)]

    def test_a_helper_with_the_same_log_is_no_run(self) -> None:
        """`bash run.sh > train.log` gives the file to all that it starts; who comes after the run may train again."""
        launcher = torchrun(outputs=to_file("/w/train.log"))
        ranks = ranks_below(launcher, 1)
        helper = process(90, 1, "python watch.py", outputs=to_file("/w/train.log"))
        later = process(300, 1, "python job.py", outputs=to_file("/w/train.log"), start_seconds=NOW_SECONDS + 60)
        discovery = Discovery(Config(), "node7")
        heads = [
            [run.ranks[0].process.pid for run in discovery.discover(seen, ())]
            for seen in (table(launcher, ranks, helper), table(helper), table(helper, later))
        ]
        assert heads == [[ranks[0].pid], [], [300]]

    def test_a_notebook_on_a_gpu(self) -> None:
        """A kernel is an occupant of its GPU of its own, apart from the server that started it."""
        server = process(90, 1, "python /usr/bin/jupyter-lab")
        kernel = process(100, 90, "python -m ipykernel_launcher -f x.json")
        (run,) = _discover(table(server, kernel), gpu(0, 100))
        assert (run.script, run.provisional, _numbers(run)) == ("ipykernel_launcher", True, [(0, 0, 100)])

    def test_ray_actors(self) -> None:
        """Actors that hold GPUs are ranks of one run that the driver names; Ray's own services are not."""
        driver = process(100, 1, "python -m verl.trainer.main_ppo")
        raylet = process(101, 100, "/ray/raylet --x", session_id=100)
        actors = [process(110 + n, 101, "ray::WorkerDict.update", session_id=100) for n in range(2)]
        idle = process(130, 101, "ray::IDLE", session_id=100)
        (run,) = _discover(table(driver, raylet, actors, idle), gpu(0, 110), gpu(1, 111))
        assert (run.launcher, run.script, run.launcher_process) == ("ray", "verl.trainer.main_ppo", driver)
        assert _numbers(run) == [(0, 0, 110), (1, 1, 111)]

    def test_two_jobs_of_ray(self) -> None:
        """Jobs on one raylet are apart; an actor whose environment is lost belongs to the larger one."""
        raylet = process(101, 1, "/ray/raylet --x")
        jobs = ["01", "01", "", "02"]
        actors = [
            process(110 + n, 101, "ray::Worker", environment={"RAY_JOB_ID": job} if job else {})
            for n, job in enumerate(jobs)
        ]
        runs = _discover(table(raylet, actors), *(gpu(n, 110 + n) for n in range(4)))
        assert sorted(sorted(rank.process.pid for rank in run.ranks) for run in runs) == [[110, 111, 112], [113]]

    def test_ranks_started_by_hand(self) -> None:
        """`RANK=0 python train.py &` twice is one run."""
        ranks = [
            process(110 + n, 50, "python train.py", environment={"RANK": str(n), "MASTER_ADDR": "h"}) for n in (0, 1)
        ]
        (run,) = _discover(table(process(50, 1, "bash"), ranks))
        assert (_numbers(run), run.provisional) == ([(0, 0, 110), (1, 1, 111)], True)

    def test_the_exporter_is_not_its_own_run(self) -> None:
        """Its name holds "train", and it may hold a GPU handle."""
        own = process(100, 1, "python3 /usr/bin/training-exporter serve")
        module = process(101, 1, "python3 -m training_exporter demo")
        assert _discover(table(own, module), gpu(0, 100)) == []


class TestGpus:
    def test_by_the_drivers_list(self) -> None:
        """The PID decides, whatever CUDA_VISIBLE_DEVICES says; a child's context counts for its rank."""
        launcher = torchrun()
        ranks = ranks_below(launcher, 2, CUDA_VISIBLE_DEVICES="0,1")
        engine = process(300, 120, "vllm-worker")
        (run,) = _discover(table(launcher, ranks, engine), gpu(0), gpu(1, 110), gpu(2, 300))
        assert run.gpus == {0: "1", 1: "2"}

    def test_contexts_on_gpu_0(self) -> None:
        """Ranks that leave a small context on the first GPU still have their own."""
        launcher = torchrun()
        first = gpu(0, 110, 120, memory_bytes=500)
        (run,) = _discover(table(launcher, ranks_below(launcher, 2)), first, gpu(1, 120, memory_bytes=10**10))
        assert run.gpus == {0: "0", 1: "1"}

    def test_a_rank_that_holds_nothing_has_none(self) -> None:
        """Where the driver lists processes, a job on CPUs is not given the GPUs of the box."""
        launcher = torchrun()
        (run,) = _discover(table(launcher, ranks_below(launcher, 2)), gpu(0, 999), gpu(1))
        assert run.gpus == {}

    @pytest.mark.parametrize(
        ("visible", "expected"),
        [
            ({}, {0: "0", 1: "1"}),
            ({"CUDA_VISIBLE_DEVICES": "3,2"}, {0: "3", 1: "2"}),
            ({"CUDA_VISIBLE_DEVICES": "GPU-00000002,GPU-00000001-aaaa"}, {0: "2", 1: "1"}),
            ({"CUDA_VISIBLE_DEVICES": "2"}, {0: "2", 1: "2"}),
            ({"CUDA_VISIBLE_DEVICES": ""}, {}),
            ({"CUDA_VISIBLE_DEVICES": "1,99"}, {0: "1", 1: "1"}),
        ],
    )
    def test_by_environment_in_a_container(self, visible: dict[str, str], expected: dict[int, str]) -> None:
        """Where the driver's PIDs mean nothing, CUDA_VISIBLE_DEVICES and the local rank tell."""
        launcher = torchrun()
        ranks = ranks_below(launcher, 2, **visible)
        (run,) = _discover(table(launcher, ranks, host_pids=False), *(gpu(number, 110) for number in range(4)))
        assert run.gpus == expected

    def test_a_pid_from_inside_a_container(self) -> None:
        """A driver that lists inner PIDs is understood where only one process has that number."""
        launcher = torchrun()
        ranks = [replace(rank, namespace_pid=rank.pid - 100) for rank in ranks_below(launcher, 2)]
        (run,) = _discover(table(launcher, ranks), gpu(0, 10), gpu(1, 20))
        assert run.gpus == {0: "0", 1: "1"}

    def test_a_lost_gpu_stays_the_ranks(self) -> None:
        """What is to be reported as lost must not vanish from the run."""
        discovery = Discovery(Config(), "node7")
        launcher = torchrun()
        found = table(launcher, ranks_below(launcher, 2))
        discovery.discover(found, (gpu(0, 110), gpu(1, 120)))
        (run,) = discovery.discover(found, (gpu(0, 110), gpu(1, lost=True, processes=None)))
        assert run.gpus == {0: "0", 1: "1"}


class TestNames:
    def test_same_on_every_node(self) -> None:
        """Two nodes of one multi-node run, seen by two exporters."""
        names = set()
        for node in (0, 1):
            launcher = torchrun(100 + node, f"--nnodes=2 --node-rank={node} --master-addr=node0 train.py --lr 1")
            ranks = ranks_below(launcher, 2, GROUP_RANK=str(node), GROUP_WORLD_SIZE="2", MASTER_ADDR="node0")
            (run,) = Discovery(Config(), f"node{node}").discover(table(launcher, ranks), ())
            names.add(run.name)
            assert run.node_rank == str(node)
        assert len(names) == 1

    def test_two_alike_on_one_node(self) -> None:
        """The second gets a number and keeps it when the first ends."""
        discovery = Discovery(Config(), "node7")
        first, second = torchrun(100), torchrun(500)
        both = [run.name for run in discovery.discover(table(first, second), ())]
        (left,) = discovery.discover(table(second), ())
        assert both == [both[0], f"{both[0]}-2"]
        assert left.name == both[1]

    def test_an_attempt_has_the_name_of_the_one_before(self) -> None:
        """The launcher ended and was started again."""
        discovery = Discovery(Config(), "node7")
        (first,) = discovery.discover(table(torchrun(100)), ())
        discovery.discover(table(), ())
        (second,) = discovery.discover(table(torchrun(500)), ())
        assert first.name == second.name

    def test_nothing_is_named_before_it_was_read(self) -> None:
        """A launcher in D state at the first look would change its name once it can be read."""
        assert _discover(table(replace(torchrun(), command=None, environment=None, state="disk_sleep"))) == []


class TestConfigured:
    CONFIGURED = Config(
        runs=(
            RunConfig("eagle3", Match(cmdline=r"train\.py"), logs=("/data/*.log",), checkpoints=("/data/out",)),
            RunConfig("nightly", Match(env={"JOB": "n"}), expected=True),
            RunConfig("remote", logs=("/nfs/remote.log",)),
            RunConfig("seldom", Match(cmdline="seldom")),
        )
    )

    def test_what_was_configured_wins(self) -> None:
        """Name, logs and checkpoints are those of the file."""
        launcher = torchrun(outputs=to_file("/elsewhere"))
        runs = _discover(table(launcher, ranks_below(launcher, 2)), configuration=self.CONFIGURED)
        run = next(run for run in runs if run.name == "eagle3")
        assert [(target.path, target.configured) for target in run.log_targets] == [("/data/*.log", True)]
        assert [(target.path, target.configured) for target in run.checkpoint_targets] == [("/data/out", True)]

    def test_absent_runs(self) -> None:
        """An expected run and one of files alone are there without a process; another is not."""
        runs = _discover(table(), configuration=self.CONFIGURED)
        assert [(run.name, run.ranks, run.launcher) for run in runs] == [("nightly", (), ""), ("remote", (), "")]

    def test_matching_by_environment(self) -> None:
        """A process that no rule takes is a run when it was configured, and not provisional."""
        runs = _discover(
            table(process(100, 1, "julia fit.jl", environment={"JOB": "n"})), configuration=self.CONFIGURED
        )
        run = next(run for run in runs if run.name == "nightly")
        assert (_numbers(run), run.launcher, run.provisional) == ([(0, 0, 100)], "process", False)

    def test_matching_more_than_the_run(self) -> None:
        """Shells, pipes and editors that have the script's name in their command make no second run."""
        shell = process(90, 1, "bash -c 'torchrun scripts/train.py | tee x.log'")
        launcher = torchrun(arguments="scripts/train.py", parent_pid=90)
        editor = process(80, 1, "vim scripts/train.py")
        found = table(shell, launcher, ranks_below(launcher, 2), editor)
        runs = _discover(found, configuration=Config(runs=(RunConfig("eagle3", Match(cmdline=r"scripts/train\.py")),)))
        assert [(run.name, run.launcher) for run in runs] == [("eagle3", "torchrun")]

    def test_matching_a_program_behind_a_shell(self) -> None:
        """Where only the shell matches, what it runs is the run."""
        shell = process(90, 1, "bash fit.sh")
        found = table(shell, process(91, 90, "julia fit.jl"))
        (run,) = _discover(found, configuration=Config(runs=(RunConfig("fit", Match(cmdline=r"fit\.sh")),)))
        assert _numbers(run) == [(0, 0, 91)]

    def test_ignored(self) -> None:
        """What is to be ignored is no run, whichever of its processes matches."""
        ignoring = Config(discovery=config.Discovery(ignore=(Match(cmdline="-u train"),)))
        launcher = torchrun()
        assert _discover(table(launcher, ranks_below(launcher, 2)), configuration=ignoring) == []

    def test_disabled(self) -> None:
        """Without discovery only configured runs are shown."""
        off = replace(self.CONFIGURED, discovery=config.Discovery(enabled=False))
        launcher, other = torchrun(100), torchrun(500, "other.py")
        runs = _discover(table(launcher, other), configuration=off)
        assert [run.name for run in runs if run.launcher] == ["eagle3"]

    def test_reload(self) -> None:
        """Another configuration renames the run and forgets nothing about its processes."""
        discovery = Discovery(Config(), "node7")
        launcher = torchrun()
        found = table(launcher, ranks_below(launcher, 2))
        discovery.discover(found, (gpu(0, 110), gpu(1, 120)))
        discovery.reconfigure(self.CONFIGURED)
        run = next(run for run in discovery.discover(found, (gpu(0), gpu(1))) if run.launcher)
        assert (run.name, run.gpus) == ("eagle3", {0: "0", 1: "1"})

    def test_keys_to_read(self) -> None:
        """The process source is told which keys of environments matter."""
        assert environment_keys(self.CONFIGURED) == {"JOB"}


class TestInteresting:
    @pytest.mark.parametrize(
        ("record", "expected"),
        [
            (torchrun(), True),
            (process(1, 0, "tee train.log"), True),
            (process(1, 0, "python3 x.py", environment=None), True),
            (process(1, 0, "python3 x.py"), False),
            (process(1, 0, "python3 train.py"), True),
            (process(1, 0, "python3 x.py", outputs=to_file("/w/train.log")), True),
            (process(1, 0, "python3 x.py", outputs=to_file("/w/x.log")), False),
            (process(1, 0, "python3 x.py", environment={"RANK": "0"}), True),
            (process(1, 0, "ray::Actor"), True),
            (process(1, 0, "nginx", environment=None), False),
            (process(1, 0, "containerd-shim-runc-v2 -id x"), False),
            (process(1, 0, "python3 -m training_exporter", environment=None), False),
        ],
    )
    def test_each_alone(self, record: ProcessRecord, expected: bool) -> None:
        """One record is enough to say whether a process may matter."""
        assert bool(interesting({record.pid: record})) is expected

    def test_configured(self) -> None:
        """A configured environment needs reading before it can be judged."""
        wanted = Config(runs=(RunConfig("x", Match(env={"JOB": "n"})),))
        unread = process(1, 0, "nginx", environment=None)
        assert interesting({1: unread}, wanted) == {1}
        assert interesting({1: replace(unread, environment={})}, wanted) == set()
