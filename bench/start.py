"""From the command to the first scrape that is answered, against a Python that does nothing.

    .venv/bin/python bench/start.py [--rounds 9] [--rest 30]

Both are started in turns by the same Python. After the last start the exporter is left alone for --rest seconds; the
memory that it then takes is printed too. The exit status is 1 if the start takes over 60 times as long as the Python
that does nothing, most of which is the import of the libraries.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil
from ratio import in_turns, show

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from e2e.harness import free_port  # noqa: E402  the tests' tools are found by the line above

BOUND = 60.0
DEADLINE_SECONDS = 60.0
MIB = 2**20


@contextmanager
def exporter(folder: Path) -> Iterator[tuple[psutil.Popen, float]]:
    """A started exporter, and how many milliseconds passed until it answered a scrape."""
    port = free_port()
    command = [sys.executable, "-m", "training_exporter", f"--web.listen-address=127.0.0.1:{port}"]
    began = time.perf_counter()
    process = psutil.Popen([*command, f"--state.dir={folder}"], stderr=subprocess.DEVNULL)
    try:
        while not scraped(f"http://127.0.0.1:{port}/metrics"):
            assert process.poll() is None, "the exporter ended"
            assert time.perf_counter() - began < DEADLINE_SECONDS, "no scrape was answered"
            time.sleep(0.005)  # the server cannot be waited on: it is not there yet
        yield process, (time.perf_counter() - began) * 1000
    finally:
        process.terminate()
        process.wait()


def scraped(url: str) -> bool:
    """Whether it answers with series."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback
            return b"training_exporter_build_info" in answer.read()
    except urllib.error.URLError:
        return False


def nothing() -> float:
    """Milliseconds of a Python that does nothing."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (time.perf_counter() - began) * 1000


def main() -> int:
    """0 if the ratio is within its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rest", type=float, default=30.0, help="seconds before the memory is read")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def started() -> float:
            with exporter(folder) as (_, milliseconds):
                return milliseconds

        found = in_turns({"to the first scrape": started, "python -c pass": nothing}, options.rounds)
        for what, values in found.items():
            show(what, values, "ms")
        with exporter(folder) as (process, _):
            time.sleep(options.rest)
            show("memory at rest (RSS)", [process.memory_info().rss / MIB], "MiB")
    ratio = median(ours / theirs for ours, theirs in zip(*found.values(), strict=True))
    print(f"{'first scrape / python -c pass':44} median of rounds {ratio:.1f} (at most {BOUND:g})")
    return 0 if ratio <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
