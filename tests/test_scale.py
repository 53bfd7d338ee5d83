"""The scaled copy of the rules: what is divided, what is not, and what is refused."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from rule_player import ROOT, RULES, promtools

SCRIPT = ROOT / "prometheus/scale.py"
# Numbers of an expression that are no time: bytes of the two memory limits.
BYTES = {"2147483648", "524288000"}


@pytest.fixture(scope="module")
def scale() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("scale", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestDivideDuration:
    @pytest.mark.parametrize(
        ("text", "divisor", "expected"),
        [("5m", 30, "10s"), ("1h30m", 30, "180s"), ("10s", 4, "2500ms"), ("1d", 86400, "1s"), ("30s", 0.5, "60s")],
    )
    def test_divides(self, scale: ModuleType, text: str, divisor: float, expected: str) -> None:
        """Whole seconds stay seconds, the rest is milliseconds."""
        assert scale.divide_duration(text, divisor) == expected

    @pytest.mark.parametrize("text", ["", "5", "5 m", "m5"])
    def test_refuses_what_is_no_duration(self, scale: ModuleType, text: str) -> None:
        """A fault is named, not passed on."""
        with pytest.raises(scale.ScaleError, match=r"not a duration|less than a millisecond"):
            scale.divide_duration(text, 30)

    def test_refuses_to_vanish(self, scale: ModuleType) -> None:
        """Nothing shorter than Prometheus can say."""
        with pytest.raises(scale.ScaleError, match="less than a millisecond"):
            scale.divide_duration("1s", 5000)


class TestDivideExpression:
    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            ("rate(a[5m]) > 0.5", "rate(a[10s]) > 0.5"),
            ("max_over_time(a[1h:1m] offset 10m)", "max_over_time(a[120s:2s] offset 20s)"),
            ("a > 300  # 300 s: why", "a > 10  # 300 s: why"),
            ("(a > 60)  # 60 s: why", "(a > 2)  # 60 s: why"),
            ("a > 300  # three hundred of them", "a > 300  # three hundred of them"),
            ('a{b="x[5m] # 5 s: no"} > 300', 'a{b="x[5m] # 5 s: no"} > 300'),
            ("a_300 > 300  # 300 s: why", "a_300 > 10  # 300 s: why"),
        ],
    )
    def test_divides(self, scale: ModuleType, expression: str, expected: str) -> None:
        """Ranges, offsets and marked thresholds; neither text nor counts."""
        assert scale.divide_expression(expression, 30) == expected

    def test_refuses_a_comment_that_lies(self, scale: ModuleType) -> None:
        """A threshold that was changed without its comment is an error."""
        with pytest.raises(scale.ScaleError, match="the comment names 60 s"):
            scale.divide_expression("a > 90  # 60 s: why", 30)


class TestShippedRules:
    def test_copy_is_valid_and_complete(self, tmp_path: Path) -> None:
        """The copy is accepted by promtool, and no `for` or range of the original is left in it."""
        subprocess.run([sys.executable, SCRIPT, "--divide", "60", "--output", tmp_path], check=True)
        copies = sorted(tmp_path.glob("*.yml"))
        assert [copy.name for copy in copies] == [file.name for file in RULES]
        subprocess.run([promtools()[0], "check", "rules", *copies], check=True, capture_output=True)
        for copy in copies:
            rules = [rule for group in yaml.safe_load(copy.read_text())["groups"] for rule in group["rules"]]
            assert not [rule for rule in rules if re.search(r"\[\d+[mh]", rule["expr"])]
            assert not [rule for rule in rules if re.search("[mh]", str(rule.get("for", "")))]

    def test_every_threshold_in_seconds_is_marked(self) -> None:
        """A number of 30 or more in a comparison is a time with its mark, or bytes."""
        for file in RULES:
            for group in yaml.safe_load(file.read_text())["groups"]:
                for line in (line for rule in group["rules"] for line in rule["expr"].split("\n")):
                    code, _, comment = line.partition("#")
                    for number in re.findall(r"(?:[<>]=?|!=|==|\+)\s*(?:bool )?(\d+)\b", code):
                        marked = re.match(rf"\s*{number} s: \S", comment)
                        state_code = "* 0 +" in code
                        assert marked or int(number) < 30 or number in BYTES or state_code, line

    def test_refuses_a_divisor_of_nothing(self, tmp_path: Path) -> None:
        """Dividing by zero or less is a usage error."""
        done = subprocess.run(
            [sys.executable, SCRIPT, "--divide", "0", "--output", tmp_path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "--divide" in done.stderr
