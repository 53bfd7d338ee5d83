"""`runs.node`: a whole node judged second by second, with hand-made observations on a driven clock."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from nodes import REST, RUN, SPINS, START_SECONDS, TRAINS, WORKING, World, event, step, with_budgets
from training_exporter.config import Config, Match, RunConfig
from training_exporter.model import CheckpointTarget, DirectoryListing, FileEntry, Observation, OutputTarget, Report


def training(**world: object) -> World:
    """A node whose run has trained for five minutes, a step line every 10 s."""
    made = World(**world)  # type: ignore[arg-type]
    made.pass_time(30)
    made.all(TRAINS)
    made.pass_time(300, every=10)
    return made


class TestStates:
    def test_is_starting_until_the_first_step(self) -> None:
        """What the log announces does not end the start, a step does."""
        world = World()
        world.all(REST, read_bytes=1e6)
        world.pass_time(120, event("train_begin"))
        before = world.state
        world.pass_time(2, step(1))
        assert (before, world.state) == (("starting", ""), ("training", ""))

    def test_leaves_the_start_without_a_step_once_its_gpus_worked(self) -> None:
        """A run whose log shows no step is training after five minutes of GPU work."""
        world = World()
        world.all(TRAINS)
        world.pass_time(290)
        before = world.state
        world.pass_time(30)
        assert (before, world.state) == (("starting", ""), ("training", ""))

    def test_is_quiet_after_a_minute_without_a_sign(self) -> None:
        """Idle for more than 60 s within the budget is quiet."""
        world = training()
        world.all(REST)
        world.pass_time(70)
        assert world.state == ("quiet", "")

    def test_validates_between_its_begin_and_its_end(self) -> None:
        """The begin line starts the phase, the end line returns to training."""
        world = training()
        world.pass_time(20, event("val_begin", "validation"))
        validating = world.state
        world.pass_time(5, event("val_end", "validation"))
        assert (validating, world.state) == (("validating", ""), ("training", ""))

    def test_the_end_marker_is_final(self) -> None:
        """An evaluation after the end marker does not undo it, whatever rests then."""
        world = training()
        world.pass_time(5, event("train_end", "done", outcome="finished"))
        world.say(event("val_begin", "validation"))
        world.all(REST)
        world.pass_time(3000)
        assert world.state == ("finished", "")


class TestStalls:
    def test_a_spinning_collective_stalls_at_the_idle_budget(self) -> None:
        """All GPUs busy, none working, no step: stalled after 600 s, not before."""
        world = training()
        world.all(SPINS)
        world.pass_time(590)
        before = world.state
        world.pass_time(25)
        assert (before, world.state) == (("quiet", ""), ("stalled", "collective"))

    def test_sleeping_processes_and_resting_gpus_stall_as_host(self) -> None:
        """Nothing resident, nobody computes: the cause is on the host."""
        world = training()
        world.all(REST, watts=64.0)
        world.pass_time(620)
        assert world.state == ("stalled", "host")

    def test_a_stopped_rank_stalls_after_five_minutes(self) -> None:
        """State T without a break for 300 s does not wait for the budget."""
        world = training()
        world.all(SPINS)
        world.loads[1] = replace(REST, state="stopped")
        world.pass_time(295)
        before = world.state
        world.pass_time(20)
        assert (before[0], world.state) == ("quiet", ("stalled", "stopped"))

    def test_a_rank_in_an_uninterruptible_read_stalls_as_storage(self) -> None:
        """State D without a switch or a fault for 300 s."""
        world = training()
        world.all(SPINS)
        world.loads[1] = replace(REST, state="disk_sleep")
        world.pass_time(315)
        assert world.state == ("stalled", "storage")

    def test_the_cause_of_a_stall_is_fixed_when_it_begins(self) -> None:
        """A rank that is stopped during a collective hang does not make a second stall."""
        world = training()
        world.all(SPINS)
        world.pass_time(620)
        world.loads[1] = replace(REST, state="stopped")
        world.pass_time(400)
        assert world.state == ("stalled", "collective")

    def test_only_activity_ends_a_stall(self) -> None:
        """A budget that grows does not, work does."""
        world = training()
        world.all(SPINS)
        world.pass_time(620)
        world.all(REST, cores=0.8)  # weak evidence: would give 1800 s
        world.pass_time(60)
        weak = world.state
        world.all(TRAINS)
        world.pass_time(5)
        assert (weak, world.state) == (("stalled", "collective"), ("training", ""))

    def test_a_rank_that_computes_without_a_kernel_gets_the_long_budget(self) -> None:
        """One core of Python moves no clock, but the budget of 1800 s applies."""
        world = training()
        world.all(REST)
        world.loads[0] = replace(REST, cores=0.95)
        world.pass_time(1700)
        before = world.state
        world.pass_time(120)
        assert (before[0], world.state) == ("quiet", ("stalled", "host"))

    def test_a_silent_first_validation_gets_45_minutes(self) -> None:
        """No work is seen in the phase, so its long budget decides."""
        world = training()
        world.all(REST)
        world.pass_time(2650, event("val_begin", "validation"))
        before = world.state
        world.pass_time(70)
        assert (before[0], world.state[0]) == ("quiet", "stalled")

    def test_a_validation_that_was_seen_working_is_judged_by_the_idle_budget(self) -> None:
        """Once it worked, its silence is no slow start."""
        world = training()
        world.all(TRAINS, watts=220.0, utilization=0.4)
        world.pass_time(120, event("val_begin", "validation"))
        world.all(REST)
        world.pass_time(620)
        assert world.state == ("stalled", "host")

    def test_a_configured_idle_budget_wins(self) -> None:
        """60 s are 60 s."""
        world = training(config=with_budgets(idle=60.0))
        world.all(SPINS)
        world.pass_time(70)
        assert world.state == ("stalled", "collective")

    def test_a_rank_at_a_terminal_waits_for_a_person(self) -> None:
        """A breakpoint is quiet, not stalled."""
        world = training()
        world.all(REST)
        world.loads[0] = replace(REST, wait_channel="n_tty_read")
        world.pass_time(1500)
        assert world.state == ("quiet", "")

    def test_without_a_gpu_the_log_and_the_processes_are_enough(self) -> None:
        """The driver never answered; the stall is found all the same."""
        world = training(blind={"gpu"})
        world.all(REST)
        world.pass_time(620)
        assert (world.state, world.run.absent.get("gpu")) == (("stalled", "host"), True)


class TestSigns:
    @pytest.mark.parametrize(
        ("load", "signal"),
        [
            (replace(REST, read_bytes=100_000.0), "io"),
            (replace(REST, faults=20.0), "io"),
            (replace(REST, child_cores=0.3), "cpu"),
            (replace(REST, cores=1.4), "cpu"),
            (TRAINS, "gpu"),
        ],
        ids=["bytes", "faults", "children", "rank", "gpu"],
    )
    def test_each_sign_of_life_alone_keeps_a_run_alive(self, load: object, signal: str) -> None:
        """An hour with nothing but this sign is no stall."""
        world = training()
        world.all(load)  # type: ignore[arg-type]
        world.pass_time(1200)
        age = world.now - world.run.activity_seconds[signal]
        assert (world.state[0], age <= 5.0) == ("training", True)

    @pytest.mark.parametrize(
        "load",
        [
            replace(REST, read_bytes=20_000.0),
            replace(REST, faults=5.0),
            replace(REST, child_cores=0.05),
            replace(SPINS, cores=1.1),
        ],
        ids=["bytes", "faults", "children", "rank"],
    )
    def test_less_than_the_threshold_is_none(self, load: object) -> None:
        """Housekeeping of a hung run keeps it alive no more than nothing does."""
        world = training()
        world.all(load)  # type: ignore[arg-type]
        world.pass_time(620)
        assert world.state[0] == "stalled"

    def test_a_heartbeat_that_repeats_its_step_is_none(self) -> None:
        """The same step again and again moves nothing."""
        world = training()
        world.all(SPINS)
        for _ in range(13):
            world.pass_time(50, step(30), tick=5.0)
        assert world.state == ("stalled", "collective")

    def test_an_advancing_validation_bar_is_progress(self) -> None:
        """Nothing else moves, the run is validating and not quiet."""
        world = training()
        world.all(REST)
        world.say(event("val_begin", "validation"))
        for number in range(1, 80):
            world.pass_time(50, event("val_progress", "validation", step=number, step_total=220), tick=10.0)
        assert (world.state, world.run.no_progress_seconds) == (("validating", ""), 50.0)

    def test_signals_are_never_set_by_a_start(self) -> None:
        """A run that nobody saw move has no activity time."""
        world = World()
        world.pass_time(30)
        assert world.run.activity_seconds == {}

    def test_an_unread_descriptor_that_grows_is_weak_evidence(self) -> None:
        """The log cannot be read, but its position moves."""
        world = World(ranks=1)
        world.all(SPINS)
        for position in range(20):
            world.outputs = (OutputTarget(1, "file", "/secret.log", position),)
            world.pass_time(5)
        assert world.run.weak_evidence == ("its output grows unread",)

    def test_a_log_that_was_only_just_found_is_not_unread(self) -> None:
        """It is opened between two looks at the processes."""
        world = World(ranks=1)
        for position in range(3):
            world.outputs = (OutputTarget(1, "file", "/train.log", position),)
            world.pass_time(2)
        world.say(step(3))
        world.pass_time(5)
        assert world.run.weak_evidence == ()


class TestSharedGpus:
    def test_a_neighbour_takes_the_gpu_signal_away(self) -> None:
        """Its work on one of the two GPUs does not keep the run alive."""
        world = training()
        world.all(REST)
        world.loads[1] = replace(REST, utilization=0.9, memory_utilization=0.4, watts=250.0)
        world.outsiders = {"1": 77}
        world.pass_time(640)
        assert (world.state, world.run.shared_gpus) == (("stalled", "host"), ("1",))

    def test_memory_of_a_process_of_this_node_is_owned(self) -> None:
        """The neighbour's memory is its own."""
        world = training()
        world.outsiders = {"1": 77}
        world.pass_time(30)
        assert world.gpu("1").unowned_memory_bytes == 0

    def test_memory_of_a_process_that_is_gone_is_not(self) -> None:
        """The driver lists a PID that does not exist."""
        world = training()
        world.ghosts = {"1": 78}
        world.pass_time(30)
        assert world.gpu("1").unowned_memory_bytes == 20 << 30

    def test_a_process_that_is_gone_is_no_neighbour(self) -> None:
        """A PID that the driver lists and nobody has does no work: the GPU is the run's own."""
        world = training()
        world.ghosts = {"1": 78}
        world.pass_time(30)
        assert world.run.shared_gpus == ()


class TestDegraded:
    def test_a_dead_rank_under_a_living_launcher(self) -> None:
        """After a minute, and the rank is down."""
        world = training()
        world.all(SPINS)
        world.loads[1] = replace(REST, gone=True, memory_bytes=None)
        world.pass_time(55)
        before = world.state[0]
        world.pass_time(10)
        ups = {rank.rank: rank.up for rank in world.run.ranks}
        assert (before, world.state, ups) == ("training", ("degraded", "rank"), {0: True, 1: False})

    def test_a_zombie_rank(self) -> None:
        """A rank that nobody collects is as dead as one that is gone."""
        world = training()
        world.loads[0] = replace(REST, state="zombie")
        world.pass_time(65)
        assert world.state == ("degraded", "rank")

    def test_a_lost_gpu_stays_with_its_run(self) -> None:
        """The driver says lost; the run keeps the GPU and is degraded at once."""
        world = training()
        world.loads[1] = replace(SPINS, lost=True)
        world.pass_time(3)
        assert (world.state, world.run.gpus, world.gpu("1").lost) == (("degraded", "gpu"), ("0", "1"), True)

    def test_three_records_without_a_finite_loss(self) -> None:
        """Two are not enough, a finite one between them begins anew."""
        world = training()
        nan = float("nan")
        seen = []
        for number, loss in enumerate([nan, nan, 2.0, nan, nan, nan], start=100):
            world.pass_time(10, step(number, metrics={"loss": loss}))
            seen.append(world.state[0])
        assert seen == ["training"] * 5 + ["degraded"]

    def test_gpu_memory_that_fell_to_nothing_while_the_peers_hold_theirs(self) -> None:
        """A live rank has lost its context for 300 s."""
        world = training()
        world.loads[1] = replace(TRAINS, memory_bytes=0)
        world.pass_time(295)
        before = world.state[0]
        world.pass_time(10)
        assert (before, world.state) == ("training", ("degraded", "memory"))
        assert world.run.gpu_memory_bytes == {"0": TRAINS.memory_bytes, "1": 0}


class TestBlindness:
    def test_a_blind_gpu_source_prevents_a_stall(self) -> None:
        """Its work may have been the only sign of life."""
        world = training()
        world.blind = {"gpu"}
        world.pass_time(700)
        assert (world.state, world.run.blind) == (
            ("unknown", ""),
            {"gpu": True, "processes": False, "logs": False},
        )

    def test_a_stall_before_it_stays(self) -> None:
        """What was established is not muted by a source that fails later."""
        world = training()
        world.all(SPINS)
        world.pass_time(620)
        world.blind = {"gpu"}
        world.pass_time(900)
        assert world.state == ("stalled", "collective")

    def test_a_source_that_comes_back_gets_time_to_show_life(self) -> None:
        """No stall flashes up between the first answer and the first sign."""
        world = training()
        world.blind = {"gpu"}
        world.pass_time(900)
        world.blind = set()
        states = []
        for _ in range(20):
            world.pass_time(1)
            states.append(world.state[0])
        assert set(states) == {"unknown", "training"}

    def test_blind_processes_end_no_run(self) -> None:
        """A run whose processes cannot be seen is not over, and publishes no counts."""
        world = training()
        world.blind = {"processes"}
        world.pass_time(300)
        assert (world.run.alive, world.run.outcome, world.run.processes) == (True, None, {})

    def test_a_source_that_never_gave_anything_is_absent(self) -> None:
        """It is shown and never blind."""
        world = World()
        world.pass_time(10)
        assert world.run.absent == {"gpu": False, "processes": False, "logs": True, "checkpoints": True}
        assert world.run.blind == {"gpu": False, "processes": False}


class TestCheckpoints:
    def look(self, world: World, *, exists: bool = True, **written: float) -> None:
        """What stands in the run's directory now: complete checkpoints by name, and when each was written."""
        entries = tuple(
            FileEntry(f"{name}/{part}", 1000, START_SECONDS + seconds)
            for name, seconds in written.items()
            for part in ("model.safetensors", "trainer_state.json")
        )
        listing = DirectoryListing(CheckpointTarget(RUN, "/out"), world.now, world.now, entries, exists=exists)
        world.view = world.node.observe(Observation(world.now, checkpoints=Report((listing,), WORKING)))

    def test_an_empty_directory_has_given_nothing_yet(self) -> None:
        """A source counts once it gave the run something: here the first checkpoint, not the directory."""
        world = World()
        world.pass_time(5)
        absent = []
        for exists, written in ((False, {}), (True, {}), (True, {"checkpoint-10": -900.0})):
            for _ in range(8):
                world.pass_time(10)
                self.look(world, exists=exists, **written)
            absent.append(world.run.absent["checkpoints"])
        assert absent == [True, True, False]

    def test_one_that_completes_ends_the_start(self) -> None:
        """Of a run whose steps nobody can read; what stood there before says nothing."""
        world = World()
        phases = []
        for written in ({"checkpoint-10": -900.0}, {"checkpoint-10": -900.0, "checkpoint-20": 61.0}):
            for _ in range(6):
                world.pass_time(10)
                self.look(world, **written)
            phases.append(world.run.phase)
        assert phases == ["starting", "training"]


class TestEnd:
    def test_a_failure_is_told_from_the_log(self) -> None:
        """A fatal record and no process left."""
        world = training()
        world.end(event("warning", severity="fatal", warning="cuda_oom", outcome="failed"))
        world.pass_time(10)
        assert (world.state[0], world.run.outcome, world.run.processes["worker"]) == ("failed", "failed", 0)

    def test_a_cancellation_seen_first_wins(self) -> None:
        """What the launcher prints because it was told to stop is no failure."""
        world = training()
        world.say(event("warning", outcome="cancelled", reason="scheduler", warning="slurm_cancelled"))
        world.pass_time(2)
        world.end(event("warning", severity="fatal", warning="child_failed", outcome="failed"))
        world.pass_time(5)
        assert (world.state[0], world.run.outcome) == ("ended", "cancelled")

    def test_a_failure_that_the_run_outlived_is_none(self) -> None:
        """Steps came after it, so the end is not its doing."""
        world = training()
        world.say(event("warning", severity="fatal", warning="nccl_error"))
        world.pass_time(200, every=10, first=200)
        world.end()
        world.pass_time(5)
        assert (world.state[0], world.run.outcome) == ("ended", "unknown")

    def test_the_last_step_of_all_is_a_good_end(self) -> None:
        """Step 100 of 100 and no evidence of anything else."""
        world = training()
        world.pass_time(5, step(100, 100))
        world.end()
        world.pass_time(5)
        assert world.state[0] == "finished"

    def test_an_out_of_memory_kill_is_a_failure(self) -> None:
        """The kernel counted one at the moment of the end."""
        world = training()
        world.end()
        world.oom_kills = 1
        world.pass_time(5)
        assert (world.state[0], world.run.outcome) == ("failed", "failed")

    def test_an_ended_run_is_forgotten_after_an_hour(self) -> None:
        """Until then it is there with no processes."""
        world = training()
        world.end()
        world.pass_time(3500, tick=10.0)
        remembered = [run.name for run in world.view.runs]
        world.pass_time(200, tick=10.0)
        assert (remembered, [run.name for run in world.view.runs]) == ([RUN], [])

    def test_a_new_attempt_replaces_a_remembered_one_at_once(self) -> None:
        """No outcome, no fatal message, starting again, one restart."""
        world = training()
        world.end(event("warning", severity="fatal", warning="cuda_oom", outcome="failed"))
        world.pass_time(300)
        world.start_again()
        world.pass_time(5)
        run = world.run
        assert (world.state[0], run.outcome, run.restarts_total, run.log and run.log.last_message_seconds) == (
            "starting",
            None,
            1,
            {},
        )

    def test_an_expected_run_that_is_not_here_is_absent(self) -> None:
        """It is exported with 0 processes."""
        config = Config(runs=(RunConfig(RUN, match=Match(cmdline="other.py"), expected=True),))
        world = World(config=config)
        world.pass_time(5)
        assert (world.state[0], world.run.processes["worker"]) == ("absent", 0)


class TestRestarts:
    def test_restarts_without_progress_are_counted_in_a_row(self) -> None:
        """Three worker sets that never got beyond the first one's step; the fourth does."""
        world = training()
        rows = []
        for last in (5, 20, 30, 40):
            world.generation += 1
            world.pass_time(30)
            world.pass_time(last, every=1)
            rows.append(world.run.restarts_without_progress)
        assert (rows, world.run.restarts_total) == ([1, 2, 3, 0], 4)

    def test_a_new_worker_set_drops_what_was_learnt_but_idle_power(self) -> None:
        """Step times and training power are of the set before."""
        world = training()
        world.all(REST, watts=63.0)
        world.pass_time(60)
        world.all(TRAINS)
        world.pass_time(100, every=10, first=60)
        before = (world.gpu().train_watts is not None, world.run.step_interval_seconds is not None)
        world.generation += 1
        world.pass_time(3)
        after = (world.gpu().train_watts, world.run.step_interval_seconds, world.gpu().idle_watts)
        assert (before, after) == ((True, True), (None, None, 63.0))


class TestMemory:
    def test_a_restart_of_the_exporter_does_not_hide_a_stall(self) -> None:
        """The latched stall and the activity times come back."""
        world = training()
        world.all(SPINS)
        world.pass_time(620)
        world.restart_exporter(5)
        world.pass_time(20)
        assert world.state == ("stalled", "collective")

    def test_a_restart_does_not_make_a_stall(self) -> None:
        """Idle times are bounded by the time of watching after an outage."""
        world = training()
        world.all(REST)
        world.pass_time(300)
        world.restart_exporter(1500)
        world.pass_time(10)
        observed = world.run.observed_since_seconds
        assert (world.state[0], observed is not None and observed >= world.now - 11) == ("training", True)

    def test_a_short_outage_is_no_gap(self) -> None:
        """The clock of the stall runs on."""
        world = training()
        world.all(SPINS)
        world.pass_time(580)
        world.restart_exporter(20)
        world.pass_time(15)
        assert world.state == ("stalled", "collective")

    def test_phase_and_budgets_survive(self) -> None:
        """The validation began before the restart, and its long budget counts from there."""
        world = training()
        world.all(REST)
        world.pass_time(50, event("val_begin", "validation"))
        began = world.run.phase_start_seconds
        world.restart_exporter(5)
        world.say(event("train_step", step=30), event("val_begin", "validation"), restored=True)
        world.pass_time(5)
        assert (world.run.phase, world.run.phase_start_seconds, world.run.budgets_seconds["idle"]) == (
            "validating",
            began,
            2700.0,
        )

    def test_how_a_run_ended_survives_its_logs(self) -> None:
        """They are read again: the one with the exception, and another that has the steps only."""
        world = training()
        world.end(event("warning", warning="traceback", severity="fatal", outcome="failed"))
        world.pass_time(5)
        before = world.state
        world.restart_exporter(5)
        world.say(step(500), restored=True)
        world.pass_time(5)
        assert (before, world.state) == (("failed", ""), ("failed", ""))

    def test_a_restored_log_moves_and_counts_nothing(self) -> None:
        """It sets the step and the phase of an exporter that comes late."""
        world = World()
        world.all(SPINS)
        world.pass_time(5)
        world.say(step(500, metrics={"loss": 2.5}), restored=True)
        world.pass_time(5)
        run = world.run
        assert (
            run.phase,
            run.step,
            run.steps_total,
            "step" in run.activity_seconds,
            run.log and run.log.lines_total,
        ) == (
            "training",
            500,
            0,
            False,
            0,
        )

    def test_a_replaced_worker_set_is_noticed_over_a_restart(self) -> None:
        """The processes are others than those that were remembered."""
        world = training()
        world.generation += 1
        world.restart_exporter(10)
        world.pass_time(3)
        assert (world.run.restarts_total, world.run.step_interval_seconds) == (1, None)

    def test_the_log_of_a_run_that_ended_meanwhile_is_still_read(self) -> None:
        """Its last lines say how it ended, also to an exporter that was away."""
        world = training(outputs=(OutputTarget(1, "file", "/data/train.log", 5),))
        world.end()
        world.restart_exporter(30)
        world.pass_time(5)
        paths = [target.path for target in world.node.log_targets()]
        world.pass_time(5, event("warning", severity="fatal", warning="cuda_oom", outcome="failed"))
        assert (paths, world.state[0]) == (["/data/train.log"], "failed")

    def test_the_error_file_of_a_run_that_ended_meanwhile_is_still_read(self) -> None:
        """What torchelastic left is evidence, if it is of the last worker set."""
        world = training(environment={"TORCHELASTIC_ERROR_FILE": "/logs/attempt_1/0/error.json"})
        world.end()
        world.restart_exporter(30)
        world.pass_time(5)
        paths = {target.path for target in world.node.log_targets()}
        states = []
        for attempt in (0, 1):
            file = f"/logs/attempt_{attempt}/0/error.json"
            world.pass_time(5, event("warning", outcome="failed", file=file))
            states.append(world.state[0])
        assert (paths, states) == ({"/logs/attempt_1/0/error.json"}, ["ended", "failed"])

    def test_what_is_known_is_published_at_once_after_a_restart(self) -> None:
        """Only verdicts that could be wrong wait until rates and windows are full again."""
        world = training()
        world.restart_exporter(3)
        world.pass_time(1)
        run = world.run
        assert (run.processes["worker"], run.blind["processes"], world.state[0]) == (2, False, "training")

    def test_weak_evidence_is_not_forgotten_over_a_restart(self) -> None:
        """Rates need seconds to be known again; the run is judged by its long budget meanwhile."""
        world = training()
        world.all(REST)
        world.loads[0] = replace(REST, cores=0.95)
        world.pass_time(700)
        world.restart_exporter(3)
        states = {world.state[0]}
        for _ in range(30):
            world.pass_time(1)
            states.add(world.state[0])
        assert states <= {"quiet", "unknown"}

    def test_a_driver_that_is_dead_after_a_restart_is_blind_and_not_absent(self) -> None:
        """It once gave this run its only sign of life."""
        world = training()
        world.blind = {"gpu"}
        world.restart_exporter(5)
        world.pass_time(700)
        assert (world.run.blind["gpu"], world.run.absent["gpu"], world.state[0]) == (True, False, "unknown")

    def test_training_power_of_a_worker_set_that_is_gone_is_not_taken_up(self) -> None:
        """Though the driver answers later than the process table."""
        world = training()
        world.all(REST, watts=63.0)
        world.pass_time(60)
        world.generation += 1
        known = (world.gpu().idle_watts, world.gpu().train_watts is not None)
        world.blind = {"gpu"}
        world.restart_exporter(10)
        world.pass_time(5)
        world.blind = set()
        world.pass_time(3)
        assert (known, world.gpu().idle_watts, world.gpu().train_watts) == ((63.0, True), 63.0, None)

    def test_what_is_remembered_is_json(self) -> None:
        """And stays the same through it."""
        world = training()
        world.pass_time(5, step(900, metrics={"loss": float("nan")}))
        memory = world.node.remember()
        assert json.loads(json.dumps(memory, allow_nan=False))["version"] == memory["version"]

    @pytest.mark.parametrize(
        "memory",
        [
            {},
            {"version": 99},
            {"version": 1, "time": "x", "runs": {}, "gpus": {}},
            {"version": 1, "time": 1.0, "runs": [1]},
            {"version": 1, "time": 1.0, "runs": {}, "gpus": {}},
        ],
        ids=["empty", "version", "time", "shape", "part"],
    )
    def test_a_memory_that_does_not_fit_is_ignored(
        self, memory: dict[str, object], caplog: pytest.LogCaptureFixture
    ) -> None:
        """With a warning, never an error."""
        with caplog.at_level(logging.WARNING):
            world = World(memory=memory)
        world.pass_time(5)
        assert (world.run.name, "ignored" in caplog.text) == (RUN, True)

    def test_a_run_that_does_not_fit_does_not_take_the_others_with_it(self, caplog: pytest.LogCaptureFixture) -> None:
        """The GPU's idle power is still known."""
        world = training()
        world.all(REST, watts=63.0)
        world.pass_time(60)
        memory = json.loads(json.dumps(world.node.remember()))
        del memory["runs"][RUN]["phase"]
        with caplog.at_level(logging.WARNING):
            again = World(memory=memory, now=world.now)
        again.pass_time(3)
        assert (again.gpu().idle_watts, "run job does not fit" in caplog.text) == (63.0, True)


class TestTargets:
    def test_a_log_only_run_is_followed_and_judged(self) -> None:
        """It has no processes, so it never stalls; it has a phase."""
        world = World(config=Config(runs=(RunConfig(RUN, logs=("/nfs/*.log",)),)), launcher=False)
        world.all(REST, gone=True, memory_bytes=None)
        world.pass_time(5)
        world.pass_time(20, step(5))
        training = world.state
        world.pass_time(3000)
        paths = [target.path for target in world.node.log_targets()]
        assert (paths, training, world.state) == (["/nfs/*.log"], ("training", ""), ("quiet", ""))

    def test_a_log_only_run_ends_with_its_log(self) -> None:
        """A failure and then nothing."""
        world = World(config=Config(runs=(RunConfig(RUN, logs=("/nfs/*.log",)),)), launcher=False)
        world.all(REST, gone=True, memory_bytes=None)
        world.pass_time(5)
        world.pass_time(5, step(5))
        world.pass_time(100, event("warning", severity="fatal", warning="cuda_oom", outcome="failed"))
        assert (world.state[0], world.run.outcome) == ("failed", "failed")

    def test_the_driver_names_the_processes_to_look_at(self) -> None:
        """Whoever holds a GPU is of interest."""
        world = World()
        world.outsiders = {"0": 77}
        world.pass_time(2)
        assert world.node.gpu_pids() == frozenset({77, 1000, 1001})


class TestGpus:
    def test_energy_and_errors_are_passed_on(self) -> None:
        """A repeat of the same error is visible."""
        world = World()
        world.pass_time(2)
        world.xid("0", 79)
        world.pass_time(1)
        world.xid("0", 79)
        world.pass_time(1)
        assert (world.gpu().xid_errors_total, world.gpu().xid_last_seconds) == ({79: 2}, world.now)

    def test_a_failing_driver_publishes_no_gpu(self) -> None:
        """Never the last good value."""
        world = training()
        world.blind = {"gpu"}
        world.pass_time(1)
        assert world.view.gpus == ()

    def test_a_gpu_that_answers_no_more_is_not_known(self) -> None:
        """The others go on."""
        world = training()
        assert world.node.observe(Observation(world.now + 7.0)).gpus[0].power_watts is not None
        assert world.node.observe(Observation(world.now + 7.1)).gpus[0].power_watts is None
