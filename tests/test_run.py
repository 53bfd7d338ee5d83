"""`runs.phase`, `runs.workers`, `runs.occupancy` and `runs.run`: phases, worker sets and whose a GPU is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodes import START_SECONDS, discovered, event, record, sample
from training_exporter.model import GpuProcess, LogBatch, LogEvent, ProcessRecord, ProcessTable
from training_exporter.runs.budgets import Learner
from training_exporter.runs.logbook import Logbook
from training_exporter.runs.occupancy import Occupancy, Occupants
from training_exporter.runs.phase import PhaseClock, PhaseFacts
from training_exporter.runs.workers import WorkerSet, process_states

FACTS = PhaseFacts(
    now=0.0,
    worked_seconds=0.0,
    last_worked_seconds=None,
    last_step_seconds=None,
    gpu_known=True,
    growth_seconds=None,
    saving=False,
    start_budget_seconds=1800.0,
)


def training(learner: Learner | None = None) -> PhaseClock:
    """A phase clock past its first step at 100 s."""
    clock = PhaseClock(learner or Learner())
    clock.begin(0.0)
    clock.step(100.0, first=True)
    return clock


class TestPhaseClock:
    def test_the_start_ends_with_a_step_and_with_nothing_that_is_announced(self) -> None:
        """Not even a validation."""
        clock = PhaseClock(Learner())
        clock.begin(0.0)
        clock.announce(["training", "validating"], 50.0)
        before = clock.name
        clock.step(60.0, first=True)
        assert (before, clock.name, clock.start_seconds) == ("starting", "training", 60.0)

    def test_a_start_that_nobody_can_see_ends_with_its_budget(self) -> None:
        """No step, no GPU of its own: training from then on."""
        clock = PhaseClock(Learner())
        clock.begin(0.0)
        clock.tick(replace(FACTS, now=1790.0, gpu_known=False))
        before = clock.name
        clock.tick(replace(FACTS, now=1800.0, gpu_known=False))
        assert (before, clock.name) == ("starting", "training")

    def test_a_start_whose_gpus_are_watched_and_rest_goes_on(self) -> None:
        """Tokenising takes hours."""
        clock = PhaseClock(Learner())
        clock.begin(0.0)
        clock.tick(replace(FACTS, now=10_000.0))
        assert clock.name == "starting"

    def test_a_checkpoint_returns_to_the_phase_it_interrupted(self) -> None:
        """Also in the middle of a validation."""
        clock = training()
        clock.announce(["validating"], 200.0)
        clock.announce(["checkpointing"], 300.0)
        clock.announce(["checkpointed"], 400.0)
        assert clock.name == "validating"

    def test_a_checkpoint_behind_a_result_returns_to_training(self) -> None:
        """Nothing is validated any more, and the validation took as long as until the save began."""
        learner = Learner()
        clock = training(learner)
        clock.announce(["validating"], 200.0)
        clock.announce(["result", "checkpointing"], 300.0)
        clock.announce(["checkpointed"], 340.0)
        assert (clock.name, learner.last("validation"), learner.last("checkpoint")) == ("training", 100.0, 40.0)
        clock.announce(["validating", "checkpointing", "checkpointed"], 400.0)  # the next one has no result yet
        assert clock.name == "validating"

    def test_a_save_without_an_end_line_ends_when_the_gpus_work_again(self) -> None:
        """For a minute, and no byte is written."""
        clock = training()
        clock.announce(["checkpointing"], 200.0)
        clock.tick(replace(FACTS, now=210.0, worked_seconds=1000.0))
        clock.tick(replace(FACTS, now=260.0, worked_seconds=1050.0))
        before = clock.name
        clock.tick(replace(FACTS, now=275.0, worked_seconds=1065.0))
        assert (before, clock.name) == ("checkpointing", "training")

    def test_a_save_that_no_line_announces_is_seen_by_its_bytes(self) -> None:
        """They grow while the GPUs rest and no step comes."""
        clock = training()
        resting = replace(FACTS, now=200.0, saving=True, growth_seconds=195.0, last_worked_seconds=150.0)
        clock.tick(resting)
        saving = clock.name
        clock.tick(replace(resting, now=400.0, saving=False))
        assert (saving, clock.name) == ("checkpointing", "training")

    def test_a_save_beside_the_training_is_none(self) -> None:
        """The GPUs work on."""
        clock = training()
        clock.tick(replace(FACTS, now=200.0, saving=True, growth_seconds=195.0, last_worked_seconds=199.0))
        assert clock.name == "training"

    def test_the_end_is_final(self) -> None:
        """Neither steps nor validations lead out of it."""
        clock = training()
        clock.announce(["done", "validating"], 200.0)
        clock.step(210.0, first=True)
        assert clock.name == "done"

    def test_phases_teach_how_long_they_last(self) -> None:
        """Start, validation and checkpoint."""
        learner = Learner()
        clock = training(learner)
        clock.announce(["validating"], 200.0)
        clock.announce(["validated"], 500.0)
        clock.announce(["checkpointing"], 500.0)
        clock.announce(["checkpointed"], 540.0)
        learnt = [learner.typical(kind) for kind in ("start", "validation", "checkpoint")]
        assert learnt == [100.0, 300.0, 40.0]

    def test_a_replayed_log_keeps_the_beginning_of_a_phase_that_is_known(self) -> None:
        """The exporter was restarted in the middle of it."""
        clock = training()
        clock.announce(["validating"], 200.0)
        clock.replay(["training", "validating"], 500.0, stepped=True)
        assert (clock.name, clock.start_seconds) == ("validating", 200.0)

    def test_a_replayed_log_leads_to_the_phase_of_its_end(self) -> None:
        """The exporter comes late, and learns nothing from a phase whose beginning it did not see."""
        learner = Learner()
        clock = PhaseClock(learner)
        clock.begin(0.0)
        clock.replay(["training", "validating"], 500.0, stepped=True)
        name = clock.name
        clock.announce(["validated"], 600.0)
        assert (name, clock.name, learner.typical("validation")) == ("validating", "training", None)


class TestWorkerSet:
    LAUNCHER = record(5, name="torchrun")

    def observe(self, workers: WorkerSet, ranks: list[ProcessRecord], at: float, launcher: bool = True) -> bool:
        run = discovered(ranks, launcher=self.LAUNCHER if launcher else None, gpus={0: "0", 1: "1"})
        return workers.observe(run, START_SECONDS + at)

    def test_a_rank_is_down_after_a_minute_under_a_living_launcher(self) -> None:
        """And up again when it is back."""
        workers = WorkerSet()
        first, second = record(10), record(11)
        self.observe(workers, [first, second], 0.0)
        for at in range(1, 70):
            self.observe(workers, [first], float(at))
        down = [rank.rank for rank in workers.down()]
        self.observe(workers, [first, second], 71.0)
        assert (down, workers.down()) == ([1], [])

    def test_no_launcher_no_lost_rank(self) -> None:
        """Ranks that a scheduler starts end one by one."""
        workers = WorkerSet()
        first, second = record(10), record(11)
        self.observe(workers, [first, second], 0.0, launcher=False)
        self.observe(workers, [first], 100.0, launcher=False)
        self.observe(workers, [first], 200.0, launcher=False)
        assert workers.down() == []

    def test_a_rank_with_a_new_process_is_a_new_worker_set(self) -> None:
        """The PID may even be the same: the start time is not."""
        workers = WorkerSet()
        before = [record(10), record(11)]
        again = [replace(record(10), start_ticks=999), record(11)]
        replaced = [self.observe(workers, ranks, at) for at, ranks in enumerate((before, before, again, again))]
        assert replaced == [False, False, True, False]

    def test_another_launcher_is_a_new_worker_set(self) -> None:
        """The same command, started again."""
        workers = WorkerSet()
        self.observe(workers, [record(10)], 0.0)
        run = discovered([record(20)], launcher=record(6, name="torchrun"))
        assert workers.observe(run, START_SECONDS + 1.0) is True

    @pytest.mark.parametrize(
        ("changes", "seconds"), [({}, 20.0), ({"context_switches": 7}, 10.0), ({"major_faults": 7}, 10.0)]
    )
    def test_a_state_is_unbroken_without_a_switch_or_a_fault(self, changes: dict[str, int], seconds: float) -> None:
        """A reader of a slow disk is in D at every look and moves on."""
        workers = WorkerSet()
        stuck = record(10, state="disk_sleep")
        self.observe(workers, [stuck], 0.0)
        self.observe(workers, [replace(stuck, **changes)], 10.0)
        self.observe(workers, [replace(stuck, **changes)], 20.0)
        assert workers.longest("disk_sleep") == seconds

    def test_counts_every_state_of_launcher_and_ranks(self) -> None:
        """0 included."""
        run = discovered([record(10, state="running"), record(11, state="zombie")], launcher=self.LAUNCHER)
        assert process_states(run) == {"running": 1, "sleeping": 1, "disk_sleep": 0, "stopped": 0, "zombie": 1}

    def test_a_launcher_that_is_rank_0_counts_once(self) -> None:
        """Lightning's own launcher."""
        head = record(10)
        assert sum(process_states(discovered([head, record(11)], launcher=head)).values()) == 2

    def test_orphaned_ranks_keep_the_run_present(self) -> None:
        """Their launcher was killed."""
        workers = WorkerSet()
        self.observe(workers, [record(10)], 0.0)
        self.observe(workers, [record(10)], 5.0, launcher=False)
        assert (workers.present, workers.launcher_alive) == (True, False)


class TestLogbook:
    def read(self, book: Logbook, *events: LogEvent, **changes: object) -> None:
        batch = LogBatch("job", START_SECONDS, events, lines=len(events), bytes=100, files=("/log",))
        book.observe(replace(batch, **changes))  # type: ignore[arg-type]

    def test_is_absent_until_a_log_could_be_read(self) -> None:
        """A file that nobody may read is no log."""
        book = Logbook()
        self.read(book, readable=False, files=())
        assert book.view() is None

    def test_messages_to_worry_about_are_there_at_zero(self) -> None:
        """So that the first one is an increase; benign ones appear when they are seen."""
        book = Logbook()
        self.read(book, event("warning", warning="chatter", severity="benign"))
        view = book.view()
        assert view is not None
        classes = {severity for (_, severity), count in view.messages_total.items() if count == 0}
        assert (classes, view.messages_total["chatter", "benign"]) == ({"suspect", "fatal"}, 1)

    def test_counts_what_was_read(self) -> None:
        """Lines, bytes, redraws apart, and the time of the last message of a class."""
        book = Logbook()
        self.read(book, event("warning", warning="cuda_oom", severity="fatal"), redraws=7)
        self.read(book, event("warning", warning="cuda_oom", severity="fatal"))
        view = book.view()
        assert view is not None
        assert (view.lines_total, view.bytes_total, view.redraws_total) == (2, 200, 7)
        assert view.messages_total["cuda_oom", "fatal"] == 2
        assert view.last_message_seconds == {"fatal": START_SECONDS}

    def test_a_restored_batch_counts_nothing(self) -> None:
        """It stood there before."""
        book = Logbook()
        self.read(book, event("warning", warning="cuda_oom", severity="fatal"), restored=True)
        view = book.view()
        assert view is not None
        assert (view.lines_total, view.messages_total["cuda_oom", "fatal"], view.last_line_seconds) == (0, 0, None)


class TestOccupants:
    def table(self, *pids: int, complete: bool = True) -> ProcessTable:
        return ProcessTable(START_SECONDS, {pid: record(pid) for pid in pids}, complete=complete)

    def look(self, processes: tuple[GpuProcess, ...] | None, table: ProcessTable | None, at: float = 0.0) -> Occupancy:
        """What is seen of a GPU of the run with PID 10, ten seconds after the same was seen first."""
        occupants = Occupants()
        run = discovered([record(10)], gpus={0: "0"})
        for now in (START_SECONDS + at, START_SECONDS + at + 10.0):
            seen = occupants.observe([sample(now, processes=processes)], [run], table, now)
        return seen["0"]

    def test_the_run_alone(self) -> None:
        """Its memory by process, the rest of what is used belongs to nobody."""
        there = self.look((GpuProcess(10, 4 << 30),), self.table(10))
        assert (there.runs, there.outsider, there.unowned_bytes) == (("job",), False, 6 << 30)

    def test_a_stranger_beside_it(self) -> None:
        """A process of this node that is not of the run."""
        there = self.look((GpuProcess(10, 4 << 30), GpuProcess(77, 6 << 30)), self.table(10, 77))
        assert (there.outsider, there.unowned_bytes) == (True, 0)

    def test_a_stranger_that_does_not_compute(self) -> None:
        """The driver says so per process."""
        there = self.look((GpuProcess(10, 4 << 30), GpuProcess(77, 6 << 30, sm_ratio=0.0)), self.table(10, 77))
        assert there.outsider is False

    def test_pids_of_another_namespace_say_nothing(self) -> None:
        """In a container: whom the run is bound to, and no more."""
        there = self.look((GpuProcess(4010, 4 << 30),), self.table(10))
        assert (there.runs, there.by_process, there.unowned_bytes) == (("job",), False, None)

    def test_without_the_right_to_see_all_nothing_is_orphaned(self) -> None:
        """The owner may be somebody else's process."""
        there = self.look((GpuProcess(10, 4 << 30),), self.table(10, complete=False))
        assert there.unowned_bytes is None

    def test_a_driver_that_lists_nobody(self) -> None:
        """Unknown, not 0."""
        there = self.look(None, self.table(10))
        assert (there.runs, there.memory_by_pid, there.unowned_bytes) == (("job",), {}, None)
