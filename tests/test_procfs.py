"""The parsers of /proc, on texts that are hard to parse and against psutil's answers for real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_exporter.model import OutputTarget
from training_exporter.sources import procfs as proc

STAT = b"4242 (%s) S 17 4242 99 0 -1 4194304 10 20 33 40 150 50 1 2 20 0 7 0 987654 1000 200 18446744073709551615"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a log as output, a pipe as input, a file open for writing and one for reading."""
    (tmp_path / "model.pt.tmp").touch()
    code = "import time; a = open('model.pt.tmp', 'ab'); b = open('train.log'); print('up', flush=True); time.sleep(60)"
    with (tmp_path / "train.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.DEVNULL, cwd=tmp_path
        )
    while not (tmp_path / "train.log").read_bytes():
        assert process.poll() is None
    yield process
    process.kill()
    process.communicate()


class TestParseStat:
    def test_reads_the_fields_of_proc_5(self) -> None:
        """State, parent, session, major faults, CPU (user and system) and start are at their places."""
        expected = proc.Stat("python3", "sleeping", 17, 99, 33, 200, 987654)
        assert proc.parse_stat(STAT % b"python3") == expected

    @given(st.binary(max_size=15).filter(lambda name: b"\0" not in name))
    def test_any_name_is_survived(self, name: bytes) -> None:
        """A process may call itself anything: blanks, parentheses, newlines, bytes that are no UTF-8."""
        stat = proc.parse_stat(STAT % name)
        assert (stat.name, stat.start_ticks) == (name.decode("utf-8", "surrogateescape"), 987654)

    @pytest.mark.parametrize(
        ("letter", "state"),
        [("R", "running"), ("D", "disk_sleep"), ("T", "stopped"), ("t", "stopped"), ("Z", "zombie"), ("I", "sleeping")],
    )
    def test_state_letters(self, letter: str, state: str) -> None:
        """Letters of the kernel become the five states of the metrics."""
        assert proc.parse_stat((STAT % b"x").replace(b" S ", f" {letter} ".encode())).state == state


class TestParsers:
    def test_io(self) -> None:
        """System call bytes and storage bytes are told apart."""
        data = b"rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\ncancelled_write_bytes: 7\n"
        assert proc.parse_io(data) == proc.Io(1, 2, 5, 6)

    def test_status_inside_a_container(self) -> None:
        """Effective ids, the innermost PID and the sum of both kinds of context switches."""
        data = (
            b"Name:\tpython3\nUid:\t1000\t1001\t1000\t1000\nGid:\t50\t51\t50\t50\nNSpid:\t4242\t17\n"
            b"voluntary_ctxt_switches:\t10\nnonvoluntary_ctxt_switches:\t5\n"
        )
        assert proc.parse_status(data) == proc.Status(1001, 51, 17, 15)

    def test_status_of_a_kernel_that_says_little(self) -> None:
        """What is not there is None, not 0."""
        assert proc.parse_status(b"Name:\tx\n") == proc.Status(None, None, None, None)

    def test_command_keeps_empty_arguments(self) -> None:
        """An empty argument in the middle counts; the NULs that a rewritten title leaves behind do not."""
        assert proc.parse_command(b"python3\0\0-x\0\0\0\0") == ("python3", "", "-x")

    def test_command_of_a_kernel_thread_is_empty(self) -> None:
        """No bytes, no arguments."""
        assert proc.parse_command(b"") == ()

    def test_environment_keeps_no_secret(self) -> None:
        """Only the wanted keys leave the parser, whatever else stands there."""
        data = b"RANK=3\0WANDB_API_KEY=topsecret\0RANKX=1\0broken\0LOCAL_RANK=a=b\0"
        assert proc.parse_environment(data, {"RANK", "LOCAL_RANK"}) == {"RANK": "3", "LOCAL_RANK": "a=b"}

    @pytest.mark.parametrize(
        ("data", "path"),
        [
            (b"0::/system.slice/docker-abc.scope\n", "/system.slice/docker-abc.scope"),
            (b"12:memory:/docker/abc\n1:name=systemd:/docker/abc/x\n0::/\n", "/docker/abc/x"),
            (b"", None),
        ],
    )
    def test_cgroup_of_both_versions(self, data: bytes, path: str | None) -> None:
        """The unified path, or the longest of version 1 where the unified one says nothing."""
        assert proc.parse_cgroup(data) == path

    def test_position(self) -> None:
        """`pos` of a descriptor, None where the kernel does not say."""
        assert proc.parse_position(b"pos:\t1234\nflags:\t02100001\n") == 1234
        assert proc.parse_position(b"flags:\t0\n") is None

    def test_wait_channel(self) -> None:
        """Zero means running or hidden: unknown."""
        assert proc.parse_wait_channel(b"futex_do_wait") == "futex_do_wait"
        assert proc.parse_wait_channel(b"0") is None

    def test_oom_kills(self) -> None:
        """The counter of /proc/vmstat, None on a kernel without it."""
        assert proc.parse_oom_kills(b"oom_kill_x 9\noom_kill 3\n") == 3
        assert proc.parse_oom_kills(b"nr_free_pages 1\n") is None


class TestOutputTarget:
    @pytest.mark.parametrize(
        ("link", "kind"),
        [
            ("/data/train.log", "file"),
            ("/dev/shm/train.log", "file"),  # noqa: S108  a link text
            ("/data/train.log (deleted)", "other"),
            ("pipe:[77]", "pipe"),
            ("socket:[77]", "socket"),
            ("/dev/null", "null"),
            ("/dev/pts/3", "terminal"),
            ("/dev/console", "terminal"),
            ("/memfd:x (deleted)", "other"),
            ("anon_inode:[eventfd]", "other"),
        ],
    )
    def test_kinds(self, link: str, kind: str) -> None:
        """The text of the link alone tells what stands behind a descriptor."""
        assert proc.output_target(1, link) == OutputTarget(1, kind, link)  # type: ignore[arg-type]


class TestRealProcess:
    def test_descriptors(self, sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
        """Outputs, the input pipe and the files open for writing are found; what is only read is not listed."""
        found = proc.read_descriptors(f"/proc/{sleeper.pid}")
        assert found.outputs == (
            OutputTarget(1, "file", str(tmp_path / "train.log")),
            OutputTarget(2, "null", "/dev/null"),
        )
        assert found.open_files == (str(tmp_path / "train.log"), str(tmp_path / "model.pt.tmp"))
        assert found.input_pipe is not None
        assert found.input_pipe.startswith("pipe:[")

    def test_agrees_with_psutil(self, sleeper: subprocess.Popen[bytes]) -> None:
        """Name, parent, CPU, bytes, ids and command are what psutil reads."""
        oracle = psutil.Process(sleeper.pid)
        stat = proc.parse_stat(proc.read_file(f"/proc/{sleeper.pid}/stat"))
        io = proc.parse_io(proc.read_file(f"/proc/{sleeper.pid}/io"))
        status = proc.parse_status(proc.read_file(f"/proc/{sleeper.pid}/status"))
        times, counters = oracle.cpu_times(), oracle.io_counters()
        assert (stat.name, stat.parent_pid) == (oracle.name(), oracle.ppid())
        assert stat.cpu_ticks / proc.TICKS_PER_SECOND == pytest.approx(times.user + times.system)
        assert (io.read_bytes, io.written_bytes) == (counters.read_chars, counters.write_chars)
        assert (status.uid, status.gid) == (oracle.uids().effective, oracle.gids().effective)
        assert list(proc.parse_command(proc.read_file(f"/proc/{sleeper.pid}/cmdline"))) == oracle.cmdline()

    def test_same_mounts_are_seen_from_the_root(self, sleeper: subprocess.Popen[bytes]) -> None:
        """A process that shares the exporter's mounts needs no /proc/PID/root."""
        assert proc.visible_root("/proc", sleeper.pid) == "/"

    def test_listing_names_every_process(self) -> None:
        """The listing has psutil's PIDs and, for this process, a number that stays."""
        first, second = proc.list_processes("/proc"), proc.list_processes("/proc")
        assert first.keys() >= {os.getpid(), 1}
        assert first[os.getpid()] == second[os.getpid()]

    def test_a_reused_pid_has_another_number(self) -> None:
        """What the source relies on to notice PID reuse without opening a file."""
        chooser = Path("/proc/sys/kernel/ns_last_pid")
        if not os.access(chooser, os.W_OK):
            pytest.skip("choosing a PID takes root")
        first = subprocess.Popen(["sleep", "60"])
        number = proc.list_processes("/proc")[first.pid]
        first.kill()
        first.wait()
        for _ in range(50):  # other processes may take the PID first
            chooser.write_text(str(first.pid - 1))
            second = subprocess.Popen(["sleep", "60"])
            numbers = proc.list_processes("/proc")
            second.kill()
            second.wait()
            if second.pid == first.pid:
                assert numbers[first.pid] != number
                return
        pytest.skip("the PID could not be had again")
