"""Prometheus and Alertmanager beside the demo, where they are installed, with the shipped rules and its past."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import yaml

from training_exporter.recording import Recording

JOB = "training-exporter"
# The shipped 30 s are for thousands of nodes; the audience of one node need not wait for them. No `for` is changed.
EVALUATION = "5s"
SCRAPE = "5s"
STOP_SECONDS = 5.0
BACKFILL_SECONDS = 120.0


class StackError(Exception):
    """A part could not be started; the message is for a person."""


class Stack:
    """The programs that were started, with their data and configuration in `folder`.

    `monitoring` is the directory that holds `prometheus/rules` and `alertmanager/alertmanager.yml`.
    """

    def __init__(self, folder: Path, monitoring: Path, instance: str) -> None:
        self._folder = folder
        self._monitoring = monitoring
        self._instance = instance
        self._programs: list[subprocess.Popen[bytes]] = []

    def start(self, past: Recording) -> dict[str, str]:
        """Start what is installed, with the past as history; where each is to be seen, in words, by name."""
        addresses: dict[str, str] = {}
        alertmanager = None
        program = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")  # as Debian calls it
        if program:
            alertmanager = f"127.0.0.1:{free_port(9093)}"
            self._start_alertmanager(program, alertmanager)
            # Debian builds it without pages: amtool shows the alerts everywhere
            addresses["Alertmanager"] = f"http://{alertmanager}/, amtool alert --alertmanager.url=http://{alertmanager}"
        if shutil.which("prometheus"):
            address = f"127.0.0.1:{free_port(9090)}"
            self._start_prometheus(address, alertmanager, past)
            addresses["Prometheus"] = f"http://{address}/"  # the path of its alerts depends on its version
        return addresses

    def stop(self) -> None:
        """End the programs."""
        for program in self._programs:
            program.terminate()
        for program in self._programs:
            _wait(program)

    def _start_alertmanager(self, program: str, address: str) -> None:
        config = self._monitoring / "alertmanager" / "alertmanager.yml"
        if not config.is_file():
            raise StackError(f"{config} is missing")
        self._run(
            program,
            f"--config.file={config.resolve()}",
            f"--storage.path={self._folder / 'alertmanager'}",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",
        )

    def _start_prometheus(self, address: str, alertmanager: str | None, past: Recording) -> None:
        data, config = self._folder / "data", self._folder / "prometheus.yml"
        self._backfill(data, past)
        config.write_text(yaml.safe_dump(self._config(alertmanager)), encoding="utf-8")
        self._run(
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address={address}",
        )

    def _backfill(self, data: Path, past: Recording) -> None:
        promtool = shutil.which("promtool")
        if promtool is None or not past:
            return
        text = self._folder / "past.om"
        with text.open("w", encoding="utf-8") as out:
            past.write(out)
        command = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BACKFILL_SECONDS, check=False)  # noqa: S603 - fixed words
        if done.returncode:
            raise StackError(f"promtool cannot take over the past: {done.stderr.strip()[-300:]}")

    def _config(self, alertmanager: str | None) -> dict[str, Any]:
        config: dict[str, Any] = {
            "global": {"scrape_interval": SCRAPE, "evaluation_interval": EVALUATION},
            "rule_files": [str(path) for path in self._rules()],
            "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": [self._instance]}]}],
        }
        if alertmanager:
            config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
        return config

    def _rules(self) -> list[Path]:
        sources = sorted((self._monitoring / "prometheus" / "rules").glob("*.yml"))
        if not sources:
            raise StackError(f"no rules in {self._monitoring / 'prometheus' / 'rules'}")
        return [self._hurried(source) for source in sources]

    def _hurried(self, source: Path) -> Path:
        rules = yaml.safe_load(source.read_text(encoding="utf-8"))
        for group in rules["groups"]:
            group["interval"] = EVALUATION
        copy = self._folder / source.name
        copy.write_text(yaml.safe_dump(rules, sort_keys=False), encoding="utf-8")
        return copy

    def _run(self, *command: str) -> None:
        log = self._folder / f"{Path(command[0]).name}.log"
        with log.open("wb") as out:
            self._programs.append(subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL))  # noqa: S603 - fixed words


def _wait(program: subprocess.Popen[bytes]) -> None:
    try:
        program.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def free_port(*wanted: int) -> int:
    """The first of the wanted ports of the loopback address that is free, or else any free one."""
    for port in (*wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise StackError("no free port on the loopback address")
