"""Programs that follow a log, mtail and ours: how far they are, what they cost, what memory they hold."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from e2e.harness import Exporter, fetch, free_port, wait_until  # noqa: E402  the tests' tools are found by the line above

__all__ = ["MTAIL", "Follower", "counted", "mtail", "mtail_command", "ours", "wait_until"]

MTAIL = ROOT / ".tools/bin/mtail"
PROGRAM = r"""
counter log_lines_total
gauge loss
gauge step

/$/ {
  log_lines_total++
}
/loss\S*[=:]\s*(\d+\.\d+)/ {
  loss = $1
}
/(?:step|iteration)[=:]?\s*(\d+)/ {
  step = $1
}
"""


def counted(printed: str) -> float:
    """The count in the metrics of mtail, or the first number that ours prints."""
    for line in printed.splitlines():
        if line.startswith("log_lines_total"):
            return float(line.split()[-1])
    return float(printed.split(maxsplit=1)[0])


class Follower:
    """A running program that follows a log, and how far it is."""

    def __init__(self, process: subprocess.Popen[bytes], lines: Callable[[], float]) -> None:
        self.pid = process.pid
        self.lines = lines

    def cpu_seconds(self) -> float:
        stats = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(path.read_text().split()[0]) for path in stats) / 1e9

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def mtail(folder: Path, log: Path) -> Iterator[Follower]:
    """Mtail, listening."""
    port = free_port()
    command = [*mtail_command(folder, log), f"-port={port}", "-address=127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield Follower(process, lambda: _asked(f"http://127.0.0.1:{port}/metrics"))
        finally:
            process.kill()


def _or_unknown(lines: float | None) -> float:
    return -1.0 if lines is None else lines


def _asked(url: str) -> float:
    try:
        return counted(fetch(url))
    except OSError:  # it does not listen yet
        return -1.0


def mtail_command(folder: Path, log: Path) -> list[str]:
    """How mtail is started on a log."""
    (folder / "progs").mkdir(exist_ok=True)
    (folder / "progs/training.mtail").write_text(PROGRAM)
    return [str(MTAIL), "-logtostderr", f"-progs={folder / 'progs'}", f"-logs={log}"]


@contextmanager
def ours(folder: Path, log: Path) -> Iterator[Follower]:
    """The exporter, of whose sources only the processes, which make the run, and the log are on."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    (folder / "config.yml").write_text(f"runs: [{{name: bench, logs: [{log}]}}]\ndiscovery: {{enabled: false}}\n")
    off = [f"--no-collector.{name}" for name in ("gpu", "checkpoints")]
    exporter = Exporter(folder, f"--config.file={folder / 'config.yml'}", *off)
    try:
        yield Follower(exporter.process, lambda: _or_unknown(exporter.value("training_log_lines_total", run="bench")))
    finally:
        exporter.stop()
