"""The programs that people use today, running: nvitop-exporter, node_exporter, process-exporter and mtail."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from log_followers import MTAIL, mtail_command  # noqa: E402

from e2e.harness import Exporter, fetch, free_port, wait_until  # noqa: E402  the tests' tools are found by the line above

TOOLS = ROOT / ".tools"
NVITOP = TOOLS / "nvitop/bin/nvitop-exporter"
NODE_EXPORTER = TOOLS / "bin/prometheus-node-exporter"
PROCESS_EXPORTER = TOOLS / "bin/prometheus-process-exporter"
# As Debian ships it: every process in a group by its name.
PROCESS_GROUPS = "process_names:\n  - name: '{{.Comm}}'\n    cmdline: ['.+']\n"
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """An exporter at work."""

    pid: int
    url: str  # of its metrics

    def has(self, metric: str) -> bool:
        """Whether a series of that name is there."""
        return any(line.startswith((f"{metric}{{", f"{metric} ")) for line in fetch(self.url).splitlines())


def missing(*programs: Path) -> list[str]:
    """Those that scripts/install-bench-tools has not brought yet."""
    return [program.name for program in programs if not program.exists()]


@contextmanager
def ours(folder: Path, *flags: str, environment: Mapping[str, str] | None = None) -> Iterator[Running]:
    """training-exporter."""
    folder.mkdir(exist_ok=True)
    exporter = Exporter(folder, *flags, env=dict(environment or {}))
    try:
        yield Running(exporter.pid, f"{exporter.url}/metrics")
    finally:
        exporter.stop()


@contextmanager
def nvitop(environment: Mapping[str, str]) -> Iterator[Running]:
    """nvitop-exporter, reading the GPUs once a second, which is its default and our pace."""
    with _running([str(NVITOP)], lambda port: ["--bind-address=127.0.0.1", f"--port={port}"], environment) as running:
        wait_until("nvitop-exporter reads the GPUs", lambda: running.has("gpu_power_usage_W"), seconds=START_SECONDS)
        yield running


@contextmanager
def node_exporter() -> Iterator[Running]:
    """node_exporter with its default collectors."""
    with _running([str(NODE_EXPORTER)], lambda port: [f"--web.listen-address=127.0.0.1:{port}"]) as running:
        yield running


@contextmanager
def process_exporter(folder: Path, *flags: str) -> Iterator[Running]:
    """process-exporter."""
    config = folder / "process-exporter.yml"
    config.write_text(PROCESS_GROUPS)
    command = [str(PROCESS_EXPORTER), f"-config.path={config}", *flags]
    with _running(command, lambda port: [f"-web.listen-address=127.0.0.1:{port}"]) as running:
        yield running


@contextmanager
def mtail(folder: Path, log: Path) -> Iterator[Running]:
    """Mtail on a log, with a counter of lines and two expressions."""
    command = mtail_command(folder, log)
    with _running(command, lambda port: [f"-port={port}", "-address=127.0.0.1"]) as running:
        yield running


@contextmanager
def _running(
    command: Sequence[str], address: Callable[[int], list[str]], environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    port = free_port()
    with subprocess.Popen(
        [*command, *address(port)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        running = Running(process.pid, f"http://127.0.0.1:{port}/metrics")

        def answers() -> bool:
            assert process.poll() is None, f"{command[0]} ended with status {process.returncode}"
            try:  # no scrape, which may take its time
                with socket.create_connection(("127.0.0.1", port), timeout=1):
                    return True
            except OSError:
                return False

        try:
            wait_until(f"{command[0]} listens", answers, seconds=START_SECONDS)
            yield running
        finally:
            process.kill()


__all__ = [
    "MTAIL",
    "NODE_EXPORTER",
    "NVITOP",
    "PROCESS_EXPORTER",
    "Running",
    "missing",
    "mtail",
    "node_exporter",
    "nvitop",
    "ours",
    "process_exporter",
    "wait_until",
]
