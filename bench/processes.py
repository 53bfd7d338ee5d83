"""CPU of one look at the processes of a machine, as it fills up: ours against one scrape of process-exporter.

    scripts/install-bench-tools && .venv/bin/python bench/processes.py [--processes 100 1000 5000] [--rounds 9]

Both watch the same machine with that many unrelated processes and one training job of two ranks, in turns. The exit
status is 1 if ours costs more than a tenth of process-exporter's, as it is shipped, or more than twice as much beside
the most processes as beside the fewest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from meters import Scraper, cpu_seconds
from peers import PROCESS_EXPORTER, Running, missing, process_exporter
from ratio import Comparison, in_turns, table

from jobs import Watch, complete, job  # the imports above made the tests' tools known
from training_exporter.sources.processes import LONG_LISTING_TICKS

SIZES = (100, 1_000, 5_000)
LEAN = ("-gather-smaps=false", "-threads=false")
OURS, SHIPPED, LEAN_PEER = "training-exporter", "process-exporter", f"process-exporter {' '.join(LEAN)}"
SETTLING_SECONDS = 6.0  # ours reads a command a second time, once, when a process is 5 s old
PATIENCE_SECONDS = 120.0  # thousands of processes take process-exporter seconds on a busy machine
MOST_OF_PEER = 0.1
MOST_GROWTH = 2.0


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


def tick(watch: Watch, directory: Path) -> float:
    """CPU milliseconds of a look at the processes and the discovery of the runs, over all threads.

    The mean of as many looks as it takes for each kind of them to come once.
    """
    before = time.process_time()
    for _ in range(LONG_LISTING_TICKS):
        watch.look(directory)
    return 1000 * (time.process_time() - before) / LONG_LISTING_TICKS


def measure(processes: int, rounds: int) -> tuple[dict[str, list[float]], list[str]]:
    """CPU milliseconds of each, round by round, beside so many unrelated processes; and what happens once."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(sleepers(processes))
        made = stack.enter_context(job(folder / "work"))
        made.start("train.py")
        shipped = stack.enter_context(process_exporter(folder))
        lean = stack.enter_context(process_exporter(folder, *LEAN))
        watch = Watch()
        began = time.process_time()
        watch.look(made.directory)
        first = 1000 * (time.process_time() - began)
        watch.until(made.directory, complete())
        time.sleep(SETTLING_SECONDS)
        began = time.process_time()
        watch.look(made.directory)
        settling = 1000 * (time.process_time() - began)
        cases = {
            OURS: lambda: tick(watch, made.directory),
            SHIPPED: lambda: scrape(shipped),
            LEAN_PEER: lambda: scrape(lean),
        }
        once = f"{processes:5} processes: first look {first:.1f} ms, second look at all, once, {settling:.1f} ms"
        return in_turns(cases, rounds), [once]


def scrape(running: Running) -> float:
    """CPU milliseconds of one scrape, over all threads."""
    before = cpu_seconds(running.pid)
    Scraper(running.url, PATIENCE_SECONDS).text()
    return 1000 * (cpu_seconds(running.pid) - before)


def compare(curve: Mapping[int, Mapping[str, list[float]]]) -> list[Comparison]:
    """Ours beside the peer at each size, and beside itself from the least to the greatest."""
    rows = []
    least, *_, greatest = curve
    for processes, costs in curve.items():
        for name in (SHIPPED, LEAN_PEER):
            bound = MOST_OF_PEER if name == SHIPPED else None
            rows.append(Comparison(f"{processes} processes: {name}", costs[OURS], costs[name], "ms", bound))
    for name, bound in ((OURS, MOST_GROWTH), (SHIPPED, None)):
        values = curve[greatest][name], curve[least][name]
        rows.append(Comparison(f"{name}: {greatest} processes over {least}", *values, "ms", bound))
    return rows


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=SIZES, help="at least two numbers")
    parser.add_argument("--rounds", type=int, default=9, help="(%(default)s)")
    parser.add_argument("--quick", action="store_true", help="few processes, three rounds")
    arguments = parser.parse_args()
    if lacking := missing(PROCESS_EXPORTER):
        parser.error(f"missing: {', '.join(lacking)}: scripts/install-bench-tools")
    sizes, rounds = ((100, 500), 3) if arguments.quick else (sorted(arguments.processes), arguments.rounds)
    curve, notes = {}, []
    for processes in sizes:
        curve[processes], told = measure(processes, rounds)
        notes += told
    rows = compare(curve)
    print(table(rows, "the other"))
    print("\n" + "\n".join(notes))
    return int(not all(row.met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
