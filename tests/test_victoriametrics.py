"""The shipped rules on VictoriaMetrics' own engine: recorded scrapes go in, the states and the alert come out."""

from __future__ import annotations

import json
import re
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.harness import Program, fetch, free_port, wait_until
from rule_player import JOB, ROOT
from tools import output, tool

# The run of a shipped scenario that is a stall from its 41st minute on.
STORY, RUN = "collective-hang", "mixtral-sft"
INTERVAL_SECONDS = 30
FROM_SECONDS, STALLED_SECONDS, TO_SECONDS = 38 * 60, 41 * 60, 43 * 60
TIME = re.compile(r" (\d+)\.(\d{3})$", re.MULTILINE)
STALLED = 80

Series = dict[str, Any]


class VictoriaMetrics(Program):
    """A store of one node, kept for ten years because the stories are of a fixed day."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        address = self.url.removeprefix("http://")
        flags = [f"-storageDataPath={folder / 'data'}", f"-httpListenAddr={address}", "-retentionPeriod=10y"]
        super().__init__([tool("victoria-metrics"), *flags, "-search.latencyOffset=0s"], folder / "vm.log")
        wait_until("VictoriaMetrics is ready", self._is_ready, seconds=30)

    def _is_ready(self) -> bool:
        try:
            return fetch(f"{self.url}/health") == "OK"
        except OSError:
            return False

    def take(self, text: str, *labels: str) -> None:
        """Put samples in, with further labels, and make them found."""
        words = urllib.parse.urlencode({"extra_label": labels}, doseq=True)
        address = f"{self.url}/api/v1/import/prometheus?{words}"
        request = urllib.request.Request(address, text.encode())  # noqa: S310 - loopback
        urllib.request.urlopen(request, timeout=60).close()  # noqa: S310 - loopback
        fetch(f"{self.url}/internal/force_flush")

    def ask(self, expression: str, moment: int) -> list[Series]:
        """The series of an expression at a moment."""
        words = urllib.parse.urlencode({"query": expression, "time": moment, "step": f"{INTERVAL_SECONDS}s"})
        return list(json.loads(fetch(f"{self.url}/api/v1/query?{words}"))["data"]["result"])

    def evaluate(self, moment: int) -> None:
        """Every recording rule in its order, as a ruler does: what one has recorded, the next reads."""
        for layer in layers():
            lines = []
            for record, expression in layer:
                for series in self.ask(expression, moment):
                    labels = ",".join(f'{k}="{v}"' for k, v in series["metric"].items() if k != "__name__")
                    lines.append(f"{record}{{{labels}}} {series['value'][1]} {moment}000\n")
            self.take("".join(lines))


def layers() -> Iterator[list[tuple[str, str]]]:
    """The recording rules in parts, cut where one reads what another of its part records."""
    part: list[tuple[str, str]] = []
    for group in yaml.safe_load((ROOT / "prometheus/rules/recording.yml").read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            if any(record in rule["expr"] for record, _ in part):
                yield part
                part = []
            part.append((rule["record"], rule["expr"]))
    yield part


def alert(name: str) -> dict[str, Any]:
    """An alert of the shipped rules."""
    groups = yaml.safe_load((ROOT / "prometheus/rules/alerts.yml").read_text(encoding="utf-8"))["groups"]
    return next(rule for group in groups for rule in group["rules"] if rule.get("alert") == name)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VictoriaMetrics, int]]:
    """VictoriaMetrics with the story and what the rules recorded of it; the start of the story."""
    folder = tmp_path_factory.mktemp("victoria-metrics")
    recorded = folder / "story.om"
    output(sys.executable, "-m", "training_exporter", "simulate", STORY, "--openmetrics", recorded)
    text = recorded.read_text(encoding="utf-8")
    times = sorted({found[1] for found in TIME.finditer(text)})
    # OpenMetrics has seconds, this store takes milliseconds; `up` is what a scrape adds
    samples = TIME.sub(r" \1\2", text) + "".join(f"up 1 {time}000\n" for time in times)
    metrics = VictoriaMetrics(folder)
    try:
        metrics.take(samples, f"job={JOB}", "instance=a:14311")
        start = int(times[0])
        for moment in range(start + FROM_SECONDS, start + TO_SECONDS + 1, INTERVAL_SECONDS):
            metrics.evaluate(moment)
        yield metrics, start
    finally:
        metrics.stop()


def test_vmalert_accepts_the_rules() -> None:
    """Expressions and templates of both files."""
    output(tool("vmalert"), "-dryRun", f"-rule={ROOT}/prometheus/rules/*.yml")


def test_states(watched: tuple[VictoriaMetrics, int]) -> None:
    """The run is no stall before it is one, and is one after."""
    metrics, start = watched
    codes = {
        moment: [float(series["value"][1]) for series in metrics.ask("run:training_state:code", start + moment)]
        for moment in range(FROM_SECONDS, TO_SECONDS + 1, INTERVAL_SECONDS)
    }
    assert all(code < STALLED for moment in codes if moment <= STALLED_SECONDS - 90 for code in codes[moment])
    assert [codes[moment] for moment in codes if moment >= STALLED_SECONDS] == [[STALLED]] * 5


def test_the_alert(watched: tuple[VictoriaMetrics, int]) -> None:
    """Its condition holds for longer than its `for`, with the cause that Prometheus finds, and before that never."""
    metrics, start = watched
    rule = alert("TrainingStalled")
    assert rule["for"] == "1m"
    for moment in range(STALLED_SECONDS, TO_SECONDS + 1, INTERVAL_SECONDS):
        (series,) = metrics.ask(rule["expr"], start + moment)
        assert (series["metric"]["run"], series["metric"]["cause"]) == (RUN, "collective")
    assert metrics.ask(rule["expr"], start + FROM_SECONDS) == []
