"""`serve` as a process of its own: started without anything, reloaded, ended."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import needs

DEADLINE_SECONDS = 20.0


class Exporter:
    """A running `training-exporter`."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.port = _free_port()
        self.log = folder / "exporter.log"
        environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
        environment.pop("STATE_DIRECTORY", None)
        command = [sys.executable, "-m", "training_exporter", f"--web.listen-address=127.0.0.1:{self.port}", *flags]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment)
        self.until(lambda: self.status("/-/ready") == 200)

    def get(self, path: str) -> str:
        """The body of one answer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def status(self, path: str) -> int | None:
        """The status of one answer; None while nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def value(self, series: str) -> float | None:
        """The value of one series without labels."""
        found = re.search(rf"^{series} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return float(found[1]) if found else None

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, not longer than a deadline and the exporter's life."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


Start = Callable[..., Exporter]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts exporters, and ends those that the test leaves."""
    running: list[Exporter] = []

    def begin(*flags: str) -> Exporter:
        running.append(Exporter(tmp_path, *flags))
        return running[-1]

    yield begin
    for one in running:
        one.process.kill()
        one.process.wait()


class TestServe:
    def test_without_anything(self, start: Start) -> None:
        """No configuration, GPU or job is needed, and no series stands twice."""
        exporter = start("--path.procfs=/proc")
        text = exporter.get("/metrics")
        counts = Counter(line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#"))
        assert [series for series, count in counts.items() if count > 1] == []
        assert exporter.value("training_exporter_config_last_reload_successful") == 1
        assert "Sources" in exporter.get("/")

    @needs("promtool")
    def test_promtool(self, start: Start) -> None:
        """`promtool check metrics` accepts what a fresh exporter says."""
        text = start().get("/metrics").encode()
        result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
        assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_end(self, start: Start, number: int) -> None:
        """A signal ends it within two seconds, with exit code 0 and without complaint."""
        exporter = start()
        idle = socket.create_connection(("127.0.0.1", exporter.port))
        exporter.process.send_signal(number)
        began = time.monotonic()
        assert exporter.process.wait(DEADLINE_SECONDS) == 0
        assert time.monotonic() - began < 2
        assert "Traceback" not in exporter.log.read_text()
        idle.close()

    def test_sources_switched_off(self, start: Start) -> None:
        """A source that is switched off has no health and does not keep it from being ready."""
        text = start("--no-collector.gpu", "--no-collector.logs").get("/metrics")
        assert {"processes", "checkpoints"} == set(re.findall(r'collector_success{collector="(\w+)"}', text))


class TestReload:
    def test_sighup(self, start: Start, tmp_path: Path) -> None:
        """A bad file is refused whole, named in the log with key and line, and shows in the metric until mended."""
        path = tmp_path / "config.yaml"
        path.write_text("runs: [{name: first, match: {cmdline: nothing-has-this}, expected: true}]\n")
        exporter = start(f"--config.file={path}")
        exporter.until(lambda: 'training_run_info{job_id="",launcher="' in exporter.get("/metrics"))
        path.write_text("runs: [{name: second, logs: [/a], budgets: {idel: 1m}}]\n")
        exporter.process.send_signal(signal.SIGHUP)
        exporter.until(lambda: exporter.value("training_exporter_config_last_reload_successful") == 0)
        assert "line 1: runs[0].budgets.idel: unknown key; did you mean 'idle'?" in exporter.log.read_text()
        assert 'run="first"' in exporter.get("/metrics")
        path.write_text("runs: [{name: third, match: {cmdline: nothing-has-this}, expected: true}]\n")
        exporter.process.send_signal(signal.SIGHUP)
        exporter.until(lambda: exporter.value("training_exporter_config_last_reload_successful") == 1)
        exporter.until(lambda: 'run="third"' in exporter.get("/metrics"))

    def test_http(self, start: Start, tmp_path: Path) -> None:
        """POST /-/reload does the same, once allowed."""
        path = tmp_path / "config.yaml"
        path.write_text("")
        exporter = start(f"--config.file={path}", "--web.enable-lifecycle")
        path.write_text("runs: 1\n")
        connection = http.client.HTTPConnection("127.0.0.1", exporter.port, timeout=5)
        connection.request("POST", "/-/reload")
        answer = connection.getresponse()
        assert (500, f"{path}: line 1: runs: expected a list\n") == (answer.status, answer.read().decode())
        connection.close()


class TestRefused:
    def run(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """An exporter that cannot start."""
        command = [sys.executable, "-m", "training_exporter", *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)

    def test_taken_address(self, start: Start, tmp_path: Path) -> None:
        """A taken address is exit code 1 and one readable sentence."""
        port = start().port
        result = self.run(f"--web.listen-address=127.0.0.1:{port}", f"--state.dir={tmp_path / 'second'}")
        assert result.returncode == 1
        assert (
            f"cannot listen on 127.0.0.1:{port}: Address already in use; is another exporter running?" in result.stderr
        )
        assert "Traceback" not in result.stderr

    @pytest.mark.parametrize("flag", ["--config.file", "--web.config.file"])
    @pytest.mark.parametrize("content", [None, "nonsense: [\n", "unknown: 1\n"])
    def test_unusable_file(self, tmp_path: Path, flag: str, content: str | None) -> None:
        """A configuration that cannot be used keeps the exporter from starting half configured."""
        path = tmp_path / "file.yaml"
        if content is not None:
            path.write_text(content)
        result = self.run(f"{flag}={path}", "--web.listen-address=127.0.0.1:0", f"--state.dir={tmp_path / 'state'}")
        assert result.returncode == 1
        assert str(path) in result.stderr
        assert "Traceback" not in result.stderr
