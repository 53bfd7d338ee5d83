"""The processes of this node that belong to a run, found at the price of one directory listing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from training_exporter.clock import Clock
from training_exporter.model import ProcessRecord, ProcessTable
from training_exporter.sources import procfs as proc
from training_exporter.sources.identity import ENVIRONMENT_KEYS, Details, Identity, read_details, read_identity
from training_exporter.sources.offload import Offload

SETTLE_SECONDS = 5.0  # a command read before this age may be that of the parent, between fork and exec
REFRESH_SECONDS = 20.0  # descriptors: a checkpoint is open only while it is written
ROTATION = 16  # unrelated processes whose `stat` is read again each tick, one after the other
LONG_LISTING = 2_000  # processes; the kernel takes 1 to 2 ms for each thousand of a listing, whoever reads it
LONG_LISTING_TICKS = 3  # so often a listing that long is made
MAX_READERS = 64  # a session may be a whole container
READ_DEADLINE_SECONDS = 1.0  # of one process's files

NOTHING = Details(io=None, status=proc.Status(), wait_channel=None, position=None, descriptors=None)

Interesting = Callable[[Mapping[int, ProcessRecord]], set[int]]


@dataclass(slots=True)
class _Entry:
    """A process as the source remembers it; of an unrelated one no more than stat and command."""

    inode: int
    record: ProcessRecord
    first_seen_seconds: float
    judged_name: str = ""  # the name it had when its command was read last; "" before that
    identified: bool = False  # environment, descriptors and the like were read since
    denied: bool = False
    refreshed_seconds: float = 0.0  # when its descriptors were read last


class ProcessSource:
    """Follows the processes that `interesting` picks, their descendants and ancestors, and the holders of GPUs.

    `interesting` sees only what is new or changed and decides by each record alone: first with the command, then,
    for those it picked, with the environment too. Everything else costs its line in the listing of `procfs`, one
    `stat` and one command line when it appears, and its turn in a slow rotation that notices an exec. Where there
    are thousands, who came and went is asked in every third tick.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        procfs: str = "/proc",
        interesting: Interesting,
        environment_keys: Collection[str] = (),
    ) -> None:
        self._clock = clock
        self._procfs = procfs
        self._interesting = interesting
        self._keys = ENVIRONMENT_KEYS.union(environment_keys)
        self._rules: tuple[Interesting, frozenset[str]] | None = None  # to be taken over
        self._entries: dict[int, _Entry] = {}
        self._members: set[int] = set()
        self._context: set[int] = set()  # ancestors of members, and who may read their output
        self._readers: set[int] = set()
        self._unsettled: set[int] = set()
        self._unread: set[int] = set()  # whose command is still to be read
        self._candidates: set[int] = set()  # whose environment is still to be read, to judge them
        self._gpu_pids: frozenset[int] = frozenset()
        self._listed_ago = 0  # ticks
        self._sees_all = False  # also the processes of others
        self._rotation: list[int] = []
        self._arrived = False
        self._offload: Offload[int] = Offload("source-processes-read", deadline_seconds=READ_DEADLINE_SECONDS)
        self._host_pids = proc.in_host_namespace(procfs)

    def gpu_pids(self, pids: Collection[int]) -> None:
        """Say which processes hold a GPU, as the driver lists them; they and their descendants are followed."""
        self._gpu_pids = frozenset(pids) if self._host_pids else frozenset()

    def reconfigure(self, interesting: Interesting, environment_keys: Collection[str] = ()) -> None:
        """Judge by other rules from the next tick on; every process is looked at afresh then. Safe from any thread."""
        self._rules = (interesting, ENVIRONMENT_KEYS.union(environment_keys))

    def collect(self) -> ProcessTable:
        """One tick; raises OSError where `procfs` itself cannot be listed."""
        now = self._clock.now()
        if self._rules is not None:
            (self._interesting, self._keys), self._rules = self._rules, None
            self._forget(set(self._entries))
        self._listed_ago += 1
        if len(self._entries) < LONG_LISTING or self._listed_ago >= LONG_LISTING_TICKS:
            self._list(now)
        self._look_again(now)
        self._admit(self._pick(self._read_commands(), now), now)
        self._read_details(now)
        shown = self._members | self._context
        return ProcessTable(
            time_seconds=now,
            processes={pid: self._entries[pid].record for pid in shown},
            complete=self._sees_all and not any(self._entries[pid].denied for pid in self._members),
            oom_kills=self._oom_kills(),
            host_pids=self._host_pids,
        )

    def _list(self, now: float) -> None:
        """Forget who went and meet who came; who ends between two listings keeps its last record until the next."""
        listed = proc.list_processes(self._procfs)
        self._listed_ago = 0
        self._sees_all = 1 in listed
        self._forget(self._entries.keys() - listed.keys())
        self._meet_new(listed, now)

    def _forget(self, gone: Iterable[int]) -> None:
        kept = (self._members, self._context, self._readers, self._unsettled, self._unread, self._candidates)
        for pid in gone:
            del self._entries[pid]
            for group in kept:
                group.discard(pid)

    def _meet_new(self, listed: Mapping[int, int], now: float) -> None:
        entries = self._entries
        self._meet(
            {pid: inode for pid, inode in listed.items() if pid not in entries or entries[pid].inode != inode}, now
        )

    def _look_again(self, now: float) -> None:
        """At members, at the newcomers that had time to settle, and at the next few of all the others."""
        if not self._rotation:
            self._rotation = list(self._entries)
        due = self._members | self._unread | {self._rotation.pop() for _ in range(min(ROTATION, len(self._rotation)))}
        ripe = {pid for pid in self._unsettled if now - self._entries[pid].first_seen_seconds >= SETTLE_SECONDS}
        self._meet({pid: self._entries[pid].inode for pid in (due | ripe) & self._entries.keys()}, now)
        self._unread |= ripe & self._entries.keys()
        self._unsettled -= ripe

    def _meet(self, inodes: Mapping[int, int], now: float) -> None:
        """Read `stat` of these; those that are gone since the listing, or hidden, are left out."""
        stats = self._offload.run((pid, partial(proc.read_stat, self._procfs, pid)) for pid in inodes)
        for pid, stat in stats.items():
            self._note_stat(pid, inodes[pid], stat, now)

    def _note_stat(self, pid: int, inode: int, stat: proc.Stat, now: float) -> None:
        """A newcomer (a reused PID too) starts anew, a known one gets what may change."""
        entry = self._entries.get(pid)
        if entry is None or entry.record.start_ticks != stat.start_ticks:
            self._forget({pid} & self._entries.keys())
            self._entries[pid] = _Entry(inode, _newcomer(pid, stat, now), now)
            self._unread.add(pid)
            self._unsettled.add(pid)
            self._arrived = True
            return
        entry.inode = inode
        if entry.record.name != stat.name:
            self._unread.add(pid)
        if pid in self._members or pid in self._unread:
            entry.record = _moved_on(entry.record, stat)

    def _read_commands(self) -> set[int]:
        """Read the commands that are due; the PIDs whose record is new or changed by it.

        A zombie has none any more. In D state the read could block: it waits, and the name alone is judged meanwhile.
        """
        states = {pid: self._entries[pid].record.state for pid in self._unread}
        commands = self._offload.run(
            (pid, partial(proc.read_file, f"{self._procfs}/{pid}/cmdline"))
            for pid, state in states.items()
            if state not in {"disk_sleep", "zombie"}
        )
        self._unread &= self._offload.stuck | {pid for pid, state in states.items() if state == "disk_sleep"}
        return {pid for pid in states if self._note_command(self._entries[pid], commands.get(pid))}

    @staticmethod
    def _note_command(entry: _Entry, data: bytes | None) -> bool:
        """Keep a command that was read; whether the process is to be judged (again)."""
        command = (proc.parse_command(data) if data is not None else None) or entry.record.command
        if command == entry.record.command and entry.judged_name == entry.record.name:
            return False
        entry.record = replace(entry.record, command=command)
        entry.judged_name, entry.identified = entry.record.name, False
        return True

    def _pick(self, changed: set[int], now: float) -> set[int]:
        """PIDs that belong to a run or hold a GPU: judged by the command, then with the environment too.

        One whose environment cannot be read now is judged without, and again once it can.
        """
        likely = (self._interesting({pid: self._entries[pid].record for pid in changed}) & changed) | self._candidates
        self._candidates = likely  # until they were judged, which a failure of the next line puts off
        self._identify(likely, now)
        records = {pid: self._entries[pid].record for pid in likely}
        picked = self._interesting({pid: replace(r, environment=r.environment or {}) for pid, r in records.items()})
        self._candidates = {pid for pid in likely - picked if not self._entries[pid].identified}
        return (picked & likely) | (self._gpu_pids & self._entries.keys())

    def _admit(self, picked: set[int], now: float) -> None:
        """Make members of the picked and of everything below a member; keep their ancestors as context."""
        if self._arrived or not picked <= self._members:
            self._members = self._below(picked | self._members)
            self._identify(self._members, now)
            self._readers = self._beside(self._members)
            self._arrived = False
        self._context = (self._above(self._members) | self._readers) & self._entries.keys() - self._members
        self._identify(self._members | self._context, now)

    def _beside(self, pids: set[int]) -> set[int]:
        """Those that may read a pipe into which a member writes: the other processes of its session."""
        records = (self._entries[pid].record for pid in pids)
        sessions = {r.session_id for r in records if r.session_id and any(o.kind == "pipe" for o in r.outputs)}
        mates = (pid for pid, entry in self._entries.items() if entry.record.session_id in sessions)
        return set(islice((pid for pid in mates if pid not in pids), MAX_READERS))

    def _below(self, roots: set[int]) -> set[int]:
        children: dict[int, list[int]] = {}
        for pid, entry in self._entries.items():
            children.setdefault(entry.record.parent_pid, []).append(pid)
        found: set[int] = set()
        todo = list(roots)
        while todo:
            pid = todo.pop()
            if pid not in found:
                found.add(pid)
                todo += children.get(pid, ())
        return found

    def _above(self, pids: set[int]) -> set[int]:
        found: set[int] = set()
        for pid in pids:
            parent = self._entries[pid].record.parent_pid
            while parent > 1 and parent not in found and parent in self._entries:
                found.add(parent)
                parent = self._entries[parent].record.parent_pid
        return found

    def _identify(self, pids: set[int], now: float) -> None:
        """Read what is read once, of those that were not read whole yet."""
        due = {pid: self._entries[pid].record.state for pid in pids if not self._entries[pid].identified}
        answers = self._offload.run(
            (pid, partial(read_identity, self._procfs, pid, self._keys, calm=state not in {"disk_sleep", "zombie"}))
            for pid, state in due.items()
        )
        for pid, identity in answers.items():
            entry = self._entries[pid]
            entry.record = _identified(entry.record, identity)
            entry.identified = identity.environment is not None or identity.denied or due[pid] == "zombie"
            entry.denied = identity.denied
            entry.refreshed_seconds = now - REFRESH_SECONDS + SETTLE_SECONDS  # the first look may have been too early

    def _read_details(self, now: float) -> None:
        jobs = []
        for pid in self._members:
            entry = self._entries[pid]
            if entry.record.state != "zombie":
                calm = entry.record.state != "disk_sleep"
                refresh = calm and entry.identified and now - entry.refreshed_seconds >= REFRESH_SECONDS
                jobs.append((pid, partial(read_details, self._procfs, pid, output=calm, descriptors=refresh)))
        answers = self._offload.run(jobs)
        for pid in self._members:
            entry = self._entries[pid]
            details = answers.get(pid, NOTHING)
            if details.descriptors is not None:
                entry.refreshed_seconds = now
            entry.record = _detailed(entry.record, details)

    def _oom_kills(self) -> int | None:
        try:
            return proc.parse_oom_kills(proc.read_file(f"{self._procfs}/vmstat"))
        except (OSError, ValueError):
            return None


def _newcomer(pid: int, stat: proc.Stat, now: float) -> ProcessRecord:
    # By age and not by boot time: that has a resolution of a second, and the steady clock does not count suspension.
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_ticks / proc.TICKS_PER_SECOND
    return _moved_on(
        ProcessRecord(pid, stat.start_ticks, now - age_seconds, stat.parent_pid, stat.session_id, stat.name), stat
    )


def _moved_on(record: ProcessRecord, stat: proc.Stat) -> ProcessRecord:
    return replace(
        record,
        parent_pid=stat.parent_pid,
        session_id=stat.session_id,
        name=stat.name,
        state=stat.state,
        cpu_seconds=stat.cpu_ticks / proc.TICKS_PER_SECOND,
        major_faults=stat.major_faults,
    )


def _identified(record: ProcessRecord, identity: Identity) -> ProcessRecord:
    """Add what was read once. A process that rewrote its title spoilt its environment: what was known stays."""
    environment = record.environment
    if identity.environment is not None:
        environment = {**(environment or {}), **identity.environment}
    return _described(
        replace(
            record,
            environment=environment,
            working_directory=identity.working_directory or record.working_directory,
            uid=_first(identity.status.uid, record.uid),
            gid=_first(identity.status.gid, record.gid),
            cgroup=identity.cgroup or record.cgroup,
            namespace_pid=_first(identity.status.namespace_pid, record.namespace_pid),
            root=identity.root,
        ),
        identity.descriptors,
    )


def _first(new: int | None, old: int | None) -> int | None:
    return old if new is None else new


def _described(record: ProcessRecord, descriptors: proc.Descriptors | None) -> ProcessRecord:
    if descriptors is None:
        return record
    return replace(
        record,
        outputs=descriptors.outputs,
        open_files=descriptors.open_files,
        input_pipe=descriptors.input_pipe,
    )


def _detailed(record: ProcessRecord, details: Details) -> ProcessRecord:
    io = details.io
    record = _described(record, details.descriptors)
    return replace(
        record,
        read_bytes=None if io is None else io.read_bytes,
        written_bytes=None if io is None else io.written_bytes,
        storage_read_bytes=None if io is None else io.storage_read_bytes,
        storage_written_bytes=None if io is None else io.storage_written_bytes,
        uid=_first(details.status.uid, record.uid),  # whoever drops its rights later must not be read with the old ones
        gid=_first(details.status.gid, record.gid),
        context_switches=details.status.context_switches,
        wait_channel=details.wait_channel,
        outputs=tuple(
            replace(target, position=details.position) if target.descriptor == 1 else target
            for target in record.outputs
        ),
    )
