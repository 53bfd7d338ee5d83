"""Real processes in the shapes that training jobs have, without the seconds that importing torch costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from training_exporter.clock import SystemClock
from training_exporter.config import Config
from training_exporter.model import DiscoveredRun, GpuSample, ProcessTable
from training_exporter.runs.discovery import Discovery, environment_keys, interesting
from training_exporter.sources.processes import ProcessSource

PATIENCE_SECONDS = 20.0

# What torch.distributed.run does that can be seen from outside: its name, its ranks' sessions and environments,
# its answer to the death of one, its files of `--log-dir DIR --redirects 3`.
LAUNCHER = """
import ctypes, os, subprocess, sys, time
ctypes.CDLL(None).prctl(15, b"pt_elastic")
words = sys.argv[1:]
options = {}
while words[0].startswith("--"):
    key, _, value = words.pop(0).partition("=")
    options[key] = value
count = int(options["--nproc-per-node"])
restarts = int(options.get("--max-restarts", "0"))
def start(attempt):
    ranks = []
    for rank in range(count):
        directory = os.path.join(options.get("--log-dir") or os.getcwd(), "job_x", f"attempt_{attempt}", str(rank))
        os.makedirs(directory, exist_ok=True)
        output = open(os.path.join(directory, "stdout.log"), "w") if "--redirects" in options else None
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count),
            LOCAL_WORLD_SIZE=str(count), GROUP_RANK="0", GROUP_WORLD_SIZE="1", MASTER_ADDR="localhost",
            MASTER_PORT="29500", TORCHELASTIC_RUN_ID="none", TORCHELASTIC_RESTART_COUNT=str(attempt),
            TORCHELASTIC_ERROR_FILE=os.path.join(directory, "error.json"))
        ranks.append(subprocess.Popen([sys.executable, "-u", *words], env=environment, stdout=output,
            stderr=output, start_new_session=True))
    return ranks
attempt = 0
ranks = start(attempt)
while True:
    time.sleep(0.05)
    if options.get("--blind"):
        continue
    codes = [rank.poll() for rank in ranks]
    if all(code == 0 for code in codes):
        sys.exit(0)
    if any(codes):
        for rank in ranks:
            rank.kill()
            rank.wait()
        if attempt == restarts:
            sys.exit(1)
        attempt += 1
        ranks = start(attempt)
"""

# A rank with two loaders (forks that PyTorch names) and one helper of another kind.
TRAINER = """
import ctypes, os, subprocess, sys, time
print("step 1", flush=True)
for _ in range(int(os.environ.get("LOADERS", "1"))):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"pt_data_worker")
        time.sleep(120)
        os._exit(0)
if "CHECKPOINT" in os.environ:
    half_written = open(os.environ["CHECKPOINT"], "w")
helper = subprocess.Popen(["sleep", "120"])
time.sleep(120)
"""


class Job:
    """A directory with a launcher called `torchrun` and a script `train.py`, and what was started there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        (directory / "torchrun").write_text(LAUNCHER)
        (directory / "train.py").write_text(TRAINER)
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        *arguments: str,
        prefix: Sequence[str] = (),
        ranks: int = 2,
        output: int | IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run `torchrun --nproc-per-node=RANKS ARGUMENTS`; launcher options first, then the script and its own."""
        command = [*prefix, sys.executable, str(self.directory / "torchrun"), f"--nproc-per-node={ranks}", *arguments]
        return self.start_command(command, output, environment)

    def start_command(
        self,
        command: Sequence[str],
        output: int | IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run any command in the job's directory, as the leader of a session of its own."""
        self.process = subprocess.Popen(
            command,
            cwd=self.directory,
            stdout=subprocess.DEVNULL if output is None else output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        return self.process


class Watch:
    """The exporter's eyes: process source and discovery, asked as often as a test needs."""

    def __init__(self, config: Config | None = None) -> None:
        config = config or Config()
        self._source = ProcessSource(
            SystemClock(), interesting=partial(interesting, config=config), environment_keys=environment_keys(config)
        )
        self._discovery = Discovery(config, "testhost")
        self.table: ProcessTable | None = None

    def look(self, directory: Path, gpus: Sequence[GpuSample] = ()) -> list[DiscoveredRun]:
        """The runs whose processes work below a directory, or whose files are told to."""
        self._source.gpu_pids([process.pid for sample in gpus for process in sample.processes or ()])
        self.table = self._source.collect()
        return [run for run in self._discovery.discover(self.table, gpus) if _works_in(run, directory)]

    def until(self, directory: Path, condition: Callable[[list[DiscoveredRun]], bool]) -> list[DiscoveredRun]:
        """Look until the condition holds; the runs then. Fails after PATIENCE_SECONDS with what was seen last."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            runs = self.look(directory)
            if condition(runs):
                return runs
            if time.monotonic() > deadline:
                raise AssertionError(f"not seen within {PATIENCE_SECONDS:g} s; last: {runs}")
            time.sleep(0.05)  # between two looks, not instead of one


def complete(ranks: int = 2, loaders: int | None = None) -> Callable[[list[DiscoveredRun]], bool]:
    """Whether there is one run with that many living ranks, each with a loader."""
    wanted = ranks if loaders is None else loaders

    def check(runs: list[DiscoveredRun]) -> bool:
        return len(runs) == 1 and len(runs[0].ranks) == ranks and len(runs[0].loaders) == wanted

    return check


@contextmanager
def job(directory: Path) -> Iterator[Job]:
    """A job whose every process is gone afterwards."""
    made = Job(directory)
    try:
        yield made
    finally:
        if made.process is not None:
            _kill_all(directory)
            made.process.kill()
            made.process.wait()


def _works_in(run: DiscoveredRun, directory: Path) -> bool:
    heads = [rank.process for rank in run.ranks] + ([run.launcher_process] if run.launcher_process else [])
    return any(head.working_directory == str(directory) for head in heads)


def _kill_all(directory: Path) -> None:
    """Everything that works in the job's directory, whoever its parent is by now."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                inside = os.readlink(entry / "cwd") == str(directory)  # noqa: PTH115  a Path would follow it
            except OSError:
                continue
            if inside:
                os.kill(int(entry.name), signal.SIGKILL)
