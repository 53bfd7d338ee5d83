"""The state of one run as this node sees it: ordered rules over one record of facts, the first match wins.

The rules in `prometheus/rules/` say the same in PromQL over the raw series; the scenario corpus runs through both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Append-only; larger = worse. 0 is no data and no state.
CODES: Mapping[str, int] = {
    "absent": 5,
    "finished": 10,
    "ended": 15,
    "starting": 20,
    "training": 30,
    "validating": 40,
    "checkpointing": 50,
    "quiet": 60,
    "unknown": 65,
    "no_progress": 70,
    "stalled": 80,
    "degraded": 90,
    "failed": 100,
}
STATES: Mapping[str, str] = {
    "absent": "Absent",
    "finished": "Finished",
    "ended": "Ended",
    "starting": "Starting",
    "training": "Training",
    "validating": "Validating",
    "checkpointing": "Checkpointing",
    "quiet": "Quiet",
    "unknown": "Unknown",
    "no_progress": "No progress",
    "stalled": "Stalled",
    "degraded": "Degraded",
    "failed": "Failed",
}
STALL_CAUSES = ("stopped", "storage", "collective", "host")
DEGRADED_CAUSES = ("rank", "gpu", "loss", "memory")

QUIET_SECONDS = 60.0
UNKNOWN_SECONDS = 120.0
# A stopped rank, or one in D, does not wait for the budget.
STUCK_SECONDS = 300.0
# The kernel's own hung-task window (kernel/hung_task.c, khungtaskd).
STORAGE_SECONDS = 120.0
STOPPED_SECONDS = 60.0
NONFINITE_RECORDS = 3
# A silent log is no lack of progress while the GPUs work as in training.
TRAINING_EFFORT = 0.5
SPINNING_EFFORT = 0.15


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the verdict may look at. None = unknown; times are ages in seconds unless they are named otherwise."""

    now_seconds: float
    alive: bool
    phase: str = "starting"
    done: bool = False  # an end marker was read
    outcome: str | None = None  # after the end
    absent: bool = False  # expected, and not here

    idle_seconds: float | None = None
    no_progress_seconds: float | None = None
    idle_budget_seconds: float = 600.0
    progress_budget_seconds: float = 3600.0
    activity_seconds: float | None = None  # time of the newest activity

    processes_seen: bool = True
    gpu_seen: bool = True
    log_seen: bool = True
    checkpoints_seen: bool = True
    blind: frozenset[str] = frozenset()
    waiting: bool = False  # a rank reads from a terminal

    ranks_down: int = 0
    gpus_lost: int = 0
    nonfinite_streak: int = 0
    memory_lost: bool = False  # a live rank's GPU memory fell to 0 while its peers hold theirs
    stopped_seconds: float = 0.0
    disk_sleep_seconds: float = 0.0
    checkpoint_stuck: bool = False
    gpus_busy: int = 0  # of those that speak for the run
    gpus_working: int = 0
    mean_effort: float | None = None
    least_effort: float | None = None
    mean_working: float | None = None  # share of time that the GPUs worked, where the effort is unknown

    stalled_since_seconds: float | None = None  # time since when the latched stall holds
    stall_cause: str = ""
    no_progress_held: bool = False  # the run made no progress at the verdict before


@dataclass(frozen=True, slots=True)
class Judgement:
    """State and cause of a run."""

    state: str
    cause: str = ""

    @property
    def code(self) -> int:
        return CODES[self.state]


def judge(facts: Facts) -> Judgement:
    """The state of the run, by the first rule that matches."""
    if facts.done or facts.outcome == "finished":
        return Judgement("finished")
    if not facts.alive:
        return Judgement(_gone(facts))
    degraded = _degraded(facts)
    if degraded:
        return Judgement("degraded", degraded)
    cause = stall_cause(facts)
    if cause:
        return Judgement("stalled", cause)
    blind = _blind_state(facts)
    return Judgement(blind or _living_state(facts))


def stall_cause(facts: Facts) -> str:
    """Why the run is stalled; "" while it is not. A stall once begun ends only by activity and keeps its cause."""
    began = facts.stalled_since_seconds
    if began is not None and (facts.activity_seconds is None or facts.activity_seconds <= began):
        return facts.stall_cause
    if not _stalls(facts) or {"gpu", "processes"} & facts.blind:
        return ""
    return _cause(facts)


def seconds_to_stall(
    idle_seconds: float, budget_seconds: float, stopped_seconds: float, disk_sleep_seconds: float
) -> float:
    """How much longer nothing may move before the run stalls, if its processes stay as they are; 0 and less: it does.

    A rank that stopped, or waits for storage, counts as soon as it could be named as the cause.
    """
    stuck = max(
        stopped_seconds if stopped_seconds >= STOPPED_SECONDS else 0.0,
        disk_sleep_seconds if disk_sleep_seconds >= STORAGE_SECONDS else 0.0,
    )
    left = budget_seconds - idle_seconds
    if not stuck or idle_seconds <= QUIET_SECONDS:
        return left
    return min(left, max(STUCK_SECONDS - idle_seconds, STUCK_SECONDS - stuck))


def lacks_progress(facts: Facts) -> bool:
    """Whether the run makes no progress. Blind logs or checkpoints keep it from beginning, not from going on."""
    return _overdue(facts) and (facts.no_progress_held or not {"logs", "checkpoints"} & facts.blind)


def is_training_level(facts: Facts) -> bool:
    """Whether the GPUs work as they do in training, none of them spinning."""
    if facts.mean_effort is not None:
        return facts.mean_effort >= TRAINING_EFFORT and (facts.least_effort or 0.0) >= SPINNING_EFFORT
    return facts.mean_working is not None and facts.mean_working >= TRAINING_EFFORT


def _gone(facts: Facts) -> str:
    if facts.absent:
        return "absent"
    return "failed" if facts.outcome == "failed" else "ended"


def _degraded(facts: Facts) -> str:
    if facts.ranks_down:
        return "rank"
    if facts.gpus_lost:
        return "gpu"
    if facts.nonfinite_streak >= NONFINITE_RECORDS:
        return "loss"
    return "memory" if facts.memory_lost else ""


def _stalls(facts: Facts) -> bool:
    idle = facts.idle_seconds
    if idle is None or not facts.processes_seen or not (facts.gpu_seen or facts.log_seen):
        return False
    if idle > facts.idle_budget_seconds:
        return True
    stuck = max(facts.stopped_seconds, facts.disk_sleep_seconds)
    return idle > STUCK_SECONDS and stuck >= STUCK_SECONDS


def _cause(facts: Facts) -> str:
    if facts.stopped_seconds >= STOPPED_SECONDS:
        return "stopped"
    if facts.disk_sleep_seconds >= STORAGE_SECONDS or facts.checkpoint_stuck:
        return "storage"
    return "collective" if facts.gpus_busy and not facts.gpus_working else "host"


def _overdue(facts: Facts) -> bool:
    """No progress past its budget, where that says something."""
    since = facts.no_progress_seconds
    if since is None or since <= facts.progress_budget_seconds or not facts.processes_seen:
        return False
    return (facts.log_seen or facts.checkpoints_seen) and not is_training_level(facts)


def _blind_state(facts: Facts) -> str:
    """NO_PROGRESS, or UNKNOWN where a blind source is needed to say more; "" where neither holds."""
    if lacks_progress(facts):
        return "no_progress"
    if (facts.idle_seconds or 0.0) <= UNKNOWN_SECONDS:
        return ""
    return "unknown" if {"gpu", "processes"} & facts.blind or _overdue(facts) else ""


def _living_state(facts: Facts) -> str:
    if facts.waiting or (facts.idle_seconds or 0.0) > QUIET_SECONDS:
        return "quiet"
    return facts.phase
