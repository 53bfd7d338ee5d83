"""The parts of a scenario, with everything that carries on from segment to segment already resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from training_exporter.config import Budgets
from training_exporter.model import ProcessState, SourceName

RankState = Literal["running", "sleeping", "disk_sleep", "stopped", "zombie", "gone"]


@dataclass(frozen=True, slots=True)
class Span:
    """A value drawn uniformly once a second; low == high is a constant and draws nothing."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU of one rank in one segment; spans in the units of the file: percent, W, MiB, MHz and degrees C."""

    util: Span
    mem_util: Span
    watts: Span
    memory_mib: Span
    other_mib: Span
    sm_mhz: Span | None = None
    temp_c: Span | None = None
    lost: bool = False
    xids: tuple[int, ...] = ()  # at the segment's start
    clock_events: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Child:
    """A further child of a rank. `gpu`: it holds a context on the rank's GPU."""

    name: str
    cores: Span
    gpu: bool


@dataclass(frozen=True, slots=True)
class RankSegment:
    """One rank in one segment. Cores in use, bytes and major faults a second."""

    state: RankState
    gpu: Gpu
    rank_cores: Span
    loader_cores: Span
    other_cores: Span
    read: Span
    write: Span
    faults: Span
    children: tuple[Child, ...] = ()

    @property
    def process_state(self) -> ProcessState | None:
        """The state as the process source words it; None when there is no process."""
        return None if self.state == "gone" else self.state


@dataclass(frozen=True, slots=True)
class Counter:
    """The number that a line carries: `start`, then `by` more at each repetition."""

    start: float
    by: float


@dataclass(frozen=True, slots=True)
class Line:
    """A log line, said once (`every_seconds` None) or until its segment ends; offsets are from the segment's start."""

    template: str  # Python's format with n, x and clock
    first_seconds: float
    every_seconds: float | None = None
    n: Counter | None = None
    x: Counter | None = None
    carriage_return: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint being written from `at_seconds` of its segment on; `partial` stops half way for good."""

    at_seconds: float
    name: str
    layout: str
    bytes: int
    takes_seconds: float
    partial: bool
    adds_to_writes: bool  # no `write` is given, so the bytes show in rank 0's own counters


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the run from `start_seconds` to before `end_seconds`, counted from the scenario's start."""

    start_seconds: float
    end_seconds: float
    label: str
    ranks: tuple[RankSegment, ...]
    launcher: bool
    restart: bool = False
    attempt: int = 1
    blind: frozenset[str] = frozenset()  # source names and "exporter"
    lines: tuple[Line, ...] = ()
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """What does not change about the node's GPUs."""

    name: str
    idle_watts: float
    limit_watts: float
    memory_total_mib: float


@dataclass(frozen=True, slots=True)
class RunWords:
    """How the run is called and started, and what its node can never see of it."""

    name: str
    launcher: str
    script: str
    budgets: Budgets
    absent: frozenset[SourceName]
    mig: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run on one node, from its start to the end of the story."""

    name: str
    about: str
    hardware: Hardware
    run: RunWords
    segments: tuple[Segment, ...]
    expect: Mapping[str, object]  # as in the file: for judges only, the player never looks at it

    @property
    def ranks(self) -> int:
        """Local world size."""
        return len(self.segments[0].ranks)

    @property
    def duration_seconds(self) -> float:
        return self.segments[-1].end_seconds
