"""A run's files as one: counting, ranks, incidents, novelty, restored state."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from training_exporter.logs import RunLogs
from training_exporter.logs.runs import KEPT_STEPS
from training_exporter.model import LogBatch, LogEvent, TailChunk


class Run:
    """One run on a driven clock."""

    def __init__(self) -> None:
        self.logs = RunLogs({})
        self.now = 1000.0

    def say(self, text: str, *, seconds: float = 10.0, file: str = "a.log", **chunk: object) -> LogBatch:
        """The batch after a text was appended."""
        self.now += seconds
        data = TailChunk("r", file, self.now, text.encode(), **chunk)  # type: ignore[arg-type]
        return self.logs.consume((data,), self.now)[0]

    def events(self, text: str, **options: object) -> Sequence[LogEvent]:
        return self.say(text, **options).events  # type: ignore[arg-type]


@pytest.fixture
def run() -> Run:
    """A run without a log so far."""
    return Run()


class TestCounting:
    def test_growth_since_the_batch_before(self, run: Run) -> None:
        """Lines are line feeds; the last line is remembered as text."""
        batch = run.say("one\ntwo\nthr")
        assert (batch.lines, batch.bytes, batch.last_line, batch.readable) == (2, 11, "two", True)
        assert run.say("ee\n").lines == 1

    def test_of_the_steps_of_an_existing_log_only_the_last_are_kept(self, run: Run) -> None:
        """What lies far back in a log that is entered costs no memory; where it is and what it said stays known."""
        steps = "".join(f"step {step} | loss 2.0 | lr 1e-4\n" for step in range(20_000))
        batch = run.say(f"{steps}validation loss 1.5\n{steps}", restored=True)
        assert len(batch.events) <= 2 * KEPT_STEPS + 1
        assert batch.events[-1].step == 19_999
        assert [event.metrics for event in batch.events if event.event == "validation"] == [{"loss": 1.5}]
        assert [event.line for event in batch.events] == sorted(event.line for event in batch.events)

    def test_restored_text_sets_state_and_counts_nothing(self, run: Run) -> None:
        """The end of an existing log gives events, but no lines and no news; the batch says so."""
        batch = run.say("step 10 | loss 2.0 | lr 1e-4\n", restored=True)
        assert (batch.restored, batch.lines, batch.bytes, batch.novel) == (True, 0, 0, False)
        assert [event.step for event in batch.events] == [10]

    def test_restart_ends_a_partial_line(self, run: Run) -> None:
        """After a truncation the new text does not join what was cut off."""
        run.say("step 10 | loss 2.0 | l")
        run.now += 1
        chunks = (
            TailChunk("r", "a.log", run.now, b"", restart=True),
            TailChunk("r", "a.log", run.now, b"step 20 | loss 1\n"),
        )
        (batch,) = run.logs.consume(chunks, run.now)
        assert batch.lines == 1
        assert [event.step for event in batch.events if event.step] == [10, 20]

    def test_unreadable_file_is_said(self, run: Run) -> None:
        """A run whose only file cannot be read is not readable, and says why."""
        batch = run.say("", readable=False, error="a.log: Permission denied")
        assert (batch.readable, batch.error, batch.files) == (False, "a.log: Permission denied", ())


class TestReconfigure:
    def test_patterns_change_and_the_log_goes_on(self, run: Run) -> None:
        """New patterns are searched from the next line on; a line that was half read stays half read."""
        run.say("first\nhalf of a l")
        run.logs.reconfigure({"r": (r"^(?P<name>x)=(?P<value>\d+)$",)})
        batch = run.say("ine\nx=3\n")
        assert (batch.lines, [event.metrics for event in batch.events]) == (2, [{"x": 3.0}])


class TestRanks:
    def test_ranks_that_print_the_same_step_count_once(self, run: Run) -> None:
        """The first rank to print steps speaks for all."""
        events = run.events("[rank0]:step: 1  loss: 2.0\n[rank1]:step: 1  loss: 2.0\n[rank0]:step: 2  loss: 1.9\n")
        assert [(event.rank, event.step) for event in events] == [(0, 1), (0, 2)]

    def test_another_rank_goes_on_where_the_first_falls_silent(self, run: Run) -> None:
        """After a minute without it, steps beyond its last are taken from another."""
        run.events("[rank0]:step: 1  loss: 2.0\n")
        assert run.events("[rank1]:step: 1  loss: 2.0\n", seconds=70) == ()
        assert [event.step for event in run.events("[rank1]:step: 2  loss: 2.0\n", seconds=1)] == [2]

    def test_same_message_of_many_ranks_is_one_incident(self, run: Run) -> None:
        """Lines of one message within half a minute count once, later ones again."""
        line = "torch._dynamo hit config.recompile_limit (8)\n"
        assert len(run.events(f"[rank0]:{line}[rank1]:{line}")) == 1
        assert len(run.events(line, seconds=5)) == 0
        assert len(run.events(line, seconds=60)) == 1


class TestNovelty:
    def test_new_shape_is_news_once(self, run: Run) -> None:
        """A line that differs from an earlier one in numbers, paths or quoted text only is no news."""
        assert run.say("Loading shard 1 from /data/a.bin\n").novel is True
        assert run.say("Loading shard 2 from /data/b.bin\n").novel is False
        assert run.say("Building the index\n").novel is True

    def test_failure_is_no_progress(self, run: Run) -> None:
        """Neither a fatal line nor the lines of its traceback are news."""
        text = 'Traceback (most recent call last):\n  File "new.py", line 1, in somewhere\nRuntimeError: never seen\n'
        assert run.say(text).novel is False

    def test_repeating_heartbeat_is_no_news_and_moves_no_step(self, run: Run) -> None:
        """The time stamp runs, the step does not."""
        novel, steps = [], set()
        for minute in range(10):
            batch = run.say(f"[heartbeat] ts={1773478980 + 30 * minute} rank=0 step=1072 status=alive\n", seconds=30)
            novel.append(batch.novel)
            steps |= {event.step for event in batch.events}
        assert (any(novel), steps) == (False, {1072})

    def test_counter_of_an_unknown_format_is_news(self, run: Run) -> None:
        """`item 1200 of 90000` advances: the log signal moves."""
        said = [run.say(f"processed item {1200 + 37 * index} of 90000\n").novel for index in range(6)]
        assert said[-3:] == [True, True, True]

    def test_counter_that_stands_still_is_no_news(self, run: Run) -> None:
        """The same number again is no progress."""
        for index in range(6):
            run.say(f"processed item {1200 + 37 * index} of 90000\n")
        assert [run.say("processed item 1385 of 90000\n").novel for _ in range(5)] == [False] * 5

    @pytest.mark.parametrize("rate", [1, 1000])
    def test_counter_that_runs_with_the_clock_is_an_uptime(self, run: Run, rate: int) -> None:
        """Seconds or milliseconds since the start say nothing but that time passes."""
        said = [run.say(f"running since {500 + rate * 10 * index} units\n").novel for index in range(12)]
        assert said[1:] == [False] * 11

    def test_number_that_goes_up_and_down_is_no_counter(self, run: Run) -> None:
        """A free-memory figure that happens to grow is no progress."""
        values = [100, 120, 90, 95, 130, 80, 85, 140, 60, 99, 98, 150]
        said = [run.say(f"free memory {value} MB\n").novel for value in values]
        assert any(said[1:]) is False

    def test_setup_bar_moves_only_the_log(self, run: Run) -> None:
        """An advancing `Map` bar is news, and no step."""
        batches = [run.say(f"Map:  {n}%|#  | {n * 977}/100000 [00:01<00:09, 9 examples/s]\n") for n in range(1, 8)]
        assert [batch.novel for batch in batches[-3:]] == [True, True, True]
        assert {(event.event, event.setup) for batch in batches for event in batch.events} == {("progress", True)}


class TestRestoredEnds:
    STEPS = "step 10 | loss 2.0 | lr 1e-4\nstep 20 | loss 1.0 | lr 1e-4\n"
    CRASH = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nRuntimeError: lost\n'

    def restored(self, run: Run, *texts: str) -> LogBatch:
        """The batch of existing files that are entered together."""
        chunks = [
            TailChunk("r", f"{number}.log", run.now, text.encode(), restored=True) for number, text in enumerate(texts)
        ]
        return run.logs.consume(chunks, run.now)[0]

    @pytest.mark.parametrize(
        "texts",
        [
            pytest.param((STEPS + CRASH, STEPS + CRASH), id="both-have-all"),
            pytest.param((CRASH, STEPS), id="output-apart-from-errors"),
        ],
    )
    def test_steps_in_another_file_outlive_nothing(self, run: Run, texts: tuple[str, str]) -> None:
        """What a file tells of the end is judged by that file."""
        batch = self.restored(run, *texts)
        assert (batch.outlived, "failed" in {event.outcome for event in batch.events}) == (False, True)

    @pytest.mark.parametrize(
        ("end", "steps", "outlived"),
        [
            pytest.param(CRASH, (30,), False, id="one-step-on"),
            pytest.param(CRASH, (20, 20, 30), False, id="of-many-ranks"),
            pytest.param(CRASH, range(30, 40), False, id="as-many-as-a-launcher-allows"),
            pytest.param(CRASH, range(30, 41), True, id="it-goes-on"),
            pytest.param(CRASH, (11,), True, id="from-a-checkpoint"),
            pytest.param("Training complete!\n", (30,), True, id="no-end-after-all"),
        ],
    )
    def test_steps_of_other_ranks_behind_a_failure(
        self, run: Run, end: str, steps: Sequence[int], *, outlived: bool
    ) -> None:
        """One rank failed, and the others print on until they are ended: that is no later attempt."""
        batch = self.restored(run, self.STEPS + end + "".join(f"step {step} | loss 0.5 | lr 1e-4\n" for step in steps))
        assert (batch.outlived, "failed" in {event.outcome for event in batch.events}) == (outlived, not outlived)

    @pytest.mark.parametrize("end", [CRASH, "Training complete!\n"])
    def test_an_attempt_behind_an_end(self, run: Run, end: str) -> None:
        """The end is that of an attempt before: it is left out, and the batch says so."""
        batch = self.restored(run, self.STEPS + end + self.STEPS)
        assert (batch.outlived, {event.outcome for event in batch.events}) == (True, {None})
        assert [event.event for event in batch.events if event.event == "train_end"] == []
