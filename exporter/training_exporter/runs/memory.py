"""What the judgement remembers over a restart of the exporter: a versioned record that goes into a JSON file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from training_exporter.model import CheckpointTarget, DiscoveredRun, GpuDevice, LogTarget
from training_exporter.runs.checkpoints import CheckpointTracker
from training_exporter.runs.gpus import GpuTracker
from training_exporter.runs.run import Run

VERSION = 1
# A gap in the watching longer than this begins a new one (the metric training_run_observed_since_...).
GAP_SECONDS = 60.0

logger = logging.getLogger(__name__)


def remember(
    now_seconds: float, shift_seconds: float, runs: Mapping[str, Run], gpus: Mapping[str, GpuTracker]
) -> dict[str, Any]:
    """A JSON-able record; all times in it are wall-clock Unix seconds."""
    return {
        "version": VERSION,
        "time": now_seconds + shift_seconds,
        "runs": {name: remember_run(run, shift_seconds) for name, run in runs.items()},
        "gpus": {tracker.device.uuid: tracker.remember(shift_seconds) for tracker in gpus.values()},
    }


class Recollection:
    """What was remembered, handed out piece by piece; a piece that does not fit is left out with a warning."""

    def __init__(self, memory: Mapping[str, Any] | None) -> None:
        self.time_seconds: float | None = None
        self.owners: dict[str, str] = {}  # gpu -> the run that its training power was learnt from
        self._runs: Mapping[str, Any] = {}
        self.gpus: Mapping[str, Any] = {}  # by UUID
        if memory is None:
            return
        try:
            if memory["version"] != VERSION:
                logger.warning("the remembered state is of version %r, not %d: ignored", memory["version"], VERSION)
                return
            self.time_seconds = float(memory["time"])
            self._runs = dict(memory["runs"])
            self.gpus = dict(memory["gpus"])
            self.owners = {str(gpu): str(run) for gpu, run in memory["owners"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("the remembered state cannot be read, ignored: %s: %s", type(error).__name__, error)
            self.time_seconds = None

    def run_names(self) -> tuple[str, ...]:
        return tuple(self._runs)

    def restore_run(self, run: Run) -> bool:
        """Fill a fresh run; False, and the run must be thrown away, when its memory does not fit."""
        return _fits(f"run {run.name}", lambda: restore_run(run, self._runs[run.name]))

    def gpu(self, device: GpuDevice) -> GpuTracker:
        """A tracker that knows what was learnt of this device."""
        tracker = GpuTracker(device)
        memory = self.gpus.get(device.uuid)
        if memory is not None and not _fits(f"GPU {device.gpu}", lambda: tracker.restore(memory)):
            return GpuTracker(device)
        return tracker


def remember_run(run: Run, shift_seconds: float) -> dict[str, Any]:
    """One run as a JSON-able record with wall-clock times."""

    def wall(time: float | None) -> float | None:
        return None if time is None else time + shift_seconds

    return {
        "workers": run.workers.remember(shift_seconds),
        "learner": run.learner.remember(shift_seconds),
        "phase": run.phase.remember(shift_seconds),
        "progress": run.progress.remember(shift_seconds),
        "logbook": run.logbook.remember(shift_seconds),
        "evidence": run.evidence.remember(shift_seconds),
        "checkpoint_intervals": run.checkpoints.intervals,
        "signals": {signal: time + shift_seconds for signal, time in run.signals.items()},
        "gave": sorted(run.gave),
        "watched_since": wall(run.watched_since),
        "end": wall(run.end_seconds),
        "restarts_total": run.restarts_total,
        "restarts_without_progress": run.restarts_without_progress,
        "farthest": run.farthest,
        "weak": [wall(run.weak_seconds), *run.weak_words],
        "stalled_since": wall(run.stalled_since),
        "stall_cause": run.stall_cause,
        "lacks_progress": run.lacks_progress,
        "state": run.state,
        "state_since": wall(run.state_since),
        "gpus": run.gpu_labels,
        "provisional": run.provisional,
        "identity": _identity(run),
    }


def restore_run(run: Run, memory: Mapping[str, Any]) -> None:
    """Fill a fresh run. Raises KeyError, TypeError or ValueError when the record does not fit."""
    run.workers.restore(memory["workers"])
    run.learner.restore(memory["learner"])
    run.phase.restore(memory["phase"])
    run.progress.restore(memory["progress"])
    run.logbook.restore(memory["logbook"])
    run.evidence.restore(memory["evidence"])
    run.checkpoints = CheckpointTracker(memory["checkpoint_intervals"])
    run.signals = {str(signal): float(time) for signal, time in memory["signals"].items()}
    run.gave = set(memory["gave"])
    run.watched_since = memory["watched_since"]
    run.end_seconds = memory["end"]
    run.workers.present = run.end_seconds is None and "processes" in run.gave  # until a table says otherwise
    run.restarts_total = int(memory["restarts_total"])
    run.restarts_without_progress = int(memory["restarts_without_progress"])
    farthest = memory["farthest"]
    run.farthest = None if farthest is None else (float(farthest[0]), int(farthest[1]))
    run.weak_seconds, *words = memory["weak"]
    run.weak_words = tuple(words)
    run.stalled_since = memory["stalled_since"]
    run.stall_cause = str(memory["stall_cause"])
    run.lacks_progress = bool(memory["lacks_progress"])
    run.state = str(memory["state"])
    run.state_since = memory["state_since"]
    run.gpu_labels = tuple(memory["gpus"])
    run.provisional = bool(memory["provisional"])
    if memory["identity"] is not None:
        run.discovered = _identified(run.name, memory["identity"])


def _identity(run: Run) -> dict[str, Any] | None:
    """What the run was called, and where its files are: it may have ended while no exporter looked."""
    found = run.discovered
    if found is None:
        return None
    return {
        "launcher": found.launcher,
        "script": found.script,
        "job_id": found.job_id,
        "node_rank": found.node_rank,
        "logs": [asdict(target) for target in found.log_targets],
        "error_files": [asdict(target) for target in found.error_files],
        "checkpoints": [asdict(target) for target in found.checkpoint_targets],
    }


def _identified(name: str, memory: Mapping[str, Any]) -> DiscoveredRun:
    return DiscoveredRun(
        name=name,
        launcher=str(memory["launcher"]),
        script=str(memory["script"]),
        job_id=str(memory["job_id"]),
        node_rank=str(memory["node_rank"]),
        log_targets=tuple(LogTarget(**target) for target in memory["logs"]),
        error_files=tuple(LogTarget(**target) for target in memory.get("error_files", ())),
        checkpoint_targets=tuple(CheckpointTarget(**target) for target in memory["checkpoints"]),
    )


def _fits(what: str, restore: Callable[[], None]) -> bool:
    try:
        restore()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        logger.warning("what was remembered of %s does not fit, ignored: %s: %s", what, type(error).__name__, error)
        return False
    return True
