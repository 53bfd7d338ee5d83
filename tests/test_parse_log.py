"""The command `parse-log`: JSON objects and table."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from training_exporter import parse_log
from training_exporter.logs import PatternError

LOG = """\
***** Running training *****
step 10/100 | loss nan | lr 1e-4
{'eval_loss': 1.5, 'eval_acc': inf, 'epoch': 1.0}
Training completed
"""


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A small log file."""
    path = tmp_path / "train.log"
    path.write_text(LOG, encoding="utf-8")
    return str(path)


class TestJson:
    def test_one_object_a_line(self, log: str) -> None:
        """Each event is one object with the documented keys; what is not finite is text."""
        out = io.StringIO()
        assert parse_log.run(log, json=True, out=out) == 0
        assert [json.loads(line) for line in out.getvalue().splitlines()] == [
            {"line": 1, "end_line": 1, "event": "train_begin", "phase": "train"},
            {
                "line": 2, "end_line": 2, "event": "train_step", "phase": "train", "split": "train", "step": 10,
                "step_total": 100, "metrics": {"loss": "nan", "lr": 0.0001},
            },
            {"line": 2, "end_line": 2, "event": "warning", "phase": "train", "warning": "nan_loss", "class": "fatal"},
            {
                "line": 3, "end_line": 3, "event": "validation", "phase": "validation", "split": "val", "epoch": 1,
                "metrics": {"loss": 1.5, "acc": "inf"},
            },
            {"line": 4, "end_line": 4, "event": "train_end", "phase": "done", "outcome": "finished"},
        ]  # fmt: skip

    def test_dash_reads_standard_input(self, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """`-` is standard input, and says the same."""
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(LOG.encode())))
        piped, read = io.StringIO(), io.StringIO()
        parse_log.run("-", json=True, out=piped)
        parse_log.run(log, json=True, out=read)
        assert piped.getvalue() == read.getvalue()


class TestTable:
    def test_readable_table_ends_with_the_counts(self, log: str) -> None:
        """Without --json each event is a row, and the last line counts."""
        out = io.StringIO()
        parse_log.run(log, json=False, out=out)
        rows = out.getvalue().splitlines()
        assert rows[4].split() == ["3", "validation", "validation", "epoch", "1", "val:", "loss=1.5,", "acc=inf"]
        assert rows[-1] == f"4 lines, 0 redraws, {len(LOG)} bytes"


class TestErrors:
    def test_missing_file(self) -> None:
        """A file that is not there is an OSError for the command line to report, before anything is printed."""
        out = io.StringIO()
        with pytest.raises(FileNotFoundError):
            parse_log.run("/nowhere/train.log", json=False, out=out)
        assert out.getvalue() == ""

    def test_bad_pattern(self, log: str) -> None:
        """A pattern that cannot be used is named."""
        with pytest.raises(PatternError):
            parse_log.run(log, json=True, out=io.StringIO(), patterns=("(",))
