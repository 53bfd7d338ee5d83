"""The newest value of every quality metric that the log of a run printed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from training_exporter.model import LogEvent
from training_exporter.runs.view import MetricValue

# Per-class tables and per-task evaluations explode; more names than this of one run are counted, not kept.
METRIC_NAMES_LIMIT = 200
SPLITS = {"train": "train", "val": "validation", "test": "test"}

Key = tuple[str, str]  # split, normalised name


class MetricValues:
    """Values by split and name, over the whole life of a run.

    The mappings that are published are replaced, never changed: an older picture of the node may still hold them.
    """

    def __init__(self) -> None:
        self.newest: Mapping[Key, MetricValue] = {}
        self.updated_seconds: Mapping[str, float] = {}
        self.nonfinite_total: Mapping[str, int] = {}
        self.dropped_total = 0

    def observe(self, events: Sequence[LogEvent], *, counting: bool) -> None:
        """Take the events of one batch that have metrics; without `counting`, what is not finite counts nothing."""
        if not events:
            return
        fresh = _newest(events)
        if len(fresh.keys() | self.newest.keys()) > METRIC_NAMES_LIMIT:
            fresh = self._admitted(events, fresh)
        updated, nonfinite = dict(self.updated_seconds), dict(self.nonfinite_total)
        for event in events:
            split = split_of(event)
            updated[split] = event.time_seconds
            values = event.metrics.values()
            wrong = 0 if not counting or all(map(math.isfinite, values)) else sum(not math.isfinite(v) for v in values)
            nonfinite[split] = nonfinite.get(split, 0) + wrong
        self.newest = {**self.newest, **fresh}
        self.updated_seconds, self.nonfinite_total = updated, nonfinite

    def _admitted(self, events: Sequence[LogEvent], fresh: Mapping[Key, MetricValue]) -> dict[Key, MetricValue]:
        """Of the new names those that came first, as many as there is room for; the others are counted."""
        known = set(self.newest)
        for key in chain.from_iterable(((split_of(event), name) for name in event.metrics) for event in events):
            if key in known or len(known) < METRIC_NAMES_LIMIT:
                known.add(key)
            else:
                self.dropped_total += 1
        return {key: value for key, value in fresh.items() if key in known}

    def remember(self, shift_seconds: float) -> dict[str, Any]:
        return {
            "metrics": [
                [split, name, value.value, value.time_seconds + shift_seconds]
                for (split, name), value in self.newest.items()
                if math.isfinite(value.value)
            ],
            "nonfinite": self.nonfinite_total,
            "updated": {split: time + shift_seconds for split, time in self.updated_seconds.items()},
        }

    def restore(self, memory: Mapping[str, Any]) -> None:
        self.newest = {(split, name): MetricValue(value, time) for split, name, value, time in memory["metrics"]}
        self.nonfinite_total = dict(memory["nonfinite"])
        self.updated_seconds = dict(memory["updated"])


def split_of(event: LogEvent) -> str:
    """The label of the split that an event's metrics belong to."""
    return SPLITS[event.split or "train"]


def _newest(events: Sequence[LogEvent]) -> dict[Key, MetricValue]:
    """From the last event back, since a log that is read in one go repeats the same names thousands of times."""
    seen: dict[str, set[str]] = {}
    found: dict[Key, MetricValue] = {}
    for event in reversed(events):
        split = split_of(event)
        names = seen.setdefault(split, set())
        if event.metrics.keys() <= names:
            continue
        for name, value in event.metrics.items():
            if name not in names:
                names.add(name)
                found[split, name] = MetricValue(value, event.time_seconds)
    return found
