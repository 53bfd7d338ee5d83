"""A long run of the real exporter under everything at once, to see whether it stays small, quick and exact.

    make soak [MINUTES=60]

A launcher with ranks that comes and goes, a log that is rotated, truncated and deleted, checkpoints that appear and
vanish, a driver that hangs, fails and loses GPUs, a scrape a second, reloads, and clients that never end their
request. Exit status 1 unless memory grew by less than 5 MiB after the warm-up, descriptors and threads are as many as
after it, every scrape was answered in time, and every line that was written is in training_log_lines_total.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from e2e.harness import Exporter, fetch, wait_until
from fake_nvml.build import build
from soak_load import RUN, Actor, Driver, HalfOpen, LogWriter, Reloader, Saver, Scraper, TrainingJob

MIB = 1024 * 1024
MOST_GROWTH_BYTES = 5 * MIB
# An accepted connection, a log just rotated and a helper thread come and go between two looks.
MOST_MORE_DESCRIPTORS = 4
MOST_MORE_THREADS = 2
WARM_UP_RATIO, WARM_UP_MOST_SECONDS = 1 / 3, 600.0
WINDOW_RATIO = 0.15  # of the time after the warm-up: what is compared is the median of its first and last part
SAMPLE_SECONDS = 1.0
SETTLE_SECONDS = 30.0  # for the last lines to be counted
_LINES = re.compile(rf'^training_log_lines_total{{run="{RUN}"}} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the exporter's process held at one time."""

    seconds: float  # since the start
    rss_bytes: int
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a soak is judged by."""

    samples: Sequence[Sample]
    lines_written: int
    lines_counted: float | None
    scrapes: int
    refused: Sequence[str]
    closed_by_server: int


def windows(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """The first and the last part of the time after the warm-up."""
    last = samples[-1].seconds
    begin = min(last * WARM_UP_RATIO, WARM_UP_MOST_SECONDS)
    width = (last - begin) * WINDOW_RATIO
    early = [sample for sample in samples if begin <= sample.seconds <= begin + width]
    return early, [sample for sample in samples if sample.seconds >= last - width]


def growth(samples: Sequence[Sample], what: Callable[[Sample], int]) -> float:
    """How much more of it there was at the end than after the warm-up, by the medians of both windows."""
    early, late = windows(samples)
    return median(map(what, late)) - median(map(what, early))


def faults(outcome: Outcome) -> list[str]:
    """Everything that a soak must not show; empty if it passed."""
    rss = growth(outcome.samples, lambda sample: sample.rss_bytes)
    descriptors = growth(outcome.samples, lambda sample: sample.descriptors)
    threads = growth(outcome.samples, lambda sample: sample.threads)
    checks = {
        f"memory grew by {rss / MIB:.1f} MiB": rss >= MOST_GROWTH_BYTES,
        f"{descriptors:g} more descriptors": descriptors > MOST_MORE_DESCRIPTORS,
        f"{threads:g} more threads": threads > MOST_MORE_THREADS,
        f"{outcome.lines_written} lines written, {outcome.lines_counted} counted": outcome.lines_counted
        != outcome.lines_written,
        f"{len(outcome.refused)} of {outcome.scrapes} scrapes without an answer: {list(outcome.refused[:3])}": bool(
            outcome.refused
        ),
        "no scrape was made": outcome.scrapes == 0,
        "no half-open connection was closed by the server": outcome.closed_by_server == 0,
    }
    return [text for text, is_fault in checks.items() if is_fault]


def lines_counted(exporter: Exporter) -> float | None:
    """What the exporter says of the writer's log."""
    found = _LINES.search(fetch(f"{exporter.url}/metrics"))
    return float(found[1]) if found else None


class Soak:
    """The exporter, its load, and the samples so far."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._began = time.monotonic()
        self.samples: list[Sample] = []
        self.job = TrainingJob(folder / "job")
        driver = Driver(folder / "driver", lambda: self.job.pids)
        self.writer = LogWriter(folder, lambda: lines_counted(self.exporter))
        reloader = Reloader(folder / "config.yml", self.writer.path, self.job.output)
        environment = {"LD_LIBRARY_PATH": str(build(folder / "library")), "FAKE_NVML_STATE": str(folder / "driver")}
        self.exporter = Exporter(folder, f"--config.file={folder / 'config.yml'}", env={**os.environ, **environment})
        stack.callback(self.exporter.stop)
        # what stands in a log before it is followed is not counted
        wait_until("the log is followed", lambda: lines_counted(self.exporter) == 0, seconds=SETTLE_SECONDS)
        reloader.pid = self.exporter.pid
        self.scraper = Scraper(self.exporter.port)
        self.half_open = HalfOpen(self.exporter.port)
        self.actors: tuple[Actor, ...] = (
            *(self.job, driver, self.writer, reloader, self.scraper, self.half_open),
            Saver(self.job.output),
        )
        self._process = psutil.Process(self.exporter.pid)

    def sample(self) -> Sample:
        with self._process.oneshot():
            self.samples.append(
                Sample(
                    time.monotonic() - self._began,
                    self._process.memory_info().rss,
                    self._process.num_fds(),
                    self._process.num_threads(),
                )
            )
        return self.samples[-1]

    def settle(self) -> float | None:
        """Wait for the last lines; what is counted then."""
        end = time.monotonic() + SETTLE_SECONDS
        while (counted := lines_counted(self.exporter)) != self.writer.lines and time.monotonic() < end:
            time.sleep(0.2)
        return counted


def row(soak: Soak, sample: Sample) -> str:
    """One line of the table."""
    return (
        f"{sample.seconds / 60:6.1f} min  {sample.rss_bytes / MIB:7.1f} MiB  {sample.descriptors:4} fds"
        f"  {sample.threads:3} threads  {soak.writer.lines:9,} lines  {soak.scraper.counts['scrape']:6,} scrapes"
        f"  slowest {1000 * soak.scraper.slowest_seconds:6.0f} ms"
    )


def run(minutes: float) -> int:
    """Soak, print the table, and return the exit status."""
    with ExitStack() as stack:
        soak = Soak(Path(stack.enter_context(tempfile.TemporaryDirectory())), stack)
        for actor in soak.actors:
            actor.start()
            stack.callback(actor.stop)
        end = time.monotonic() + 60 * minutes
        shown = 0.0
        while time.monotonic() < end:
            time.sleep(SAMPLE_SECONDS)
            sample = soak.sample()
            if sample.seconds - shown >= max(10.0, 60 * minutes / 30):
                say(row(soak, sample))
                shown = sample.seconds
        soak.writer.stop()
        counted = soak.settle()
        for actor in soak.actors:
            actor.stop()
        done = ", ".join(f"{count} {what}" for actor in soak.actors for what, count in sorted(actor.counts.items()))
        outcome = Outcome(
            samples=soak.samples,
            lines_written=soak.writer.lines,
            lines_counted=counted,
            scrapes=soak.scraper.counts["scrape"],
            refused=soak.scraper.refused,
            closed_by_server=soak.half_open.counts["closed by the server"],
        )
    say(f"done: {done}")
    say(f"memory {growth(outcome.samples, lambda s: s.rss_bytes) / MIB:+.2f} MiB after the warm-up")
    say(f"descriptors {growth(outcome.samples, lambda s: s.descriptors):+g}, at most {_most(outcome, 'descriptors')}")
    say(f"threads {growth(outcome.samples, lambda s: s.threads):+g}, at most {_most(outcome, 'threads')}")
    say(f"lines: {outcome.lines_written} written, {outcome.lines_counted} counted")
    found = faults(outcome)
    say("\n".join(f"FAULT: {fault}" for fault in found) or "passed")
    return int(bool(found))


def _most(outcome: Outcome, field: str) -> int:
    return max(int(getattr(sample, field)) for sample in outcome.samples)


def say(text: str) -> None:
    """A line of the report, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended too
    return run(parser.parse_args().minutes)


if __name__ == "__main__":
    sys.exit(main())
