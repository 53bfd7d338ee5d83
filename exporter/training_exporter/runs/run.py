"""One run on this node, from its first process or log line until it is forgotten: what it did, and its clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from training_exporter.config import Budgets, RunConfig
from training_exporter.model import DirectoryListing, DiscoveredRun, LogBatch, ProcessRecord, SourceName
from training_exporter.runs.activity import ROLES, HostWork
from training_exporter.runs.budgets import Learner
from training_exporter.runs.checkpoints import CheckpointTracker
from training_exporter.runs.gpus import GpuTracker
from training_exporter.runs.logbook import Logbook
from training_exporter.runs.occupancy import Occupancy
from training_exporter.runs.outcome import OOM_SECONDS, Evidence
from training_exporter.runs.phase import PhaseClock
from training_exporter.runs.progress import LogProgress, Moves
from training_exporter.runs.workers import WorkerSet, process_states

# An ended run is remembered for an hour.
REMEMBERED_SECONDS = 3600.0
# A run that is known by its log alone is over when that shows an end and then nothing for so long.
LOG_END_SECONDS = 60.0
PROGRESS_SIGNALS = ("step", "validation", "checkpoint", "log")
WORK_SIGNALS = ("gpu", "io", "cpu")
# A log that was found is read within its source's deadline, or it is said why not.
OPENING_SECONDS = 10.0
# A live rank whose GPU memory is gone for this long has lost its context.
MEMORY_LOST_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class GpuContext:
    """The GPUs of the node at a tick, as the runs see them."""

    trackers: Mapping[str, GpuTracker]
    occupancy: Mapping[str, Occupancy]


class Run:
    """State of one run. Feed it what concerns it, then `tick` it; `picture.view_of` publishes it."""

    def __init__(self, name: str, config: RunConfig | None, uncounted: Callable[[ProcessRecord], bool]) -> None:
        self.name = name
        self.config = config
        self.discovered: DiscoveredRun | None = None  # as last seen
        self.present = False  # in the newest table
        self.provisional = False
        self.host = HostWork(uncounted)
        self.workers = WorkerSet()
        self.learner = Learner()
        self.phase = PhaseClock(self.learner)
        self.progress = LogProgress()
        self.logbook = Logbook()
        self.evidence = Evidence()
        self.checkpoints = CheckpointTracker()
        self.signals: dict[str, float] = {}
        self.gave: set[SourceName] = set()
        self.watched_since: float | None = None
        self.end_seconds: float | None = None
        self.oom_seconds: float | None = None  # when the kernel last killed a process of this node for lack of memory
        self.restarts_total = 0
        self.restarts_without_progress = 0
        self.farthest: tuple[float, int] | None = None  # (epoch, step) of all worker sets before
        self.stalled_since: float | None = None
        self.stall_cause = ""
        self.lacks_progress = False  # as of the last verdict
        self.state = ""
        self.state_since: float | None = None
        self.weak_seconds: float | None = None  # when weak evidence was last seen, and its words
        self.weak_words: tuple[str, ...] = ()
        self.log_growth_seconds: float | None = None  # when an unread descriptor last grew
        self.gpu_labels: tuple[str, ...] = ()
        self._positions: dict[tuple[int, int], int] = {}
        self._looked_seconds: float | None = None  # since when this exporter sees its descriptors
        self._memory_held: set[int] = set()
        self._memory_gone: dict[int, float] = {}

    @property
    def budgets(self) -> Budgets:
        return self.config.budgets if self.config is not None else Budgets()

    @property
    def log_only(self) -> bool:
        """Configured without a match: no process will ever belong to it."""
        return self.config is not None and self.config.match is None

    @property
    def ended(self) -> bool:
        return self.end_seconds is not None

    @property
    def hidden(self) -> bool:
        """An occupant of its GPUs that has not shown yet that it trains."""
        return self.provisional and not (self.progress.shown or self.checkpoints.completed_total)

    def mark(self, signal: str, time_seconds: float | None) -> None:
        """The signal moved at that time."""
        if time_seconds is not None and time_seconds > self.signals.get(signal, 0.0):
            self.signals[signal] = time_seconds
            if signal in PROGRESS_SIGNALS:
                self.learner.progress(time_seconds)

    def observe_processes(self, found: DiscoveredRun, time_seconds: float, context_pids: AbstractSet[int]) -> bool:
        """Take what the newest table shows of the run; True when its worker set was replaced."""
        self.discovered, self.present = found, True
        self.provisional = found.provisional
        self.gave.add("processes")
        self._watch(time_seconds)
        replaced = self.workers.observe(found, time_seconds)
        if replaced:
            self._restart()
        if self.phase.start_seconds is None:
            self.phase.begin(time_seconds)
        self.host.observe(found, time_seconds, context_pids)
        if self.host.io_moved():
            self.mark("io", time_seconds)
        if self.host.cpu_moved():
            self.mark("cpu", time_seconds)
        self._note_descriptors(found, time_seconds)
        self._note_end(time_seconds)
        return replaced

    def vanish(self, time_seconds: float) -> None:
        """The newest table shows nothing of the run."""
        self.present = False
        self.workers.vanish(time_seconds)
        self._note_end(time_seconds)

    def observe_log(self, batch: LogBatch) -> bool:
        """Take one batch; True when a usual step interval ended with it, so that its power was that of training."""
        self.logbook.observe(batch)
        if self.logbook.seen:
            self.gave.add("logs")
            self._watch(batch.time_seconds)
        was_training = self.phase.name == "training"
        moves = self.progress.observe(batch)
        now = batch.time_seconds
        self._note_evidence(batch)
        if batch.restored:
            self.phase.replay(moves.phases, now, stepped=moves.first_step)
            self._note_going_on(moves, now)
            return False
        for signal, moved in (("step", moves.step), ("validation", moves.validation), ("log", moves.log)):
            if moved:
                self.mark(signal, now)
        if moves.step or moves.first_step:
            self.phase.step(now, first=moves.first_step)
        self.phase.announce(moves.phases, now)
        self._note_going_on(moves, now)
        if not moves.step:
            return False
        self.evidence.stepped(now)
        self._note_distance()
        return self.learner.step(now, moves.steps) and was_training

    def observe_checkpoints(self, listing: DirectoryListing) -> None:
        found = self.checkpoints
        trained = found.trained_total
        found.observe(listing)
        if found.trained_total > trained and self.phase.name == "starting":
            self.phase.step(listing.time_seconds, first=True)  # no log says so, but it has trained
        self.mark("checkpoint", found.last_growth_seconds)
        self.mark("log", found.event_files_growth_seconds)
        if "checkpoints" not in self.gave:
            view = found.view(listing.time_seconds)
            # an empty directory is known and has given nothing yet
            if "checkpoint" in self.signals or (view is not None and view.count > 0):
                self.gave.add("checkpoints")

    def observe_gpus(self, gpus: GpuContext, now: float) -> None:
        """Take the newest samples of the run's GPUs."""
        self.gpu_labels = self._find_gpus(gpus)
        for tracker in self.speaking(gpus):
            self.gave.add("gpu")
            self.mark("gpu", tracker.worked_at)
        self._note_memory(gpus, now)

    def speaking(self, gpus: GpuContext) -> list[GpuTracker]:
        """The GPUs whose work is the run's own: watched now, no MIG, nobody else there."""
        return [tracker for tracker in self._own(gpus) if tracker.sample is not None]

    def levels(self, gpus: GpuContext, now: float) -> list[GpuTracker]:
        """Those whose slow means tell at what level it trains: watched now, or until a short while ago."""
        return [tracker for tracker in self._own(gpus) if tracker.held(now) and not tracker.lost]

    def _own(self, gpus: GpuContext) -> Iterator[GpuTracker]:
        for label in self.gpu_labels:
            tracker = gpus.trackers.get(label)
            if tracker is None or tracker.device.mig or gpus.occupancy.get(label, Occupancy()).outsider:
                continue
            yield tracker

    def memory_lost(self, now: float) -> bool:
        """Whether a live rank's GPU memory is gone for 300 s while its peers hold theirs."""
        return any(now - since >= MEMORY_LOST_SECONDS for since in self._memory_gone.values())

    def tick(self, now: float) -> None:
        """Draw the end of a run that has no processes from its log alone."""
        if not self.log_only:
            return
        over = [time for time in (self.evidence.failed_seconds, self.evidence.cancelled_seconds) if time is not None]
        quiet = all(now - time > LOG_END_SECONDS for time in self.signals.values())
        self.end_seconds = min(over) if over and quiet else None

    def outcome(self) -> str | None:
        """How the run ended; None while it lives."""
        if self.end_seconds is None:
            return None
        if self.oom_seconds is not None and abs(self.end_seconds - self.oom_seconds) <= OOM_SECONDS:
            self.evidence.failed(self.oom_seconds, "killed by the kernel for lack of memory")
        return self.evidence.outcome(done=self.progress.done, at_target=self.progress.at_target)

    def member_processes(self) -> tuple[ProcessRecord, ...]:
        """Ranks and all below them, as in the newest table."""
        found = self.discovered
        if not self.present or found is None:
            return ()
        return (*(rank.process for rank in found.ranks), *found.loaders, *found.others)

    def role_counts(self) -> dict[str, int]:
        """Living processes by role; all 0 while the run is not here."""
        counts = dict.fromkeys(ROLES, 0)
        found = self.discovered
        if not self.present or found is None:
            return counts
        launcher = found.launcher_process
        counts["launcher"] = int(launcher is not None and launcher.state != "zombie")
        counts["worker"] = sum(rank.process.state != "zombie" for rank in found.ranks)
        counts["loader"] = len(found.loaders)
        counts["other"] = len(found.others)
        return counts

    def state_counts(self) -> dict[str, int]:
        return process_states(self.discovered) if self.present and self.discovered is not None else {}

    def note_state(self, state: str, now: float) -> None:
        if state != self.state:
            self.state, self.state_since = state, now

    def latch_stall(self, cause: str, now: float) -> None:
        """Keep a stall and its cause from its beginning on; "" ends it. A stalled run teaches nothing."""
        if not cause:
            self.stalled_since, self.stall_cause = None, ""
            return
        self.learner.spoil()
        if self.stalled_since is None:
            self.stalled_since, self.stall_cause = now, cause

    def _watch(self, time_seconds: float) -> None:
        if self.watched_since is None:
            self.watched_since = time_seconds

    def _restart(self) -> None:
        """Another worker set, perhaps of another launcher: what was learnt and how it ended is of the one before."""
        self.restarts_total += 1
        self.restarts_without_progress += 1
        reached = self.progress.farthest
        if reached is not None:
            self.farthest = max(reached, self.farthest or reached)
        self.progress.new_worker_set()
        self.learner.new_worker_set()
        self.evidence = Evidence()
        self.logbook.new_attempt()
        self.end_seconds = None
        self.phase.start_seconds = None
        self._memory_held.clear()
        self._memory_gone.clear()

    def _note_going_on(self, moves: Moves, now: float) -> None:
        if moves.goes_on and not self.progress.done:
            self.phase.go_on(now)
            self.evidence.goes_on()

    def _note_distance(self) -> None:
        reached = self.progress.farthest
        if reached is not None and (self.farthest is None or reached > self.farthest):
            self.restarts_without_progress = 0

    def _note_end(self, time_seconds: float) -> None:
        if self.workers.present:
            self.end_seconds = None
        elif self.end_seconds is None:
            self.end_seconds = time_seconds

    def _find_gpus(self, gpus: GpuContext) -> tuple[str, ...]:
        labels = {label for label, there in gpus.occupancy.items() if self.name in there.runs}
        labels.update(self.workers.gpus().values())
        labels.update(label for label in self.gpu_labels if label in gpus.trackers and gpus.trackers[label].lost)
        return tuple(sorted(labels, key=_gpu_order))

    def _note_memory(self, gpus: GpuContext, now: float) -> None:
        held: dict[int, int] = {}
        for number, label, process in self.workers.living():
            there = gpus.occupancy.get(label or "")
            if there is not None and there.by_process:
                held[number] = there.memory_by_pid.get(process.pid, 0)
        self._memory_held.update(number for number, size in held.items() if size > 0)
        peers = any(size > 0 for size in held.values())
        gone = {number for number, size in held.items() if size == 0 and number in self._memory_held and peers}
        self._memory_gone = {number: self._memory_gone.get(number, now) for number in gone}

    def _note_evidence(self, batch: LogBatch) -> None:
        if batch.outlived:
            self.evidence = Evidence()
        for event in batch.events:
            if event.outcome is None and event.severity is None:
                continue
            if event.file is None or self._is_of_this_worker_set(event.file):
                self.evidence.observe(event)

    def _is_of_this_worker_set(self, error_file: str) -> bool:
        """What ended the ranks of the set before is often read when the next one runs already."""
        targets = self.discovered.error_files if self.discovered is not None else ()
        return any(error_file.endswith(target.path) for target in targets)

    def _note_descriptors(self, found: DiscoveredRun, time_seconds: float) -> None:
        """Output that nobody here can read grows: weak evidence."""
        positions = {
            (rank.process.pid, output.descriptor): output.position
            for rank in found.ranks
            for output in rank.process.outputs
            if output.position is not None
        }
        grew = any(value > self._positions.get(key, value) for key, value in positions.items())
        if self._looked_seconds is None:
            self._looked_seconds = time_seconds
        # a log that was found only now has not been opened yet
        opening = bool(found.log_targets) and time_seconds - self._looked_seconds < OPENING_SECONDS
        if grew and (self.logbook.readable is False or (self.logbook.readable is None and not opening)):
            self.log_growth_seconds = time_seconds
        self._positions = positions


def _gpu_order(label: str) -> tuple[int, ...]:
    return tuple(int(part) for part in label.split(":") if part.isdigit())
