"""The command `demo`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from tools import needs
from training_exporter.config import duration_seconds
from training_exporter.demo import DEFAULT, LEAD_SECONDS, ORDINARY_SECONDS, Stage, epoch_seconds, free_address, point_of
from training_exporter.demo_stack import EVALUATION, SCRAPE, Stack, StackError, free_port
from training_exporter.recording import Recording
from training_exporter.runs.verdict import CODES
from training_exporter.runs.view import NodeView
from training_exporter.scenario.load import find, parse
from training_exporter.scenario.records import Scenario
from training_exporter.simulate import play

ROOT = Path(__file__).parent.parent
ALERTMANAGER = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")
START_SECONDS = 30
# From the command to the addresses on a busy machine: the past is played and taken over by Prometheus.
PREPARATION_SECONDS = 20

STORY = """\
name: short
about: two minutes of work and then nothing
ranks: 1
gpu: {idle_watts: 60, limit_watts: 600, memory_total_mib: 80000}
run: {name: short-run, budgets: {idle: 2m}}
segments:
  - for: 2m
    gpu: {util: 95, mem_util: 40, watts: [350, 400], memory_mib: 30000}
    cores: {rank: 1.0}
    log:
      - {every: 10s, line: "step {n} loss {x:.3f}", n: {start: 10, by: 10}, x: {start: 3, by: -0.01}}
  - for: 10m
    ranks: {0: {state: sleeping}}
"""


def answer(address: str) -> int:
    """The status of a page, redirections followed, once its server listens."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as found:  # noqa: S310 - loopback only
                return int(found.status)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:  # it is starting
                return error.code
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def story(text: str = STORY) -> Scenario:
    """A scenario of one rank."""
    return parse("short.yaml", text)


class TestPoint:
    def test_the_first_bad_state(self) -> None:
        """A scenario with a stall is about the second in which the stall is known."""
        point = point_of(story())
        assert 120 + 120 <= point <= 120 + 120 + 15

    def test_else_the_validation(self) -> None:
        """A healthy scenario is about its validation."""
        text = STORY.partition("  - for: 10m")[0] + (
            '  - for: 1m\n    read: 5MiB\n    log: [{at: 1s, line: "Validation epoch 1/3 started"}]\n'
        )
        assert 121 <= point_of(story(text)) <= 125

    def test_else_some_minutes_in(self) -> None:
        """Where nothing happens the audience sees a run that has been going on for a while."""
        assert point_of(story(STORY.partition("  - for: 10m")[0])) == ORDINARY_SECONDS


class TestDefault:
    def test_a_stall_fires_within_two_minutes(self) -> None:
        """At the default speed a rule of the shipped ones fires early enough for the audience to see it."""
        verdicts = (run.verdict for _, view, _ in play(find(DEFAULT)) for run in view.runs)
        assert next(verdict.state for verdict in verdicts if verdict.code >= CODES["no_progress"]) == "stalled"
        alert = next(
            rule
            for group in yaml.safe_load((ROOT / "prometheus/rules/alerts.yml").read_text())["groups"]
            for rule in group["rules"]
            if rule.get("alert") == "TrainingStalled"
        )
        rounds = sum(map(duration_seconds, (SCRAPE, EVALUATION, EVALUATION)))
        assert LEAD_SECONDS + duration_seconds(alert["for"]) + rounds + PREPARATION_SECONDS <= 120


class TestTime:
    def test_real_time_is_the_wall_clock_s(self) -> None:
        """At speed 1 the moment shown is now, and stays so."""
        assert epoch_seconds(story(), 230, 1, now=10_000) + 230 == 10_000

    def test_faster_ones_meet_the_wall_clock_at_the_end(self) -> None:
        """At another speed no moment before the end of the story lies in the future."""
        scenario, now, speed, start = story(), 10_000.0, 10.0, 120.0
        began = epoch_seconds(scenario, start, speed, now)
        left = scenario.duration_seconds - start
        assert began + start < now
        assert began + scenario.duration_seconds == pytest.approx(now + left / speed)


class TestStage:
    def test_the_past_is_lived_through(self) -> None:
        """Before the start a picture is taken every 15 s; then the stage keeps pace with the clock."""
        stage = Stage(story(), 60, 1)
        past: list[NodeView] = []
        stage.rewind(past.append)
        assert len(past) == 4
        before = stage.view().time_seconds
        stage.catch_up(5)
        assert stage.view().time_seconds - before == 6
        assert stage.view().time_seconds == pytest.approx(time.time() + 5, abs=60)

    def test_speed(self) -> None:
        """At speed 10 ten seconds pass in one."""
        stage = Stage(story(), 60, 10)
        stage.rewind(lambda _: None)
        before = stage.view().time_seconds
        stage.catch_up(1)
        assert stage.view().time_seconds - before == 11

    def test_the_last_second_lasts(self) -> None:
        """After the end of the scenario its last segment goes on."""
        stage = Stage(story(), 700, 1)
        stage.rewind(lambda _: None)
        stage.catch_up(60)
        assert [run.verdict.state for run in stage.view().runs] == ["stalled"]


class TestStack:
    def test_only_the_pace_of_the_rules_is_changed(self, tmp_path: Path) -> None:
        """The rules are the shipped ones to the last `for`, evaluated more often."""
        copies = Stack(tmp_path, ROOT, "127.0.0.1:1")._rules()
        for copy in copies:
            ours = yaml.safe_load(copy.read_text())["groups"]
            theirs = yaml.safe_load((ROOT / "prometheus" / "rules" / copy.name).read_text())["groups"]
            assert [group["rules"] for group in ours] == [group["rules"] for group in theirs]
            assert {group["interval"] for group in ours} == {EVALUATION}
        assert {copy.name for copy in copies} == {"recording.yml", "alerts.yml"}

    def test_a_folder_without_rules(self, tmp_path: Path) -> None:
        """A folder that is none of ours is said so instead of starting a Prometheus without rules."""
        with pytest.raises(StackError, match="no rules in"):
            Stack(tmp_path, tmp_path, "127.0.0.1:1")._rules()

    def test_a_taken_port_is_passed_over(self) -> None:
        """Where the usual port is taken another one is used."""
        taken = free_port()
        assert free_port(taken) == taken
        with socket.socket() as held:
            held.bind(("127.0.0.1", taken))
            held.listen()
            assert free_port(taken) != taken

    def test_the_demo_moves_aside(self) -> None:
        """Beside a running exporter the demo takes another port of the same host."""
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            held.listen()
            taken = f"127.0.0.1:{held.getsockname()[1]}"
            host, _, port = free_address(taken).rpartition(":")
            assert host == "127.0.0.1"
            assert f"{host}:{port}" != taken
        assert free_address(taken) == taken

    @needs("prometheus")
    @needs("promtool")
    @pytest.mark.skipif(not ALERTMANAGER and not os.environ.get("CI"), reason="Alertmanager is not installed")
    def test_the_addresses_work(self, tmp_path: Path) -> None:
        """What is printed answers in a browser with any version, and the hint is a command that shows the alerts."""
        stack = Stack(tmp_path, ROOT, "127.0.0.1:1")
        try:
            places = stack.start(Recording({"job": "training-exporter", "instance": "a"}))
            assert set(places) == {"Prometheus", "Alertmanager"}
            addresses = {name: place.partition(",")[0] for name, place in places.items()}
            assert [answer(address) for address in addresses.values()] == [200, 200]
            command = places["Alertmanager"].partition(", ")[2]
            assert command == f"amtool alert --alertmanager.url={addresses['Alertmanager'].rstrip('/')}"
        finally:
            stack.stop()

    @needs("promtool")
    def test_the_past_becomes_blocks(self, tmp_path: Path) -> None:
        """Prometheus finds the past of the run as blocks of its own."""
        past = Recording({"job": "training-exporter", "instance": 'a"b'})
        for second in range(0, 600, 15):
            past.add(1_800_000_000 + second, [GaugeMetricFamily("training_step", "Step.", value=second)])
        Stack(tmp_path, ROOT, "127.0.0.1:1")._backfill(tmp_path / "data", past)
        assert list((tmp_path / "data").glob("*/meta.json"))


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running demo of the short story, and its address."""
    file = tmp_path / "short.yaml"
    file.write_text(STORY)
    command = [sys.executable, "-m", "training_exporter", "demo", "--scenario", str(file)]
    program = subprocess.Popen(
        [*command, "--web.listen-address=127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert program.stdout is not None
        said = next(line for line in program.stdout if "http" in line)
        yield program, re.findall(r"http://\S+", said)[0]
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


class TestCommand:
    def test_metrics_of_now(self, shown: tuple[subprocess.Popen[str], str]) -> None:
        """The demo serves the run shortly before its stall, with times of this moment, and ends on SIGTERM."""
        program, address = shown
        with urllib.request.urlopen(f"{address}metrics", timeout=10) as answer:  # noqa: S310 - loopback only
            text = answer.read().decode()
        values = {family.name: family.samples[0].value for family in text_string_to_metric_families(text)}
        assert values["training_exporter_time_seconds"] == pytest.approx(time.time(), abs=5)
        idle = values["training_exporter_time_seconds"] - max(
            sample.value
            for family in text_string_to_metric_families(text)
            if family.name == "training_activity_timestamp_seconds"
            for sample in family.samples
        )
        assert 120 - LEAD_SECONDS - 2 <= idle <= 120
        program.send_signal(signal.SIGTERM)
        assert program.wait(10) == 0
