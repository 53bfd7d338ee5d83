"""The optional configuration file: YAML in, frozen records out, every fault with its key and line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Budgets:
    """Configured budgets in seconds; None = learnt."""

    idle: float | None = None
    validation: float | None = None
    start: float | None = None
    checkpoint: float | None = None
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """Which processes are meant: all that is given must hold.

    `cmdline` is a regular expression searched in the command line joined by blanks; `env` are exact values.
    """

    cmdline: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One entry of `runs:`."""

    name: str
    match: Match | None = None  # None: log and checkpoints only
    logs: tuple[str, ...] = ()  # glob patterns
    checkpoints: tuple[str, ...] = ()  # directories or glob patterns
    expected: bool = False
    page: bool = True
    budgets: Budgets = field(default_factory=Budgets)
    metrics: tuple[str, ...] = ()  # patterns with the named groups `name` and `value`


@dataclass(frozen=True, slots=True)
class Discovery:
    """The entry `discovery:`."""

    enabled: bool = True
    ignore: tuple[Match, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file; the default is what an exporter without a file does."""

    runs: tuple[RunConfig, ...] = ()
    discovery: Discovery = field(default_factory=Discovery)
