"""Where a run's error files and TensorBoard event files are looked for."""

from __future__ import annotations

import pytest

from nodes import record
from training_exporter.model import Rank
from training_exporter.runs.side_targets import error_files, event_files


class TestEventFiles:
    @pytest.mark.parametrize(
        ("arguments", "places"),
        [
            (("--logging_dir", "tb"), ["/work/tb", "/work/runs"]),
            (("--tensorboard-dir=/data/tb",), ["/data/tb", "/work/runs"]),
            (("trainer.log_dir=/data/tb",), ["/data/tb", "/work/runs"]),
            (("--logging_dir", "none"), ["/work/runs"]),
        ],
    )
    def test_places(self, arguments: tuple[str, ...], places: list[str]) -> None:
        """The usual options, and the writer's own default; at most two folders below, under the PID in the name."""
        command = ("python3", "train.py", *arguments)
        process = record(4711, command=command, working_directory="/work", namespace_pid=17, uid=5, gid=6)
        found = event_files("job", [Rank(0, 0, process), Rank(1, 1, record(4712))])
        name = "events.out.tfevents.*.17.*"
        assert [target.path for target in found] == [
            f"{place}/{below}{name}" for place in places for below in ("", "*/", "*/*/")
        ]
        assert {(target.uid, target.gid, target.root) for target in found} == {(5, 6, "/")}

    def test_without_a_rank_there_are_none(self) -> None:
        """A launcher alone writes no events."""
        assert event_files("job", ()) == ()


class TestErrorFiles:
    def test_only_what_torchelastic_calls_so(self) -> None:
        """The variable of a process may name any file: another name is not read."""
        files = ("/tmp/x/error.json", "/etc/passwd", "", "error.json")  # noqa: S108  no file is made
        ranks = [Rank(n, n, record(n + 1, environment={"TORCHELASTIC_ERROR_FILE": f})) for n, f in enumerate(files)]
        assert [target.path for target in error_files("job", ranks)] == ["/tmp/x/error.json"]  # noqa: S108
