"""A Prometheus that holds a played scenario, the shipped rules evaluated over it, for the queries of dashboards."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rule_player import GROUPS, JOB, LABEL, ROOT, RULES, Recording, _values, read_openmetrics
from training_exporter.demo_stack import free_port
from training_exporter.scenario.play import EPOCH_SECONDS

INSTANCE = "node-a:14311"
RECORDED = '{__name__=~"run(_instance|_gpu|_rank)?:.+|ALERTS"}'
RULE_SECONDS = 30
READY_SECONDS = 30.0

Row = Mapping[str, str]


def prometheus(version: str) -> Path | None:
    """The Prometheus of that version which scripts/install-test-tools unpacks, or None.

    The oldest one promised may also be the one on PATH.
    """
    unpacked = ROOT / ".tools" / f"prometheus-{version}"
    if unpacked.exists():
        return unpacked
    found = shutil.which("prometheus")
    if found and f"version {version}" in _version(found):
        return Path(found)
    return None


def _version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout + done.stderr


def simulate(scenario: Path, out: Path) -> None:
    """Leave the series of a scenario in `out`, as OpenMetrics."""
    command = [sys.executable, "-m", "training_exporter", "simulate", str(scenario), "--openmetrics", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def record(nodes: Mapping[str, Path], data: Path) -> None:
    """Put simulated scenarios into the database `data`, with `up` and all that the rules make of them.

    `nodes` is what `simulate` wrote by name of the node; all begin at the same moment and end with the longest.
    """
    raw = {node: read_openmetrics(file, instance=node) for node, file in nodes.items()}
    ticks = max(recording.ticks for recording in raw.values())
    joined = Recording({name: values for each in raw.values() for name, values in each.series.items()}, ticks)
    series = {
        name: {EPOCH_SECONDS + tick * joined.step_seconds: value for tick, value in values.items()}
        for name, values in joined.series.items()
    }
    for node, file in nodes.items():
        series.update(_own_verdict(file, node))
    series.update(_evaluated(joined, data.parent))
    text = data.parent / "all.om"
    with text.open("w", encoding="utf-8") as out:
        for name in sorted(series):
            out.writelines(f"{name} {value} {stamp}\n" for stamp, value in sorted(series[name].items()))
        out.write("# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def _own_verdict(openmetrics: Path, node: str) -> dict[str, dict[float, str]]:
    """The exporter's own verdict, which the rules must not see."""
    found: dict[str, dict[float, str]] = {}
    for line in openmetrics.read_text().splitlines():
        if line.startswith("training_run_state_code{"):
            name, value, stamp = line.rsplit(" ", 2)
            labelled = f'{name.removesuffix("}")},job="{JOB}",instance="{node}"}}'
            found.setdefault(labelled, {})[float(stamp)] = value
    return found


def _evaluated(raw: Recording, folder: Path) -> dict[str, dict[float, str]]:
    """Every series that the rules make, at each of their evaluations.

    promtool is asked with nothing expected, and says what it got instead.
    """
    rows = [{"series": name, "values": _values(values, raw.ticks)} for name, values in sorted(raw.series.items())]
    last = raw.ticks * raw.step_seconds
    asked = [{"expr": RECORDED, "eval_time": f"{second}s"} for second in range(0, last, RULE_SECONDS)]
    test = {
        "rule_files": [str(file) for file in RULES],
        "evaluation_interval": f"{RULE_SECONDS}s",
        "group_eval_order": GROUPS,
        "tests": [{"interval": f"{raw.step_seconds}s", "input_series": rows, "promql_expr_test": asked}],
    }
    path = folder / "evaluate.test.yml"
    path.write_text(yaml.dump(test, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), width=10**9))
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=300, check=False
    )
    return _series_in(done.stdout + done.stderr)


def _series_in(output: str) -> dict[str, dict[float, str]]:
    found: dict[str, dict[float, str]] = {}
    for match in re.finditer(r"time: (\w+),\s*\n\s*exp:.*\n\s*got: (.*)", output):
        stamp = EPOCH_SECONDS + _seconds(match[1])
        for labels, value in re.findall(r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\} ([^\s,]+)', match[2]):
            words = dict(LABEL.findall(labels))
            name = words.pop("__name__")
            inside = ",".join(f'{label}="{text}"' for label, text in words.items())
            found.setdefault(f"{name}{{{inside}}}", {})[stamp] = value
    if not found:
        raise AssertionError(f"promtool gave no series: {output[-2000:]}")
    return found


def _seconds(text: str) -> int:
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


@dataclass(frozen=True, slots=True)
class Answers:
    """A running Prometheus at `address`, asked over HTTP."""

    address: str

    def rows(self, query: str, at_seconds: float | None = None) -> list[Row]:
        """Labels of every series that the query returns at that Unix time, by default now."""
        return [row["metric"] for row in self._instant(query, at_seconds)]

    def values(self, query: str, at_seconds: float | None = None) -> list[float]:
        """Value of every series that the query returns at that Unix time, by default now."""
        return [float(row["value"][1]) for row in self._instant(query, at_seconds)]

    def _instant(self, query: str, at_seconds: float | None) -> list[Any]:
        when = {} if at_seconds is None else {"time": f"{at_seconds}"}
        found: list[Any] = self._get("query", query=query, **when)["result"]
        return found

    def ranges(self, query: str, start: float, end: float, step: float) -> list[Any]:
        """Series with their points, as a panel over time asks for them."""
        words = {"start": f"{start}", "end": f"{end}", "step": f"{step}"}
        found: list[Any] = self._get("query_range", query=query, **words)["result"]
        return found

    def label_values(self, selector: str, label: str, start: float, end: float) -> list[str]:
        """What a `label_values(selector, label)` variable offers."""
        found: list[str] = self._get(
            f"label/{label}/values", **{"match[]": selector, "start": str(start), "end": str(end)}
        )
        return found

    def _get(self, what: str, **words: str) -> Any:
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{words}: {error.read().decode()}") from error


@contextmanager
def serving(program: Path, data: Path, config: Mapping[str, object] | None = None) -> Iterator[Answers]:
    """A Prometheus over the database `data`, ready to answer; it scrapes what `config` says, by default nothing."""
    address = f"127.0.0.1:{free_port()}"
    file, log = data.parent / "prometheus.yml", data.parent / "prometheus.log"
    file.write_text(yaml.safe_dump(dict(config or {"global": {}})))
    command: Sequence[str] = (
        str(program),
        f"--config.file={file}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address={address}",
        "--storage.tsdb.retention.time=100y",
    )
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as running:
        try:
            _wait_until_ready(address, running, log)
            yield Answers(address)
        finally:
            running.terminate()


def _wait_until_ready(address: str, running: subprocess.Popen[bytes], log: Path) -> None:
    until(lambda: is_ready(address) or running.poll() is not None)
    if not is_ready(address):
        raise AssertionError(f"Prometheus does not start: {log.read_text()[-2000:]}")


def is_ready(address: str) -> bool:
    """Whether the Prometheus at that address answers queries."""
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=1):
            return True
    except OSError:
        return False


def until(answer: Callable[[], object], wanted: object = True) -> None:
    """Ask until the answer is the wanted one; AssertionError with the last answer when that takes too long."""
    deadline = time.monotonic() + READY_SECONDS
    while (last := answer()) != wanted:
        if time.monotonic() > deadline:
            raise AssertionError(f"after {READY_SECONDS:.0f} s still {last!r}")
        time.sleep(0.05)
