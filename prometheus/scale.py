#!/usr/bin/env python3
"""Write a copy of the rule files in which every duration is divided, so that hours of a run can be shown in minutes."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
UNITS_MS: Mapping[str, float] = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
DURATION = r"(?:[0-9]+(?:ms|[smhdwy]))+"
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
RANGE = re.compile(rf"(?P<before>[\[:]\s*|\boffset\s+-?)(?P<duration>{DURATION})\b")
# A threshold in seconds is a bare number; the comment on its line repeats it and says why: `> 60  # 60 s: why`.
SECONDS_COMMENT = re.compile(r"^\s*(?P<seconds>[0-9]+) s: ")
RULE_DURATIONS = ("for", "keep_firing_for")


class ScaleError(ValueError):
    """A rule file holds something that cannot be divided; the message names it."""


def divide_duration(text: str, divisor: float) -> str:
    """A Prometheus duration (`1h30m`) divided, in whole milliseconds (`180s` when it is whole seconds)."""
    parts = re.findall(r"([0-9]+)(ms|[smhdwy])", text)
    if "".join(number + unit for number, unit in parts) != text:
        raise ScaleError(f"not a duration: {text!r}")
    milliseconds = round(sum(int(number) * UNITS_MS[unit] for number, unit in parts) / divisor)
    if milliseconds < 1:
        raise ScaleError(f"{text} divided by {divisor:g} is less than a millisecond")
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def divide_expression(expression: str, divisor: float) -> str:
    """A PromQL expression with ranges, offsets and the thresholds marked as seconds divided."""
    return "\n".join(_divide_line(line, divisor) for line in expression.split("\n"))


def _divide_line(line: str, divisor: float) -> str:
    code, comment = _split_comment(line)
    pieces, end = [], 0
    for string in STRING.finditer(code):  # what stands in quotes is no duration
        pieces += [_divide_code(code[end : string.start()], divisor), string.group()]
        end = string.end()
    scaled = "".join([*pieces, _divide_code(code[end:], divisor)])
    marked = SECONDS_COMMENT.match(comment[1:])
    if marked is None:
        return scaled + comment
    threshold = re.compile(rf"(?<![\w.\[]){marked['seconds']}(?![\w.])")
    if len(threshold.findall(code)) != 1:
        raise ScaleError(f"the comment names {marked['seconds']} s, the line does not: {line.strip()!r}")
    return threshold.sub(f"{int(marked['seconds']) / divisor:g}", scaled) + comment


def _divide_code(code: str, divisor: float) -> str:
    return RANGE.sub(lambda match: match["before"] + divide_duration(match["duration"], divisor), code)


def _split_comment(line: str) -> tuple[str, str]:
    """Code and comment of a line, the `#` with the comment; a `#` in quotes is code."""
    blanked = STRING.sub(lambda match: "x" * len(match.group()), line)
    at = blanked.find("#")
    return (line, "") if at < 0 else (line[:at], line[at:])


def divide_rules(document: Mapping[str, Any], divisor: float) -> dict[str, Any]:
    """A rule file as loaded from YAML, divided; annotations stay as they are."""
    return {"groups": [_divide_group(group, divisor) for group in document["groups"]]}


def _divide_group(group: Mapping[str, Any], divisor: float) -> dict[str, Any]:
    scaled = dict(group)
    if "interval" in group:
        scaled["interval"] = divide_duration(group["interval"], divisor)
    scaled["rules"] = [_divide_rule(rule, divisor) for rule in group["rules"]]
    return scaled


def _divide_rule(rule: Mapping[str, Any], divisor: float) -> dict[str, Any]:
    durations = {key: divide_duration(rule[key], divisor) for key in RULE_DURATIONS if key in rule}
    return {**rule, "expr": divide_expression(str(rule["expr"]), divisor), **durations}


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 when every file was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--divide", type=float, required=True, metavar="N", help="divide every duration by N")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for the copies")
    parser.add_argument("files", nargs="*", type=Path, help="rule files (default: those beside this script)")
    options = parser.parse_args(arguments)
    if options.divide <= 0:
        parser.error("--divide: must be more than 0")
    options.output.mkdir(parents=True, exist_ok=True)
    for file in options.files or sorted((HERE / "rules").glob("*.yml")):
        scaled = divide_rules(yaml.safe_load(file.read_text()), options.divide)
        (options.output / file.name).write_text(yaml.safe_dump(scaled, sort_keys=False, width=10**9))
    return 0


if __name__ == "__main__":
    sys.exit(main())
