"""What the server survives: files that hang, no descriptor left, half-open clients, sockets from elsewhere."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import http.client
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from e2e.harness import Exporter, fetch, wait_until
from hanging_mount import can_mount, hanging
from jobs import job
from training import Training
from training_exporter import server as server_module
from training_exporter.options import ServeOptions
from training_exporter.runs.view import NodeView
from training_exporter.server import Server
from training_exporter.sources.tail import FILES_SHARE
from training_exporter.web import authentication

OPTIONS = ServeOptions(listen_addresses=("127.0.0.1:0",), enable_lifecycle=True)
PATIENCE_SECONDS = 20.0
SAMPLES, SAMPLE_SECONDS = 30, 0.05  # more than one look at everything
HALF_A_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
Start = Callable[..., Server]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what was started, last first."""
    with ExitStack() as exits:
        yield exits


@pytest.fixture
def start(rich_view: NodeView, stack: ExitStack) -> Start:
    """Starts servers over the rich view in threads of their own."""

    def begin(options: ServeOptions = OPTIONS, reload: Callable[[], list[str]] = list) -> Server:
        server = Server(options, view=lambda: rich_view, reload=reload)
        server.bind()
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        stack.callback(thread.join, PATIENCE_SECONDS)
        stack.callback(server.stop)
        return server

    return begin


def ask(server: Server, path: str = "/metrics", method: str = "GET") -> int:
    """The status of one request on a connection of its own."""
    connection = http.client.HTTPConnection(*server.addresses[0], timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    finally:
        connection.close()


class TestReload:
    """A configuration on a file system that never answers."""

    def test_reloads_that_hang_keep_no_scrape_waiting(self, start: Start, stack: ExitStack) -> None:
        """However many are asked for: one waits, the others are told so."""
        entered, release = threading.Event(), threading.Event()

        def hang() -> list[str]:
            entered.set()
            assert release.wait(PATIENCE_SECONDS)
            return []

        server = start(reload=hang)
        stack.callback(release.set)
        first = threading.Thread(target=ask, args=(server, "/-/reload", "POST"))
        first.start()
        assert entered.wait(PATIENCE_SECONDS)
        assert [ask(server, "/-/reload", "POST") for _ in range(5)] == [503] * 5
        assert ask(server) == 200
        release.set()
        first.join(PATIENCE_SECONDS)
        assert ask(server, "/-/reload", "POST") == 200

    def test_a_fault_of_the_reload_is_told(self, start: Start) -> None:
        """An exception is an answer too, and the next reload is not refused."""
        answers = iter([[], None])

        def fail() -> list[str]:
            if next(answers) is None:
                return []
            raise ValueError("no such thing")

        server = start(reload=fail)
        assert [ask(server, "/-/reload", "POST") for _ in range(2)] == [500, 200]

    @pytest.mark.skipif(not can_mount(), reason="mounting takes root and /dev/fuse")
    def test_files_on_a_dead_mount(self, tmp_path: Path, stack: ExitStack) -> None:
        """Configuration and certificates hang: scrapes are answered, and SIGTERM ends the exporter all the same."""
        folder = tmp_path / "mount"
        folder.mkdir()
        (folder / "config.yaml").write_text("runs: []\n")
        (folder / "web.yaml").write_text("basic_auth_users: {}\n")
        exporter = Exporter(
            tmp_path,
            "--no-collector.gpu",
            f"--config.file={folder / 'config.yaml'}",
            f"--web.config.file={folder / 'web.yaml'}",
        )
        stack.callback(exporter.stop)
        stack.enter_context(hanging(folder))
        for _ in range(4):
            exporter.process.send_signal(signal.SIGHUP)
            fetch(f"{exporter.url}/metrics")
        wait_until("both files hang", lambda: _in_disk_sleep(exporter.pid) >= 2, seconds=PATIENCE_SECONDS)
        for _ in range(20):
            fetch(f"{exporter.url}/metrics")
        assert _in_disk_sleep(exporter.pid) == 2
        assert exporter.value("training_exporter_collector_success", collector="processes") == 1
        assert exporter.terminate() == 0


def _in_disk_sleep(pid: int) -> int:
    """How many threads of a process wait for a file system."""
    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()]
    return states.count("D")


class TestHalfOpen:
    def test_they_are_bounded_and_closed(self, start: Start, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        """Three hundred half requests: no thread more, one descriptor each, and none stays past the header's time."""
        monkeypatch.setattr(server_module, "IDLE_SECONDS", 1.0)
        server = start()
        assert ask(server) == 200
        threads, descriptors = threading.active_count(), _descriptors()
        held = [socket.create_connection(server.addresses[0], timeout=PATIENCE_SECONDS) for _ in range(300)]
        for one in held:
            stack.callback(one.close)
            one.sendall(HALF_A_REQUEST)
        assert ask(server) == 200
        assert threading.active_count() <= threads + 1  # the second thread of the pool
        assert _descriptors() <= descriptors + 2 * len(held) + 2  # both ends are ours
        assert all(map(_ended, held))
        wait_until(
            "the server's ends are closed",
            lambda: _descriptors() <= descriptors + len(held) + 1,
            seconds=PATIENCE_SECONDS,
        )

    def test_no_more_than_allowed_are_held(self, start: Start, stack: ExitStack) -> None:
        """The limit holds for half requests too, and the scrape behind them is answered."""
        server = start(replace(OPTIONS, max_connections=10))
        assert ask(server) == 200
        descriptors = _descriptors()
        held = [socket.create_connection(server.addresses[0], timeout=PATIENCE_SECONDS) for _ in range(100)]
        for one in held:
            stack.callback(one.close)
        assert ask(server) == 200
        assert _descriptors() <= descriptors + len(held) + 10 + 1


def _ended(client: socket.socket) -> bool:
    """Whether the server ends the connection without a byte, in peace or (something sent was not read yet) by reset."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a count of names


class TestManyScrapes:
    SCRAPES = 1000

    def test_a_thousand_at_the_same_time(self, tmp_path: Path, stack: ExitStack) -> None:
        """Each is answered, refused or closed; threads stay few, and the scrape after them is answered."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        (tmp_path / "config.yaml").write_text("discovery: {enabled: false}\n")  # another's job would cost threads
        exporter = Exporter(tmp_path, "--no-collector.gpu", f"--config.file={tmp_path / 'config.yaml'}")
        stack.callback(exporter.stop)
        fetch(f"{exporter.url}/metrics")
        threads = len(os.listdir(f"/proc/{exporter.pid}/task"))  # noqa: PTH208  a count of names
        clients = [
            socket.create_connection(("127.0.0.1", exporter.port), timeout=PATIENCE_SECONDS)
            for _ in range(self.SCRAPES)
        ]
        for client in clients:
            stack.callback(client.close)
            with contextlib.suppress(ConnectionError):  # closed to make room
                client.sendall(HALF_A_REQUEST + b"\r\n")
        answers = Counter(map(_first_line, clients))
        assert set(answers) <= {b"HTTP/1.1 200 OK", b"HTTP/1.1 503 Service Unavailable", b""}
        assert answers[b"HTTP/1.1 200 OK"] >= ServeOptions().max_requests
        assert len(os.listdir(f"/proc/{exporter.pid}/task")) <= threads + 2  # noqa: PTH208  a count of names
        fetch(f"{exporter.url}/metrics")


def _first_line(client: socket.socket) -> bytes:
    """The status line of an answer; nothing where the connection was closed."""
    try:
        return client.recv(200).partition(b"\r\n")[0]
    except ConnectionError:
        return b""


# bcrypt of "secret" at costs 4 and 5
CHEAP = "$2b$04$ObtVfq2SLD0OaAJjw0KlReyzbhWa84K3BPfQyhpLCPmnMtFy4fKQa"
DEAR = "$2b$05$zHo/XPnEuzzglY8d/6iNnetsxz5r5QgzbROPf0.nGOcw8lkyJzh.y"


class TestPasswords:
    """Who may not enter learns nothing from how long that takes."""

    @pytest.fixture
    def checked(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The hashes against which a password was checked."""
        seen: list[str] = []
        check = authentication._matches

        def note(password: bytes, digest: str) -> bool:
            seen.append(digest)
            return check(password, digest)

        monkeypatch.setattr(authentication, "_matches", note)
        return seen

    def test_an_unknown_user_costs_one_check(self, checked: list[str]) -> None:
        """As a wrong password does, with the same hash where there is one only."""
        answers = [
            asyncio.run(authentication.Authenticator().check(_basic(login), {"prometheus": CHEAP}))
            for login in ("prometheus:wrong", "nobody:wrong", "nobody:secret", "prometheus:secret")
        ]
        assert answers == [False, False, False, True]
        assert checked == [CHEAP] * 4

    def test_hashes_of_different_cost_do_not_tell_users_from_others(self, checked: list[str]) -> None:
        """Unknown names are spread over the costs in use, and one name always costs the same."""
        users = {"prometheus": CHEAP, "grafana": DEAR}

        async def ask() -> list[list[str]]:
            authenticator = authentication.Authenticator()
            rounds = []
            for _ in range(2):
                checked.clear()
                for number in range(40):
                    assert not await authenticator.check(_basic(f"nobody-{number}:secret"), users)
                rounds.append(list(checked))
            return rounds

        first, second = asyncio.run(ask())
        assert first == second
        assert set(first) == {CHEAP, DEAR}

    def test_without_credentials_nothing_is_checked(self, checked: list[str]) -> None:
        """Neither for a missing header nor for one that is none."""
        for header in (None, "", "Basic", "Basic !!!", "Bearer abc"):
            assert not asyncio.run(authentication.Authenticator().check(header, {"prometheus": CHEAP}))
        assert checked == []


def _basic(login: str) -> str:
    return "Basic " + base64.b64encode(login.encode()).decode()


class TestDescriptors:
    """An exporter that may open no more files: its logs and its clients have them all."""

    ALLOWED = 64
    LOGS = 100
    CLIENTS = 60

    @pytest.fixture
    def starved(self, tmp_path: Path, stack: ExitStack) -> Exporter:
        """An exporter whose configured logs are more than the descriptors it may have."""
        logs = tmp_path / "logs"
        logs.mkdir()
        for number in range(self.LOGS):
            (logs / f"{number}.log").write_text("step 1/10 loss 0.5\n")
        (tmp_path / "config.yaml").write_text(f"runs: [{{name: many-logs, logs: ['{logs}/*.log']}}]\n")
        limit = (self.ALLOWED, self.ALLOWED)
        exporter = Exporter(
            tmp_path,
            f"--config.file={tmp_path / 'config.yaml'}",
            "--no-collector.gpu",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit),
        )
        stack.callback(exporter.stop)
        return exporter

    def test_scrapes_are_answered_and_no_run_is_called_dead(
        self, tmp_path: Path, stack: ExitStack, starved: Exporter
    ) -> None:
        """New clients and old ones are served, a source says that it fails, and a living job keeps its outcome open."""
        made = stack.enter_context(job(tmp_path / "job"))
        training = Training(made, made.directory / "out")
        for _ in range(self.CLIENTS):
            held = socket.create_connection(("127.0.0.1", starved.port), timeout=PATIENCE_SECONDS)
            stack.callback(held.close)
            held.sendall(b"GET /metrics HTTP/1.1\r\n")  # and no more
        wait_until("its logs are open", lambda: "log files are followed" in starved.text(), seconds=PATIENCE_SECONDS)
        _let_open_no_more(starved.pid)
        wait_until("a source fails", lambda: "Too many open files" in starved.text(), seconds=PATIENCE_SECONDS)
        kept = http.client.HTTPConnection("127.0.0.1", starved.port, timeout=PATIENCE_SECONDS)
        stack.callback(kept.close)
        seen = starved.value("training_exporter_time_seconds") or 0.0
        wait_until("time goes on", lambda: _time(starved) > seen + 3, seconds=PATIENCE_SECONDS)
        for _ in range(50):
            kept.request("GET", "/metrics")
            answer = kept.getresponse()
            assert answer.status == 200
            answer.read()
            fetch(f"{starved.url}/metrics")
        outcomes = training.value(starved, "training_run_outcome", outcome="failed")
        assert outcomes in (None, 0.0)
        assert starved.text().count("Traceback") == 0
        assert len(starved.text().splitlines()) < 40  # once each, not once a second

    def test_logs_leave_descriptors_to_others(self, starved: Exporter) -> None:
        """Those past their share are not followed, which is said once."""
        wait_until("the logs are known", lambda: "log files are followed" in starved.text(), seconds=PATIENCE_SECONDS)
        share = self.ALLOWED // FILES_SHARE
        said = re.findall(r"(\d+) log files are followed, and (\d+) are not", starved.text())
        # another job on this machine has logs too
        assert [(int(followed), int(left) >= self.LOGS - share) for followed, left in said] == [(share, True)]
        fetch(f"{starved.url}/metrics")
        assert _open_files(starved.pid) < self.ALLOWED - 10

    def test_the_limit_is_raised_as_far_as_it_may(self, tmp_path: Path, stack: ExitStack) -> None:
        """A soft limit that is too low for many logs does not stay."""
        exporter = Exporter(
            tmp_path,
            "--no-collector.gpu",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096)),
        )
        stack.callback(exporter.stop)
        assert exporter.value("process_max_fds") == 4096


def _let_open_no_more(pid: int) -> None:
    """From now on the process has the descriptors that it always has, and none for anything else."""
    always = set.intersection(*(_sampled(pid) for _ in range(SAMPLES)))
    lowest = next(number for number in count() if number not in always)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, lowest))


def _sampled(pid: int) -> set[int]:
    time.sleep(SAMPLE_SECONDS)
    return {int(number) for number in os.listdir(f"/proc/{pid}/fd")}  # noqa: PTH208  names alone


def _open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  a count of names


def _time(exporter: Exporter) -> float:
    return exporter.value("training_exporter_time_seconds") or 0.0


# every thread takes a little and a lot, and keeps a little between the two
THREADS = """
import ctypes, sys, threading
from training_exporter.commands import return_freed_memory
if sys.argv[2:]:
    return_freed_memory()
ready = threading.Barrier(9)
kept = []
def work():
    large = [bytes(600) for _ in range(2000)] + [bytes(200_000) for _ in range(50)]
    kept.append(large[1000])
    ready.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
ready.wait()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
assert libc.malloc_info(0, stream) == 0
libc.fclose(stream)
"""


class TestMemory:
    @pytest.mark.parametrize(("flag", "one"), [(["steady"], True), ([], False)], ids=["as served", "by default"])
    def test_threads_share_a_heap(self, tmp_path: Path, flag: list[str], one: bool) -> None:
        """A thread that worked for a moment leaves no heap behind, as it does by default."""
        if not hasattr(ctypes.CDLL(None), "mallopt"):
            pytest.skip("not the GNU C library")
        subprocess.run([sys.executable, "-c", THREADS, tmp_path / "info", *flag], check=True)
        assert ((tmp_path / "info").read_text().count("<heap nr=") == 1) is one


# systemd gives the number of the process that it starts, which only that process itself knows in time
ACTIVATE = """
import fcntl, os, sys
count = int(sys.argv[1])
os.environ["LISTEN_PID"] = os.environ.get("PASS_TO", str(os.getpid()))
os.environ["LISTEN_FDS"] = str(count)
descriptors = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 100) for word in sys.argv[2:2 + count]]  # out of the way
for number, descriptor in enumerate(descriptors):
    os.dup2(descriptor, 3 + number, inheritable=True)
os.execv(sys.executable, [sys.executable, "-m", "training_exporter", *sys.argv[2 + count:]])
"""


class TestSystemdSocket:
    def _start(self, tmp_path: Path, *passed: socket.socket, pid: int | None = None) -> subprocess.Popen[str]:
        words = [str(one.fileno()) for one in passed]
        flags = ["--web.systemd-socket", "--no-collector.gpu", f"--state.dir={tmp_path / 'state'}"]
        return subprocess.Popen(
            [sys.executable, "-c", ACTIVATE, str(len(passed)), *words, *flags],
            pass_fds=[one.fileno() for one in passed],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **({"PASS_TO": str(pid)} if pid else {})},
        )

    def test_passed_sockets_are_served(self, tmp_path: Path, stack: ExitStack) -> None:
        """Clients that came before the exporter are answered by it, on every passed socket."""
        passed = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        early = socket.create_connection(passed[0].getsockname(), timeout=PATIENCE_SECONDS)
        stack.callback(early.close)
        early.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
        process = self._start(tmp_path, *passed)
        stack.callback(process.communicate)
        stack.callback(process.kill)
        assert early.recv(100).startswith(b"HTTP/1.1 200")
        assert "healthy" in fetch(f"http://127.0.0.1:{passed[1].getsockname()[1]}/-/healthy")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0

    def test_a_datagram_socket_is_refused(self, tmp_path: Path, stack: ExitStack) -> None:
        """What cannot be listened on is said before anything starts."""
        wrong = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        process = self._start(tmp_path, wrong)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 1
        assert "descriptor 3 of systemd is no listening TCP socket" in said

    def test_sockets_of_another_process_are_refused(self, tmp_path: Path, stack: ExitStack) -> None:
        """What was passed to a parent is none of ours."""
        passed = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        process = self._start(tmp_path, passed, pid=os.getpid())
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 1
        assert "systemd passed no socket" in said

    def test_none_is_refused(self, tmp_path: Path) -> None:
        """Without a socket unit the flag is a mistake."""
        process = self._start(tmp_path)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 1
        assert "--web.systemd-socket: systemd passed no socket" in said
