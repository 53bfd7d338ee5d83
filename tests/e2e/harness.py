"""The real programs that a test starts and asks: the exporter, Prometheus, and what they have in common."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
# Durations of the shipped rules are divided by this; the run's budgets are made short by configuration.
SCALE = 20


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

    def run_of(self, script: str) -> str | None:
        """The name under which the job that runs this script was found."""
        names = [labels["run"] for labels in self.labels("training_run_info") if labels["script"] == script]
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
