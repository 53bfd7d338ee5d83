"""The processes of a run as they look when they start: names, commands, environments and descent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from training_exporter.model import OutputTarget, ProcessRecord
from training_exporter.scenario.records import RunWords

TICKS_PER_SECOND = 100
UPTIME_SECONDS = 86400.0  # of the node when the scenario starts
UID = 1000
FIRST_PID = 4190
NEIGHBOUR_UID = 1001
INIT_PID = 1

LOADER = "pt_data_worker"  # the name that PyTorch gives to the processes of a DataLoader
COMPILER = "pt_compile"


class Spawner:
    """Hands out PIDs and first records. `directory` is the working directory, `log` where fd 1 and 2 go."""

    def __init__(self, run: RunWords, ranks: int, *, epoch_seconds: float, directory: str, log: str | None) -> None:
        self._run = run
        self._ranks = ranks
        self._boot_seconds = epoch_seconds - UPTIME_SECONDS
        self._directory = directory
        self._log = log
        self._pid = FIRST_PID - 1

    def launcher(self, now: float) -> ProcessRecord:
        """A new launcher, which starts the run's script on every GPU."""
        return self._record(INIT_PID, "pt_elastic", self._launcher_command(), {}, now)

    def rank(self, number: int, launcher: ProcessRecord, restarts: int, now: float) -> ProcessRecord:
        """A new worker under a launcher."""
        environment = {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": str(self._ranks),
            "LOCAL_WORLD_SIZE": str(self._ranks),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": str(restarts),
        }
        return self._record(launcher.pid, "python3", self._worker_command(), environment, now)

    def helper(self, name: str, rank: ProcessRecord, now: float) -> ProcessRecord:
        """A child of a rank: it inherits the environment, and a forked loader the command too."""
        command = rank.command if name == LOADER else (f"/usr/bin/{name}",)
        record = self._record(rank.pid, name, command or (), rank.environment or {}, now)
        return replace(record, session_id=rank.session_id)

    def neighbour(self, now: float) -> ProcessRecord:
        """A process of somebody else that computes on a GPU of the run."""
        self._pid += 1
        return ProcessRecord(
            pid=self._pid,
            start_ticks=self._ticks(now),
            start_seconds=now,
            parent_pid=INIT_PID,
            session_id=self._pid,
            name="python3",
            command=("python3", "-m", "neighbour"),
            environment={},
            working_directory="/home/neighbour",
            uid=NEIGHBOUR_UID,
            gid=NEIGHBOUR_UID,
            outputs=(OutputTarget(1, "null"), OutputTarget(2, "null")),
        )

    def _record(
        self, parent_pid: int, name: str, command: tuple[str, ...], environment: Mapping[str, str], now: float
    ) -> ProcessRecord:
        self._pid += 1
        return ProcessRecord(
            pid=self._pid,
            start_ticks=self._ticks(now),
            start_seconds=now,
            parent_pid=parent_pid,
            session_id=self._pid,
            name=name,
            command=command,
            environment=environment,
            working_directory=self._directory,
            uid=UID,
            gid=UID,
            namespace_pid=self._pid,
            outputs=self._outputs(),
        )

    def _ticks(self, now: float) -> int:
        return int((now - self._boot_seconds) * TICKS_PER_SECOND)

    def _outputs(self) -> tuple[OutputTarget, ...]:
        if self._log is None:
            return (OutputTarget(1, "null"), OutputTarget(2, "null"))
        return (OutputTarget(1, "file", self._log), OutputTarget(2, "file", self._log))

    def _launcher_command(self) -> tuple[str, ...]:
        program = ("python3", f"/usr/local/bin/{self._run.launcher}")
        options = {
            "torchrun": (f"--nproc-per-node={self._ranks}",),
            "accelerate": ("launch", "--num_processes", str(self._ranks)),
            "deepspeed": ("--num_gpus", str(self._ranks)),
        }
        return (*program, *options.get(self._run.launcher, ()), *self._script_words("-m"))

    def _worker_command(self) -> tuple[str, ...]:
        return ("python3", "-u", *self._script_words("-m"))

    def _script_words(self, module_flag: str) -> tuple[str, ...]:
        # a script that is no file is a module: torchrun -m torchtitan.train
        script = self._run.script
        target = (script,) if script.endswith((".py", ".sh")) else (module_flag, script)
        output = () if "checkpoints" in self._run.absent else ("--output_dir", "output")
        return (*target, *output)
