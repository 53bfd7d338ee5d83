"""Nodes as a scraper sees them, minute by minute, for rule tests too bulky to write down series by series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rule_player import JOB, Recording

STEP_SECONDS = 60
START_SECONDS = 1_000_000  # the nodes' clocks are far from Prometheus's, which begins at 0
PROGRESS = frozenset({"step", "validation", "checkpoint", "log"})
PHASES = ("starting", "training", "validating", "checkpointing", "done")
# How a GPU looks: seconds busy and working of each second, effort.
LOOKS: Mapping[str, tuple[float, float, float]] = {"works": (1, 0.95, 0.95), "spins": (1, 0, 0.05), "rests": (0, 0, 0)}


@dataclass(slots=True)
class Share:
    """What one node sees of one run; fields are the values of now and may be set between two calls of `pass_`."""

    run: str
    ranks: range
    gpus: Mapping[int, str] = field(default_factory=dict)  # rank -> GPU
    processes: int = 0
    started: float = 0
    observed_since: float = 0
    phase: str | None = None
    idle_budget: int = 600
    progress_budget: int = 3600
    outcome: str | None = None
    blind: dict[str, int] = field(default_factory=dict)
    absent: dict[str, int] = field(default_factory=dict)
    activity: dict[str, float] = field(default_factory=dict)
    rank_up: dict[int, int] = field(default_factory=dict)


class Node:
    """One target: GPUs, and shares of runs. Time passes only through `pass_`."""

    def __init__(self, name: str, gpus: int = 8, *, skew_seconds: int = 0) -> None:
        self.name = name
        self.gpus = [str(gpu) for gpu in range(gpus)]
        self.looks = dict.fromkeys(self.gpus, "works")
        self.lost: set[str] = set()
        self.scraped = True
        self.shares: dict[str, Share] = {}
        self._busy = dict.fromkeys(self.gpus, 0.0)
        self._working = dict.fromkeys(self.gpus, 0.0)
        self._last_working: dict[str, float] = {}
        self._now = START_SECONDS + skew_seconds
        self._tick = 0
        self._series: defaultdict[str, dict[int, str]] = defaultdict(dict)

    def share(self, run: str, ranks: Iterable[int], *, gpus: bool = True, phase: str | None = "training") -> Share:
        """Start a run's ranks here now, one per GPU; without `phase` this node never sees the log."""
        numbers = list(ranks)
        share = Share(run, range(numbers[0], numbers[-1] + 1), processes=len(numbers) + 1, phase=phase)
        share.gpus = dict(zip(share.ranks, self.gpus, strict=False)) if gpus else {}
        share.started = share.observed_since = self._now
        share.rank_up = dict.fromkeys(share.ranks, 1)
        self.shares[run] = share
        return share

    def pass_(self, minutes: int, *moving: str, run: str | None = None) -> None:
        """Let time pass; `moving` are the signals that move in it, of one run or of all."""
        for _ in range(minutes):
            for share in self.shares.values():
                if run in (None, share.run):
                    share.activity.update(dict.fromkeys(moving, self._now))
            self._spend()
            self._record()
            self._tick += 1
            self._now += STEP_SECONDS

    def recording(self) -> Recording:
        """All that was recorded."""
        return Recording(dict(self._series), self._tick, STEP_SECONDS)

    def _spend(self) -> None:
        for gpu, look in self.looks.items():
            busy, working, _ = LOOKS[look]
            self._busy[gpu] += busy * STEP_SECONDS
            self._working[gpu] += working * STEP_SECONDS
            if working:
                self._last_working[gpu] = self._now

    def _record(self) -> None:
        self._put("up", {}, int(self.scraped))
        if not self.scraped:
            return
        self._put("training_exporter_time_seconds", {}, self._now)
        for gpu in self.gpus:
            self._record_gpu(gpu)
        for share in self.shares.values():
            self._record_share(share)

    def _record_gpu(self, gpu: str) -> None:
        self._put("training_gpu_lost", {"gpu": gpu}, int(gpu in self.lost))
        if gpu in self.lost:
            return
        self._put("training_gpu_busy_seconds_total", {"gpu": gpu}, self._busy[gpu])
        self._put("training_gpu_working_seconds_total", {"gpu": gpu}, self._working[gpu])
        self._put("training_gpu_effort_ratio", {"gpu": gpu}, LOOKS[self.looks[gpu]][2])
        if gpu in self._last_working:
            self._put("training_gpu_last_working_timestamp_seconds", {"gpu": gpu}, self._last_working[gpu])

    def _record_share(self, share: Share) -> None:
        run = {"run": share.run}
        self._put("training_run_paging", run, 1)
        self._put("training_run_start_time_seconds", run, share.started)
        self._put("training_run_observed_since_timestamp_seconds", run, share.observed_since)
        workers = max(0, share.processes - 1)
        self._put("training_run_processes", run | {"role": "launcher"}, share.processes - workers)
        self._put("training_run_processes", run | {"role": "worker"}, workers)
        for outcome in ("finished", "failed", "cancelled", "unknown"):
            self._put("training_run_outcome", run | {"outcome": outcome}, int(share.outcome == outcome))
        for rank, gpu in share.gpus.items():
            self._put("training_run_gpu_info", run | {"gpu": gpu}, 1)
            labels = {"rank": str(rank), "local_rank": str(rank - share.ranks.start), "gpu": gpu}
            self._put("training_rank_info", run | labels, 1)
        for rank, up in share.rank_up.items():
            self._put("training_rank_up", run | {"rank": str(rank)}, up)
        self._record_judgement(share, run)

    def _record_judgement(self, share: Share, run: dict[str, str]) -> None:
        if share.phase:
            for phase in PHASES:
                self._put("training_phase", run | {"phase": phase}, int(phase == share.phase))
        for signal, time in share.activity.items():
            self._put("training_activity_timestamp_seconds", run | {"signal": signal}, time)
        for budget, seconds in (("idle", share.idle_budget), ("progress", share.progress_budget)):
            self._put("training_budget_seconds", run | {"budget": budget}, seconds)
        for name, values in (("training_run_blind", share.blind), ("training_run_absent", share.absent)):
            for source, value in values.items():
                self._put(name, run | {"source": source}, value)

    def _put(self, name: str, labels: Mapping[str, str], value: float) -> None:
        text = ",".join(f'{key}="{word}"' for key, word in {**labels, "job": JOB, "instance": self.name}.items())
        self._series[f"{name}{{{text}}}"][self._tick] = f"{value:g}" if isinstance(value, int) else repr(value)
