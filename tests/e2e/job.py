"""What is watched in an end-to-end test: a real torchrun job, on the GPUs of a scripted fake driver."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from e2e.harness import Program, free_port, wait_until
from fake_nvml.state import MIB, FakeGpu, FakeProcess, FakeState, gpu_at_work

TRAINER = Path(__file__).with_name("train.py")


class Job(Program):
    """A torchrun job of two ranks that somebody else started, its output redirected to a file."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.log = folder / "train.log"
        self.checkpoints = folder / "output"
        self.control = folder / "control"
        self.data = folder / "data"
        self.control.mkdir(parents=True)
        self.data.mkdir()
        for number in range(1866):
            with (self.data / f"{number:04d}.bin").open("wb") as file:
                file.truncate(32 << 10)  # a hole, which reads like data and keeps no disk busy
        os.mkfifo(self.control / "fifo")
        # a name of its own, so that other jobs on this machine are not mistaken for it
        self.script = folder / f"train_{secrets.token_hex(4)}.py"
        shutil.copy(TRAINER, self.script)
        super().__init__(
            [
                str(Path(sys.executable).with_name("torchrun")),
                "--nproc-per-node=2",
                f"--master-port={free_port()}",
                self.script.name,
                *("--data", "data"),
                *("--save-path", "output"),
                *("--control", "control"),
                *arguments,
            ],
            self.log,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
        )

    def command(self, word: str) -> None:
        """Say what the training does next."""
        temporary = self.control / "command.tmp"
        temporary.write_text(word)
        temporary.replace(self.control / "command")

    def ranks(self) -> list[psutil.Process]:
        """The worker processes by rank, as soon as both exist."""
        try:
            children = psutil.Process(self.pid).children()
            found = {child.environ()["RANK"]: child for child in children if "RANK" in child.environ()}
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return []
        return [found["0"], found["1"]] if len(found) == 2 else []

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody of the job runs meanwhile, so that its files are at rest."""
        members = [psutil.Process(self.pid), *self.ranks()]
        for member in members:
            member.suspend()
        try:
            yield
        finally:
            for member in members:
                member.resume()

    def wait_for_line(self, text: str, *, seconds: float = 60, after: int = 0) -> None:
        wait_until(f"the log says {text!r}", lambda: text in self.text()[after:], seconds=seconds)


class GpuScript:
    """Two fake GPUs that do what the phase of the job would make them do; written about twice a second."""

    MEMORY_BYTES = 39_791 * MIB

    def __init__(self, state: Path, library: Path) -> None:
        self._state = state
        self._library = library
        self._mode = "off"
        self._pids: list[int] = []
        self._stop = threading.Event()
        self._random = random.Random(7)  # noqa: S311 - no secret
        self._lock = threading.Lock()
        self.write()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def play(self, mode: str, pids: list[int] | None = None) -> None:
        """Switch to off, idle, train, validate or spin; `pids` are the ranks, one GPU each."""
        self._mode = mode
        if pids is not None:
            self._pids = pids
        self.write()

    def environment(self) -> dict[str, str]:
        """What makes a program run on these GPUs."""
        return {"LD_LIBRARY_PATH": str(self._library), "FAKE_NVML_STATE": str(self._state)}

    def write(self) -> None:
        with self._lock:
            FakeState([self._gpu(index) for index in range(2)]).write(self._state)

    def _gpu(self, index: int) -> FakeGpu:
        utilization, memory_utilization, watts = {
            "off": (0, 0, 60.0),
            "idle": (0, 0, 62.0),
            "train": (98, 46, self._random.uniform(350, 400)),
            "validate": (0, 0, self._random.uniform(197, 279)),
            "spin": (100, 0, self._random.uniform(98, 102)),
        }[self._mode]
        holders = [] if self._mode == "off" else self._pids[index : index + 1]
        return gpu_at_work(
            index,
            utilization=utilization,
            memory_utilization=memory_utilization,
            power_milliwatts=int(watts * 1000),
            memory_used=self.MEMORY_BYTES if holders else 4 * MIB,
            processes=[FakeProcess(pid, self.MEMORY_BYTES) for pid in holders],
        )

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            self.write()
