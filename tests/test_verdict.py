"""`runs.verdict` and `runs.sentence`: ordered rules over one record of facts."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training_exporter.runs.sentence import Numbers, sentence
from training_exporter.runs.verdict import (
    CODES,
    DEGRADED_CAUSES,
    STALL_CAUSES,
    STATES,
    Facts,
    Judgement,
    judge,
    seconds_to_stall,
    stall_cause,
)

NOW = 1_700_000_000.0
TRAINING = Facts(now_seconds=NOW, alive=True, phase="training", idle_seconds=3.0, no_progress_seconds=3.0)
IDLE = replace(TRAINING, idle_seconds=700.0, no_progress_seconds=700.0, activity_seconds=NOW - 700.0)
SILENT = replace(TRAINING, no_progress_seconds=4000.0)

ages = st.one_of(st.none(), st.floats(0.0, 20_000.0))
facts = st.builds(
    Facts,
    now_seconds=st.just(NOW),
    alive=st.booleans(),
    phase=st.sampled_from(["starting", "training", "validating", "checkpointing"]),
    done=st.booleans(),
    outcome=st.sampled_from([None, "finished", "failed", "cancelled", "unknown"]),
    absent=st.booleans(),
    idle_seconds=ages,
    no_progress_seconds=ages,
    processes_seen=st.booleans(),
    gpu_seen=st.booleans(),
    log_seen=st.booleans(),
    checkpoints_seen=st.booleans(),
    blind=st.frozensets(st.sampled_from(["gpu", "processes", "logs", "checkpoints"])),
    waiting=st.booleans(),
    ranks_down=st.integers(0, 2),
    gpus_lost=st.integers(0, 2),
    nonfinite_streak=st.integers(0, 5),
    memory_lost=st.booleans(),
    stopped_seconds=st.floats(0.0, 1000.0),
    disk_sleep_seconds=st.floats(0.0, 1000.0),
    checkpoint_stuck=st.booleans(),
    gpus_busy=st.integers(0, 8),
    gpus_working=st.integers(0, 8),
    mean_effort=st.one_of(st.none(), st.floats(0.0, 1.2)),
    least_effort=st.one_of(st.none(), st.floats(0.0, 1.2)),
)


def state(judged: Facts) -> tuple[str, str]:
    """State and cause."""
    judgement = judge(judged)
    return judgement.state, judgement.cause


class TestOrder:
    def test_the_end_marker_comes_before_everything(self) -> None:
        """A finished run never pages as stalled, degraded or failed."""
        everything = replace(IDLE, done=True, ranks_down=1, gpus_lost=1, outcome="failed", alive=False)
        assert state(everything) == ("finished", "")

    @pytest.mark.parametrize(
        ("outcome", "expected"), [("failed", "failed"), ("cancelled", "ended"), ("unknown", "ended"), (None, "ended")]
    )
    def test_without_a_process_the_outcome_decides(self, outcome: str | None, expected: str) -> None:
        """And nothing else."""
        assert state(replace(IDLE, alive=False, outcome=outcome)) == (expected, "")

    def test_degraded_comes_before_stalled(self) -> None:
        """A dead rank explains why the others wait."""
        assert state(replace(IDLE, ranks_down=1)) == ("degraded", "rank")

    @pytest.mark.parametrize(
        ("fact", "cause"),
        [
            ({"ranks_down": 1}, "rank"),
            ({"gpus_lost": 1}, "gpu"),
            ({"nonfinite_streak": 3}, "loss"),
            ({"memory_lost": True}, "memory"),
        ],
    )
    def test_each_hard_fact_alone_degrades(self, fact: dict[str, object], cause: str) -> None:
        """Without waiting for any budget."""
        assert state(replace(TRAINING, **fact)) == ("degraded", cause)  # type: ignore[arg-type]

    def test_two_records_without_a_finite_loss_do_not(self) -> None:
        """An overflow is skipped now and then."""
        assert state(replace(TRAINING, nonfinite_streak=2)) == ("training", "")

    def test_stalled_comes_before_no_progress(self) -> None:
        """The page before the warning."""
        assert state(replace(IDLE, no_progress_seconds=9999.0))[0] == "stalled"

    @pytest.mark.parametrize("phase", ["starting", "training", "validating", "checkpointing"])
    def test_an_active_run_is_in_its_phase(self, phase: str) -> None:
        """Nothing else matches."""
        assert state(replace(TRAINING, phase=phase)) == (phase, "")

    @pytest.mark.parametrize(("idle", "expected"), [(60.0, "training"), (60.1, "quiet")])
    def test_quiet_begins_after_a_minute(self, idle: float, expected: str) -> None:
        """Past 60 s."""
        assert state(replace(TRAINING, idle_seconds=idle))[0] == expected


class TestStalled:
    @pytest.mark.parametrize(("idle", "expected"), [(600.0, "quiet"), (600.1, "stalled")])
    def test_begins_past_the_budget(self, idle: float, expected: str) -> None:
        """Not at it."""
        assert state(replace(IDLE, idle_seconds=idle))[0] == expected

    @pytest.mark.parametrize(
        ("fact", "cause"),
        [
            ({"stopped_seconds": 700.0, "disk_sleep_seconds": 700.0, "gpus_busy": 3}, "stopped"),
            ({"disk_sleep_seconds": 130.0, "gpus_busy": 3}, "storage"),
            ({"disk_sleep_seconds": 100.0, "gpus_busy": 3}, "collective"),
            ({"checkpoint_stuck": True, "gpus_busy": 3}, "storage"),
            ({"gpus_busy": 3}, "collective"),
            ({"gpus_busy": 3, "gpus_working": 1}, "host"),
            ({}, "host"),
        ],
    )
    def test_the_first_cause_that_matches(self, fact: dict[str, object], cause: str) -> None:
        """Stopped, storage, collective, host."""
        assert state(replace(IDLE, **fact)) == ("stalled", cause)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("idle", "stuck", "stalls"), [(310.0, 310.0, True), (310.0, 290.0, False), (50.0, 310.0, False)]
    )
    def test_a_stuck_rank_does_not_wait_for_the_budget(self, idle: float, stuck: float, stalls: bool) -> None:
        """300 s while nothing else of the run moves."""
        for fact in ("stopped_seconds", "disk_sleep_seconds"):
            judged = replace(IDLE, idle_seconds=idle, **{fact: stuck})  # type: ignore[arg-type]
            assert (state(judged)[0] == "stalled") is stalls

    @pytest.mark.parametrize(
        "fact", [{"processes_seen": False}, {"gpu_seen": False, "log_seen": False}], ids=["processes", "signs"]
    )
    def test_needs_processes_and_gpu_or_log(self, fact: dict[str, object]) -> None:
        """Otherwise nobody can say that it should have moved."""
        assert state(replace(IDLE, **fact))[0] == "quiet"  # type: ignore[arg-type]

    def test_one_of_gpu_and_log_is_enough(self) -> None:
        """A run without GPU metrics stalls too."""
        assert state(replace(IDLE, gpu_seen=False))[0] == "stalled"

    def test_stays_with_its_cause_until_something_moves(self) -> None:
        """Budget and cause may change meanwhile."""
        latched = replace(
            IDLE,
            stalled_since_seconds=NOW - 100.0,
            stall_cause="collective",
            idle_budget_seconds=1800.0,
            stopped_seconds=500.0,
        )
        moved = replace(latched, activity_seconds=NOW - 3.0, idle_seconds=3.0, stopped_seconds=0.0)
        assert (state(latched), state(moved)) == (("stalled", "collective"), ("training", ""))


class TestBlind:
    @pytest.mark.parametrize("source", ["gpu", "processes"])
    def test_prevents_a_stall(self, source: str) -> None:
        """What cannot be seen may be alive."""
        assert state(replace(IDLE, blind=frozenset({source}))) == ("unknown", "")

    @pytest.mark.parametrize("source", ["logs", "checkpoints"])
    def test_the_others_do_not(self, source: str) -> None:
        """GPUs and processes say enough."""
        assert state(replace(IDLE, blind=frozenset({source})))[0] == "stalled"

    @pytest.mark.parametrize("source", ["logs", "checkpoints"])
    def test_prevents_no_progress(self, source: str) -> None:
        """Progress may be written where nobody can read; UNKNOWN only when it is idle too."""
        active = replace(SILENT, blind=frozenset({source}))
        assert (state(active)[0], state(replace(active, idle_seconds=130.0))[0]) == ("training", "unknown")

    def test_does_not_end_a_lack_of_progress(self) -> None:
        """It prevents only its beginning."""
        held = replace(SILENT, blind=frozenset({"logs"}), no_progress_held=True)
        assert state(held)[0] == "no_progress"

    def test_mutes_only_a_stall_that_begins_after_it(self) -> None:
        """An established one stays."""
        latched = replace(IDLE, blind=frozenset({"gpu"}), stalled_since_seconds=NOW - 100.0, stall_cause="collective")
        assert state(latched) == ("stalled", "collective")

    @pytest.mark.parametrize(("idle", "expected"), [(110.0, "quiet"), (130.0, "unknown")])
    def test_is_unknown_after_two_minutes(self, idle: float, expected: str) -> None:
        """Not at every missed sample."""
        assert state(replace(TRAINING, idle_seconds=idle, blind=frozenset({"gpu"})))[0] == expected


class TestNoProgress:
    def test_activity_without_progress(self) -> None:
        """Past the progress budget."""
        assert state(SILENT) == ("no_progress", "")

    @pytest.mark.parametrize(
        ("fact", "expected"),
        [
            ({"mean_effort": 0.52, "least_effort": 0.45}, "training"),
            ({"mean_effort": 0.49, "least_effort": 0.45}, "no_progress"),
            ({"mean_effort": 0.80, "least_effort": 0.10}, "no_progress"),
            ({"mean_working": 0.6}, "training"),
            ({"mean_working": 0.4}, "no_progress"),
            ({"mean_effort": 0.2, "least_effort": 0.2, "mean_working": 0.9}, "no_progress"),
        ],
    )
    def test_gpus_that_work_as_in_training_make_it_a_silent_log(self, fact: dict[str, float], expected: str) -> None:
        """While the effort is unknown, the share of time at work stands in."""
        assert state(replace(SILENT, **fact))[0] == expected  # type: ignore[arg-type]

    def test_needs_a_log_or_checkpoints(self) -> None:
        """Where neither was ever readable, no progress can be seen."""
        assert state(replace(SILENT, log_seen=False, checkpoints_seen=False))[0] == "training"


class TestProperties:
    @settings(max_examples=300, deadline=None)
    @given(facts)
    def test_every_record_of_facts_has_a_known_state_and_cause(self, judged: Facts) -> None:
        """And a sentence that ends."""
        judgement = judge(judged)
        causes = {"stalled": STALL_CAUSES, "degraded": DEGRADED_CAUSES}.get(judgement.state, ("",))
        assert judgement.cause in causes
        assert judgement.code == CODES[judgement.state]
        assert sentence(judged, judgement, Numbers()).endswith(".")

    @settings(max_examples=300, deadline=None)
    @given(facts, st.sampled_from(["gpu", "processes", "logs", "checkpoints"]))
    def test_blindness_never_makes_a_verdict_worse_than_unknown(self, judged: Facts, source: str) -> None:
        """It only lowers certainty."""
        blinder = judge(replace(judged, blind=judged.blind | {source}))
        seen = judge(replace(judged, blind=frozenset()))
        assert blinder.code <= max(seen.code, CODES["unknown"])

    @settings(max_examples=300, deadline=None)
    @given(facts, st.floats(0.0, 5000.0))
    def test_more_idle_time_never_ends_a_stall(self, judged: Facts, more: float) -> None:
        """The longer the worse."""
        if stall_cause(judged) and judged.idle_seconds is not None:
            assert stall_cause(replace(judged, idle_seconds=judged.idle_seconds + more))

    def test_codes_and_words_cover_the_same_states(self) -> None:
        """Append-only, larger is worse."""
        assert set(CODES) == set(STATES)
        assert list(CODES.values()) == sorted(CODES.values())

    def test_facts_have_defaults_for_what_nobody_knows(self) -> None:
        """Only the time and whether it lives are asked for."""
        required = [field.name for field in fields(Facts) if field.default is field.default_factory]
        assert required == ["now_seconds", "alive"]


class TestSentence:
    def test_says_what_is_expected_while_validating(self) -> None:
        """With numbers, and the time of the page."""
        judged = replace(TRAINING, phase="validating", idle_seconds=5.0, idle_budget_seconds=2700.0)
        numbers = Numbers(
            phase_seconds=720.0,
            last_phase_seconds=1500.0,
            ages_seconds={"step": 730.0, "validation": 2.0, "io": 1.0},
            validation_ratio=0.48,
            utilization=0.0,
            bytes_per_second=4.2e6,
        )
        words = sentence(judged, Judgement("validating"), numbers)
        assert words.startswith(
            "Validating for 12 min, the last took 25 min: 48 % validated, 2 s ago, GPUs at 0 %, "
            "reading and writing 4.0 MiB/s over 10 s; would page at "
        )
        assert words.endswith(" if it fell silent now.")

    @pytest.mark.parametrize(
        ("ages", "expected"),
        [
            (
                {"step": 2.0, "log": 2.0, "gpu": 1.0, "io": 1.0, "cpu": 1.0},
                "step 47 of 1,000, 2 s ago, GPUs work at 98 %",
            ),
            ({"checkpoint": 3.0, "gpu": 90.0}, "a checkpoint grew, 3 s ago, GPUs at 98 %"),
            ({"validation": 3.0, "log": 1.0}, "a validation result, 3 s ago, GPUs at 98 %"),
            ({"log": 4.0, "cpu": 1.0}, "a new log line, 4 s ago, GPUs at 98 %, children use 1.5 cores"),
            ({"step": 300.0, "gpu": 1.0}, "GPUs work at 98 %"),
            ({"io": 1.0}, "GPUs at 98 %, reading and writing 20 B/s over 10 s"),
            ({}, "GPUs at 98 %"),
        ],
    )
    def test_gives_the_strongest_reason(self, ages: dict[str, float], expected: str) -> None:
        """A step says more than a checkpoint, that more than a line, and bytes count only where they are activity."""
        numbers = Numbers(
            ages_seconds=ages,
            step=47,
            steps_target=1000,
            utilization=0.98,
            bytes_per_second=20.0,
            child_cores=1.5,
        )
        words = sentence(TRAINING, Judgement("training"), numbers)
        assert words.partition(": ")[2].partition(";")[0] == expected

    def test_weak_evidence_is_for_want_of_better(self) -> None:
        """It is named only where nothing stronger speaks for the run."""
        weak = Numbers(ages_seconds={"gpu": 90.0}, utilization=0.0, weak=("its output grows unread",))
        strong = replace(weak, ages_seconds={"gpu": 1.0})
        words = [sentence(TRAINING, Judgement("training"), numbers) for numbers in (weak, strong)]
        assert [": GPUs at 0 %, its output grows unread;" in said for said in words] == [True, False]

    def test_a_step_before_the_phase_is_no_reason(self) -> None:
        """What moved before a validation began does not speak for the validation."""
        numbers = Numbers(phase_seconds=10.0, ages_seconds={"step": 16.0, "gpu": 1.0}, step=950)
        words = sentence(replace(TRAINING, phase="validating"), Judgement("validating"), numbers)
        assert words.startswith("Validating for 10 s: GPUs work; ")

    def test_degraded_run_may_be_alive(self) -> None:
        """A run whose loss is not finite goes on, and is not called lifeless."""
        judged = replace(TRAINING, idle_seconds=2.0, nonfinite_streak=3)
        assert sentence(judged, judge(judged), Numbers()) == (
            "Degraded: the loss is not finite; the last sign of life was 2 s ago."
        )

    def test_old_step_is_a_position(self) -> None:
        """Where the run stands is said even while no step comes, and as no sign of life."""
        numbers = Numbers(phase_seconds=119.0, ages_seconds={"step": 300.0, "gpu": 1.0}, step=47)
        words = sentence(TRAINING, Judgement("training"), numbers)
        assert words.startswith("Training for 1 min (step 47): GPUs work")

    def test_nothing_seen_is_no_phase(self) -> None:
        """Of a run that shows neither GPU nor log nor checkpoint no phase is claimed, and no page is announced."""
        judged = replace(TRAINING, phase="starting", gpu_seen=False, log_seen=False, checkpoints_seen=False)
        words = sentence(judged, judge(judged), Numbers(phase_seconds=120.0))
        assert words == "Cannot tell: its processes exist, and nothing of its GPUs, log and checkpoints can be seen."
        assert "would page" not in sentence(replace(judged, checkpoints_seen=True), judge(judged), Numbers())

    def test_says_when_a_quiet_run_would_page(self) -> None:
        """On the wall clock."""
        judged = replace(TRAINING, idle_seconds=180.0)
        words = sentence(judged, judge(judged), Numbers(utilization=1.0))
        assert words.startswith("Quiet while training: no sign of life for 3 min; GPUs at 100 %; would page at ")

    @pytest.mark.parametrize(
        ("stuck", "words", "seconds"),
        [
            pytest.param({"stopped_seconds": 100.0}, "a rank is stopped by a signal, no sign of life", 200.0, id="T"),
            pytest.param({"disk_sleep_seconds": 170.0}, "a process hangs in an uninterruptible", 130.0, id="D"),
            pytest.param({"disk_sleep_seconds": 30.0}, "no sign of life", 420.0, id="a-read"),
        ],
    )
    def test_says_when_a_stuck_rank_would_page(self, stuck: dict[str, float], words: str, seconds: float) -> None:
        """It does not wait for the budget."""
        judged = replace(TRAINING, idle_seconds=180.0, **stuck)  # type: ignore[arg-type]
        assert sentence(judged, judge(judged), Numbers()).startswith(f"Quiet while training: {words}")
        left = seconds_to_stall(180.0, 600.0, judged.stopped_seconds, judged.disk_sleep_seconds)
        later = replace(
            judged, idle_seconds=180.0 + left + 1.0, **{name: at + left + 1.0 for name, at in stuck.items()}
        )  # type: ignore[arg-type]
        assert (left, judge(later).state) == (seconds, "stalled")

    def test_an_end_by_the_last_step_is_told_as_that(self) -> None:
        """No line of the log said so."""
        judged = replace(TRAINING, alive=False, outcome="finished")
        assert sentence(judged, judge(judged), Numbers(by_count=True)) == (
            "Finished: the last step in the log is the last of all."
        )

    def test_names_the_cause_of_a_stall(self) -> None:
        """In words."""
        judged = replace(IDLE, gpus_busy=4)
        assert "GPUs spin without working" in sentence(judged, judge(judged), Numbers())

    def test_says_what_cannot_be_read(self) -> None:
        """By source."""
        judged = replace(IDLE, blind=frozenset({"gpu"}))
        assert sentence(judged, judge(judged), Numbers()) == (
            "Cannot tell: no sign of life for 11 min, but gpu cannot be read."
        )

    def test_gives_the_reason_of_a_failure(self) -> None:
        """As the log has it."""
        judged = replace(TRAINING, alive=False, outcome="failed")
        assert sentence(judged, judge(judged), Numbers(reason="cuda_oom")) == "Failed: no process is left (cuda_oom)."

    def test_does_not_claim_more_of_an_end_than_is_known(self) -> None:
        """A failure that the run outlived may stand in the log."""
        judged = replace(TRAINING, alive=False, outcome="unknown")
        assert sentence(judged, judge(judged), Numbers()) == (
            "Ended: no process is left, and what was seen last does not say why."
        )
