"""Stacks of the ranks: equal ones folded, the odd one out first, what cannot be read said."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training_exporter.report import stacks
from training_exporter.report.stacks import Rights, Stack

MAIN = """Process 4242: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4250 (idle): "Thread-1"
    wait (threading.py:327)
Thread 4242 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2501)
    step (train.py:88)
    <module> (train.py:120)
"""
READING = MAIN.replace("all_reduce (torch/distributed/distributed_c10d.py:2501)", "read (dataset.py:17)")


class TestMainThread:
    def test_main_thread_is_meant(self) -> None:
        """Helper threads are left out."""
        assert stacks.main_thread(MAIN) == (
            "all_reduce (torch/distributed/distributed_c10d.py:2501)",
            "step (train.py:88)",
            "<module> (train.py:120)",
        )

    def test_first_thread_in_its_place(self) -> None:
        """Where none is called main, the first one is shown; no thread is no frame."""
        assert stacks.main_thread("Thread 0x7F (idle)\n    f (x.py:1)\n") == ("f (x.py:1)",)
        assert stacks.main_thread("Process 1\n") == ()


class TestCollect:
    def test_odd_one_first(self) -> None:
        """Three ranks wait for the fourth: that one stands on top."""
        texts = {100: MAIN, 101: MAIN, 102: READING, 103: MAIN}
        found = stacks.collect(enumerate(texts), texts.__getitem__)
        assert [stack.ranks for stack in found] == [(2,), (0, 1, 3)]
        assert found[0].frames[0] == "read (dataset.py:17)"

    def test_what_cannot_be_read(self) -> None:
        """A rank whose stack is not permitted does not hide the others."""

        def dump(pid: int) -> str:
            if pid == 101:
                raise OSError("not permitted")
            return MAIN

        found = stacks.collect([(0, 100), (1, 101), (2, 102)], dump)
        assert Stack((1,), (), "not permitted") == found[0]
        assert found[1].ranks == (0, 2)

    def test_lines(self) -> None:
        """The text names ranks, frames and reasons, and is printable."""
        text = list(stacks.lines([Stack((2,), ("\x1b[2J (x.py:1)",)), Stack((0, 1), (), "denied"), Stack((3,), ())]))
        assert text == [
            "  stack of rank 2:",
            "    \\x1b[2J (x.py:1)",
            "  stack of ranks 0, 1:",
            "    cannot be read: denied",
            "  stack of rank 3:",
            "    no Python frame",
        ]


class TestDump:
    def test_not_installed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Without py-spy the way to get it is said."""
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        (found,) = stacks.collect([(0, 1), (1, 2)])
        assert found.ranks == (0, 1)
        assert found.error == "py-spy is not installed: pip install 'training-exporter[stacks]'"

    def test_beside_this_python(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """py-spy of the same virtual environment is found though that is not activated."""
        program = tmp_path / "py-spy"
        program.write_text('#!/bin/sh\necho "$@"\n')
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        monkeypatch.setenv("PATH", "/nowhere:/bin")
        assert stacks.dump(7) == "dump --nonblocking --pid 7\n"

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ("Error: Permission Denied", "not permitted: "),
            ("Error: no such process", "no such process"),
            ("", "without"),
        ],
    )
    def test_failure(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, message: str, expected: str) -> None:
        """py-spy's reason is passed on, a missing right is named."""
        program = tmp_path / "py-spy"
        program.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        with pytest.raises(OSError, match=expected):
            stacks.dump(1)

    @pytest.mark.skipif(shutil.which("py-spy", path=str(Path(sys.executable).parent)) is None, reason="no py-spy here")
    def test_blocked_on_a_fifo(self, tmp_path: Path) -> None:
        """A process that waits for a FIFO shows the frame that opens it."""
        fifo, ready, script = tmp_path / "fifo", tmp_path / "ready", tmp_path / "blocked.py"
        os.mkfifo(fifo)
        script.write_text(
            "import sys\n"
            "def load_shard():\n"
            "    open(sys.argv[1], 'w').close()\n"
            "    open(sys.argv[2]).read()\n"
            "load_shard()\n"
        )
        process = subprocess.Popen([sys.executable, script, ready, fifo])
        try:
            end = time.monotonic() + 20
            while not ready.exists():
                assert time.monotonic() < end
                time.sleep(0.01)
            found = stacks.collect([(0, process.pid)])
        finally:
            process.kill()
            process.wait()
        if found[0].error is not None and found[0].error.startswith("not permitted"):
            pytest.skip("ptrace is not permitted here")
        assert any("load_shard (blocked.py:4)" in frame for frame in found[0].frames)


class TestMissingRight:
    @pytest.mark.parametrize(
        ("rights", "expected"),
        [
            (Rights(owner=1000, own=1001, may_trace=False, ptrace_scope=0), "belongs to user 1000: run as that user"),
            (Rights(owner=1000, own=1001, may_trace=False, ptrace_scope=1), "belongs to user 1000: run as that user"),
            (Rights(owner=1000, own=1000, may_trace=False, ptrace_scope=1), "kernel.yama.ptrace_scope is 1"),
            (Rights(owner=1000, own=1000, may_trace=False, ptrace_scope=0), "CAP_SYS_PTRACE is missing"),
            (Rights(owner=None, own=1000, may_trace=False, ptrace_scope=0), "CAP_SYS_PTRACE is missing"),
            (Rights(owner=1000, own=0, may_trace=False, ptrace_scope=0), "--cap-add SYS_PTRACE"),
            (Rights(owner=1000, own=0, may_trace=True, ptrace_scope=2), "another user namespace"),
            (Rights(owner=0, own=0, may_trace=True, ptrace_scope=3), "before the next boot"),
        ],
    )
    def test_names_what_is_in_the_way(self, rights: Rights, expected: str) -> None:
        """The right that is missing is named, with the way to have it."""
        assert expected in stacks.missing_right(rights)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
    def test_a_stranger_is_told(self) -> None:
        """Nobody asks for the stack of a process of root, and is told whose it is."""
        code = (  # changes the user after the start, because nobody might not be allowed to start this Python
            "import os; from training_exporter.report import stacks; os.setgroups([]); os.setresgid(*3 * (65534,));"
            "os.setresuid(*3 * (65534,)); print(stacks.collect([(0, os.getppid())]))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert "the process belongs to user 0: run as that user" in done.stdout
