"""CPU of one look at the processes of a busy machine: ours against one scrape of process-exporter, side by side.

    scripts/install-bench-tools && .venv/bin/python bench/processes.py [--processes 2000] [--rounds 9]

Both watch the same machine with that many unrelated processes and one training job of two ranks, in turns. The exit
status is 1 if ours costs more than a tenth.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from e2e.harness import fetch, free_port, wait_until  # noqa: E402  the tests' tools are found by the line above
from jobs import Watch, complete, job  # noqa: E402

PEER = ROOT / ".tools/bin/prometheus-process-exporter"
# As Debian ships it: every process in a group by its name.
PEER_CONFIG = "process_names:\n  - name: '{{.Comm}}'\n    cmdline: ['.+']\n"
LEAN = ("-gather-smaps=false", "-threads=false")
SETTLING_SECONDS = 6.0  # ours reads a command a second time, once, when a process is 5 s old
MOST = 0.1


@contextmanager
def sleepers(count: int) -> Iterator[None]:
    """That many processes that do nothing."""
    script = f"i=0; while [ $i -lt {count} ]; do sleep 3600 & i=$((i+1)); done; echo ready; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            subprocess.run(["pkill", "-s", str(shell.pid)], check=True)


class Peer:
    """A running process-exporter."""

    def __init__(self, folder: Path, *flags: str) -> None:
        config = folder / "process-exporter.yml"
        config.write_text(PEER_CONFIG)
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/metrics"
        command = [str(PEER), f"-config.path={config}", f"-web.listen-address=127.0.0.1:{port}", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_until("process-exporter listens", self._answers, seconds=30)

    def scrape(self) -> float:
        """CPU seconds of one scrape, over all threads."""
        before = self._cpu_seconds()
        fetch(self._url)
        return self._cpu_seconds() - before

    def _answers(self) -> bool:
        try:
            fetch(self._url)
        except OSError:
            return False
        return True

    def _cpu_seconds(self) -> float:
        stats = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(path.read_text().split()[0]) for path in stats) / 1e9


def tick(watch: Watch, directory: Path) -> float:
    """CPU seconds of one look at the processes and the discovery of the runs, over all threads."""
    before = time.process_time()
    watch.look(directory)
    return time.process_time() - before


def show(name: str, seconds: list[float]) -> None:
    """One line: milliseconds."""
    low, middle, high = (1000 * f(seconds) for f in (min, median, max))
    print(f"{name:44} median {middle:8.2f} ms   min {low:8.2f}   max {high:8.2f}")


def measure(processes: int, rounds: int) -> float:
    """Print what each costs; returns ours over process-exporter's as it is shipped."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(sleepers(processes))
        made = stack.enter_context(job(folder / "work"))
        made.start("train.py")
        peers = [Peer(folder), Peer(folder, *LEAN)]
        for peer in peers:
            stack.callback(peer.process.wait)
            stack.callback(peer.process.kill)
        watch = Watch()
        first = tick(watch, made.directory)
        watch.until(made.directory, complete())
        time.sleep(SETTLING_SECONDS)
        settling = tick(watch, made.directory)
        ours, shipped, lean = [], [], []
        for _ in range(rounds):
            ours.append(tick(watch, made.directory))
            shipped.append(peers[0].scrape())
            lean.append(peers[1].scrape())
    show(f"training-exporter, first look at {processes}", [first])
    show("training-exporter, second look at all, once", [settling])
    show("training-exporter, a tick", ours)
    show("process-exporter, a scrape", shipped)
    show(f"process-exporter {' '.join(LEAN)}", lean)
    for name, peer in (("as shipped", shipped), ("lean", lean)):
        print(f"ratio to process-exporter {name}: {median(ours) / median(peer):.4f}")
    return median(ours) / median(shipped)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    if not PEER.exists():
        parser.error("process-exporter is missing: scripts/install-bench-tools")
    return int(measure(arguments.processes, arguments.rounds) > MOST)


if __name__ == "__main__":
    sys.exit(main())
