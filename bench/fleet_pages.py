"""Serves the metrics of a fleet of simulated nodes: one scenario through the exporter's own code, rendered beforehand.

    python bench/fleet_pages.py --port 9000 --start 1767225600 --minutes 10

Node N answers under /node-N, in OpenMetrics. Every node has a run of its own, the same but for the name. Most have
trained for a while at the start; one in a hundred has hung for some minutes by then. Prints `ready` when it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from tornado.web import Application, RequestHandler

from training_exporter.metrics import ViewCollector
from training_exporter.scenario.load import find
from training_exporter.scenario.playback import Playback

SCENARIO = Path(__file__).with_name("fleet.yaml")
STEP_SECONDS = 5
HEALTHY_FROM_SECONDS = 20 * 60
HANGS_FROM_SECONDS = 35 * 60 + 30  # when the last segment of the scenario begins
HUNG_SECONDS = 8 * 60  # so long it has hung at the start: less than the 10 minutes of the least budget
STALLED_EVERY, STALLED_AT = 100, 7  # node 7, 107, 207, ...
RUN = "fleet"


def stalled(node: int) -> bool:
    """Whether this node's run hangs."""
    return node % STALLED_EVERY == STALLED_AT


def run_name(node: int) -> str:
    """What the run of a node is called."""
    return f"{RUN}-{node}"


def pages(start: float, from_seconds: int, minutes: float) -> Iterator[bytes]:
    """The expositions of one node every STEP_SECONDS from `start` (Unix time) on, when `from_seconds` have passed."""
    playback = Playback(find(str(SCENARIO)), start - from_seconds)
    view = playback.advance()
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: view))
    ProcessCollector(registry=registry)  # as the exporter has it
    end = from_seconds + minutes * 60
    while playback.player.second <= min(end, playback.player.scenario.duration_seconds):
        second = playback.player.second
        view = playback.advance()
        if second >= from_seconds and (second - from_seconds) % STEP_SECONDS == 0:
            yield generate_latest(registry)


class _Page(RequestHandler):
    def initialize(self, start: float, healthy: list[bytes], hung: list[bytes]) -> None:
        self._start, self._healthy, self._hung = start, healthy, hung

    def get(self, number: str) -> None:
        node = int(number)
        of_its_kind = self._hung if stalled(node) else self._healthy
        index = int((time.time() - self._start) / STEP_SECONDS)
        page = of_its_kind[max(0, min(index, len(of_its_kind) - 1))]
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(page.replace(f'run="{RUN}"'.encode(), f'run="{run_name(node)}"'.encode()))


async def serve(port: int, start: float, minutes: float) -> None:
    """Until it is killed."""
    shared = {
        "start": start,
        "healthy": list(pages(start, HEALTHY_FROM_SECONDS, minutes)),
        "hung": list(pages(start, HANGS_FROM_SECONDS + HUNG_SECONDS, minutes)),
    }
    Application([(r"/node-(\d+)", _Page, shared)], log_function=lambda _: None).listen(port, "127.0.0.1")
    print("ready", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--start", type=float, required=True, help="Unix time of the first page")
    parser.add_argument("--minutes", type=float, required=True, help="so many are rendered; the last page stays")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.start, arguments.minutes))


if __name__ == "__main__":
    main()
