"""The example configuration in a real Alertmanager: what it mutes, and what it must not."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.harness import Program, fetch, free_port, wait_until
from rule_player import ROOT

CONFIGURATION = ROOT / "alertmanager/alertmanager.yml"
STALLED = {"alertname": "TrainingStalled", "severity": "critical", "cause": "host", "run": "a"}
NO_PROGRESS = {"alertname": "TrainingNoProgress", "severity": "warning", "run": "a"}
BLIND = {"alertname": "TrainingExporterBlind", "severity": "warning", "run": "a", "source": "gpu"}
DOWN = {"alertname": "TrainingExporterDown", "severity": "critical", "run": "a", "instance": "n1"}


def other(name: str, run: str = "a") -> dict[str, str]:
    """An alert of another name."""
    return {"alertname": name, "severity": "info", "run": run}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running Alertmanager with the shipped configuration."""
    folder = tmp_path_factory.mktemp("alertmanager")
    unpacked = str(ROOT / ".tools/bin/prometheus-alertmanager")
    program = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager") or unpacked
    address = f"127.0.0.1:{free_port()}"
    alertmanager = Program(
        [
            program,
            f"--config.file={CONFIGURATION}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",
        ],
        folder / "alertmanager.log",
    )
    try:
        wait_until("Alertmanager is ready", lambda: _is_ready(address), seconds=30)
        yield f"http://{address}"
    finally:
        alertmanager.stop()


def _is_ready(address: str) -> bool:
    try:
        fetch(f"http://{address}/-/ready")
    except OSError:
        return False
    return True


@pytest.fixture
def muted(url: str, request: pytest.FixtureRequest) -> Callable[..., bool]:
    """Whether the last of some alerts, all firing, is muted; each test speaks of runs of its own."""

    def ask(*alerts: dict[str, str]) -> bool:
        mine = [alert | {"run": f"{request.node.name}-{alert['run']}"} for alert in alerts]
        now = dt.datetime.now(dt.timezone.utc)
        body = [{"labels": alert, "startsAt": now.isoformat()} for alert in mine]
        _post(f"{url}/api/v2/alerts", body)
        wait_until("all alerts are known", lambda: all(_status(url, alert) for alert in mine), seconds=10)
        return bool(_status(url, mine[-1])["inhibitedBy"])

    return ask


def _post(url: str, body: Any) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - loopback


def _status(url: str, labels: dict[str, str]) -> dict[str, Any]:
    """The status of one alert, once Alertmanager has routed it; else nothing."""
    for alert in json.loads(fetch(f"{url}/api/v2/alerts")):
        if alert["labels"] == labels and alert["status"]["state"] != "unprocessed":
            return dict(alert["status"])
    return {}


class TestInhibition:
    @pytest.mark.parametrize("name", ["TrainingWorkerLost", "TrainingGpuLost"])
    def test_hard_fact_mutes_the_stall(self, muted: Callable[..., bool], name: str) -> None:
        """A dead rank or a lost GPU is why nothing moves."""
        assert muted(other(name), STALLED)

    @pytest.mark.parametrize(
        "name", ["TrainingNoProgress", "TrainingGpuIdle", "TrainingLogSilent", "TrainingCheckpointStale"]
    )
    def test_stall_mutes_what_follows_from_it(self, muted: Callable[..., bool], name: str) -> None:
        """One page says it all."""
        assert muted(STALLED, other(name))

    def test_other_run_is_not_muted(self, muted: Callable[..., bool]) -> None:
        """No inhibition crosses from one run to another."""
        assert not muted(STALLED, other("TrainingNoProgress", run="b"))
        assert not muted(other("TrainingGpuLost"), STALLED | {"run": "b"})

    def test_stall_mutes_no_page_of_its_kind(self, muted: Callable[..., bool]) -> None:
        """A dead rank, a failed run or a NaN loss is told beside a stall."""
        assert not muted(STALLED, other("TrainingWorkerLost"))
        assert not muted(STALLED, other("TrainingLossNotFinite"))

    @pytest.mark.parametrize("source", [BLIND, DOWN], ids=["blind", "down"])
    @pytest.mark.parametrize("target", [STALLED, NO_PROGRESS], ids=["stall", "no_progress"])
    def test_blindness_mutes_what_begins_after_it(
        self, muted: Callable[..., bool], source: dict[str, str], target: dict[str, str]
    ) -> None:
        """Who cannot see must not judge."""
        assert muted(source | {"established": "none"}, target)

    @pytest.mark.parametrize("source", [BLIND, DOWN], ids=["blind", "down"])
    @pytest.mark.parametrize(("established", "target"), [("stall", STALLED), ("no_progress", NO_PROGRESS)])
    def test_blindness_mutes_nothing_that_stood_before(
        self, muted: Callable[..., bool], source: dict[str, str], established: str, target: dict[str, str]
    ) -> None:
        """What was established before the exporter went blind is still told."""
        assert not muted(source | {"established": established}, target)

    def test_blind_to_the_log_a_stall_can_be_told(self, muted: Callable[..., bool]) -> None:
        """A hung checkpoint probe is evidence of a stall and mutes none."""
        assert not muted(BLIND | {"source": "checkpoints", "established": "none"}, STALLED)
