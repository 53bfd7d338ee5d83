"""Prometheus with the shipped rules over a fleet: evaluation, samples, memory, and whether pages come in time.

    scripts/install-test-tools && .venv/bin/python bench/fleet.py [--minutes 9] [--nodes 10 100 1000]

A real Prometheus per size of fleet, all at the same time, scrapes every 15 s simulated nodes with eight GPUs and a run
of their own each, which bench/fleet_pages.py serves; its CPU is not theirs and is told apart. One node in a hundred has
hung for some minutes at the start. The exit status is 1 if an evaluation of a rule group takes over a third of the
group's interval, a node has over 400 series, or what pages is not exactly the hung runs, each within 15 minutes.
Windows of an hour are not full here: few rules have one, over ten series of each node.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import yaml
from fleet_pages import HUNG_SECONDS, run_name, stalled
from meters import cpu_seconds, memory
from prometheus import PROGRAM, ROOT, Prometheus, free_port
from ratio import Comparison, table

PAGES = Path(__file__).with_name("fleet_pages.py")
SIZES = (10, 100, 1000)
START_SECONDS = 75.0  # to render the pages and to start everything
SETTLING_SECONDS = 300.0  # until the windows of most rules are full
LOOK_SECONDS = 5.0
MOST_OF_INTERVAL = 1 / 3
MOST_SERIES = 400
MOST_DELAY_SECONDS = 15 * 60.0
SLOWEST = 5  # rules are told
MIB = 1 << 20


@dataclass(slots=True)
class Fleet:
    """One Prometheus and what is learnt of it."""

    nodes: int
    prometheus: Prometheus
    durations: dict[str, list[float]] = field(default_factory=dict)  # by rule group, each evaluation once
    intervals: dict[str, float] = field(default_factory=dict)
    paged_seconds: dict[str, float] = field(default_factory=dict)  # by run, after the start
    alerts: set[tuple[str, str]] = field(default_factory=set)  # name and run of all above info
    _seen: dict[str, float] = field(default_factory=dict)

    def look(self, second: float, *, settled: bool) -> None:
        """What fires, and how long the evaluations took that were made since the last look."""
        for labels in self.prometheus.firing():
            if labels["severity"] != "info":
                self.alerts.add((labels["alertname"], labels.get("run", "")))
                self.paged_seconds.setdefault(labels.get("run", ""), second)
        for group, (ended, seconds, interval) in self.prometheus.evaluations().items():
            if self._seen.get(group) != ended:
                self._seen[group] = ended
                if settled:
                    self.intervals[group] = interval
                    self.durations.setdefault(group, []).append(seconds)

    def expected(self) -> set[tuple[str, str]]:
        """The only alerts that are to fire."""
        return {("TrainingStalled", run_name(node)) for node in range(self.nodes) if stalled(node)}

    def rows(self, series: float) -> list[Comparison]:
        """What is judged of it."""
        rows = [
            Comparison(
                f"{self.nodes} nodes: {group}, over its interval",
                seconds,
                [self.intervals[group]] * len(seconds),
                "s",
                MOST_OF_INTERVAL,
                judged="worst",
            )
            for group, seconds in sorted(self.durations.items())
        ]
        rows.append(Comparison(f"{self.nodes} nodes: series per node", [series], [MOST_SERIES], "", 1.0))
        delays = [HUNG_SECONDS + self.paged_seconds.get(run, float("inf")) for _, run in sorted(self.expected())]
        bound = [MOST_DELAY_SECONDS] * len(delays)
        rows.append(Comparison(f"{self.nodes} nodes: hang to page", delays, bound, "s", 1.0, judged="worst"))
        return rows


@contextmanager
def served(start: float, minutes: float) -> Iterator[tuple[int, int]]:
    """Port and PID of the server of the pages."""
    port = free_port()
    command = [sys.executable, str(PAGES), f"--port={port}", f"--start={start}", f"--minutes={minutes}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield port, process.pid
        finally:
            process.kill()


def configuration(port: int, nodes: int) -> str:
    """As prometheus/prometheus.yml, with a target for each node."""
    shipped = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text())
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": f"node-{node}", "__metrics_path__": f"/node-{node}"}}
        for node in range(nodes)
    ]
    jobs = [{"job_name": "training-exporter", "static_configs": targets}]
    rules = [str(ROOT / "prometheus/rules/*.yml")]
    return yaml.safe_dump({"global": shipped["global"], "rule_files": rules, "scrape_configs": jobs})


def play(sizes: list[int], minutes: float, settling: float) -> tuple[list[Comparison], list[str]]:
    """Let time pass for all fleets; the rows and what else is to be told."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        start = time.time() + START_SECONDS
        port, server = stack.enter_context(served(start, minutes))
        time.sleep(max(0.0, start - time.time()))
        fleets = []
        for nodes in sizes:
            prometheus = Prometheus(folder / str(nodes), configuration(port, nodes))
            stack.callback(prometheus.stop)
            fleets.append(Fleet(nodes, prometheus))
        programs = {"server of the pages": server, **{f"{fleet.nodes} nodes": fleet.prometheus.pid for fleet in fleets}}
        began, cpu = time.monotonic(), {name: cpu_seconds(pid) for name, pid in programs.items()}
        while (second := time.time() - start) < minutes * 60:
            for fleet in fleets:
                fleet.look(second, settled=second > settling)
            time.sleep(LOOK_SECONDS)
        passed = time.monotonic() - began
        notes = [
            f"{name:20} {100 * (cpu_seconds(pid) - cpu[name]) / passed:6.1f} % of a core, "
            f"{memory(pid).resident / MIB:7.0f} MiB resident"
            for name, pid in programs.items()
        ]
        rows = []
        for fleet in fleets:
            share = (cpu_seconds(fleet.prometheus.pid) - cpu[f"{fleet.nodes} nodes"]) / passed
            interval = max(fleet.intervals.values())
            notes.append(
                f"{fleet.nodes:5} nodes: {share * interval:.2f} s of CPU in each {interval:g} s, scrapes included; an "
                "evaluation that takes longer waited for a core"
            )
            up = fleet.prometheus.number("sum(up)")
            assert up == fleet.nodes, f"{up:g} of {fleet.nodes} nodes are scraped"
            rows += fleet.rows(fleet.prometheus.number("max(scrape_samples_scraped)"))
            rate = fleet.prometheus.number("sum(scrape_samples_scraped)") / fleet.prometheus.scrape_seconds
            notes.append(f"{fleet.nodes:5} nodes: {rate:,.0f} samples scraped a second")
            slowest = sorted(fleet.prometheus.rule_seconds().items(), key=lambda rule: rule[1], reverse=True)[:SLOWEST]
            notes.append(
                f"{fleet.nodes:5} nodes, slowest rules: "
                + ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in slowest)
            )
            if fleet.alerts != fleet.expected():
                notes.append(f"{fleet.nodes:5} nodes: FIRED {sorted(fleet.alerts)}, not {sorted(fleet.expected())}")
        return rows + growth(fleets), notes


def growth(fleets: list[Fleet]) -> list[Comparison]:
    """How evaluation grows from one size to the next; shown, not judged."""
    return [
        Comparison(
            f"{group}: {larger.nodes} nodes over {smaller.nodes}",
            [median(larger.durations[group])],
            [median(smaller.durations[group])],
            "s",
        )
        for smaller, larger in pairwise(fleets)
        for group in sorted(larger.durations)
        if group in smaller.durations
    ]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="(%(default)g)")
    parser.add_argument("--nodes", type=int, nargs="+", default=SIZES, help="sizes of the fleets")
    parser.add_argument("--quick", action="store_true", help="ten nodes, six minutes")
    arguments = parser.parse_args()
    if not PROGRAM.exists():
        parser.error(f"missing: {PROGRAM.name}: scripts/install-test-tools")
    if arguments.quick:
        rows, notes = play([10], 6.0, 60.0)
    else:
        rows, notes = play(arguments.nodes, arguments.minutes, SETTLING_SECONDS)
    print(table(rows, "held against"))
    print("\n" + "\n".join(notes))
    wrong = any("FIRED" in note for note in notes)
    return int(wrong or not all(row.met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
