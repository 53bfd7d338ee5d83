"""What the judgement remembers over a restart of the exporter: a versioned record that goes into a JSON file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from training_exporter.model import GpuDevice
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
        "runs": {name: run.remember(shift_seconds) for name, run in runs.items()},
        "gpus": {tracker.device.uuid: tracker.remember(shift_seconds) for tracker in gpus.values()},
    }


class Recollection:
    """What was remembered, handed out piece by piece; a piece that does not fit is left out with a warning."""

    def __init__(self, memory: Mapping[str, Any] | None) -> None:
        self.time_seconds: float | None = None
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
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("the remembered state cannot be read, ignored: %s: %s", type(error).__name__, error)
            self.time_seconds = None

    def run_names(self) -> tuple[str, ...]:
        return tuple(self._runs)

    def restore_run(self, run: Run) -> bool:
        """Fill a fresh run; False, and the run must be thrown away, when its memory does not fit."""
        return self._restore(f"run {run.name}", self._runs.get(run.name), run)

    def gpu(self, device: GpuDevice) -> GpuTracker:
        """A tracker that knows what was learnt of this device."""
        tracker = GpuTracker(device)
        memory = self.gpus.get(device.uuid)
        if memory is not None and not self._restore(f"GPU {device.gpu}", memory, tracker):
            return GpuTracker(device)
        return tracker

    def _restore(self, what: str, memory: Any, target: Run | GpuTracker) -> bool:  # noqa: ANN401 - out of a JSON file
        try:
            target.restore(memory)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            logger.warning("what was remembered of %s does not fit, ignored: %s: %s", what, type(error).__name__, error)
            return False
        return True
