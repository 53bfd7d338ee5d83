"""Plays series through the shipped rules with promtool, and says what fired and which state each run was in."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
RULES = tuple(sorted((ROOT / "prometheus/rules").glob("*.yml")))
GROUPS = ["training-runs", "training-alerts"]
JOB = "training-exporter"
SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+) (?P<time>[0-9.]+)")
OWNERS = re.compile(r'\b(run|instance)="')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
FIRING = 'ALERTS{alertstate="firing"}'
CODE = "run:training_state:code"

Labels = frozenset[tuple[str, str]]


def promtools() -> list[str]:
    """Every promtool of this machine: the oldest and newest promised where they are unpacked, else the one on PATH."""
    unpacked = [ROOT / ".tools/promtool-2.42", ROOT / ".tools/promtool-3.5"]
    found = [str(path) for path in unpacked if path.exists()]
    on_path = shutil.which("promtool") or str(ROOT / ".tools/bin/promtool")
    return found or [on_path]


@dataclass(frozen=True, slots=True)
class Recording:
    """Series with one value per tick of `step_seconds`; a tick that is missing was no part of that scrape."""

    series: Mapping[str, Mapping[int, str]]
    ticks: int
    step_seconds: int = 15

    @property
    def minutes(self) -> int:
        return (self.ticks - 1) * self.step_seconds // 60

    def beside_others(self, number: int) -> Recording:
        """With a run and a node that no recording of another number has."""
        series = {OWNERS.sub(rf'\1="{number}/', name): values for name, values in self.series.items()}
        return Recording(series, self.ticks, self.step_seconds)

    def every(self, factor: int) -> Recording:
        """As scraped that many times more rarely."""
        series = {
            name: {tick // factor: value for tick, value in values.items() if tick % factor == 0}
            for name, values in self.series.items()
        }
        return Recording(series, (self.ticks + factor - 1) // factor, self.step_seconds * factor)

    def without(self, share: float, seed: int) -> Recording:
        """With that share of the scrapes failed: `up` is 0, everything else stale."""
        draw = random.Random(seed)  # noqa: S311 - a repeatable choice of ticks
        failed = {tick for tick in range(self.ticks) if draw.random() < share}
        series = {
            name: (
                {tick: "0" if tick in failed else value for tick, value in values.items()}
                if name.startswith("up{")
                else {tick: value for tick, value in values.items() if tick not in failed}
            )
            for name, values in self.series.items()
        }
        return Recording(series, self.ticks, self.step_seconds)


@dataclass(frozen=True, slots=True)
class Played:
    """What the rules said, by minute."""

    firing: Mapping[int, frozenset[Labels]] = field(default_factory=dict)
    codes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def alerts(self, minute: int) -> set[str]:
        """Names of the alerts that fire at that minute."""
        return {dict(labels)["alertname"] for labels in self.firing.get(minute, ())}

    def ever(self, *severities: str) -> set[str]:
        """Names of the alerts of those severities that fired at any minute."""
        return {
            dict(labels)["alertname"]
            for fired in self.firing.values()
            for labels in fired
            if dict(labels)["severity"] in severities
        }

    def minutes(self, alert: str, **labels: str) -> list[int]:
        """The minutes at which an alert with those labels fires."""
        wanted = {"alertname": alert, **labels}.items()
        return [minute for minute, fired in sorted(self.firing.items()) if any(wanted <= set(have) for have in fired)]


def read_openmetrics(path: Path, *, instance: str = "node-a:14311", step_seconds: int = 15) -> Recording:
    """What `simulate --openmetrics` wrote, as one target; the exporter's own verdict is left out."""
    points: dict[str, dict[float, str]] = {}
    for line in path.read_text().splitlines():
        match = SAMPLE.match(line)
        if line.startswith("#") or match is None or match["name"] == "training_run_state_code":
            continue
        labels = ",".join(filter(None, (match["labels"], f'job="{JOB}"', f'instance="{instance}"')))
        points.setdefault(f"{match['name']}{{{labels}}}", {})[float(match["time"])] = match["value"]
    times = {time for values in points.values() for time in values}
    start, end = min(times), max(times)
    ticks = round((end - start) / step_seconds) + 1
    series = {
        name: {round((time - start) / step_seconds): value for time, value in values.items()}
        for name, values in points.items()
    }
    scraped = {tick for values in series.values() for tick in values}
    series[f'up{{job="{JOB}",instance="{instance}"}}'] = {
        tick: "1" if tick in scraped else "0" for tick in range(ticks)
    }
    return Recording(series, ticks, step_seconds)


def play(
    promtool: str, recordings: Iterable[Recording], folder: Path, *, rules: Iterable[Path] = RULES, seconds: int = 600
) -> Played:
    """Evaluate the rules every 30 s over recordings of equal step, and ask at every minute of the longest.

    promtool is told to expect nothing, and says what it got instead.
    """
    recorded = list(recordings)
    longest = max(recorded, key=lambda recording: recording.ticks)
    rows = [
        {"series": name, "values": _values(values, longest.ticks)}
        for recording in recorded
        for name, values in sorted(recording.series.items())
    ]
    questions = [
        {"expr": expression, "eval_time": f"{minute}m"}
        for minute in range(1, longest.minutes + 1)
        for expression in (FIRING, CODE)
    ]
    test = {
        "rule_files": [str(file) for file in rules],
        "evaluation_interval": "30s",
        "group_eval_order": GROUPS,
        "tests": [
            {"interval": f"{longest.step_seconds}s", "input_series": rows, "promql_expr_test": questions},
        ],
    }
    path = folder / "played.test.yml"
    path.write_text(yaml.dump(test, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), width=10**9))
    done = subprocess.run(
        [promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=seconds, check=False
    )
    output = done.stdout + done.stderr
    if not done.returncode == bool(re.search(r"^\s*got: ", output, re.MULTILINE)):
        raise AssertionError(f"{promtool}: {output[-3000:]}")
    return _answers(output)


def play_apart(promtool: str, recordings: Iterable[Recording], folder: Path) -> list[Played]:
    """Evaluate the rules over recordings that have nothing to do with each other, and sort the answers by recording.

    Most of what an evaluation costs it costs once, however many runs there are.
    """
    recorded = list(recordings)
    together = play(promtool, [recording.beside_others(number) for number, recording in enumerate(recorded)], folder)
    return [_part_of(together, number, recording.minutes) for number, recording in enumerate(recorded)]


def _part_of(together: Played, number: int, minutes: int) -> Played:
    """What was said of the recording of that number in its own time, by the names that it had."""
    mark = f"{number}/"
    firing = {
        minute: frozenset(
            frozenset((key, value.removeprefix(mark) if key in ("run", "instance") else value) for key, value in labels)
            for labels in fired
            if _owner(dict(labels)) == str(number)
        )
        for minute, fired in together.firing.items()
        if minute <= minutes
    }
    codes = {
        minute: {run.removeprefix(mark): code for run, code in states.items() if run.startswith(mark)}
        for minute, states in together.codes.items()
        if minute <= minutes
    }
    return Played(
        {minute: fired for minute, fired in firing.items() if fired},
        {minute: states for minute, states in codes.items() if states},
    )


def _owner(labels: Mapping[str, str]) -> str:
    """The number of the recording that an alert is about; KeyError if it says neither run nor node."""
    return (labels.get("run") or labels["instance"]).partition("/")[0]


def _values(points: Mapping[int, str], ticks: int) -> str:
    """Values in the notation of promtool: stale where a series went away, runs of one value shortened."""
    words: list[str] = []
    alive = False
    for tick in range(ticks):
        value = points.get(tick)
        words.append(value if value is not None else "stale" if alive else "_")
        alive = value is not None
    short: list[str] = []
    start = 0
    for end in range(1, len(words) + 1):
        if end == len(words) or words[end] != words[start]:
            count = end - start
            repeat = words[start] not in ("stale", "NaN", "+Inf", "-Inf") and count > 1
            if repeat:
                short.append(f"_x{count}" if words[start] == "_" else f"{words[start]}x{count - 1}")
            else:
                short += words[start:end]
            start = end
    return " ".join(short)


def _answers(output: str) -> Played:
    firing: dict[int, frozenset[Labels]] = {}
    codes: dict[int, dict[str, int]] = {}
    block = re.compile(r'expr: "(?P<expression>.*?)", time: (?P<time>\w+),\s*\n\s*exp:.*\n\s*got: (?P<got>.*)')
    for match in block.finditer(output):
        minute = _minutes(match["time"])
        samples = re.findall(r"\{([^}]*)\} (\S+?)(?:,|$)", match["got"])
        if "ALERTS" in match["expression"]:
            firing[minute] = frozenset(
                frozenset((key, value) for key, value in LABEL.findall(labels) if key not in ("__name__", "alertstate"))
                for labels, _ in samples
            )
        else:
            codes[minute] = {dict(LABEL.findall(labels))["run"]: round(float(value)) for labels, value in samples}
    return Played(firing, codes)


def _minutes(text: str) -> int:
    units = {"h": 60, "m": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hm])", text))
