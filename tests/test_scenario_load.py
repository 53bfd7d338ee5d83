"""Reading scenario files."""

from __future__ import annotations

from pathlib import Path

import pytest

from training_exporter.documents import DocumentError
from training_exporter.scenario.load import find, load, parse, shipped
from training_exporter.scenario.records import Counter, Line, Scenario, Span

HEAD = """\
name: example
ranks: 2
gpu: {idle_watts: 60, limit_watts: 600, memory_total_mib: 80000}
run: {name: example-run, budgets: {idle: 5m}}
"""


def scenario(segments: str) -> Scenario:
    """A scenario with two ranks."""
    return parse("example.yaml", HEAD + "segments:\n" + segments)


def faults(text: str) -> list[str]:
    """What is said to be wrong with a file, line by line."""
    with pytest.raises(DocumentError) as caught:
        parse("example.yaml", text)
    return str(caught.value).splitlines()


class TestUnits:
    @pytest.mark.parametrize(
        ("text", "seconds"), [("90", 90), ("90s", 90), ("1m30s", 90), ("2h", 7200), ("1d", 86400), ("500ms", 0.5)]
    )
    def test_durations(self, text: str, seconds: float) -> None:
        """A segment lasts what its `for` says, as a number of seconds or with units."""
        assert scenario(f"  - {{for: {text}}}").duration_seconds == seconds

    @pytest.mark.parametrize(
        ("text", "span"),
        [
            ("0", Span(0, 0)),
            ("40MiB", Span(40 * 1024**2, 40 * 1024**2)),
            ("[1KiB, 2KiB]", Span(1024, 2048)),
            ("[0, 1.5GiB]", Span(0, 1.5 * 1024**3)),
        ],
    )
    def test_amounts(self, text: str, span: Span) -> None:
        """Bytes a second are a constant or a range, with binary units."""
        assert scenario(f"  - {{for: 1s, read: {text}}}").segments[0].ranks[0].read == span


class TestAtRest:
    def test_what_is_not_named_rests(self) -> None:
        """A segment that names nothing has idle GPUs and processes that do nothing."""
        rank = scenario("  - {for: 1s}").segments[0].ranks[1]
        assert (rank.gpu.util, rank.gpu.watts, rank.rank_cores, rank.read) == (
            Span(0, 0),
            Span(60, 60),
            Span(0, 0),
            Span(0, 0),
        )
        assert rank.state == "running"

    def test_memory_and_state_carry_on(self) -> None:
        """GPU memory and the state of a rank stay as in the segment before, those of single ranks too."""
        segments = scenario(
            "  - {for: 1s, gpu: {memory_mib: 500}, ranks: {1: {state: sleeping, gpu: {memory_mib: 7}}}}\n  - {for: 1s}"
        ).segments
        assert [(rank.state, rank.gpu.memory_mib.low) for rank in segments[1].ranks] == [
            ("running", 500),
            ("sleeping", 7),
        ]

    def test_power_does_not_carry_on(self) -> None:
        """Power falls to idle where a segment does not name it."""
        assert scenario("  - {for: 1s, gpu: {watts: 400}}\n  - {for: 1s}").segments[1].ranks[0].gpu.watts == Span(
            60, 60
        )

    @pytest.mark.parametrize("how", ["restart: true", "attempt: 2"])
    def test_new_workers_run(self, how: str) -> None:
        """A new worker set starts running, whatever became of the old one."""
        segments = scenario(f"  - {{for: 1s, ranks: {{0: {{state: gone}}}}}}\n  - {{for: 1s, {how}}}").segments
        assert segments[1].ranks[0].state == "running"

    def test_a_launcher_stays_gone(self) -> None:
        """A launcher that is gone comes back with a new attempt only."""
        segments = scenario("  - {for: 1s, launcher: gone}\n  - {for: 1s}\n  - {for: 1s, attempt: 2}").segments
        assert [segment.launcher for segment in segments] == [False, False, True]


class TestOverrides:
    def test_merge_key_by_key(self) -> None:
        """A rank's own words replace single keys, also within `gpu` and `cores`."""
        segment = scenario(
            "  - {for: 1s, gpu: {util: 90, watts: 300}, cores: {rank: 1, loader: 2},"
            " ranks: {1: {gpu: {util: 0}, cores: {rank: 0}}}}"
        ).segments[0]
        own = segment.ranks[1]
        assert (own.gpu.util.low, own.gpu.watts.low, own.rank_cores.low, own.loader_cores.low) == (0, 300, 0, 2)
        assert segment.ranks[0].gpu.util == Span(90, 90)

    def test_a_named_write_replaces_that_of_the_checkpoint(self) -> None:
        """The bytes of a checkpoint count as writes of rank 0 only where no write is given for it."""
        words = "checkpoint: {name: 0, layout: file, mib: 1, takes: 1s}"
        segments = scenario(
            f"  - {{for: 1s, {words}}}\n"
            f"  - {{for: 1s, write: 0, {words}}}\n"
            f"  - {{for: 1s, ranks: {{0: {{write: 0}}}}, {words}}}"
        ).segments
        assert [segment.checkpoint and segment.checkpoint.adds_to_writes for segment in segments] == [
            True,
            False,
            False,
        ]


class TestLines:
    def test_every_starts_one_interval_in(self) -> None:
        """A repeated line comes first after one interval, or at its `from`."""
        segment = scenario(
            '  - {for: 1m, log: [{every: 20s, line: "a {n}", n: {start: 1, by: 2}}, {every: 20s, from: 3s, line: "b"}]}'
        ).segments[0]
        assert segment.lines == (Line("a {n}", 20, 20, n=Counter(1, 2)), Line("b", 3, 20))


class TestFaults:
    def test_all_are_named_by_key_and_line(self) -> None:
        """One reading names every fault, with its key and its line."""
        text = HEAD.replace("budgets", "budget") + (
            "segments:\n"
            "  - for: 0s\n"
            "    gpu: {util: [3, 2], wats: 3}\n"
            "    ranks: {0: {state: dead}}\n"
            "    log:\n"
            '      - {at: 1s, line: "{y}"}\n'
            '      - {line: "never"}\n'
        )
        said = faults(text)
        assert [line.split(": ")[1:3] for line in said] == [
            ["line 4", "run.budget"],
            ["line 6", "segments[0].for"],
            ["line 7", "segments[0].gpu.util"],
            ["line 7", "segments[0].gpu.wats"],
            ["line 8", "segments[0].ranks.0.state"],
            ["line 10", "segments[0].log[0].line"],
            ["line 11", "segments[0].log[1]"],
        ]

    def test_a_rank_that_there_is_not(self) -> None:
        """An override of a rank beyond the local world size is a fault."""
        assert faults(HEAD + "segments:\n  - for: 1s\n    ranks: {2: {state: gone}}\n") == [
            "example.yaml: line 7: segments[0].ranks.2: there are ranks 0 to 1"
        ]

    @pytest.mark.parametrize(
        "line",
        ["{n}", "{x:.2f}", "{", "{}", "{n:q}", "{'loss': 1}"],
    )
    def test_lines_that_cannot_be_formatted(self, line: str) -> None:
        """A line whose format fails or lacks a value is found before anything is played."""
        text = HEAD + f'segments:\n  - {{for: 1s, log: [{{at: 0s, line: "{line}"}}]}}\n'
        (said,) = faults(text)
        assert "segments[0].log[0].line" in said

    def test_no_scenario_at_all(self) -> None:
        """An empty file lacks its keys, which is said rather than a crash."""
        assert len(faults("")) == 5

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        """A file that is not UTF-8 is a faulty file."""
        path = tmp_path / "binary.yaml"
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(DocumentError, match="not UTF-8"):
            load(path)


class TestShipped:
    def test_names(self) -> None:
        """The shipped scenarios are those that the demo promises, each under its own name."""
        names = {name: load(path).name for name, path in shipped().items()}
        assert names == {
            name: name
            for name in (
                "collective-hang",
                "healthy",
                "loader-deadlock",
                "nan-loss",
                "rank-death",
                "slow-validation",
                "storage-hang",
            )
        }

    def test_a_file_is_found_too(self, tmp_path: Path) -> None:
        """A scenario is named by its shipped name or by its file; another name says what there is."""
        path = tmp_path / "own.yaml"
        path.write_text(HEAD + "segments: [{for: 1s}]\n")
        assert (find("healthy").name, find(str(path)).name) == ("healthy", "example")
        with pytest.raises(FileNotFoundError, match=r"no shipped scenario \(collective-hang, healthy"):
            find("unheard-of")
