"""Latency and CPU of a scrape: ours beside nvitop-exporter and node_exporter, healthy and while each source hangs.

    scripts/install-bench-tools && .venv/bin/python bench/scrape.py [--rounds 9] [--scrapes 60] [--only CASE]

All watch one node: eight fake GPUs, a job of eight ranks, its log and its checkpoints. They are scraped in turns, as
Prometheus does it. In each case but the first, one thing does not answer: every GPU, the procfs directory of a process
that ours follows, the directory of the log, that of the checkpoints. Ours may take at most as long as nvitop-exporter,
which shows fewer series and hears nothing of ranks, log and checkpoints; and its slow scrapes (p99, the best of three
thirds) at most five medians. The exit status is 1 where it does not. Hanging directories take root and /dev/fuse.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median, quantiles

from meters import SCRAPE_TIMEOUT_SECONDS, Scraper, cpu_seconds, samples
from peers import NODE_EXPORTER, NVITOP, Running, missing, node_exporter, nvitop, ours, wait_until
from ratio import Comparison, in_turns, table
from training_node import GPUS, Node

from e2e.harness import fetch
from hanging_mount import can_mount, hanging, second_procfs  # the imports above made the tests' tools known

PATIENCE_SECONDS = 60.0
LINES_PER_SECOND = 10.0
MOST_OF_PEER = 1.0
MOST_OF_MEDIAN = 5.0
THIRDS = 3
OURS, NVITOP_EXPORTER, NODE = "training-exporter", "nvitop-exporter", "node_exporter"


def gpus_hang(node: Node) -> AbstractContextManager[None]:
    """No call to any GPU returns."""
    node.gpus_hang()
    return nullcontext()


# What hangs, and the line by which ours says so. A process that hangs is only left out.
STUCK = 'training_exporter_collector_stuck{collector="%s"} 1.0'
CASES: dict[str, tuple[Callable[[Node], AbstractContextManager[None]], str]] = {
    "healthy": (lambda _: nullcontext(), ""),
    "all GPUs hang": (gpus_hang, STUCK % "gpu"),
    "a process hangs": (lambda node: hanging(node.folder / "proc" / str(node.launcher)), ""),
    "the log hangs": (lambda node: hanging(node.logs), 'training_run_blind{run="bench",source="logs"} 1.0'),
    "checkpoints hang": (lambda node: hanging(node.output), STUCK % "checkpoints"),
}


@dataclass(slots=True)
class Measured:
    """Seconds of each scrape and CPU seconds per scrape, by round; how many series there were at the end."""

    seconds: list[list[float]] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    first: str = ""  # what became of the first scrape after something hung
    series: int = 0

    @property
    def medians(self) -> list[float]:
        return [1000 * median(batch) for batch in self.seconds]

    def slowest(self) -> tuple[list[float], list[float]]:
        """The 99th percentile and the median of each third of all scrapes, in milliseconds."""
        each = len(self.seconds) // THIRDS
        batches = [self.seconds[index * each : (index + 1) * each] for index in range(THIRDS)]
        thirds = [list(chain.from_iterable(batch)) for batch in batches]
        return [1000 * p99(third) for third in thirds], [1000 * median(third) for third in thirds]


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return quantiles(values, n=100, method="inclusive")[98]


def burst(running: Running, scraper: Scraper, scrapes: int) -> tuple[list[float], float]:
    """Seconds of each of so many scrapes in a row, and CPU seconds per scrape, what else it did meanwhile included."""
    before = cpu_seconds(running.pid)
    seconds = [scraper.seconds() for _ in range(scrapes)]
    return seconds, (cpu_seconds(running.pid) - before) / scrapes


def measure(case: str, rounds: int, scrapes: int) -> dict[str, Measured]:
    """Play one case."""
    with ExitStack() as stack:
        node = Node(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "node")
        procfs = stack.enter_context(second_procfs(node.folder / "proc"))
        stack.enter_context(node.training(LINES_PER_SECOND))
        flags = [f"--config.file={node.config}", f"--path.procfs={procfs}"]
        mine = ours(node.folder / "ours", *flags, environment=node.environment)
        exporters = {
            OURS: stack.enter_context(mine),
            NVITOP_EXPORTER: stack.enter_context(nvitop(node.environment)),
            NODE: stack.enter_context(node_exporter()),
        }
        wait_until("the node is shown whole", lambda: whole(exporters[OURS]), seconds=PATIENCE_SECONDS)
        hang, sign = CASES[case]
        stack.enter_context(hang(node))
        wait_until(f"ours says {sign}", lambda: sign in fetch(exporters[OURS].url), seconds=PATIENCE_SECONDS)
        scrapers = {name: Scraper(running.url) for name, running in exporters.items()}
        first = {name: first_scrape(scraper) for name, scraper in scrapers.items()}
        turns = {name: _turn(exporters[name], scrapers[name], scrapes) for name in exporters}
        measured = {name: Measured(first=first[name]) for name in exporters}
        for name, bursts in in_turns(turns, rounds).items():
            for seconds, cpu in bursts:
                measured[name].seconds.append(seconds)
                measured[name].cpu_seconds.append(cpu)
            measured[name].series = samples(scrapers[name].text())
        return measured


def _turn(running: Running, scraper: Scraper, scrapes: int) -> Callable[[], tuple[list[float], float]]:
    return lambda: burst(running, scraper, scrapes)


def whole(running: Running) -> bool:
    """Whether every part of the node is seen."""
    lines = fetch(running.url).splitlines()

    def count(start: str) -> int:
        return sum(line.startswith(start) for line in lines)

    names = ("training_step{", "training_checkpoint_last_step{", 'training_metric_value{metric="accuracy"')
    return (
        count("training_run_gpu_info{") == GPUS
        and count("training_gpu_power_watts{") == GPUS
        and all(map(count, names))
    )


def first_scrape(scraper: Scraper) -> str:
    """How the first scrape went; a program may need one to learn what does not answer."""
    try:
        return f"{1000 * scraper.seconds():.0f} ms"
    except TimeoutError:
        scraper.start_again()
        return f"no answer within {SCRAPE_TIMEOUT_SECONDS:g} s"


def compare(case: str, measured: dict[str, Measured]) -> list[Comparison]:
    """The rows of a case."""
    mine, peer, node = measured[OURS], measured[NVITOP_EXPORTER], measured[NODE]
    slow, middle = mine.slowest()
    milliseconds = {name: [1000 * value for value in found.cpu_seconds] for name, found in measured.items()}
    return [
        Comparison(f"{case}: median, nvitop-exporter", mine.medians, peer.medians, "ms", MOST_OF_PEER),
        Comparison(f"{case}: median, node_exporter", mine.medians, node.medians, "ms"),
        Comparison(f"{case}: p99, ours over its own median", slow, middle, "ms", MOST_OF_MEDIAN, judged="best"),
        Comparison(f"{case}: CPU, nvitop-exporter", milliseconds[OURS], milliseconds[NVITOP_EXPORTER], "ms"),
        Comparison(f"{case}: CPU, node_exporter", milliseconds[OURS], milliseconds[NODE], "ms"),
    ]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="of each case, a multiple of three (%(default)s)")
    parser.add_argument("--scrapes", type=int, default=60, help="in each round (%(default)s)")
    parser.add_argument("--only", choices=CASES, help="this case alone")
    parser.add_argument("--quick", action="store_true", help="three short rounds, to see that it runs")
    arguments = parser.parse_args()
    if lacking := missing(NVITOP, NODE_EXPORTER):
        parser.error(f"missing: {', '.join(lacking)}: scripts/install-bench-tools")
    if not can_mount():
        parser.error("mounting takes root and /dev/fuse")
    rounds, scrapes = (3, 10) if arguments.quick else (arguments.rounds, arguments.scrapes)
    rows: list[Comparison] = []
    notes = []
    for case in [arguments.only] if arguments.only else CASES:
        measured = measure(case, rounds, scrapes)
        rows += compare(case, measured)
        notes += [
            f"{case:18} {name:18} {found.series:4} samples; first scrape: {found.first}"
            for name, found in measured.items()
        ]
    print(table(rows, "the other"))
    print("\n" + "\n".join(notes))
    return int(not all(row.met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
