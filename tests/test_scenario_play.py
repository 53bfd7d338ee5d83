"""What the node of a scenario says to the exporter, second by second."""

from __future__ import annotations

from training_exporter.model import CheckpointTarget, LogTarget, Observation
from training_exporter.scenario.load import parse
from training_exporter.scenario.play import EPOCH_SECONDS, Player

LOGS = (LogTarget("example-run", "/srv/training/example-run/train.log"),)
CHECKPOINTS = (CheckpointTarget("example-run", "/srv/training/example-run/output"),)


def player(segments: str, run: str = "") -> Player:
    """A player of a scenario with two ranks; `run` is put behind its other words."""
    return Player(
        parse(
            "example.yaml",
            "name: example\nranks: 2\ngpu: {idle_watts: 60, limit_watts: 600, memory_total_mib: 80000}\n"
            f"run: {{name: example-run, script: fit.py{run}}}\nsegments:\n{segments}",
        )
    )


def observed(playing: Player, seconds: int) -> list[Observation]:
    """The next observations."""
    return [playing.observe(LOGS, CHECKPOINTS) for _ in range(seconds)]


class TestRhythm:
    def test_each_source_has_its_own(self) -> None:
        """GPUs are sampled each second, processes every second one, checkpoints every ten."""
        told = observed(player("  - {for: 1m}"), 21)
        assert [second for second, one in enumerate(told) if one.gpu] == list(range(21))
        assert [second for second, one in enumerate(told) if one.processes] == list(range(0, 21, 2))
        assert [second for second, one in enumerate(told) if one.checkpoints] == [0, 10, 20]

    def test_the_clock_is_virtual(self) -> None:
        """Observations are one second apart from the fixed beginning on, whatever the wall clock says."""
        assert [one.time_seconds - EPOCH_SECONDS for one in observed(player("  - {for: 1m}"), 3)] == [0, 1, 2]

    def test_a_silent_log_is_no_news(self) -> None:
        """The log source reports only when something was said."""
        told = observed(player('  - {for: 1m, log: [{at: 3s, line: "step 1 loss 2.0"}]}'), 6)
        batches = [one.logs.data[0].lines for one in told[1:] if one.logs and one.logs.data]
        assert batches == [1]


class TestHealth:
    def test_a_silent_source_works(self) -> None:
        """Every source was well at its last call, though it had nothing new; the log source among them."""
        playing = player("  - {for: 1m}")
        observed(playing, 21)
        ages = {name: playing.now - 1 - (one.last_success_seconds or 0) for name, one in playing.health().items()}
        assert ages == {"gpu": 0, "processes": 0, "logs": 0, "checkpoints": 0}
        observed(playing, 3)
        assert playing.now - 1 - (playing.health()["processes"].last_success_seconds or 0) == 1

    def test_a_blind_source_keeps_its_last_success(self) -> None:
        """A source that fails says since when."""
        playing = player("  - {for: 10s}\n  - {for: 1m, blind: [gpu]}")
        observed(playing, 15)
        health = playing.health()["gpu"]
        assert not health.success
        assert health.last_success_seconds == EPOCH_SECONDS + 9


class TestRepeatable:
    def test_draws_depend_on_the_name_alone(self) -> None:
        """Two players of one file say the same."""
        words = "  - {for: 1m, gpu: {util: [0, 100], watts: [60, 400]}, read: [0, 40MiB]}"
        assert observed(player(words), 20) == observed(player(words), 20)

    def test_blindness_does_not_change_the_draws(self) -> None:
        """What a source does not see happens all the same."""
        words = "  - {for: 10s, gpu: {util: [0, 100]}%s}\n  - {for: 1m, gpu: {util: [0, 100]}}"
        seen, blind = (observed(player(words % extra), 15)[-1] for extra in ("", ", blind: [gpu]"))
        assert seen.gpu == blind.gpu


class TestBlind:
    def test_a_failing_source_says_so(self) -> None:
        """A blind source has no data and no success, remembers when it last had, and recovers."""
        told = observed(player("  - {for: 5s}\n  - {for: 5s, blind: [gpu, processes]}\n  - {for: 5s}"), 14)
        gpu = told[7].gpu
        assert gpu is not None
        assert (gpu.data, gpu.health.success, gpu.health.last_success_seconds) == (None, False, EPOCH_SECONDS + 4)
        processes = told[6].processes
        assert processes is not None
        assert processes.data is None
        assert told[12].gpu is not None
        assert told[12].gpu.health.success

    def test_a_log_that_cannot_be_read_is_read_later(self) -> None:
        """Lines that come while the log is blind are read when it is not any more."""
        line = 'log: [{at: 2s, line: "step 1 loss 2.0"}]'
        told = observed(player(f"  - {{for: 2s}}\n  - {{for: 5s, blind: [logs], {line}}}\n  - {{for: 5s}}"), 10)
        assert [second for second, one in enumerate(told) if one.logs and one.logs.data and one.logs.data[0].lines] == [
            7
        ]

    def test_an_exporter_that_is_not_scraped_runs_on(self) -> None:
        """A blind exporter misses nothing; only its scrapes are missing."""
        playing = player("  - {for: 5s}\n  - {for: 5s, blind: [exporter]}")
        told, scraped = [], []
        for _ in range(10):
            told += observed(playing, 1)
            scraped.append(playing.scraped)
        assert scraped == [True] * 5 + [False] * 5
        assert all(one.gpu and one.gpu.data for one in told)


class TestAbsent:
    def test_no_log(self) -> None:
        """Without a log the output of the processes goes nowhere."""
        told = observed(player('  - {for: 1m, log: [{at: 1s, line: "a"}]}', run=", absent: [logs]"), 5)
        assert not any(one.logs for one in told)
        table = told[0].processes
        assert table is not None
        assert table.data is not None
        assert {output.kind for process in table.data.processes.values() for output in process.outputs} == {"null"}

    def test_no_driver(self) -> None:
        """Without a driver the GPU source never succeeds."""
        told = observed(player("  - {for: 1m}", run=", absent: [gpu]"), 5)
        assert {one.gpu.health.success for one in told if one.gpu} == {False}

    def test_no_processes(self) -> None:
        """A run without processes on this node is known from its configured log and checkpoints."""
        playing = player("  - {for: 1m}", run=", absent: [processes]")
        (run,) = playing.config().runs
        assert (run.match, run.logs, run.checkpoints) == (None, (LOGS[0].path,), (CHECKPOINTS[0].path,))
        table = observed(playing, 1)[0].processes
        assert table is not None
        assert table.data is not None
        assert not table.data.processes


class TestCheckpoint:
    def test_bytes_show_in_the_counters_of_rank_0(self) -> None:
        """A checkpoint whose writes nobody names is written by rank 0."""
        words = "  - {for: 1m, checkpoint: {name: a.pt, layout: file, mib: 10, takes: 10s}}"
        told = observed(player(words), 21)[20]
        assert told.processes is not None
        assert told.processes.data is not None
        ranks = [process for process in told.processes.data.processes.values() if process.name == "python3"]
        assert [rank.written_bytes for rank in ranks] == [10 * 1024**2, 0]
