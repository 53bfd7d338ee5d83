"""A real Prometheus for a benchmark, the newest that the tests know, and what it says of itself."""

from __future__ import annotations

import json
import re
import sys
import urllib.parse
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from e2e.harness import Program, fetch, free_port, wait_until  # noqa: E402  the tests' tools are found by the line above

__all__ = ["PROGRAM", "ROOT", "Prometheus", "free_port", "wait_until"]

PROGRAM = ROOT / ".tools/prometheus-3.5"
GROUP = re.compile(
    r'^prometheus_rule_group_(?P<what>\w+)_seconds\{rule_group="[^"]*;(?P<group>[^"]*)"\} (?P<value>\S+)$'
)


class Prometheus(Program):
    """Running in a folder of its own with this configuration."""

    def __init__(self, folder: Path, configuration: str) -> None:
        folder.mkdir()
        (folder / "prometheus.yml").write_text(configuration)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.scrape_seconds = 15.0
        command = [
            str(PROGRAM),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        super().__init__(command, folder / "log")
        wait_until("Prometheus is ready", self._is_ready, seconds=60)

    def number(self, expression: str) -> float:
        """The only value of an instant query."""
        (row,) = self._get("query", query=expression)["result"]
        return float(row["value"][1])

    def firing(self) -> list[dict[str, str]]:
        """The labels of all alerts that fire."""
        return [alert["labels"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"]

    def evaluations(self) -> dict[str, tuple[float, float, float]]:
        """Of each rule group: when it was last evaluated, how long that took, and its interval, in seconds."""
        found: dict[str, dict[str, float]] = {}
        for line in fetch(f"{self.url}/metrics").splitlines():
            if match := GROUP.match(line):
                found.setdefault(match["group"], {})[match["what"]] = float(match["value"])
        return {
            group: (values["last_evaluation_timestamp"], values["last_duration"], values["interval"])
            for group, values in found.items()
        }

    def rule_seconds(self) -> dict[str, float]:
        """How long each rule took when it was last evaluated, by its name; the slower one where two have the same."""
        found: dict[str, float] = {}
        for group in self._get("rules")["groups"]:
            for rule in group["rules"]:
                found[rule["name"]] = max(found.get(rule["name"], 0.0), rule["evaluationTime"])
        return found

    def _get(self, what: str, **parameters: str) -> Any:  # noqa: ANN401  as JSON has it
        answer = json.loads(fetch(f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def _is_ready(self) -> bool:
        try:
            fetch(f"{self.url}/-/ready")
        except OSError:
            return False
        return True
