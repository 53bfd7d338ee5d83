"""Which processes of a moment are one run: by launcher, by what remains of one, by inheritance, by GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from training_exporter.model import ProcessRecord, Rank
from training_exporter.runs import roles
from training_exporter.runs.arguments import invocation
from training_exporter.runs.numbering import fill, renumbered, unique
from training_exporter.runs.tree import Tree, age
from training_exporter.runs.writers import LogWriters

NUMBER_KEYS = (*roles.RANK_KEYS, "SLURM_PROCID", "LOCAL_RANK")


@dataclass(slots=True)
class Group:
    """The processes of one run, before it has a name."""

    kind: str
    launcher: ProcessRecord | None = None
    ranks: list[Rank] = field(default_factory=list)
    companions: list[ProcessRecord] = field(default_factory=list)  # known to belong here though not by descent
    strays: list[tuple[ProcessRecord, int]] = field(default_factory=list)  # what a dead rank left, with its number
    provisional: bool = False
    numbers_guessed: bool = False  # ranks numbered by the order of their start
    name: str | None = None  # that a part of it already had

    @property
    def head(self) -> ProcessRecord:
        """The process that stands for the run: the launcher, else the first rank."""
        return self.launcher or self.ranks[0].process

    @property
    def owner(self) -> ProcessRecord:
        """The process that says whose the run is and where: slurmstepd and orted may be root's."""
        if self.ranks and roles.starts_anything(self.kind):
            return self.ranks[0].process
        return self.head


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process was while its launcher lived."""

    name: str  # of the run
    kind: str
    rank: Rank


class Grouper:
    """Takes a tree apart into groups; each process is claimed once, by the first rule that fits.

    `holders`: PIDs that hold a GPU. `remembered`: what ranks of an earlier moment were, and
    `names`: how the runs were called, both by process key (of the rank, of the head). `writers`: whose the logs are.
    """

    def __init__(
        self,
        tree: Tree,
        holders: Collection[int],
        remembered: Mapping[tuple[int, int], Memory],
        names: Mapping[tuple[int, int], str],
        writers: LogWriters,
    ) -> None:
        self._tree = tree
        self._holders = holders
        self._remembered = remembered
        self._names = names
        self._writers = writers
        self._claimed: set[int] = set()
        self._outputs: set[str] = set()  # of the claimed
        self.groups: list[Group] = []

    def run(self) -> list[Group]:
        """All groups, in the order of the rules."""
        self._by_launcher()
        self._orphans()
        self._strays()
        self._by_environment()
        self._by_ray()
        self._by_gpu()
        self._by_script()
        return self.groups

    def claim(self, group: Group) -> None:
        """Take the group's processes and everything below them out of the reach of later rules."""
        self.groups.append(group)
        heads = [rank.process for rank in group.ranks] + group.companions + [stray for stray, _ in group.strays]
        heads += [group.launcher] if group.launcher else []
        for head in heads:
            for record in (head, *self._tree.below(head)):
                self._claimed.add(record.pid)
                self._outputs.update(target.path for target in record.outputs if target.path)

    def _free(self) -> Iterator[ProcessRecord]:
        for record in sorted(self._tree.records.values(), key=age):
            if record.pid not in self._claimed and not roles.is_uncounted(record):
                yield record

    # By launcher: a rank is a direct child that carries a rank number; the parent decides, since loaders and
    # resource trackers inherit the same environment.

    def _by_launcher(self) -> None:
        records = self._tree.records
        kinds = {pid: kind for pid, record in records.items() if (kind := self._launcher_kind(record)) is not None}
        ranks = {pid: self._ranks_of(records[pid], kind) for pid, kind in kinds.items()}
        inside = {
            rank.process.pid for pid, kind in kinds.items() if not roles.starts_anything(kind) for rank in ranks[pid]
        }
        outer = {pid for pid in kinds if not self._is_below(records[pid], inside)}
        for launcher in sorted((records[pid] for pid in outer), key=age):
            nested = {pid for pid in outer if self._is_below(records[pid], {launcher.pid})}
            kind = kinds[launcher.pid]
            own = [rank for rank in ranks[launcher.pid] if not self._leads_to(rank.process, nested)]
            if own or (not nested and not roles.starts_anything(kind)):
                self.claim(_launched(launcher, kind, own))

    def _launcher_kind(self, record: ProcessRecord) -> str | None:
        kind = roles.launcher_kind(record)
        parent = self._tree.parent(record)
        if kind is None or record.state == "zombie":
            return None
        # between fork and exec a rank still looks like its launcher
        twin = parent is not None and parent.command == record.command and roles.launcher_kind(parent) == kind
        return None if twin and record.command else kind

    def _is_below(self, record: ProcessRecord, pids: Collection[int]) -> bool:
        return any(ancestor.pid in pids for ancestor in self._tree.ancestors(record))

    def _leads_to(self, record: ProcessRecord, launchers: Collection[int]) -> bool:
        return record.pid in launchers or any(below.pid in launchers for below in self._tree.below(record))

    def _ranks_of(self, launcher: ProcessRecord, kind: str) -> list[Rank]:
        started = [r for r in self._tree.started(launcher) if not roles.is_uncounted(r) and not _is_fork(r, launcher)]
        numbered = [r for r in started if self._number(r) is not None and not _is_batch_script(r)]
        ranks = [self._rank(record, position) for position, record in enumerate(numbered)]
        if roles.starts_anything(kind):
            return unique(ranks)
        nameless = [r for r in started if self._number(r) is None and _may_be_rank(r, launcher, kind)]
        return unique(ranks + fill(ranks, nameless)[: _missing(ranks)])

    def _number(self, record: ProcessRecord) -> int | None:
        number = roles.rank_number(record.environment)
        if number is None:
            number = roles.first_number(record.environment, ("LOCAL_RANK",))
        if number is None and record.key in self._remembered:
            return self._remembered[record.key].rank.rank
        return number

    def _rank(self, record: ProcessRecord, position: int) -> Rank:
        number = self._number(record)
        local = roles.first_number(record.environment, roles.LOCAL_RANK_KEYS)
        if local is None and record.key in self._remembered:
            local = self._remembered[record.key].rank.local_rank
        rank = position if number is None else number
        return Rank(rank, position if local is None else local, record)

    # What remains of a run whose launcher died: known ranks first, then session leaders with a rank number.

    def _orphans(self) -> None:
        found: dict[str, Group] = {}
        for record in self._free():
            memory = self._remembered.get(record.key)
            if memory is not None and record.state != "zombie":
                group = found.setdefault(memory.name, Group(memory.kind, name=memory.name))
                group.ranks.append(Rank(memory.rank.rank, memory.rank.local_rank, record))
        for group in found.values():
            self.claim(group)

    def _strays(self) -> None:
        """Loaders that outlive their rank for a while: still in the session that it led."""
        leaders = {memory.rank.process.pid: memory for memory in self._remembered.values()}
        groups = {group.name or self._names.get(group.head.key): group for group in self.groups}
        for record in self._free():
            memory = leaders.get(record.session_id)
            if memory is not None and memory.name in groups and age(record) > age(memory.rank.process):
                groups[memory.name].strays.append((record, memory.rank.rank))
                self._claimed.add(record.pid)

    def _by_environment(self) -> None:
        """Ranks that nobody we know started: by hand, by Lightning, or by a launcher that is gone."""
        found: dict[tuple[object, ...], Group] = {}
        for record in self._free():
            number = self._number(record)
            if number is None or not roles.is_python(record) or self._inherits(record):
                continue
            group = found.setdefault(self._kinship(record), Group(self._kind(record), provisional=True))
            group.ranks.append(self._rank(record, len(group.ranks)))
        for group in found.values():
            self._add_parent_rank(group)
            group.ranks = unique(group.ranks)
            group.provisional = group.kind != "torchrun"
            self.claim(group)

    def _inherits(self, record: ProcessRecord) -> bool:
        """Whether the rank number is a parent's, or a dead one's: torchelastic makes each rank a session leader."""
        parent = self._tree.parent(record)
        if parent is not None and self._number(parent) is not None and not roles.is_wrapper(parent):
            return True
        if record.name.startswith(roles.LOADER_NAME):
            return True
        elastic = "TORCHELASTIC_RUN_ID" in (record.environment or {})
        return (elastic and record.session_id != record.pid) or _is_batch_script(record)

    @staticmethod
    def _kind(record: ProcessRecord) -> str:
        return "torchrun" if "TORCHELASTIC_RUN_ID" in (record.environment or {}) else "python"

    @staticmethod
    def _kinship(record: ProcessRecord) -> tuple[object, ...]:
        environment = record.environment or {}
        keys = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
        return record.uid, record.working_directory, *(environment.get(key) for key in keys)

    def _add_parent_rank(self, group: Group) -> None:
        """Lightning starts the other ranks from rank 0, whose own environment has no number."""
        parents = {rank.process.parent_pid for rank in group.ranks}
        parent = self._tree.records.get(parents.pop()) if len(parents) == 1 else None
        if parent is None or parent.pid in self._claimed or not roles.is_python(parent):
            return
        if invocation(parent.command).program != invocation(group.ranks[0].process.command).program:
            group.launcher = parent
            return
        group.kind = "lightning"
        group.ranks = [Rank(0, 0, parent), *(rank for rank in group.ranks if rank.rank != 0)]

    # Ray, and whatever holds a GPU.

    def _by_ray(self) -> None:
        nodes: dict[int, list[ProcessRecord]] = {}
        for record in self._free():
            if roles.is_ray(record):
                nodes.setdefault(record.parent_pid, []).append(record)
        for actors in (job for node in nodes.values() for job in _ray_jobs(node)):
            workers = [record for record in actors if record.pid in self._holders]
            if workers:
                ranks = [self._rank(record, position) for position, record in enumerate(workers)]
                others = [record for record in actors if record not in workers]
                driver = self._ray_driver(actors[0])
                self.claim(Group("ray", driver, renumbered(ranks), companions=others, provisional=True))

    def _ray_driver(self, actor: ProcessRecord) -> ProcessRecord | None:
        """The program that asked for the actors: above its own raylet, else the one that trains as the same user."""
        for ancestor in self._tree.ancestors(actor):
            if roles.is_python(ancestor) and not roles.is_uncounted(ancestor):
                return ancestor
        free = [record for record in self._free() if record.uid == actor.uid and not roles.is_ray(record)]
        likely = [record for record in free if roles.looks_like_training(record)]
        return likely[0] if len({self._root(r).pid for r in likely}) == 1 else None

    def _by_gpu(self) -> None:
        families: dict[int, list[ProcessRecord]] = {}
        for record in self._free():
            if record.pid in self._holders:
                families.setdefault(self._root(record).pid, []).append(record)
        for pid, family in families.items():
            self.claim(self._holding(self._tree.records[pid], family))

    def _holding(self, root: ProcessRecord, family: list[ProcessRecord]) -> Group:
        spawned = [r for r in family if "multiprocessing" in (invocation(r.command).code or "")]
        top = [r for r in family if r.parent_pid == root.pid] if root not in family else [root]
        if len(spawned) > 1 or (spawned and root not in family):
            return Group("spawn", root, [Rank(i, i, r) for i, r in enumerate(spawned)], provisional=True)
        if root not in family and len(top) > 1:
            return Group("spawn", root, [Rank(i, i, r) for i, r in enumerate(top)], provisional=True)
        return Group("python", None, [Rank(0, 0, root)], provisional=True)

    def _by_script(self) -> None:
        """A Python program that is called or writes like a training one, before or without a GPU."""
        logs = roles.training_logs(self._tree.records.values())
        for record in self._free():
            heir = roles.rank_number(record.environment) is not None  # of a dead rank, or it had been taken above
            root = self._root(record)
            own = self._writers.own(root, logs - self._outputs)
            if record.pid not in self._claimed and roles.looks_like_training(record, own) and not heir:
                self.claim(Group("python", None, [Rank(0, 0, root)], provisional=True))

    def by_match(self, fits: Callable[[ProcessRecord], bool]) -> None:
        """What no rule took and `fits` wants: each uppermost process is a run of its own.

        A Python program goes before whatever else has its name in the command (a shell, an editor), and nothing
        counts that only leads to a run which was found by its launcher.
        """
        wanted = [record for record in self._free() if fits(record) and not self._leads_to(record, self._claimed)]
        programs = [record for record in wanted if not roles.is_wrapper(record)] or self._inside(wanted)
        for record in [record for record in programs if roles.is_python(record)] or programs:
            if record.pid not in self._claimed:
                kind = "python" if roles.is_python(record) else "process"
                self.claim(Group(kind, None, [Rank(0, 0, record)]))

    def _inside(self, wrappers: list[ProcessRecord]) -> list[ProcessRecord]:
        return [next(self._tree.started(record), record) for record in wrappers]

    def _root(self, record: ProcessRecord) -> ProcessRecord:
        """The uppermost interpreter above in the same session and control group that is free: the program itself."""
        root = record
        for ancestor in self._tree.ancestors(record):
            same = ancestor.session_id == record.session_id and ancestor.cgroup == record.cgroup
            if not same or ancestor.pid in self._claimed or roles.is_uncounted(ancestor):
                break
            if roles.is_python(ancestor):
                root = ancestor
        return root


def _launched(launcher: ProcessRecord, kind: str, ranks: list[Rank]) -> Group:
    trains = any(roles.is_python(rank.process) for rank in ranks)
    return Group(
        kind,
        launcher,
        ranks,
        provisional=roles.starts_anything(kind) and not trains,
        numbers_guessed=any(roles.first_number(rank.process.environment, NUMBER_KEYS) is None for rank in ranks),
    )


def _ray_jobs(actors: list[ProcessRecord]) -> list[list[ProcessRecord]]:
    """The actors of one raylet by job; an actor that wrote its title over its environment belongs to the largest."""
    jobs: dict[str, list[ProcessRecord]] = {}
    for actor in actors:
        jobs.setdefault((actor.environment or {}).get("RAY_JOB_ID", ""), []).append(actor)
    nameless = jobs.pop("", [])
    found = sorted(jobs.values(), key=len) or [[]]
    found[-1].extend(nameless)
    return found


def _missing(ranks: list[Rank]) -> int | None:
    """How many ranks of the node have no number yet; None where nobody says how many there are."""
    sizes = [roles.first_number(rank.process.environment, roles.LOCAL_SIZE_KEYS) for rank in ranks[:1]]
    return None if not sizes or sizes[0] is None else max(sizes[0] - len(ranks), 0)


def _is_fork(record: ProcessRecord, parent: ProcessRecord) -> bool:
    """A child between fork and exec: it still has its parent's name and command."""
    return bool(record.command) and record.command == parent.command and record.name == parent.name


def _is_batch_script(record: ProcessRecord) -> bool:
    return any(word.endswith("slurm_script") for word in (record.command or ())[:3])


def _may_be_rank(record: ProcessRecord, launcher: ProcessRecord, kind: str) -> bool:
    """Whether a child whose environment says nothing (not permitted, overwritten, a zombie) is a rank all the same.

    torchelastic makes every rank a session leader and starts nothing else so; accelerate starts one plain child.
    """
    if record.session_id == record.pid and launcher.name == roles.ELASTIC_NAME:
        return True
    return kind == "accelerate" and launcher.name != roles.ELASTIC_NAME and roles.is_python(record)
