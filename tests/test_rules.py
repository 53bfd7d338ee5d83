"""The rule files: promtool's checks and unit tests, and what promtool cannot check."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rule_player import ROOT, RULES, promtools
from training_exporter.catalogue import BUDGETS as BUDGET_NAMES
from training_exporter.catalogue import BY_NAME, OUTCOMES, PHASES, SIGNALS
from training_exporter.model import SOURCES
from training_exporter.runs.verdict import CODES, STALL_CAUSES

UNIT_TESTS = sorted((ROOT / "tests/rules").glob("*.test.yml"))
RUNBOOK = ROOT / "docs/runbook.md"
SEVERITIES = {
    "critical": {
        "TrainingStalled",
        "TrainingWorkerLost",
        "TrainingRunFailed",
        "TrainingLossNotFinite",
        "TrainingGpuLost",
    },
    "warning": {
        "TrainingNoProgress",
        "TrainingStraggler",
        "TrainingRestartLoop",
        "TrainingExitHang",
        "TrainingCheckpointStale",
        "TrainingFatalLogMessage",
        "TrainingGpuThrottled",
        "TrainingGpuMemoryOrphaned",
        "TrainingExpectedRunMissing",
        "TrainingExporterBlind",
    },
    "info": {"TrainingGpuIdle", "TrainingLogSilent", "TrainingNoCheckpoint", "TrainingRunEnded"},
}
SELECTOR = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)\s*\{(?P<matchers>[^}]*)\}")
MATCHER = re.compile(r'(?P<label>\w+)\s*(?P<operator>=~|!=|!~|=)\s*"(?P<value>[^"]*)"')
TARGET_LABELS = {"job", "instance"}
VALUES = {
    "phase": set(PHASES),
    "outcome": set(OUTCOMES),
    "signal": set(SIGNALS),
    "budget": set(BUDGET_NAMES),
    "source": {*SOURCES, "exporter"},
    "collector": set(SOURCES),
    "cause": set(STALL_CAUSES),
}


def rules() -> list[dict[str, Any]]:
    """Every rule of every file, in order."""
    documents = [yaml.safe_load(file.read_text()) for file in RULES]
    return [rule for document in documents for group in document["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """Those that alert."""
    return [rule for rule in rules() if "alert" in rule]


def expressions(rule: dict[str, Any]) -> list[str]:
    """The expression of a rule without comments, and the queries in its annotations."""
    code = "\n".join(line.split("  #")[0] for line in rule["expr"].split("\n"))
    quoted = "\n".join(rule.get("annotations", {}).values())
    queries = re.findall(r'(?:printf|query) (?:"((?:[^"\\]|\\.)*)"|`([^`]*)`)', quoted)
    return [code, *(re.sub(r"%q", '"x"', a.replace('\\"', '"') or b) for a, b in queries)]


def promtool(program: str, *arguments: str) -> str:
    """Run it; its output where it succeeded."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("program", promtools())
class TestPromtool:
    def test_check(self, program: str) -> None:
        """Both rule files and the example configuration are valid."""
        promtool(program, "check", "rules", *map(str, RULES))
        promtool(program, "check", "config", str(ROOT / "prometheus/prometheus.yml"))

    @pytest.mark.parametrize("file", UNIT_TESTS, ids=lambda path: path.name.split(".")[0])
    def test_unit_tests(self, program: str, file: Path) -> None:
        """The unit tests of one file pass."""
        assert "SUCCESS" in promtool(program, "test", "rules", str(file))


class TestContract:
    def test_alerts_are_those_of_the_contract(self) -> None:
        """Names and severities are public."""
        found: dict[str, set[str]] = {}
        for alert in alerts():
            found.setdefault(alert["labels"]["severity"], set()).add(alert["alert"])
        assert found["info"] == SEVERITIES["info"]
        assert found["warning"] == SEVERITIES["warning"] | {"TrainingExporterDown"}
        assert found["critical"] == SEVERITIES["critical"] | {"TrainingExporterDown"}

    @pytest.mark.parametrize("alert", alerts(), ids=lambda alert: f"{alert['alert']}-{alert['labels']['severity']}")
    def test_annotations(self, alert: dict[str, Any]) -> None:
        """Each says what is wrong, shows the evidence and leads to its runbook entry and dashboard."""
        annotations = alert["annotations"]
        assert set(annotations) == {"summary", "description", "runbook_url", "dashboard_url"}
        assert annotations["summary"].endswith(".")
        assert "{{" not in annotations["summary"]
        assert annotations["runbook_url"].endswith(f"#{alert['alert'].lower()}")
        assert "grafana_url" in annotations["dashboard_url"]

    @pytest.mark.parametrize("alert", alerts(), ids=lambda alert: f"{alert['alert']}-{alert['labels']['severity']}")
    def test_runbook(self, alert: dict[str, Any]) -> None:
        """Each has its heading in the runbook."""
        assert f"\n## {alert['alert']}\n" in RUNBOOK.read_text()

    @pytest.mark.parametrize("alert", alerts(), ids=lambda alert: f"{alert['alert']}-{alert['labels']['severity']}")
    def test_paging_guard(self, alert: dict[str, Any]) -> None:
        """A run with `page: false` raises none; memory that nobody owns belongs to no run."""
        if alert["alert"] != "TrainingGpuMemoryOrphaned":
            assert "run:training_paging:min == 0" in alert["expr"]

    def test_every_alert_is_tested_firing_and_silent(self) -> None:
        """Each alert fires in some unit test, and the questions answered by silence are at least as many."""
        questions = [
            question
            for file in UNIT_TESTS
            for case in yaml.safe_load(file.read_text())["tests"]
            for question in case.get("promql_expr_test", ())
            if "ALERTS" in question["expr"]
        ]
        fired = str([question.get("exp_samples") for question in questions])
        assert {alert["alert"] for alert in alerts() if f'"{alert["alert"]}"' not in fired} == set()
        silent = [question for question in questions if not question.get("exp_samples")]
        assert len(silent) >= len(questions) / 2

    def test_codes_are_those_of_the_node(self) -> None:
        """The rules and the node's own verdict number the states alike."""
        code = next(rule["expr"] for rule in rules() if rule.get("record") == "run:training_state:code")
        assert {int(number) for number in re.findall(r"\* 0 \+ (\d+)", code)} == set(CODES.values())

    def test_causes_are_those_of_the_node(self) -> None:
        """In the same order."""
        cause = next(r["expr"] for r in rules() if r.get("record") == "run:training_stall_cause:timestamp_seconds")
        assert tuple(re.findall(r'"cause", "(\w+)"', cause)) == STALL_CAUSES


class TestNames:
    def test_no_rule_reads_the_verdict_of_the_node(self) -> None:
        """The rules judge by themselves; the exporter's verdict is one node's view."""
        assert "training_run_state_code" not in "".join(part for rule in rules() for part in expressions(rule))

    def test_every_metric_exists(self) -> None:
        """What a rule or a description reads is in the catalogue or recorded by a rule."""
        known = {*BY_NAME, *(rule.get("record") for rule in rules())}
        for rule in rules():
            for part in expressions(rule):
                names = set(re.findall(r"\b(?:[a-z_]+:)?training_\w+(?::\w+)?\b", re.sub(r'"[^"]*"', '""', part)))
                assert names - known == set(), rule.get("record") or rule["alert"]

    def test_every_label_and_value_exists(self) -> None:
        """Matchers name labels that the metric has, and values that the exporter can write."""
        for rule in rules():
            for selector in (match for part in expressions(rule) for match in SELECTOR.finditer(part)):
                spec = BY_NAME.get(selector["name"])
                for matcher in MATCHER.finditer(selector["matchers"]):
                    if spec is not None:
                        assert matcher["label"] in {*spec.labels, *TARGET_LABELS}, selector.group()
                    if matcher["label"] in VALUES and matcher["value"] not in ("", "x"):
                        assert set(matcher["value"].split("|")) <= VALUES[matcher["label"]], selector.group()

    def test_no_metric_of_the_contract_is_read_without_a_window(self) -> None:
        """One failed scrape writes stale markers, so raw series are read over a few minutes."""
        bare = re.compile(r"\b(training_(?!exporter_gone)\w+|up)\b(?:\{[^}]*\})?(?!\[|\w|\{)")
        for rule in rules():
            for part in expressions(rule):
                text = re.sub(r"\b(?:run|run_instance|run_gpu|run_rank):\w+(?::\w+)?", "", part)
                text = re.sub(r'"[^"]*"', '""', text)
                found = [match[0] for match in bare.finditer(text) if match[1] in BY_NAME or match[1] == "up"]
                assert found == [], rule.get("record") or rule["alert"]


class TestAlertmanager:
    FILE = ROOT / "alertmanager/alertmanager.yml"

    @pytest.fixture
    def amtool(self) -> str:
        """The tool, on PATH or unpacked for the tests."""
        unpacked = ROOT / ".tools/bin/amtool"
        return shutil.which("amtool") or str(unpacked)

    def test_check(self, amtool: str) -> None:
        """The example is a valid configuration."""
        promtool(amtool, "check-config", str(self.FILE))

    @pytest.mark.parametrize(
        ("severity", "receiver"), [("critical", "pager"), ("warning", "warnings"), ("info", "nobody"), ("", "warnings")]
    )
    def test_routes(self, amtool: str, severity: str, receiver: str) -> None:
        """Who hears of it follows from the severity, and an alert without one is not lost."""
        route = ["config", "routes", "test", f"--config.file={self.FILE}", f"--verify.receivers={receiver}"]
        labels = ["alertname=TrainingStalled", "run=a", *([f"severity={severity}"] if severity else [])]
        assert promtool(amtool, *route, *labels).split() == [receiver]

    def test_inhibitions_name_alerts_that_exist(self) -> None:
        """Sources and targets are alerts of the rules, and no rule mutes across runs."""
        names = {alert["alert"] for alert in alerts()}
        for rule in yaml.safe_load(self.FILE.read_text())["inhibit_rules"]:
            assert rule["equal"] == ["run"]
            for side in ("source_matchers", "target_matchers"):
                for matcher in rule[side]:
                    label, value = re.fullmatch(r'(\w+)(?:=~|!~|=)"(.*)"', matcher).groups()
                    if label == "alertname":
                        assert set(value.split("|")) <= names


class TestPrometheusRule:
    def test_manifest_is_current(self) -> None:
        """The manifest for the operator is generated from the rule files, and committed so."""
        script = ROOT / "deploy/kubernetes/generate.py"
        promtool(sys.executable, str(script), "--check")

    def test_manifest_holds_valid_rules(self, tmp_path: Path) -> None:
        """What the operator takes out of it is what promtool accepts, rule by rule the same as in the files."""
        document = yaml.safe_load((ROOT / "deploy/kubernetes/prometheusrule.yaml").read_text())
        assert document["kind"] == "PrometheusRule"
        file = tmp_path / "rules.yml"
        file.write_text(yaml.safe_dump(document["spec"]))
        promtool(promtools()[0], "check", "rules", str(file))
        held = [rule for group in document["spec"]["groups"] for rule in group["rules"]]
        assert sorted(held, key=str) == sorted(rules(), key=str)
