"""What is found, how soon, and what is raised for nothing: our rules beside the two that people use today.

    scripts/install-test-tools && .venv/bin/python bench/detection.py [--quick]

Every scenario is played through the exporter and then, by promtool, through the shipped rules and through those of
bench/naive_rules.yml: mean utilisation under 5 % for 15 minutes, and no log line for 15 minutes. Those two are asked
for hangs alone (a stall or a lack of progress), ours for every alert that a scenario wants. An alert is found if it
fires first when its cause is there and within the time that the scenario grants. It is false where nobody should be
disturbed: for ours any critical or warning one that the scenario neither wants nor allows, for the others any that
fires while nothing is wrong. The exit status is 1 unless ours finds all and raises nothing else.

The scenarios are those that the exporter ships, those of the tests, and others in ../shared/scenarios where that is.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from rule_player import RULES, Played, play, promtools  # noqa: E402  the tests' tools are found by the line above
from scenario_lab import OWN, SHARED, SHIPPED, Trial, seconds, simulated  # noqa: E402

NAIVE_RULES = Path(__file__).with_name("naive_rules.yml")
NAIVE = {"GpuIdle": "utilisation < 5 %", "LogSilent": "log silent"}
OURS = "training-exporter"
HANGS = {"TrainingStalled", "TrainingNoProgress"}
QUICK = {"collective-hang", "loader-deadlock", "slow-validation", "healthy"}


@dataclass(frozen=True, slots=True)
class Judged:
    """What a set of rules made of a scenario, in minutes: delays of what was found, what was missed, what was false."""

    found: tuple[tuple[str, float], ...]
    missed: tuple[str, ...]
    false: tuple[tuple[str, int], ...]  # name, and the first minute

    def cell(self) -> str:
        """A cell of the table."""
        words = [f"{name} after {delay:.0f} min" for name, delay in self.found]
        words += [f"**missed** {name}" for name in self.missed]
        words += [f"**false** {name} at {minute} min" for name, minute in self.false]
        return "; ".join(words) or "quiet"


def judge_ours(expected: Mapping[str, Any], played: Played) -> Judged:
    """Every wanted alert in time, with its cause, and no other of severity critical or warning."""
    found, missed = [], []
    for want in expected.get("alerts", ()):
        minutes = played.minutes(want["alert"], **({"cause": want["cause"]} if "cause" in want else {}))
        after = seconds(want["after"]) / 60
        until = seconds(want["until"]) / 60 if "until" in want else float("inf")
        name = _plain(want["alert"])
        if minutes and after <= minutes[0] <= after + seconds(want["within"]) / 60 and minutes[-1] <= until:
            found.append((name, minutes[0] - after))
        else:
            missed.append(name)
    known = {want["alert"] for want in expected.get("alerts", ())} | set(expected.get("may", ()))
    others = sorted(played.ever("critical", "warning") - known)
    return Judged(tuple(found), tuple(missed), tuple((_plain(name), played.minutes(name)[0]) for name in others))


def judge_naive(expected: Mapping[str, Any], played: Played, alert: str) -> Judged:
    """The first hang in time, whatever its cause is called; false is what fires while nothing is wrong."""
    minutes = played.minutes(alert)
    hangs = [want for want in expected.get("alerts", ()) if want["alert"] in HANGS]
    troubles = [seconds(want["after"]) / 60 for want in expected.get("alerts", ())]
    calm = min(troubles, default=float("inf"))
    false = tuple((alert, minute) for minute in minutes[:1] if minute < calm)
    if not hangs:
        return Judged((), (), false)
    first = min(hangs, key=lambda want: seconds(want["after"]))
    after = seconds(first["after"]) / 60
    in_time = [minute for minute in minutes if after <= minute <= after + seconds(first["within"]) / 60]
    if in_time:
        return Judged(((alert, in_time[0] - after),), (), false)
    return Judged((), ("a hang",), false)


def examine(promtool: str, file: Path) -> tuple[str, dict[str, Judged]]:
    """One scenario: its name, and what each set of rules made of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scenario = simulated(Trial(file, ""), folder)
        played = play(promtool, [scenario.recording], folder, rules=(*RULES, NAIVE_RULES))
    expected = scenario.words.get("expect", {})
    judged = {OURS: judge_ours(expected, played)}
    for alert, title in NAIVE.items():
        judged[title] = judge_naive(expected, played, alert)
    return f"{file.parent.name}/{file.stem}", judged


def summary(rules: str, judged: Iterable[Judged]) -> str:
    """A row: recall, precision, delay."""
    rows = list(judged)
    delays = [delay for row in rows for _, delay in row.found]
    missed, false = sum(len(row.missed) for row in rows), sum(len(row.false) for row in rows)
    found = len(delays)
    delay = f"{median(delays):.0f} ({min(delays):.0f} to {max(delays):.0f}) min" if delays else ""
    cells = [
        rules,
        f"{found}/{found + missed}",
        _share(found, found + missed),
        str(false),
        _share(found, found + false),
    ]
    if rules == OURS:
        return f"| {' | '.join([*cells, delay, '1', 'yes' if not missed and not false else '**NO**'])} |"
    return f"| {' | '.join([*cells, delay, '', ''])} |"


def report(results: Mapping[str, Mapping[str, Judged]]) -> str:
    """Both tables."""
    names = [OURS, *NAIVE.values()]
    lines = ["| rules | found in time | recall | false alarms | precision | delay: median (range) | at least | met |"]
    lines.append("|" + " --- |" * 8)
    lines += [summary(name, (judged[name] for judged in results.values())) for name in names]
    lines += ["", f"| scenario | {' | '.join(names)} |", "|" + " --- |" * (1 + len(names))]
    for scenario, judged in results.items():
        lines.append(f"| {scenario} | {' | '.join(judged[name].cell() for name in names)} |")
    return "\n".join(lines)


def _plain(alert: str) -> str:
    return alert.removeprefix("Training")


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else ""


def scenarios(*, quick: bool) -> Sequence[Path]:
    """Their files."""
    return [file for file in SHIPPED if file.stem in QUICK] if quick else [*SHIPPED, *OWN, *SHARED]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four scenarios")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = {}
        for name, judged in pool.map(partial(examine, promtools()[-1]), scenarios(quick=arguments.quick)):
            print(name, file=sys.stderr, flush=True)  # it takes minutes
            results[name] = judged
    print(report(results))
    return int(any(judged[OURS].missed or judged[OURS].false for judged in results.values()))


if __name__ == "__main__":
    sys.exit(main())
