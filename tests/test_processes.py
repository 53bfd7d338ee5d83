"""The process source: what it reads, when it reads again, and what it leaves alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeClock
from training_exporter.clock import SystemClock
from training_exporter.model import ProcessRecord, ProcessTable
from training_exporter.sources import identity, processes
from training_exporter.sources import procfs as proc
from training_exporter.sources.processes import (
    LONG_LISTING_TICKS,
    REFRESH_SECONDS,
    ROTATION,
    SETTLE_SECONDS,
    ProcessSource,
)

UNINTERRUPTIBLE = """
import ctypes, os, time
print("up", flush=True)
if ctypes.CDLL(None).vfork() == 0:
    time.sleep(60)
    os._exit(0)
"""


class Tree:
    """A /proc of one's own: processes are directories with the files that the source reads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add(1, "init")
        (root / "vmstat").write_text("oom_kill 2\n")

    def add(self, pid: int, command: str, *, parent: int = 1, start: int = 100, session: int = 0, **files: str) -> None:
        """Make a process; `files` replace the content of single files."""
        directory = self.root / str(pid)
        (directory / "fd").mkdir(parents=True)
        (directory / "fdinfo").mkdir()
        (directory / "ns").mkdir()
        name = command.partition(" ")[0].rpartition("/")[2]
        contents = {
            "stat": self.stat(pid, name, parent=parent, start=start, session=session or pid),
            "cmdline": command.replace(" ", "\0") + "\0",
            "environ": "RANK=0\0SECRET=x\0",
            "status": f"Uid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nNSpid:\t{pid}\nvoluntary_ctxt_switches:\t3\n",
            "io": "rchar: 1\nwchar: 2\nread_bytes: 3\nwrite_bytes: 4\n",
            "cgroup": "0::/x\n",
            "wchan": "futex_do_wait",
            "fdinfo/1": "pos:\t77\n",
        }
        for file, content in {**contents, **files}.items():
            (directory / file).write_text(content)
        (directory / "fd" / "1").symlink_to("/logs/a.log")
        (directory / "cwd").symlink_to("/work")
        (directory / "root").symlink_to("/")
        (directory / "ns" / "mnt").symlink_to(os.readlink("/proc/self/ns/mnt"))  # noqa: PTH115  the text counts
        (directory / "ns" / "pid").symlink_to(proc.INITIAL_PID_NAMESPACE)

    @staticmethod
    def stat(pid: int, name: str, state: str = "S", *, parent: int = 1, start: int = 100, session: int = 1) -> str:  # noqa: PLR0913  fields of a line
        """A line of /proc/PID/stat with 5 s of CPU."""
        return f"{pid} ({name}) {state} {parent} {pid} {session} 0 -1 0 1 0 9 0 300 200 0 0 20 0 1 0 {start} 0 0\n"

    def write(self, pid: int, file: str, content: str) -> None:
        """Change a file of a process."""
        (self.root / str(pid) / file).write_text(content)

    def remove(self, pid: int) -> None:
        """End a process. The directory is only moved away, so that its inode number is not given out again."""
        gone = self.root / f"gone-{pid}-{time.monotonic_ns()}"
        (self.root / str(pid)).rename(gone)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A box with an init process."""
    return Tree(tmp_path)


@pytest.fixture
def clock() -> FakeClock:
    """Time under the test's control."""
    return FakeClock()


def _named(word: str) -> Callable[[Mapping[int, ProcessRecord]], set[int]]:
    return lambda records: {pid for pid, record in records.items() if word in (record.command or ())}


def _likely(records: Mapping[int, ProcessRecord]) -> set[int]:
    """Like discovery: every Python is looked into before it is judged."""
    return {
        pid
        for pid, r in records.items()
        if r.name == "python" and (r.environment is None or "train" in (r.command or ()))
    }


def _source(tree: Tree, clock: FakeClock, word: str = "train") -> ProcessSource:
    return ProcessSource(clock, procfs=str(tree.root), interesting=_named(word))


class TestTable:
    def test_members_with_descent_and_ancestors(self, tree: Tree, clock: FakeClock) -> None:
        """What was picked, everything below it, and the way up to it; nothing else."""
        tree.add(10, "bash")
        tree.add(20, "python train", parent=10)
        tree.add(30, "loader", parent=20)
        tree.add(31, "grandchild", parent=30)
        tree.add(40, "nginx")
        found = _source(tree, clock).collect()
        assert set(found.processes) == {10, 20, 30, 31}
        assert (found.complete, found.oom_kills, found.host_pids) == (True, 2, True)

    def test_one_record(self, tree: Tree, clock: FakeClock) -> None:
        """Every field, and of the environment the wanted keys alone."""
        tree.add(20, "python train", session=19)
        record = _source(tree, clock).collect().processes[20]
        assert (record.name, record.command, record.session_id) == ("python", ("python", "train"), 19)
        assert (record.environment, record.working_directory) == ({"RANK": "0"}, "/work")
        assert (record.uid, record.gid, record.cgroup, record.namespace_pid) == (7, 8, "/x", 20)
        assert [(o.descriptor, o.kind, o.path, o.position) for o in record.outputs] == [(1, "file", "/logs/a.log", 77)]
        assert (record.state, record.cpu_seconds, record.major_faults) == ("sleeping", 5.0, 9)
        assert (record.read_bytes, record.written_bytes) == (1, 2)
        assert (record.storage_read_bytes, record.storage_written_bytes) == (3, 4)
        assert record.wait_channel == "futex_do_wait"

    def test_holders_of_gpus(self, tree: Tree, clock: FakeClock) -> None:
        """A process that the driver lists is followed with its children, whatever it is called."""
        tree.add(20, "./engine")
        tree.add(30, "helper", parent=20)
        source = _source(tree, clock)
        assert source.collect().processes == {}
        source.gpu_pids([20, 999])
        assert set(source.collect().processes) == {20, 30}

    def test_foreign_pid_namespace(self, tree: Tree, clock: FakeClock) -> None:
        """Inside a container the driver's PIDs are other processes' and are not looked up."""
        tree.add(20, "./engine")
        (tree.root / "1/ns/pid").unlink()
        (tree.root / "1/ns/pid").symlink_to("pid:[4026532999]")
        source = _source(tree, clock)
        source.gpu_pids([20])
        found = source.collect()
        assert (dict(found.processes), found.host_pids) == ({}, False)

    def test_who_reads_a_pipe(self, tree: Tree, clock: FakeClock) -> None:
        """The rest of a pipeline is in the table, so that the file behind it can be found."""
        tree.add(20, "python train", session=20)
        tree.add(21, "rotatelogs", session=20)
        tree.add(22, "elsewhere", session=5)
        for pid, number in ((20, "1"), (21, "0")):
            (tree.root / f"{pid}/fd/{number}").unlink(missing_ok=True)
            (tree.root / f"{pid}/fd/{number}").symlink_to("pipe:[5]")
        found = _source(tree, clock).collect().processes
        assert set(found) == {20, 21}
        assert found[21].input_pipe == "pipe:[5]"

    def test_a_hidden_process_list(self, tree: Tree, clock: FakeClock) -> None:
        """Where other users' processes are hidden (hidepid), the table says that it is not whole."""
        tree.add(20, "python train")
        tree.remove(1)
        assert not _source(tree, clock).collect().complete

    def test_another_procfs_is_needed_at_all(self, clock: FakeClock, tmp_path: Path) -> None:
        """A source without its /proc fails, it does not say that nothing runs."""
        source = ProcessSource(clock, procfs=str(tmp_path / "missing"), interesting=_named("x"))
        with pytest.raises(OSError, match="missing"):
            source.collect()

    def test_environment_keys_of_the_configuration(self, tree: Tree, clock: FakeClock) -> None:
        """A key that the configuration matches on is read too."""
        tree.add(20, "python train")
        source = ProcessSource(clock, procfs=str(tree.root), interesting=_named("train"), environment_keys=["SECRET"])
        assert source.collect().processes[20].environment == {"RANK": "0", "SECRET": "x"}


class TestReconfigure:
    def test_other_rules(self, tree: Tree, clock: FakeClock) -> None:
        """After a reload the processes that were there all along are judged by the new rules."""
        tree.add(20, "python train")
        tree.add(30, "julia fit")
        source = _source(tree, clock)
        source.collect()
        source.reconfigure(_named("fit"), ["SECRET"])
        found = source.collect().processes
        assert set(found) == {30}
        assert found[30].environment == {"RANK": "0", "SECRET": "x"}


class TestChange:
    def test_a_member_ends(self, tree: Tree, clock: FakeClock) -> None:
        """Gone from the list, gone from the table."""
        tree.add(20, "python train")
        source = _source(tree, clock)
        source.collect()
        tree.remove(20)
        assert source.collect().processes == {}

    def test_a_reused_pid_is_another_process(self, tree: Tree, clock: FakeClock) -> None:
        """Between two looks a PID went to somebody else; nothing of the first remains."""
        tree.add(20, "python train")
        source = _source(tree, clock)
        source.collect()
        tree.remove(20)
        tree.add(20, "nginx", start=200)
        assert source.collect().processes == {}

    def test_a_reused_pid_may_become_a_member(self, tree: Tree, clock: FakeClock) -> None:
        """The other way round, and it is judged by its own command."""
        tree.add(20, "nginx")
        source = _source(tree, clock)
        source.collect()
        tree.remove(20)
        tree.add(20, "python train", start=200)
        assert source.collect().processes[20].start_ticks == 200

    def test_exec_seen_by_the_name(self, tree: Tree, clock: FakeClock) -> None:
        """A member whose name changes is read again: after a fork it had its parent's command and environment."""
        tree.add(20, "python train")
        tree.add(30, "python train", parent=20, environ="")
        source = _source(tree, clock)
        assert source.collect().processes[30].environment == {}
        tree.write(30, "stat", tree.stat(30, "worker", parent=20))
        tree.write(30, "cmdline", "worker\0")
        tree.write(30, "environ", "LOCAL_RANK=1\0")
        record = source.collect().processes[30]
        assert (record.name, record.command, record.environment) == ("worker", ("worker",), {"LOCAL_RANK": "1"})

    def test_exec_under_the_same_name(self, tree: Tree, clock: FakeClock) -> None:
        """Every command is read once more when the process had time to settle, interesting or not."""
        tree.add(20, "python")
        source = _source(tree, clock)
        assert source.collect().processes == {}
        tree.write(20, "cmdline", "python\0train\0")
        clock.advance(SETTLE_SECONDS / 2)
        assert source.collect().processes == {}
        clock.advance(SETTLE_SECONDS / 2)
        assert set(source.collect().processes) == {20}

    def test_a_title_that_spoils_the_environment(self, tree: Tree, clock: FakeClock) -> None:
        """A new title may be written over the environment; what was known of it stays."""
        tree.add(20, "python train")
        source = _source(tree, clock)
        source.collect()
        tree.write(20, "stat", tree.stat(20, "my-title"))
        tree.write(20, "environ", "le of mine\0")
        tree.write(20, "cmdline", "my-title\0train\0")
        assert source.collect().processes[20].environment == {"RANK": "0"}

    def test_an_old_process_turns_into_a_launcher(self, tree: Tree, clock: FakeClock) -> None:
        """A shell that execs a launcher after hours is noticed by the slow rotation."""
        tree.add(20, "bash")
        for pid in range(100, 100 + 3 * ROTATION):
            tree.add(pid, "idle")
        source = _source(tree, clock)
        source.collect()
        clock.advance(SETTLE_SECONDS)
        source.collect()
        tree.write(20, "stat", tree.stat(20, "python"))
        tree.write(20, "cmdline", "python\0train\0")
        ticks = next(tick for tick in range(1, 10) if 20 in source.collect().processes)
        assert ticks <= 5

    def test_descriptors_are_looked_through_again(self, tree: Tree, clock: FakeClock) -> None:
        """A checkpoint that is opened later is found, soon at first and every 20 s after that."""
        tree.add(20, "python train")
        source = _source(tree, clock)
        source.collect()
        (tree.root / "20/fd/5").symlink_to("/out/x.pt")
        assert "/out/x.pt" not in source.collect().processes[20].open_files
        clock.advance(SETTLE_SECONDS)
        assert "/out/x.pt" in source.collect().processes[20].open_files
        (tree.root / "20/fd/6").symlink_to("/out/y.pt")
        clock.advance(REFRESH_SECONDS)
        assert "/out/y.pt" in source.collect().processes[20].open_files

    def test_a_zombie_keeps_what_was_known(self, tree: Tree, clock: FakeClock) -> None:
        """Its files are empty by then; its counters are unknown, not 0."""
        tree.add(20, "python train")
        source = _source(tree, clock)
        source.collect()
        tree.write(20, "stat", tree.stat(20, "python", "Z"))
        clock.advance(SETTLE_SECONDS)
        record = source.collect().processes[20]
        assert (record.state, record.command, record.environment) == ("zombie", ("python", "train"), {"RANK": "0"})
        assert record.read_bytes is None


class TestDiskSleep:
    def test_nothing_that_can_block_is_read(
        self, tree: Tree, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In D state command, environment and descriptors wait until it is over; state and counters do not."""
        tree.add(20, "python train")
        source = _source(tree, clock)
        source.collect()
        opened = _spy(monkeypatch)
        tree.write(20, "stat", tree.stat(20, "renamed", "D"))
        tree.add(30, "python train", parent=20, stat=tree.stat(30, "python", "D", parent=20))
        clock.advance(REFRESH_SECONDS)
        found = source.collect().processes
        assert found[20].state == found[30].state == "disk_sleep"
        assert (found[20].read_bytes, found[30].command, found[30].uid) == (1, None, 7)
        assert not {file for pid, file in opened if file in {"cmdline", "environ", "fd", "fdinfo/1"} and pid != 1}
        tree.write(30, "stat", tree.stat(30, "python", parent=20))
        assert source.collect().processes[30].command == ("python", "train")

    def test_a_real_one(self) -> None:
        """A process held in D state by vfork is shown as such at once."""
        with subprocess.Popen([sys.executable, "-c", UNINTERRUPTIBLE], stdout=subprocess.PIPE) as victim:
            try:
                assert victim.stdout is not None
                victim.stdout.readline()
                source = ProcessSource(SystemClock(), interesting=lambda records: set(records) & {victim.pid})
                found = _until(source, lambda table: table.processes[victim.pid].state == "disk_sleep")
            finally:
                children = Path(f"/proc/{victim.pid}/task/{victim.pid}/children").read_text()
                for pid in children.split():
                    os.kill(int(pid), signal.SIGKILL)
                victim.kill()
        assert found.processes[victim.pid].read_bytes is not None


class TestBlocked:
    def test_one_that_blocks_delays_nobody(self, tree: Tree, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        """Files of a process that never answer cost their deadline once; the others are whole, and so is it later."""
        for pid, command in ((20, "python train"), (30, "python train"), (40, "python other")):
            tree.add(pid, command)
        release = threading.Event()
        original = processes.read_identity

        def hanging(procfs: str, pid: int, *arguments: Any, **keywords: Any) -> identity.Identity:
            if pid in {20, 40}:
                release.wait(30)
            return original(procfs, pid, *arguments, **keywords)

        monkeypatch.setattr(processes, "read_identity", hanging)
        monkeypatch.setattr(processes, "READ_DEADLINE_SECONDS", 0.1)
        source = ProcessSource(clock, procfs=str(tree.root), interesting=_likely)
        began = time.monotonic()
        ticks = [source.collect() for _ in range(5)]
        assert time.monotonic() - began < 2.0
        assert ticks[0].processes[30].environment == {"RANK": "0"}
        assert (ticks[-1].processes[20].environment, ticks[-1].processes[20].read_bytes) == (None, None)
        assert 40 not in ticks[-1].processes
        release.set()
        assert _until(source, lambda found: found.processes[20].environment == {"RANK": "0"})


class TestRights:
    @pytest.mark.skipif(os.geteuid() != 0, reason="another user's process takes root to start")
    def test_an_ordinary_user_says_what_it_cannot_read(self) -> None:
        """Root's process: command and state are there, the rest is unknown, and the table says that it is not whole."""
        code = (
            "import os, sys\n"
            "from training_exporter.clock import SystemClock\n"
            "from training_exporter.sources.processes import ProcessSource\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534); pid = int(sys.argv[1])\n"
            "t = ProcessSource(SystemClock(), interesting=lambda records: set(records) & {pid}).collect()\n"
            "r = t.processes[pid]\n"
            "print(t.complete, r.command, r.environment, r.working_directory, r.read_bytes, r.outputs, r.uid)"
        )
        with subprocess.Popen(["sleep", "60"]) as victim:
            out = subprocess.run(
                [sys.executable, "-c", code, str(victim.pid)], capture_output=True, text=True, check=False
            )
            victim.kill()
        assert out.stdout.strip() == "False ('sleep', '60') None None None () 0", out.stderr


class TestCost:
    def test_an_unrelated_process_is_opened_only_when_it_is_new(
        self, tree: Tree, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its `stat` and command at the start and once when settled; then its share of the rotation."""
        for pid in range(100, 160):
            tree.add(pid, "idle")
        tree.add(20, "python train")
        source = _source(tree, clock)
        opened = _spy(monkeypatch)
        source.collect()
        assert Counter(file for pid, file in opened if pid >= 100) == {
            "stat": 60 + sum(1 for pid, _ in _repeats(opened) if pid >= 100),
            "cmdline": 60,
        }
        clock.advance(SETTLE_SECONDS)
        source.collect()
        opened.clear()
        for _ in range(10):
            source.collect()
        others = Counter(file for pid, file in opened if pid >= 100)
        assert set(others) == {"stat"}
        assert others["stat"] <= 10 * ROTATION < 10 * 60
        assert "smaps" not in {file for _, file in opened}

    def test_a_long_listing_is_made_in_every_third_tick(
        self, tree: Tree, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who comes and who goes is seen then; members are looked at all the while."""
        monkeypatch.setattr(processes, "LONG_LISTING", 3)
        tree.add(20, "python train")
        tree.add(30, "python train")
        source = _source(tree, clock)
        source.collect()
        tree.add(40, "python train")
        tree.remove(30)
        tree.write(20, "stat", Tree.stat(20, "python", "T"))
        seen = [source.collect() for _ in range(LONG_LISTING_TICKS)]
        assert [set(table.processes) for table in seen] == [{20, 30}, {20, 30}, {20, 40}]
        assert {table.processes[20].state for table in seen} == {"stopped"}


def _spy(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Note (PID, file) of everything that is opened below a /proc."""
    opened: list[tuple[int, str]] = []
    read, descriptors = proc.read_file, proc.read_descriptors

    def note(path: str) -> None:
        parts = path.split("/")
        numbers = [index for index, part in enumerate(parts) if part.isdigit()]
        if numbers:
            index = numbers[0] if not parts[-1].isdigit() or len(numbers) == 1 else numbers[-2]
            opened.append((int(parts[index]), "/".join(parts[index + 1 :])))

    def noting_read(path: str, **keywords: Any) -> bytes:
        note(path)
        return read(path, **keywords)

    def noting_descriptors(directory: str) -> proc.Descriptors:
        note(f"{directory}/fd")
        return descriptors(directory)

    monkeypatch.setattr(proc, "read_file", noting_read)
    monkeypatch.setattr(proc, "read_descriptors", noting_descriptors)
    return opened


def _repeats(opened: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    seen: set[tuple[int, str]] = set()
    for entry in opened:
        if entry in seen:
            yield entry
        seen.add(entry)


def _until(source: ProcessSource, condition: Callable[[ProcessTable], bool]) -> ProcessTable:
    deadline = time.monotonic() + 10
    while not condition(found := source.collect()):
        assert time.monotonic() < deadline, found
    return found
