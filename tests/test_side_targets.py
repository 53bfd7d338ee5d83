"""Where a run's error files and TensorBoard event files are looked for."""

from __future__ import annotations

import pytest

from nodes import record
from training_exporter.model import CheckpointTarget, DirectoryListing, FileEntry, Rank
from training_exporter.runs.roles import is_uncounted
from training_exporter.runs.run import Run
from training_exporter.runs.side_targets import error_files, event_files


class TestEventFiles:
    @pytest.mark.parametrize(
        ("arguments", "places"),
        [
            (("--logging_dir", "tb"), ["/job/tb", "/job/runs"]),
            (("--tensorboard-dir=/data/tb",), ["/data/tb", "/job/runs"]),
            (("trainer.log_dir=/data/tb",), ["/data/tb", "/job/runs"]),
            (("--logging_dir", "none"), ["/job/runs"]),
        ],
    )
    def test_places(self, arguments: tuple[str, ...], places: list[str]) -> None:
        """The usual options, and the writer's own default; at most two folders below, under the PID in the name."""
        command = ("python3", "train.py", *arguments)
        process = record(4711, command=command, working_directory="/job", namespace_pid=17, uid=5, gid=6)
        found = event_files("job", [Rank(0, 0, process), Rank(1, 1, record(4712))])
        name = "events.out.tfevents.*.17.*"
        assert [target.path for target in found] == [
            f"{place}/{below}{name}" for place in places for below in ("", "*/", "*/*/")
        ]
        assert {(target.uid, target.gid, target.root) for target in found} == {(5, 6, "/")}

    def test_without_a_rank_there_are_none(self) -> None:
        """A launcher alone writes no events."""
        assert event_files("job", ()) == ()

    def test_those_among_checkpoints_are_progress_of_the_log_too(self) -> None:
        """`output_dir/runs` of the HF Trainer lies in a directory that is scanned anyway."""
        run = Run("job", None, is_uncounted)
        for second in (1, 2):
            entry = FileEntry("runs/Nov29/events.out.tfevents.1700000000.node.17.0", 100 * second, 1e9 + second)
            run.observe_checkpoints(
                DirectoryListing(CheckpointTarget("job", "/out"), float(second), 1e9 + second, entries=(entry,))
            )
        assert run.signals == {"log": 2.0}


class TestErrorFiles:
    def test_only_what_torchelastic_calls_so(self) -> None:
        """The variable of a process may name any file: another name is not read."""
        files = ("/tmp/x/error.json", "/etc/passwd", "", "error.json")  # noqa: S108  no file is made
        ranks = [Rank(n, n, record(n + 1, environment={"TORCHELASTIC_ERROR_FILE": f})) for n, f in enumerate(files)]
        assert [target.path for target in error_files("job", ranks)] == ["/tmp/x/error.json"]  # noqa: S108
