"""From the state of one run to its verdict and to the record that is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from training_exporter.model import SOURCES, SourceName
from training_exporter.runs.activity import WEAK_RANK_CORES
from training_exporter.runs.budgets import Situation, current_budgets, phase_budget
from training_exporter.runs.gpus import BUSY_RATIO, WORKING_EFFORT, GpuTracker
from training_exporter.runs.phase import PhaseFacts
from training_exporter.runs.run import PROGRESS_SIGNALS, WORK_SIGNALS, GpuContext, Run
from training_exporter.runs.sentence import Numbers, sentence
from training_exporter.runs.verdict import Facts, judge, lacks_progress, stall_cause
from training_exporter.runs.view import CheckpointView, RunView, Verdict

# Activity within this time of a phase's begin is the end of the phase before.
PHASE_SETTLES_SECONDS = 20.0
WEAK_SECONDS = 60.0  # weak evidence holds this long after it was last seen
HOST_WORK_SECONDS = 600.0
# Phase -> kind of interval that is learnt of it.
PHASE_KINDS = {"starting": "start", "validating": "validation", "checkpointing": "checkpoint"}
# Rates and windows of 10 s are full again, and the next table or listing was seen.
SETTLE_SECONDS = 15.0
GPU_BUSY_RATIO = 0.5
# Kernel functions in which a read from a terminal sleeps.
TERMINAL_WAITS = ("n_tty_read", "tty_read")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run's verdict needs of the node."""

    now: float
    wall_shift_seconds: float
    failed_seconds: Mapping[SourceName, float]  # when each source last failed
    silent: frozenset[SourceName]  # sources that the node has only begun to ask
    running: frozenset[SourceName]  # sources that have answered or failed since the exporter started
    settling: bool  # rates and windows are empty after a restart: what kept a run alive may not be seen yet
    gpus: GpuContext


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was looked at for one verdict of one run."""

    around: Surroundings
    speaking: list[GpuTracker]  # GPUs whose work is the run's own
    checkpoints: CheckpointView | None
    blind: dict[SourceName, bool]
    weak: tuple[str, ...]


def view_of(run: Run, around: Surroundings) -> RunView:
    """Move the run's clocks to now, judge it, and publish it."""
    now = around.now
    speaking = run.speaking(around.gpus)
    checkpoints = run.checkpoints.view(now)
    run.tick(now)
    run.phase.tick(_phase_facts(run, speaking, checkpoints, now))
    seen = _Seen(around, speaking, checkpoints, _blind(run, around), weak_evidence(run, around.gpus, now))
    situation = Situation(
        phase=run.phase.name,
        seen_working=_seen_working(run),
        weak_evidence=bool(seen.weak),
        host_work=_newest(run, ("io", "cpu")) > now - HOST_WORK_SECONDS,
        waiting=_waiting(run),
    )
    facts = _facts(run, seen, situation)
    run.latch_stall(stall_cause(facts) if facts.alive and not facts.done else "", now)
    run.lacks_progress = facts.alive and lacks_progress(facts)
    judgement = judge(facts)
    run.note_state(judgement.state, now)
    words = sentence(facts, judgement, _numbers(run, seen))
    verdict = Verdict(judgement.state, judgement.code, judgement.cause, run.state_since, words)
    return _view(run, seen, facts, verdict)


def weak_evidence(run: Run, gpus: GpuContext, now: float) -> tuple[str, ...]:
    """Words for what moves no clock and still speaks against a hang; held for a minute after it was last seen."""
    found: list[str] = []
    for number, label, process in run.workers.living() if run.present else ():
        tracker = gpus.trackers.get(label or "")
        cores = run.host.cores(process)
        if tracker is not None and _no_kernel(tracker) and cores >= WEAK_RANK_CORES:
            found.append(f"rank {number} uses {cores:.1f} cores without a kernel on its GPU")
            break
    for tracker in run.speaking(gpus):
        if _no_kernel(tracker) and (tracker.effort() or 0.0) >= WORKING_EFFORT and tracker.power_varies():
            found.append(f"GPU {tracker.device.gpu} draws varying power at 0 %")
            break
    if run.log_growth_seconds is not None and now - run.log_growth_seconds <= WEAK_SECONDS:
        found.append("its output grows unread")
    if found:
        run.weak_seconds, run.weak_words = now, tuple(found)
    elif run.weak_seconds is not None and now - run.weak_seconds > WEAK_SECONDS:
        run.weak_seconds, run.weak_words = None, ()
    return run.weak_words


def _no_kernel(tracker: GpuTracker) -> bool:
    utilization = tracker.utilization
    return utilization is not None and utilization < BUSY_RATIO


def _newest(run: Run, signals: tuple[str, ...]) -> float:
    return max((run.signals.get(signal, 0.0) for signal in signals), default=0.0)


def _seen_working(run: Run) -> bool:
    start = run.phase.start_seconds
    return start is not None and _newest(run, WORK_SIGNALS) > start + PHASE_SETTLES_SECONDS


def _waiting(run: Run) -> bool:
    channels = [process.wait_channel for _, _, process in run.workers.living()] if run.present else []
    return any(channel is not None and any(name in channel for name in TERMINAL_WAITS) for channel in channels)


def _phase_facts(run: Run, speaking: list[GpuTracker], checkpoints: CheckpointView | None, now: float) -> PhaseFacts:
    return PhaseFacts(
        now=now,
        worked_seconds=max((tracker.working_seconds for tracker in speaking), default=0.0),
        last_worked_seconds=run.signals.get("gpu"),
        last_step_seconds=run.signals.get("step"),
        gpu_known=bool(speaking),
        growth_seconds=run.checkpoints.last_growth_seconds,
        saving=checkpoints is not None and checkpoints.in_progress,
        start_budget_seconds=phase_budget("starting", run.budgets, run.learner),
    )


def _blind(run: Run, around: Surroundings) -> dict[SourceName, bool]:
    """Per source that once gave this run a signal: whether it fails, or has come back too lately to have shown life."""
    blind: dict[SourceName, bool] = {}
    for source in SOURCES:
        if source in run.gave:
            failed = around.failed_seconds.get(source)
            fails = failed is not None and around.now - failed < SETTLE_SECONDS
            blind[source] = fails or source in around.silent
    if "gpu" in blind and "gpu" in around.running and not any(_answers(run, around.gpus)):
        blind["gpu"] = True
    if "logs" in blind and run.logbook.readable is False:
        blind["logs"] = True
    if "checkpoints" in blind and run.checkpoints.blind:
        blind["checkpoints"] = True
    return blind


def _answers(run: Run, gpus: GpuContext) -> list[bool]:
    """Per GPU of the run whether it is known how it fares; lost is known too."""
    trackers = [gpus.trackers[label] for label in run.gpu_labels if label in gpus.trackers]
    return [tracker.lost or tracker.sample is not None for tracker in trackers]


def _facts(run: Run, seen: _Seen, situation: Situation) -> Facts:
    around, speaking = seen.around, seen.speaking
    now = around.now
    newest = _newest(run, (*PROGRESS_SIGNALS, *WORK_SIGNALS))
    budgets = current_budgets(situation, run.budgets, run.learner)
    levels = run.levels(around.gpus, now)
    efforts = [tracker.mean_effort for tracker in levels]
    known = [effort for effort in efforts if effort is not None]
    complete = bool(known) and len(known) == len(efforts)
    working = [tracker.mean_working for tracker in levels if tracker.mean_working is not None]
    trackers = around.gpus.trackers
    lost = [label for label in run.gpu_labels if label in trackers and trackers[label].lost]
    return Facts(
        now_seconds=now,
        alive=not run.ended and (run.workers.present or run.log_only),
        phase="training" if run.phase.name == "done" else run.phase.name,
        done=run.progress.done,
        outcome=run.outcome(),
        absent="processes" not in run.gave and not run.log_only,
        idle_seconds=_age(run, newest, now),
        no_progress_seconds=_age(run, _newest(run, PROGRESS_SIGNALS), now),
        idle_budget_seconds=budgets[0],
        progress_budget_seconds=budgets[1],
        activity_seconds=newest or None,
        processes_seen="processes" in run.gave,
        gpu_seen="gpu" in run.gave,
        log_seen="logs" in run.gave,
        checkpoints_seen="checkpoints" in run.gave,
        blind=frozenset(source for source, fails in seen.blind.items() if fails or around.settling),
        waiting=situation.waiting,
        ranks_down=len(run.workers.down()),
        gpus_lost=len(lost),
        nonfinite_streak=run.progress.nonfinite_streak or 0,
        memory_lost=run.memory_lost(now),
        stopped_seconds=run.workers.longest("stopped"),
        disk_sleep_seconds=run.workers.longest("disk_sleep"),
        checkpoint_stuck=run.checkpoints.stuck,
        gpus_busy=sum((tracker.utilization or 0.0) >= GPU_BUSY_RATIO for tracker in speaking),
        gpus_working=sum(tracker.worked_at is not None for tracker in speaking),
        mean_effort=sum(known) / len(known) if complete else None,
        least_effort=min(known) if complete else None,
        mean_working=sum(working) / len(working) if working else None,
        stalled_since_seconds=run.stalled_since,
        stall_cause=run.stall_cause,
        no_progress_held=run.lacks_progress,
    )


def observed_since(run: Run) -> float | None:
    """The later of the start of the attempt and of unbroken watching."""
    times = [time for time in (run.workers.start_seconds, run.watched_since) if time is not None]
    return max(times, default=None)


def _age(run: Run, newest: float, now: float) -> float | None:
    """Seconds since the newest move, but never more than since when the run is watched; None when it never is."""
    since = observed_since(run)
    if since is None:
        return None
    return max(0.0, now - max(newest, since))


def _numbers(run: Run, seen: _Seen) -> Numbers:
    around, speaking = seen.around, seen.speaking
    utilizations = [value for value in (tracker.utilization for tracker in speaking) if value is not None]
    start = run.phase.start_seconds
    return Numbers(
        phase_seconds=None if start is None else around.now - start,
        last_phase_seconds=_last_phase(run),
        wall_shift_seconds=around.wall_shift_seconds,
        ages_seconds={signal: max(0.0, around.now - seconds) for signal, seconds in run.signals.items()},
        step=run.progress.step,
        steps_target=run.progress.steps_target,
        validation_ratio=run.progress.validation_ratio,
        utilization=sum(utilizations) / len(utilizations) if utilizations else None,
        bytes_per_second=run.host.io_bytes_per_second() if run.present else None,
        child_cores=run.host.child_cores() if run.present else None,
        reason=run.evidence.reason,
        by_count=not run.progress.done and run.evidence.finished_seconds is None,
        weak=seen.weak,
    )


def _last_phase(run: Run) -> float | None:
    kind = PHASE_KINDS.get(run.phase.name)
    return None if kind is None else run.learner.last(kind)


def _phase_label(run: Run) -> str | None:
    """None on a node of a multi-node run whose own sources never showed a step, validation, epoch or end.

    And after an end that was not announced: the run is in no phase then.
    """
    found = run.discovered
    if run.ended and run.phase.name != "done":
        return None
    if run.progress.shown or found is None:
        return run.phase.name
    local = found.workers_expected
    several = found.world_size is not None and local is not None and found.world_size > local
    return None if several else run.phase.name


def _view(run: Run, seen: _Seen, facts: Facts, verdict: Verdict) -> RunView:
    found, progress, around = run.discovered, run.progress, seen.around
    readable = "processes" in run.gave and not seen.blind["processes"]
    occupancy = around.gpus.occupancy
    alive = facts.alive
    return RunView(
        name=run.name,
        launcher="" if found is None else found.launcher,
        script="" if found is None else found.script,
        job_id="" if found is None else found.job_id,
        node_rank="" if found is None else found.node_rank,
        paging=run.config is None or run.config.page,
        alive=alive,
        verdict=verdict,
        start_seconds=run.workers.start_seconds,
        end_seconds=run.end_seconds,
        observed_since_seconds=observed_since(run),
        processes=run.role_counts() if readable or facts.absent else {},
        workers_expected=None if found is None else found.workers_expected,
        process_states=run.state_counts() if readable else {},
        disk_sleep_seconds=facts.disk_sleep_seconds if readable and alive else None,
        stopped_seconds=facts.stopped_seconds if readable and alive else None,
        cpu_seconds_total={role: run.host.cpu_seconds[role] for role in sorted(run.host.roles_seen)}
        if readable
        else {},
        read_bytes_total=run.host.read_bytes if readable else None,
        written_bytes_total=run.host.written_bytes if readable else None,
        restarts_total=run.restarts_total,
        restarts_without_progress=run.restarts_without_progress,
        outcome=facts.outcome,
        ranks=run.workers.views() if alive and readable else (),
        gpus=run.gpu_labels if alive else (),
        gpu_memory_bytes=_memory(run, around) if alive else {},
        shared_gpus=tuple(label for label in run.gpu_labels if label in occupancy and occupancy[label].outsider),
        log=run.logbook.view(),
        phase=_phase_label(run),
        phase_start_seconds=run.phase.start_seconds,
        phase_progress_ratio=_phase_progress(run),
        step=progress.step,
        steps_target=progress.steps_target,
        steps_total=progress.steps_total,
        epoch=progress.epoch,
        epochs_target=progress.epochs_target,
        step_interval_seconds=run.learner.step_seconds(),
        loss_nonfinite_streak=progress.nonfinite_streak,
        metrics=progress.metrics.newest,
        metrics_updated_seconds=progress.metrics.updated_seconds,
        metrics_nonfinite_total=progress.metrics.nonfinite_total,
        validations_total=progress.validations_total if "logs" in run.gave else None,
        metrics_dropped_total=progress.metrics.dropped_total,
        checkpoints=seen.checkpoints,
        activity_seconds=dict(run.signals),
        budgets_seconds=_budgets(facts),
        blind=seen.blind,
        absent={source: source not in run.gave for source in SOURCES},
        idle_seconds=facts.idle_seconds if alive else None,
        no_progress_seconds=facts.no_progress_seconds if alive else None,
        weak_evidence=seen.weak,
        hints=() if found is None else found.hints,
        last_phase_seconds=_last_phase(run),
    )


def _budgets(facts: Facts) -> dict[str, float]:
    if not facts.alive:
        return {}
    return {"idle": facts.idle_budget_seconds, "progress": facts.progress_budget_seconds}


def _memory(run: Run, around: Surroundings) -> dict[str, int]:
    """Bytes that the run's own processes hold, by GPU, 0 included; absent where the driver's PIDs say nothing."""
    own = {process.pid for process in run.member_processes()}
    memory = {}
    for label in run.gpu_labels:
        there = around.gpus.occupancy.get(label)
        if there is not None and there.by_process:
            memory[label] = sum(size for pid, size in there.memory_by_pid.items() if pid in own)
    return memory


def _phase_progress(run: Run) -> float | None:
    if run.phase.name == "training" and run.progress.step is not None and run.progress.steps_target:
        return min(1.0, run.progress.step / run.progress.steps_target)
    if run.phase.name == "validating":
        return run.progress.validation_ratio
    return None
