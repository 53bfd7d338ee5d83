"""Which runs this node has, at one moment: processes, numbers, GPUs, logs and checkpoint directories of each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from training_exporter.config import Config, Match, RunConfig
from training_exporter.model import (
    CheckpointTarget,
    DiscoveredRun,
    GpuSample,
    LogTarget,
    ProcessRecord,
    ProcessTable,
    Rank,
)
from training_exporter.runs import naming, roles
from training_exporter.runs.arguments import invocation
from training_exporter.runs.artifacts import CheckpointPlaces
from training_exporter.runs.binding import Devices, bind
from training_exporter.runs.facts import GroupFacts
from training_exporter.runs.grouping import Group, Grouper, Memory
from training_exporter.runs.outputs import Outputs
from training_exporter.runs.side_targets import error_files, event_files
from training_exporter.runs.tree import Tree, age
from training_exporter.runs.writers import LogWriters

HINT_NUMBERS = "rank numbers follow the order of starting: the environment of the ranks cannot be read"
MAX_SCRIPTS = 256  # of batch jobs whose numbers are remembered
NO_FILE = Config()


def interesting(records: Mapping[int, ProcessRecord], config: Config = NO_FILE) -> set[int]:
    """PIDs of records that may be part of a run, each judged alone; relatives and holders of GPUs come by descent.

    A Python program whose environment was not read yet is one of them, so that it is read.
    """
    logs = roles.training_logs(records.values())
    return {pid for pid, record in records.items() if _is_interesting(record, config, logs)}


def environment_keys(config: Config) -> frozenset[str]:
    """Keys that the configuration matches on, beyond those that are always read."""
    return frozenset(key for match in _matches(config) for key in match.env)


class Discovery:
    """Finds the runs of one node in each new process table.

    Between calls it keeps which processes were ranks of which run (so that ranks stay when their launcher dies),
    which GPU each had, the names in use and the checkpoint directories that were seen open.
    """

    def __init__(self, config: Config, host: str) -> None:
        self._config = config
        self._host = host
        self._names = _Names()
        self._memories: dict[tuple[int, int], Memory] = {}
        self._bound: dict[tuple[int, int], str] = {}
        self._places: dict[str, CheckpointPlaces] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        self._traces: dict[tuple[int, int], _Traces] = {}
        self._writers = LogWriters()

    def reconfigure(self, config: Config) -> None:
        """Take another configuration from the next call on; what is known of the processes stays."""
        self._config = config

    def discover(self, table: ProcessTable, gpus: Sequence[GpuSample]) -> tuple[DiscoveredRun, ...]:
        """The runs at this moment, sorted by name. `gpus` holds the newest sample of each device, or nothing."""
        tree = Tree(table.processes)
        devices = Devices(gpus, table)
        grouper = Grouper(tree, devices.holders.keys(), self._memories, self._names.held, self._writers)
        groups = [group for group in self._grouped(grouper) if self._wanted(group)]
        named = self._named(groups)
        boundaries = frozenset(record.pid for group in groups for record in _heads(group))
        runs = [self._describe(name, group, tree, devices, boundaries) for name, group in named]
        self._remember(named, table)
        for group in groups:
            for record in _heads(group):
                self._writers.note(record, group.head, table.time_seconds)
        present = {run.name for run in runs}
        runs += [_without_processes(run) for run in self._config.runs if _is_due(run) and run.name not in present]
        return tuple(sorted(runs, key=lambda run: run.name))

    def _grouped(self, grouper: Grouper) -> list[Group]:
        found = grouper.run()
        missing = {run.name for run in self._config.runs} - {
            run.name for group in found if (run := self._configuration(group)) is not None
        }
        for name in sorted(missing):
            grouper.by_match(partial(self._is_for, name))
        return grouper.groups

    def _wanted(self, group: Group) -> bool:
        heads = _heads(group)
        if all(record.command is None for record in heads):
            return False  # not read yet, in D state: a name now would be another one later
        if not GroupFacts(group, self._host).settled:
            return False
        if any(_fits(match, record) for match in self._config.discovery.ignore for record in heads):
            return False
        return self._config.discovery.enabled or self._configuration(group) is not None

    def _configured(self, record: ProcessRecord) -> RunConfig | None:
        runs = self._config.runs
        return next((run for run in runs if run.match is not None and _fits(run.match, record)), None)

    def _is_for(self, name: str, record: ProcessRecord) -> bool:
        run = self._configured(record)
        return run is not None and run.name == name

    def _configuration(self, group: Group) -> RunConfig | None:
        return next((run for record in _heads(group) if (run := self._configured(record)) is not None), None)

    def _named(self, groups: list[Group]) -> list[tuple[str, Group]]:
        """Give each group its name; what is left of a run whose next attempt is here already joins that."""
        self._names.release({group.head.key for group in groups if group.name is None})
        named: dict[str, Group] = {}
        for group in sorted(groups, key=lambda group: (group.name is not None, age(group.head))):
            name = group.name or self._name(group)
            if group.name is not None and name in named:
                named[name].companions += [rank.process for rank in group.ranks]
            else:
                named[name] = group
        return list(named.items())

    def _name(self, group: Group) -> str:
        configured = self._configuration(group)
        facts = GroupFacts(group, self._host).naming()
        base = configured.name if configured is not None else naming.base_name(facts)
        scheduled = configured is None and naming.scheduler_name(facts) is not None
        return self._names.assign(base, facts.script if scheduled else "", group.head.key)

    def _describe(
        self, name: str, group: Group, tree: Tree, devices: Devices, boundaries: frozenset[int]
    ) -> DiscoveredRun:
        facts = GroupFacts(group, self._host)
        configured = self._configuration(group)
        family = _Family(group, tree, boundaries)
        outputs = Outputs(name, group, tree)
        traces = self._trace(group, _Traces(outputs.find(), error_files(name, group.ranks)))
        return DiscoveredRun(
            name=name,
            launcher=group.kind,
            script=facts.label,
            job_id=facts.job_id,
            node_rank=facts.node_rank,
            launcher_process=group.launcher,
            ranks=tuple(group.ranks),
            loaders=tuple(family.loaders),
            others=tuple(family.others),
            owner=family.owner,
            workers_expected=facts.workers_expected or self._size(group),
            world_size=facts.world_size,
            restart_count=facts.restart_count,
            gpus=self._bind(group, family, devices),
            log_targets=_configured_logs(configured) or traces.logs,
            checkpoint_targets=_configured_checkpoints(configured) or self._checkpoints(name, _speakers(group)),
            hints=outputs.hints() + ((HINT_NUMBERS,) if group.numbers_guessed else ()),
            error_files=traces.error_files,
            event_files=event_files(name, group.ranks),
            provisional=group.provisional and configured is None,
        )

    def _trace(self, group: Group, seen: _Traces) -> _Traces:
        """What the ranks wrote is still to be read once they are dead and only their launcher is left."""
        key = group.head.key
        last = self._traces.get(key)
        if group.ranks or last is None:
            self._traces[key] = seen
            return seen
        known = {target.path for target in seen.logs}
        left = [replace(target, root=group.head.root) for target in last.logs if target.path not in known]
        errors = tuple(replace(target, root=group.head.root) for target in last.error_files)
        return _Traces(seen.logs + tuple(left), errors)

    def _size(self, group: Group) -> int | None:
        """The most ranks that were seen, where nobody says how many there should be."""
        size = max(len(group.ranks), self._sizes.get(group.head.key, 0))
        self._sizes[group.head.key] = size
        return size or None

    def _checkpoints(self, name: str, processes: list[ProcessRecord]) -> tuple[CheckpointTarget, ...]:
        return self._places.setdefault(name, CheckpointPlaces()).find(name, processes)

    def _bind(self, group: Group, family: _Family, devices: Devices) -> dict[int, str]:
        """A rank keeps its GPU when that is lost or its context is gone: that is what is to be reported."""
        gpus = {}
        for rank in group.ranks:
            label = bind(rank, family.of(rank), devices) or self._bound.get(rank.process.key)
            if label is not None:
                gpus[rank.rank] = self._bound[rank.process.key] = label
        return gpus

    def _remember(self, named: list[tuple[str, Group]], table: ProcessTable) -> None:
        alive = {record.key for record in table.processes.values()}
        sessions = {record.session_id for record in table.processes.values()}
        self._memories = {key: memory for key, memory in self._memories.items() if key in alive or key[0] in sessions}
        self._bound = {key: label for key, label in self._bound.items() if key in alive}
        self._sizes = {key: size for key, size in self._sizes.items() if key in alive}
        self._traces = {key: traces for key, traces in self._traces.items() if key in alive}
        names = {name for name, _ in named}
        self._places = {name: places for name, places in self._places.items() if name in names}
        for name, group in named:
            if group.launcher is not None:
                for rank in group.ranks:
                    self._memories[rank.process.key] = Memory(name, group.kind, rank)


@dataclass(frozen=True, slots=True)
class _Traces:
    """Files that tell of a worker set, while it lives and after."""

    logs: tuple[LogTarget, ...]
    error_files: tuple[LogTarget, ...]


@dataclass(slots=True)
class _Names:
    """Keeps names apart: the first run of a base has it bare, the next a number, each as long as it lives.

    Within one batch job a script keeps its number, so that a second attempt has the name of the first.
    """

    held: dict[tuple[int, int], str] = field(default_factory=dict)  # head of a group -> name
    _scripts: dict[str, str] = field(default_factory=dict)  # name -> script that it was given for

    def release(self, alive: set[tuple[int, int]]) -> None:
        self.held = {key: name for key, name in self.held.items() if key in alive}

    def assign(self, base: str, script: str, key: tuple[int, int]) -> str:
        held = self.held.get(key)
        if held is not None and re.fullmatch(re.escape(base) + r"(?:-\d+)?", held):
            return held
        taken = set(self.held.values())
        candidates = (base if number == 1 else f"{base}-{number}" for number in count(1))
        name = next(n for n in candidates if n not in taken and self._scripts.get(n, script) == script)
        self.held[key] = name
        if script:
            self._scripts[name] = script
            for oldest in list(self._scripts)[:-MAX_SCRIPTS]:
                del self._scripts[oldest]
        return name


class _Family:
    """The relatives of a group by role, and whose each is."""

    def __init__(self, group: Group, tree: Tree, boundaries: frozenset[int]) -> None:
        self.loaders: list[ProcessRecord] = []
        self.others: list[ProcessRecord] = []
        self.owner: dict[int, int] = {}
        self._by_rank: dict[int, list[ProcessRecord]] = {}
        for rank in group.ranks:
            below = list(tree.below(rank.process, without=boundaries))
            self._by_rank[rank.rank] = below
            for record in below:
                self.owner[record.pid] = rank.rank
                (self.loaders if roles.is_loader(record, rank.process) else self.others).append(record)
        ranks = {rank.process.pid for rank in group.ranks}
        for stray, number in group.strays:
            heir = any(rank.rank == number and rank.process.pid != stray.session_id for rank in group.ranks)
            if heir:  # the rank of that number is another one by now, which has nothing from this loader
                self.others.append(stray)
                continue
            self.owner[stray.pid] = number
            (self.loaders if stray.name.startswith(roles.LOADER_NAME) else self.others).append(stray)
        for companion in group.companions:
            self._add(companion, tree, boundaries, ranks)
        if group.launcher is not None:
            for record in tree.below(group.launcher, without=boundaries):
                self._add(record, tree, boundaries, ranks)

    def of(self, rank: Rank) -> list[ProcessRecord]:
        return self._by_rank[rank.rank]

    def _add(self, record: ProcessRecord, tree: Tree, boundaries: frozenset[int], ranks: set[int]) -> None:
        known = ranks | self.owner.keys() | {other.pid for other in self.others}
        self.others += [r for r in (record, *tree.below(record, without=boundaries)) if r.pid not in known]


def _is_interesting(record: ProcessRecord, config: Config, logs: Collection[str]) -> bool:
    if any(_may_fit(match, record) for match in _matches(config)) or roles.launcher_kind(record) is not None:
        return True
    if roles.PLUMBING & {record.name, invocation(record.command).name}:
        return True
    if roles.is_uncounted(record) or not (roles.is_python(record) or roles.is_ray(record)):
        return False
    unread = record.environment is None
    numbered = roles.rank_number(record.environment) is not None
    return unread or numbered or roles.is_ray(record) or roles.looks_like_training(record, logs)


def _matches(config: Config) -> Iterable[Match]:
    return (run.match for run in config.runs if run.match is not None)


def _may_fit(match: Match, record: ProcessRecord) -> bool:
    """Like `_fits`, but an environment that was not read yet may hold anything."""
    if record.environment is None and match.env:
        return not match.cmdline or _command_fits(match.cmdline, record)
    return _fits(match, record)


def _fits(match: Match, record: ProcessRecord) -> bool:
    if match.cmdline is not None and not _command_fits(match.cmdline, record):
        return False
    return all((record.environment or {}).get(key) == value for key, value in match.env.items())


def _command_fits(pattern: str, record: ProcessRecord) -> bool:
    return record.command is not None and re.search(pattern, " ".join(record.command)) is not None


def _heads(group: Group) -> list[ProcessRecord]:
    """The processes that speak for the group: launcher and ranks."""
    launcher = [group.launcher] if group.launcher is not None else []
    return launcher + [rank.process for rank in group.ranks]


def _speakers(group: Group) -> list[ProcessRecord]:
    """The processes whose arguments and files are the run's: not slurmstepd's or mpirun's."""
    return [record for record in _heads(group) if record is not group.launcher or not roles.starts_anything(group.kind)]


def _is_due(run: RunConfig) -> bool:
    return run.match is None or run.expected


def _without_processes(run: RunConfig) -> DiscoveredRun:
    return DiscoveredRun(
        name=run.name,
        launcher="",
        script="",
        log_targets=_configured_logs(run),
        checkpoint_targets=_configured_checkpoints(run),
    )


def _configured_logs(run: RunConfig | None) -> tuple[LogTarget, ...]:
    return tuple(LogTarget(run.name, path, configured=True) for path in run.logs) if run else ()


def _configured_checkpoints(run: RunConfig | None) -> tuple[CheckpointTarget, ...]:
    return tuple(CheckpointTarget(run.name, path, configured=True) for path in run.checkpoints) if run else ()
