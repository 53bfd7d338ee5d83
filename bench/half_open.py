"""Scrapes beside 300 half-open connections, against none, side by side.

    .venv/bin/python bench/half_open.py [--seconds 60] [--connections 300]

Two exporters watch the same job; one of them holds clients that have sent half a request and are replaced as soon as
it closes them. Both are scraped in turns. The exit status is 1 if the median beside them is over 1.5 medians without,
if a thread more is needed, if more descriptors are held than there are clients, or if a client is left at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from e2e.harness import Exporter, fetch, wait_until  # noqa: E402  the tests' tools are found by the line above
from jobs import job  # noqa: E402
from training import Training  # noqa: E402
from training_exporter.server import IDLE_SECONDS  # noqa: E402

MOST = 1.5
HALF_A_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: node\r\nX-Slow: "
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.2
MORE_DESCRIPTORS = 3  # the scrape itself, a log just opened, the listing of /proc


class Attack:
    """So many half-open connections, each replaced when the server closes it."""

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._count = count
        self._held: list[socket.socket] = []
        self.closed = 0
        self.fill()

    def fill(self) -> None:
        """Open as many as are missing."""
        while len(self._held) < self._count:
            client = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_SECONDS)
            client.sendall(HALF_A_REQUEST)
            client.settimeout(0)
            self._held.append(client)

    def drop_closed(self) -> int:
        """Forget those that the server closed; how many are left."""
        self._held = [client for client in self._held if not self._is_closed(client)]
        return len(self._held)

    def _is_closed(self, client: socket.socket) -> bool:
        with contextlib.suppress(BlockingIOError):
            if client.recv(1) == b"":
                client.close()
                self.closed += 1
                return True
        return False


def scrape(exporter: Exporter) -> float:
    """Seconds of one scrape."""
    began = time.perf_counter()
    fetch(f"{exporter.url}/metrics")
    return time.perf_counter() - began


def start(folder: Path, training: Training) -> Exporter:
    """An exporter that shows the job."""
    folder.mkdir()
    (folder / "config.yml").write_text(
        f"discovery: {{enabled: false}}\nruns: [{{name: bench, match: {{cmdline: {training.script}}}}}]\n"
    )
    exporter = Exporter(folder, "--no-collector.gpu", f"--config.file={folder / 'config.yml'}")
    wait_until("the job is shown", lambda: training.value(exporter, "training_step"), seconds=PATIENCE_SECONDS)
    return exporter


def measure(seconds: float, connections: int) -> list[str]:
    """Print what was seen; returns what is out of bounds."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = stack.enter_context(job(folder / "work"))
        training = Training(made, made.directory / "out")
        exporters = [start(folder / name, training) for name in ("quiet", "attacked")]
        for exporter in exporters:
            stack.callback(exporter.stop)
        quiet, attacked = exporters
        process, beside = psutil.Process(attacked.pid), psutil.Process(quiet.pid)
        threads, descriptors = process.num_threads(), process.num_fds()
        attack = Attack(attacked.port, connections)
        times: dict[Exporter, list[float]] = {quiet: [], attacked: []}
        most_threads = most_descriptors = most_beside = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for exporter, values in times.items():
                values.append(scrape(exporter))
            most_threads = max(most_threads, process.num_threads())
            most_descriptors = max(most_descriptors, process.num_fds())
            most_beside = max(most_beside, beside.num_fds())  # while it looks at processes and files too
            attack.drop_closed()
            attack.fill()
            time.sleep(PAUSE_SECONDS)
        wait_until("the server closes them all", lambda: attack.drop_closed() == 0, seconds=2 * IDLE_SECONDS)
        left = process.num_fds()
    return report(
        times[quiet],
        times[attacked],
        [
            ("threads", threads, most_threads, threads + 1),  # the second one of the pool that renders
            ("descriptors", most_beside, most_descriptors, most_beside + connections + MORE_DESCRIPTORS),
            ("descriptors after it", descriptors, left, descriptors + MORE_DESCRIPTORS),
            ("connections closed by the server", 0, attack.closed, sys.maxsize),
        ],
    )


def report(quiet: Sequence[float], attacked: Sequence[float], counts: Sequence[tuple[str, int, int, int]]) -> list[str]:
    """Print medians, ratio and counts (name, before, most, bound); returns what is out of bounds."""
    ratio = median(attacked) / median(quiet)
    for name, values in (("without", quiet), ("beside them", attacked)):
        low, middle, high = (1000 * f(values) for f in (min, median, max))
        print(f"{name:14} median {middle:6.2f} ms   min {low:6.2f}   max {high:6.2f}   {len(values)} scrapes")
    print(f"ratio of the medians {ratio:.3f}, at most {MOST}")
    for name, before, most, _ in counts:
        print(f"{name}: {before} without, {most} at most")
    return [
        *([f"ratio {ratio:.3f}"] if ratio > MOST else []),
        *(name for name, _, most, bound in counts if most > bound),
    ]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--connections", type=int, default=300)
    arguments = parser.parse_args()
    wrong = measure(arguments.seconds, arguments.connections)
    for name in wrong:
        print(f"out of bounds: {name}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
