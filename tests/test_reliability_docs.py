"""docs/reliability.md names tests that exist, and every row names one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| fault", "| ---"))]
NAMED = re.compile(r"`(tests/\w+\.py(?:::\w+)+)`")


def fault(row: str) -> str:
    """The first column."""
    return row.split("|")[1].strip()


def names_in(path: Path) -> set[str]:
    """`test_x` and `TestY::test_x` of a module."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


def test_there_is_a_table() -> None:
    """The page was not emptied by a change of its form."""
    assert len(ROWS) > 40
    assert len({fault(row) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=fault)
def test_the_proof_exists(row: str) -> None:
    """At least one test, in the last column, and each of them is there."""
    _, _, seen, proof, _ = row.split("|")
    named = NAMED.findall(proof)
    assert named
    assert seen.strip()
    assert re.sub(NAMED, "", proof).strip() == ""
    for name in named:
        file, _, test = name.partition("::")
        assert test in names_in(ROOT / file), name
