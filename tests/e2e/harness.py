"""The real parts of an end-to-end test: a torchrun job, a scripted fake driver, the exporter, Prometheus."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fake_nvml.state import MIB, FakeGpu, FakeProcess, FakeState, gpu_at_work

T = TypeVar("T")

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# Durations of the shipped rules are divided by this; the run's budgets are made short by configuration.
SCALE = 20
TRAINER = HERE / "train.py"


def wait_until(what: str, condition: Callable[[], T | None], *, seconds: float) -> T:
    """The first true answer of `condition`, asked again and again; an AssertionError naming `what` if none comes."""
    began = time.monotonic()
    answer = condition()
    while not answer:
        waited = time.monotonic() - began
        if waited > seconds:
            message = f"{what}: not within {seconds:g} s; last answer {answer!r}"
            raise AssertionError(message)
        time.sleep(min(0.1 + waited / 10, 0.5))  # a scrape costs, and what comes late is not missed by half a second
        answer = condition()
    return answer


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(url: str, headers: dict[str, str] | None = None) -> str:
    """The body of a 2xx answer; OSError otherwise."""
    request = urllib.request.Request(url, headers=headers or {})  # noqa: S310 - loopback only
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        return str(response.read().decode())


class Program:
    """A child process in a group of its own whose output goes to a file."""

    def __init__(self, command: list[str], output: Path, **kwargs: Any) -> None:
        self.output = output
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **kwargs,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def stop(self) -> None:
        """Kill the process and every descendant; a stopped one is continued by the kill."""
        try:
            family = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            family = []
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.wait(60)  # a thread that waits for a busy disk keeps even a killed process


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


class Exporter(Program):
    """The installed exporter on a port of its own."""

    def __init__(self, folder: Path, *arguments: str, env: dict[str, str] | None = None, **kwargs: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = str(Path(sys.executable).with_name("training-exporter"))
        super().__init__(
            [command, f"--web.listen-address=127.0.0.1:{self.port}", f"--state.dir={folder / 'state'}", *arguments],
            folder / "exporter.log",
            env={**os.environ, **(env or {})},
            **kwargs,
        )
        wait_until("the exporter is ready", self.is_ready, seconds=20)

    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            message = f"the exporter ended: {self.text()[-2000:]}"
            raise AssertionError(message)
        try:
            fetch(f"{self.url}/-/ready")
        except OSError:
            return False
        return True

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """One scrape: (name, labels) -> value."""
        families = text_string_to_metric_families(fetch(f"{self.url}/metrics"))
        return {
            (sample.name, frozenset(sample.labels.items())): float(sample.value)
            for family in families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the only series of that name whose labels include the given ones."""
        wanted = set(labels.items())
        found = [value for (metric, have), value in self.samples().items() if metric == name and wanted <= have]
        assert len(found) <= 1, f"{name}{labels} is not one series: {found}"
        return found[0] if found else None

    def run_of(self, job: Job) -> str | None:
        """The name under which the job was found."""
        names = [labels["run"] for labels in self.labels("training_run_info") if labels["script"] == job.script.name]
        assert len(names) <= 1, f"the job is not one run: {names}"
        return names[0] if names else None

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(have) for (metric, have) in self.samples() if metric == name]

    def tell(self, run: str | None = None) -> None:
        """Print what it says of a run, or of all, and what it logged: pytest shows it where a test failed."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            lines = fetch(f"{self.url}/metrics").splitlines(keepends=True)
            sys.stdout.writelines(line for line in lines if line[0] != "#" and (run is None or f'run="{run}"' in line))
        sys.stdout.write(self.text()[-4000:])

    def stop(self) -> None:
        if self.process.poll() is None:
            self.tell()
        super().stop()

    def terminate(self) -> int:
        """SIGTERM, as an init system does; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)


class Prometheus(Program):
    """A real Prometheus that scrapes every second; the durations in the shipped rules are divided by `scale`."""

    def __init__(
        self, folder: Path, targets: list[str], *, alertmanager: str | None = None, scale: int = SCALE
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        rules = folder / "rules"
        subprocess.run(
            [sys.executable, str(ROOT / "prometheus/scale.py"), "--divide", str(scale), "--output", str(rules)],
            check=True,
        )
        configuration: dict[str, Any] = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules / "*.yml")],
            "scrape_configs": [{"job_name": "training-exporter", "static_configs": [{"targets": targets}]}],
        }
        if alertmanager:
            configuration["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        super().__init__(
            [
                shutil.which("prometheus") or "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=warn",
            ],
            folder / "prometheus.log",
        )
        wait_until("Prometheus is ready", self.is_ready, seconds=20)

    def is_ready(self) -> bool:
        try:
            fetch(f"{self.url}/-/ready")
        except OSError:
            return False
        return True

    def evaluations(self) -> int:
        """How often the rule group that was evaluated least has been evaluated."""
        families = text_string_to_metric_families(fetch(f"{self.url}/metrics"))
        return min(
            int(sample.value)
            for family in families
            for sample in family.samples
            if sample.name == "prometheus_rule_group_iterations_total"
        )

    def wait_for_evaluations(self, more: int) -> None:
        """Until every rule was evaluated that many more times, about once a second."""
        enough = self.evaluations() + more
        wait_until(f"{more} more evaluations", lambda: self.evaluations() >= enough, seconds=3 * more + 10)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector of an expression."""
        answer = json.loads(fetch(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    def firing(self, alert: str, **labels: str) -> list[dict[str, str]]:
        """The labels of the alerts of that name that fire now and carry the given labels."""
        matchers = ", ".join(
            f'{key}="{value}"' for key, value in {"alertname": alert, "alertstate": "firing", **labels}.items()
        )
        return [row["metric"] for row in self.query(f"ALERTS{{{matchers}}}")]

    def fired_above_info(self, run: str) -> set[str]:
        """Names of the critical and warning alerts of a run that ever fired here."""
        rows = self.query(
            f'max_over_time(ALERTS{{alertstate="firing", severity=~"critical|warning", run="{run}"}}[1h]) == 1'
        )
        return {row["metric"]["alertname"] for row in rows}
