"""`demo`: a scenario behind the real server, so that anyone without a GPU sees page, metrics and alerts at work."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from prometheus_client.core import GaugeMetricFamily

from training_exporter.demo_stack import JOB, Stack, StackError, free_port
from training_exporter.documents import DocumentError
from training_exporter.metrics import families
from training_exporter.options import ServeOptions
from training_exporter.recording import Recording
from training_exporter.runs.verdict import CODES
from training_exporter.runs.view import NodeView
from training_exporter.scenario.load import find
from training_exporter.scenario.playback import Playback
from training_exporter.scenario.records import Scenario
from training_exporter.server import Server, ServerError
from training_exporter.simulate import play

DEFAULT = "collective-hang"
# How long the audience sees the run as it was before what the scenario is about shows.
LEAD_SECONDS = 10.0
# Where nothing is going to happen: a run that has been training for a while.
ORDINARY_SECONDS = 600
HISTORY_STEP_SECONDS = 15
TICK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line decided. `start_seconds` None: shortly before the scenario's point."""

    scenario: str = DEFAULT  # a shipped name or a file
    speed: float = 1.0
    start_seconds: float | None = None
    serve: ServeOptions = field(
        default_factory=lambda: ServeOptions(listen_addresses=("127.0.0.1:14311",), show_log_text=True)
    )
    monitoring: Path | None = None  # the folder with prometheus/ and alertmanager/, to be started too


def point_of(scenario: Scenario) -> int:
    """The second in which the scenario shows what it is about: the first bad state, or else its validation."""
    validating = None
    for second, view, _ in play(scenario):
        codes = [run.verdict.code for run in view.runs]
        if any(code >= CODES["no_progress"] for code in codes):
            return second
        if validating is None and CODES["validating"] in codes:
            validating = second
    return ORDINARY_SECONDS if validating is None else validating


def epoch_seconds(scenario: Scenario, start_seconds: float, speed: float, now: float) -> float:
    """The moment at which the scenario is said to have begun.

    At speed 1 the clock of the node is that of the wall. Faster ones have it catch up from the past and meet the
    wall's at the end of the story, because no sample may lie in the future of the Prometheus that scrapes it.
    """
    left = max(0.0, scenario.duration_seconds - start_seconds)
    return now - start_seconds - left * (1 - 1 / speed)


class Stage:
    """The scenario while it plays: `view` is its newest picture, made by a thread of its own."""

    def __init__(self, scenario: Scenario, start_seconds: float, speed: float) -> None:
        self._speed = speed
        self._began_seconds = time.monotonic()
        self._start_seconds = start_seconds
        self._playback = Playback(scenario, epoch_seconds(scenario, start_seconds, speed, time.time()))
        self._view = self._playback.advance()
        self._failed: BaseException | None = None

    def view(self) -> NodeView:
        """The node as of now."""
        return self._view

    def healthy(self) -> bool:
        """Whether the story goes on."""
        return self._failed is None

    def rewind(self, record: Callable[[NodeView], None]) -> None:
        """Live through everything before the start without waiting; `record` sees a picture every 15 s."""
        while self._playback.player.second < self._start_seconds:
            if (self._playback.player.second - 1) % HISTORY_STEP_SECONDS == 0:  # the second of the view
                record(self._view)
            self._view = self._playback.advance()
        self._began_seconds = time.monotonic()

    def start(self) -> None:
        """Go on at the speed of the demo; what the last second was then lasts."""
        threading.Thread(target=self._run, name="stage", daemon=True).start()

    def catch_up(self, elapsed_seconds: float) -> None:
        """Live up to what `elapsed_seconds` since the start make of it."""
        while self._playback.player.second <= self._start_seconds + elapsed_seconds * self._speed:
            self._view = self._playback.advance()

    def _run(self) -> None:
        try:
            while True:
                self.catch_up(time.monotonic() - self._began_seconds)
                time.sleep(TICK_SECONDS)
        except BaseException as error:
            self._failed = error
            raise


def run(options: DemoOptions, out: TextIO) -> int:
    """Show the scenario until SIGINT or SIGTERM; addresses go to `out`.

    Exit status: 0, or 1 when the scenario, an address or a program cannot be had, said on the error output. Raises
    OSError for a scenario that cannot be read.
    """
    try:
        return _show(find(options.scenario), options, out)
    except (DocumentError, ServerError, StackError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _show(scenario: Scenario, options: DemoOptions, out: TextIO) -> int:
    start = options.start_seconds
    if start is None:
        start = max(0.0, point_of(scenario) - LEAD_SECONDS * options.speed)
    stage = Stage(scenario, start, options.speed)
    server = Server(options.serve, view=stage.view, healthy=stage.healthy)
    server.bind()
    instance = _address(*server.addresses[0])
    past = Recording({"job": JOB, "instance": instance})

    def remember(view: NodeView) -> None:
        server.recall(view)
        if options.monitoring is not None:
            _note(past, view)

    stage.rewind(remember)
    stage.start()
    out.write(f"{scenario.name}: {scenario.about}\n")
    with _monitored(options, instance, past) as addresses:
        out.writelines(
            f"{name + ':':<14} {address}\n"
            for name, address in {"Status page": f"http://{instance}/", **addresses}.items()
        )
        out.flush()
        server.run()
    return 0


def _note(past: Recording, view: NodeView) -> None:
    up = GaugeMetricFamily("up", "Whether the scrape succeeded.", value=1)
    past.add(view.time_seconds, (*families(view), up))


@contextmanager
def _monitored(options: DemoOptions, instance: str, past: Recording) -> Iterator[dict[str, str]]:
    if options.monitoring is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="training-exporter-demo-") as folder:
        stack = Stack(Path(folder), options.monitoring, instance)
        try:
            yield stack.start(past)
        finally:
            stack.stop()


def free_address(address: str) -> str:
    """The address HOST:PORT of this machine, with another port where something listens on that one already."""
    host, _, port = address.rpartition(":")
    return f"{host}:{free_port(int(port))}"


def _address(host: str, port: int) -> str:
    # an address that listens everywhere is reached here
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
