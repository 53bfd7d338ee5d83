"""The upper part of the run dashboard: the verdict, and every fact that it rests on."""

from __future__ import annotations

from boards.board import node_link
from boards.panels import (
    ACT,
    CALM,
    NOT_AVAILABLE_MAPPING,
    NOTE,
    PLAIN,
    Field,
    Head,
    Json,
    bands,
    column,
    fixed,
    now,
    override,
    series,
    stat,
    state_mappings,
    table,
    target,
    thresholds,
    value_mappings,
)
from boards.queries import HERE, RUN, RUN_STATE, age, or_not_available, state
from training_exporter.runs.verdict import NONFINITE_RECORDS, STALL_CAUSES, STUCK_SECONDS

IDLE = f"max by (run) (run:training_idle:seconds{RUN})"
NO_PROGRESS = f"max by (run) (run:training_no_progress:seconds{RUN})"
NONE = f"max by (run) ({RUN_STATE}) * 0"
# From here on half of what the run may take is gone.
SHARE = thresholds((0.5, NOTE), (1, ACT))
# The first that matches is the cause, in this order; 0 is no stall.
CAUSES = tuple(enumerate(STALL_CAUSES, start=1))
STALLED = {
    "stopped": "A process is stopped",
    "storage": "Storage does not answer",
    "collective": "A collective never completes",
    "host": "The processes wait",
}
NEVER = 2
PROGRESS = "step|validation|checkpoint|log"


def budget(which: str) -> str:
    """The run's budget, in seconds."""
    return f'max by (run) (run:training_budget:seconds{{run="$run", budget="{which}"}})'


def verdict() -> Json:
    """What the rules make of the run, as word and colour."""
    return stat(
        Head(
            10,
            "Verdict",
            "What the rules make of all nodes of this run. Validating with idle GPUs is fine; Stalled is alive and "
            "silent past its budget; Degraded has lost a rank, a GPU, its memory or a finite loss.",
            "No series of this run",
        ),
        [now(state(RUN), "{{run}}")],
        Field(unit="none", mappings=state_mappings()),
        fill=True,
    )


def silent_for() -> Json:
    """The silence of the run."""
    return stat(
        Head(
            11,
            "Silent for",
            "Time since anything of the run moved: progress, GPU work, reading, writing or computing, on any node.",
            "No sign of life recorded",
        ),
        [now(IDLE, "silent"), now(budget("idle"), "allowed")],
        Field(unit="s"),
    )


def silence_used_up() -> Json:
    """The silence against its budget."""
    return stat(
        Head(
            12,
            "Silence used up",
            "Silence as a share of what this phase may take, learnt from the run or configured. At 100 % the run "
            "is stalled and TrainingStalled pages.",
            "No budget recorded",
        ),
        [now(f"{IDLE} / on (run) {budget('idle')}")],
        Field(unit="percentunit", limits=SHARE, decimals=0),
    )


def progress_used_up() -> Json:
    """The lack of progress against its budget."""
    return stat(
        Head(
            13,
            "No progress, used up",
            "Time since a step, validation result, checkpoint byte or new log line, as a share of what this phase "
            "may take. At 100 % a run that is still busy makes no progress.",
            "No budget recorded",
        ),
        [now(f"{NO_PROGRESS} / on (run) {budget('progress')}")],
        Field(unit="percentunit", limits=SHARE, decimals=0),
    )


def done() -> Json:
    """Steps done of those announced."""
    return stat(
        Head(
            14,
            "Done",
            "Step of the announced number of steps, on the scale of the log: of the epoch where the log counts so.",
            "No step read",
        ),
        [now(or_not_available(f"max(training_step{RUN}) / max(training_steps_target{RUN}) <= 1", RUN_STATE, ""))],
        Field(unit="percentunit", mappings=[NOT_AVAILABLE_MAPPING], decimals=1),
    )


def at_risk() -> Json:
    """What is lost if the run ends now."""
    return stat(
        Head(
            15,
            "GPU time at risk",
            "GPU-hours since the last complete checkpoint, or since the workers started: lost if the run ends now.",
            "No GPU or start known",
        ),
        [now(f"max by (run) (run:training_at_risk:gpu_seconds{RUN}) / 3600", "GPU-hours")],
        Field(unit="suffix: GPU-h", decimals=1),
    )


def states() -> Json:
    """The run and each of its nodes over time."""
    return bands(
        Head(
            20,
            "State of the run and of each node",
            "The first band is the verdict on the whole run, each other one what that node sees by itself. A band "
            "that differs from the rest is the node to look at.",
            "No series of this run in this time",
        ),
        [
            target(state(RUN), "whole run"),
            target(f"max by (instance) (training_run_state_code{HERE})", "{{instance}}"),
        ],
        Field(mappings=state_mappings(), links=[node_link("${__field.labels.instance:percentencode}")]),
    )


def cause() -> Json:
    """Why the run is stalled."""
    return stat(
        Head(
            32,
            "Cause of the stall",
            "Fixed when the stall begins. Stopped and storage come from the kernel; collective: GPUs are resident "
            "without working; host: the processes wait without a GPU.",
            "No series of this run",
        ),
        [now(_causes())],
        Field(
            unit="none",
            mappings=value_mappings(
                (0, "No stall", PLAIN), *((number, STALLED[cause], ACT) for number, cause in CAUSES)
            ),
        ),
    )


def hard_facts() -> Json:
    """What makes a run stalled or degraded by itself."""
    return stat(
        Head(
            33,
            "Facts that do not wait for a budget",
            "Each of these makes the run degraded or stalled by itself: a rank gone, a GPU lost, three records in "
            "a row with a loss that is not finite, a process stopped or in disk sleep for five minutes.",
            "No series of this run",
        ),
        [
            now(f"max by (run) (run:training_ranks_lost:count{RUN}) or {NONE}", "ranks lost"),
            now(f"max by (run) (run:training_gpus_lost:count{RUN}) or {NONE}", "GPUs lost"),
            now(f"max by (run) (training_loss_nonfinite_streak{RUN}) or {NONE}", "losses not finite"),
            now(f"max by (run) (run:training_stopped:seconds{RUN}) or {NONE}", "stopped"),
            now(f"max by (run) (run:training_disk_sleep:seconds{RUN}) or {NONE}", "disk sleep"),
        ],
        Field(unit="none", limits=thresholds((1, ACT), base="text")),
        overrides=[
            override("losses not finite", thresholds=thresholds((NONFINITE_RECORDS, ACT), base="text")),
            override("stopped", unit="s", thresholds=thresholds((STUCK_SECONDS, ACT), base="text")),
            override("disk sleep", unit="s", thresholds=thresholds((STUCK_SECONDS, ACT), base="text")),
        ],
    )


def sight() -> Json:
    """Which source can be seen."""
    return bands(
        Head(
            34,
            "What can be seen",
            "Per source: seen, blind (it gave this run a signal before and fails now), or never there. A blind "
            "source lowers the certainty of the verdict and mutes pages that need it.",
            "No series of this run in this time",
        ),
        [
            target(
                f"max by (source) (run:training_blind:bool{RUN})"
                f" or max by (source) (training_run_absent{RUN} == 1) * {NEVER}",
                "{{source}}",
            )
        ],
        Field(mappings=value_mappings((0, "Seen", CALM), (1, "BLIND", ACT), (NEVER, "Never there", PLAIN))),
    )


def signs_of_life() -> Json:
    """Every signal with its age."""
    moved = age(f"training_activity_timestamp_seconds{RUN}", "signal")
    kind = (
        f'label_replace(label_replace({moved}, "kind", "activity", "", ""), "kind", "progress", "signal", "{PROGRESS}")'
    )
    return table(
        Head(
            30,
            "Signs of life",
            "When each sign last moved, the newest first. The newest of all is the silence, the newest of progress the "
            "lack of progress; older ones do not matter. A sign that is not listed never moved.",
            "No sign of life recorded",
        ),
        [column(kind)],
        names={"signal": "Sign", "kind": "Kind", "Value": "Moved ago"},
        overrides=[override("Moved ago", unit="s")],
        sort=("Moved ago", "asc"),
    )


def silence() -> Json:
    """Both clocks as shares of their budgets over time."""
    return series(
        Head(
            31,
            "Silence and lack of progress, of what is allowed",
            "A line that rises without a break is a run in which nothing moves. A slow validation that reads, computes "
            "or prints falls back to 0 again and again; a dead one crosses 100 %.",
            "No sign of life recorded",
        ),
        [
            target(f"{IDLE} / on (run) {budget('idle')}", "silence"),
            target(f"{NO_PROGRESS} / on (run) {budget('progress')}", "lack of progress"),
        ],
        Field("percentunit", least=0, soft_most=1.1, limits=thresholds((1, ACT), base="transparent")),
        overrides=[
            override("silence", color=fixed(ACT), custom__fillOpacity=20),
            override("lack of progress", color=fixed(CALM)),
        ],
    )


def _causes() -> str:
    arms = [
        f'max by (run) (run:training_stall_cause:timestamp_seconds{{run="$run", cause="{cause}"}}) * 0 + {number}'
        for number, cause in CAUSES
    ]
    return " or ".join([*arms, NONE])
