"""Memory and CPU of ours against the exporters that together show about the same: nvitop, process-exporter and mtail.

    scripts/install-bench-tools && .venv/bin/python bench/footprint.py [--rounds 8] [--seconds 15]

All run at the same time on one node and are scraped once in every round, as Prometheus does it: first at rest (eight
fake GPUs, no job), then under load (a job of eight ranks that prints 100 lines a second). The exit status is 1 if ours
holds more than 0.8 of their resident memory together, or takes more than 0.8 of their CPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from meters import Memory, Scraper, cpu_seconds, memory
from peers import (
    MTAIL,
    NVITOP,
    PROCESS_EXPORTER,
    Running,
    missing,
    mtail,
    nvitop,
    ours,
    process_exporter,
    wait_until,
)
from ratio import Comparison, table
from training_node import Node

LINES_PER_SECOND = 100.0
SETTLING_SECONDS = 20.0  # first looks at everything, and the young years of each program's memory
PATIENCE_SECONDS = 60.0
MOST = 0.8
OURS = "training-exporter"
MIB = 1 << 20

Round = dict[str, tuple[float, Memory]]  # by exporter: CPU seconds, and memory at its end


def measure(exporters: dict[str, Running], rounds: int, seconds: float) -> list[Round]:
    """What each took in so many rounds of so many seconds with a scrape in each."""
    scrapers = [Scraper(running.url) for running in exporters.values()]
    measured = []
    for _ in range(rounds):
        before = {name: cpu_seconds(running.pid) for name, running in exporters.items()}
        end = time.monotonic() + seconds
        for scraper in scrapers:
            scraper.text()
        time.sleep(max(0.0, end - time.monotonic()))
        measured.append(
            {
                name: (cpu_seconds(running.pid) - before[name], memory(running.pid))
                for name, running in exporters.items()
            }
        )
    return measured


def compare(when: str, measured: list[Round], seconds: float) -> list[Comparison]:
    """Ours against the sum of the others, and CPU against each of them."""
    names = [name for name in measured[0] if name != OURS]

    def together(meter: str) -> tuple[list[float], list[float]]:
        mine = [getattr(found[OURS][1], meter) / MIB for found in measured]
        return mine, [sum(getattr(found[name][1], meter) for name in names) / MIB for found in measured]

    def core(name: str) -> list[float]:
        return [100 * found[name][0] / seconds for found in measured]

    theirs = [sum(values) for values in zip(*map(core, names), strict=True)]
    return [
        Comparison(f"{when}: resident memory, the three together", *together("resident"), "MiB", MOST),
        Comparison(f"{when}: proportional (PSS)", *together("proportional"), "MiB"),
        Comparison(f"{when}: unique (USS)", *together("unique"), "MiB"),
        Comparison(f"{when}: CPU, the three together", core(OURS), theirs, "% of a core", MOST),
        *(Comparison(f"{when}: CPU, {name}", core(OURS), core(name), "% of a core") for name in names),
    ]


def play(rounds: int, seconds: float, settling: float) -> list[Comparison]:
    """Rest, then load."""
    rows = []
    with ExitStack() as stack:
        node = Node(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "node")
        mine = ours(node.folder / "ours", f"--config.file={node.config}", environment=node.environment)
        exporters = {
            OURS: stack.enter_context(mine),
            "nvitop-exporter": stack.enter_context(nvitop(node.environment)),
            "process-exporter": stack.enter_context(process_exporter(node.folder)),
            "mtail": stack.enter_context(mtail(node.folder, node.log)),
        }
        time.sleep(settling)
        rows += compare("at rest", measure(exporters, rounds, seconds), seconds)
        stack.enter_context(node.training(LINES_PER_SECOND))
        wait_until("the job is shown", lambda: exporters[OURS].has("training_step"), seconds=PATIENCE_SECONDS)
        time.sleep(settling)
        rows += compare("under load", measure(exporters, rounds, seconds), seconds)
    return rows


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="at rest, and as many under load (%(default)s)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a round, and between scrapes (%(default)g)")
    parser.add_argument("--quick", action="store_true", help="two short rounds, to see that it runs")
    arguments = parser.parse_args()
    if lacking := missing(NVITOP, PROCESS_EXPORTER, MTAIL):
        parser.error(f"missing: {', '.join(lacking)}: scripts/install-bench-tools")
    rounds, seconds, settling = (
        (2, 5.0, 5.0) if arguments.quick else (arguments.rounds, arguments.seconds, SETTLING_SECONDS)
    )
    rows = play(rounds, seconds, settling)
    print(table(rows, "the others"))
    return int(not all(row.met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
