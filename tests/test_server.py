"""The HTTP server over real sockets: what it answers, and what it survives."""

from __future__ import annotations

import gc
import gzip
import http.client
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from training_exporter import server as server_module
from training_exporter.metrics import ReloadState
from training_exporter.options import ServeOptions
from training_exporter.runs.view import NodeView
from training_exporter.server import Server, ServerError, affordable, parse_address

OPTIONS = ServeOptions(listen_addresses=("127.0.0.1:0",))
DEADLINE_SECONDS = 10.0


class Answer:
    """Status, headers and body of one response."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def text(self) -> str:
        return self.body.decode()


class Running:
    """A server in a thread of its own."""

    def __init__(self, server: Server) -> None:
        self.server = server
        server.bind()
        self.address = server.addresses[0]
        self.thread = threading.Thread(target=server.run, daemon=True)
        self.thread.start()

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """One request on a connection of its own; underscores in header names stand for hyphens."""
        connection = http.client.HTTPConnection(*self.address, timeout=DEADLINE_SECONDS)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(self.address, timeout=DEADLINE_SECONDS)


Start = Callable[..., Running]


@pytest.fixture
def start(rich_view: NodeView) -> Iterator[Start]:
    """Starts servers over the rich view, or over the `view` given, and ends them."""
    running: list[Running] = []

    def begin(options: ServeOptions = OPTIONS, **calls: Any) -> Running:
        calls.setdefault("view", lambda: rich_view)
        running.append(Running(Server(options, **calls)))
        return running[-1]

    yield begin
    for one in running:
        one.server.stop()
        one.thread.join(DEADLINE_SECONDS)
        assert not one.thread.is_alive()


class TestMetrics:
    def test_text(self, start: Start) -> None:
        """Without preference the classic text format is served, the exporter's own process included."""
        answer = start().ask("/metrics")
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'training_step{run="eagle3-synth100k"} 4000.0' in answer.text.splitlines()
        assert "process_resident_memory_bytes" in answer.text

    def test_openmetrics(self, start: Start) -> None:
        """Who asks for OpenMetrics gets it whole, to its end mark."""
        answer = start().ask("/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert answer.text.endswith("# EOF\n")
        assert len(list(text_string_to_metric_families(answer.text))) > 50

    @pytest.mark.parametrize("escaping", ["allow-utf-8", "underscores"])
    def test_openmetrics_escaping(self, start: Start, escaping: str) -> None:
        """Every name of ours is plain: the two are confirmed apart and read the same."""
        accept = f"application/openmetrics-text;version=1.0.0;escaping={escaping}"
        answer = start().ask("/metrics", Accept=accept)
        assert answer.headers["Content-Type"].endswith(f"escaping={escaping}")
        assert 'training_step{run="eagle3-synth100k"} 4000.0' in answer.text.splitlines()

    def test_text_1_0_escaping(self, start: Start) -> None:
        """The escaping that a Prometheus 3 asks for is confirmed."""
        answer = start().ask("/metrics", Accept="text/plain;version=1.0.0;escaping=allow-utf-8")
        assert answer.headers["Content-Type"] == "text/plain; version=1.0.0; charset=utf-8; escaping=allow-utf-8"

    def test_nonsense_version(self, start: Start) -> None:
        """A version that is no number is answered in the classic format, not with an error."""
        answer = start().ask("/metrics", Accept="application/openmetrics-text;version=abc")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")

    def test_gzip(self, start: Start) -> None:
        """Compression is used where it is accepted."""
        answer = start().ask("/metrics", Accept_Encoding="gzip")
        assert answer.headers["Content-Encoding"] == "gzip"
        assert b"training_step" in gzip.decompress(answer.body)

    def test_name_selection(self, start: Start) -> None:
        """`name[]` restricts the families."""
        answer = start().ask("/metrics?name[]=training_step&name%5B%5D=training_run_paging")
        lines = [line.partition("{")[0] for line in answer.text.splitlines() if not line.startswith("#")]
        assert sorted(lines) == ["training_run_paging", "training_step"]

    def test_head(self, start: Start) -> None:
        """HEAD gives the headers of GET and no body."""
        running = start()
        answer = running.ask("/metrics?name[]=training_step", "HEAD")
        assert (answer.status, answer.body) == (200, b"")
        assert len(running.ask("/metrics?name[]=training_step").body) == int(answer.headers["Content-Length"])

    def test_other_path(self, start: Start) -> None:
        """`--web.telemetry-path` moves the metrics and the page's link to them."""
        running = start(replace(OPTIONS, telemetry_path="/x/metrics"))
        assert (running.ask("/metrics").status, running.ask("/x/metrics").status) == (404, 200)
        assert 'href="/x/metrics"' in running.ask("/").text

    def test_reload_state(self, start: Start) -> None:
        """How the last reload of the configuration went is a metric."""
        running = start(reload_state=lambda: ReloadState(successful=False, success_seconds=12.0))
        text = running.ask("/metrics").text
        assert "training_exporter_config_last_reload_successful 0.0" in text
        assert "training_exporter_config_last_reload_success_timestamp_seconds 12.0" in text

    def test_limit_of_scrapes(self, start: Start, rich_view: NodeView) -> None:
        """One scrape more than allowed at a time is refused with 503, and none is lost afterwards."""
        release, entered = threading.Event(), threading.Event()

        def slow() -> NodeView:
            if threading.current_thread().name.startswith("http"):
                entered.set()
                assert release.wait(DEADLINE_SECONDS)
            return rich_view

        running = start(replace(OPTIONS, max_requests=1), view=slow)
        with ThreadPoolExecutor() as pool:
            first = pool.submit(running.ask, "/metrics")
            assert entered.wait(DEADLINE_SECONDS)
            assert running.ask("/metrics").status == 503
            release.set()
            assert first.result().status == 200
        assert running.ask("/metrics").status == 200

    def test_scrape_timeout(self, start: Start, rich_view: NodeView) -> None:
        """A scrape that cannot be answered in the scraper's time is given up half a second before its end."""
        release = threading.Event()

        def hung() -> NodeView:
            if threading.current_thread().name.startswith("http"):
                assert release.wait(DEADLINE_SECONDS)
            return rich_view

        running = start(view=hung)
        began = time.monotonic()
        answer = running.ask("/metrics", X_Prometheus_Scrape_Timeout_Seconds="0.7")
        release.set()
        assert answer.status == 503
        assert time.monotonic() - began < 2


class TestPages:
    def test_page(self, start: Start) -> None:
        """The page shows each run's state and allows no foreign content."""
        answer = start().ask("/")
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "eagle3-synth100k" in answer.text
        assert "validating" in answer.text

    def test_refresh(self, start: Start) -> None:
        """The page refreshes itself without a script until its reader says stop."""
        running = start()
        assert running.ask("/").headers["Refresh"] == "10"
        assert 'href="/?refresh=off"' in running.ask("/").text
        assert "Refresh" not in running.ask("/?refresh=off").headers

    def test_document(self, start: Start) -> None:
        """`/api/v1/runs` is the document as JSON."""
        answer = start().ask("/api/v1/runs")
        assert [run["name"] for run in json.loads(answer.body)["runs"]] == ["eagle3-synth100k"]

    def test_no_server_version(self, start: Start) -> None:
        """Nothing tells which software answers."""
        assert "Server" not in start().ask("/").headers

    @pytest.mark.parametrize(
        ("path", "method", "status"),
        [
            ("/nothing", "GET", 404),
            ("/metrics/", "GET", 404),
            ("/-/healthy", "GET", 200),
            ("/-/ready", "HEAD", 200),
            ("/metrics", "POST", 405),
            ("/", "DELETE", 405),
            ("/-/reload", "GET", 405),
            ("/-/reload", "POST", 403),
        ],
    )
    def test_status(self, start: Start, path: str, method: str, status: int) -> None:
        """Unknown paths, wrong methods and what is switched off have their own status."""
        assert status == start().ask(path, method).status

    def test_allow(self, start: Start) -> None:
        """A wrong method is told the right ones."""
        running = start()
        assert running.ask("/metrics", "POST").headers["Allow"] == "GET, HEAD"
        assert running.ask("/-/reload").headers["Allow"] == "POST, PUT"


class TestHealth:
    def test_ready_follows_the_sources(self, start: Start) -> None:
        """Ready turns from 503 to 200 with the first answers; healthy does not wait for them."""
        answered = threading.Event()
        running = start(ready=answered.is_set)
        assert (running.ask("/-/ready").status, running.ask("/-/healthy").status) == (503, 200)
        answered.set()
        assert running.ask("/-/ready").status == 200

    def test_unhealthy(self, start: Start) -> None:
        """An exporter whose own loop stands still says so."""
        assert start(healthy=lambda: False).ask("/-/healthy").status == 503


class TestReload:
    def test_reload(self, start: Start) -> None:
        """POST and PUT read the configuration again, once allowed."""
        calls = []
        running = start(replace(OPTIONS, enable_lifecycle=True), reload=lambda: calls.append(1) or [])
        assert (running.ask("/-/reload", "POST").status, running.ask("/-/reload", "PUT").status) == (200, 200)
        assert calls == [1, 1]

    def test_faults(self, start: Start) -> None:
        """The faults of a bad file are the body of a 500."""
        running = start(replace(OPTIONS, enable_lifecycle=True), reload=lambda: ["line 3: runs[0]: wrong"])
        answer = running.ask("/-/reload", "POST")
        assert (answer.status, answer.text) == (500, "line 3: runs[0]: wrong\n")

    def test_not_from_a_web_page(self, start: Start) -> None:
        """A page in somebody's browser cannot reload an exporter that the browser reaches."""
        running = start(replace(OPTIONS, enable_lifecycle=True), reload=lambda: pytest.fail("reloaded"))
        assert running.ask("/-/reload", "POST", Origin="http://evil.example").status == 403


class TestPrivacy:
    LOG_LINE = "recompile_limit (8)"

    def test_loopback_sees_log_text(self, start: Start) -> None:
        """A client on this machine sees log lines and paths."""
        running = start()
        assert self.LOG_LINE in running.ask("/").text
        assert "/data/eagle3/output" in running.ask("/api/v1/runs").text

    @pytest.mark.parametrize(
        "headers",
        [
            {"X_Forwarded_For": "203.0.113.9"},
            {"Forwarded": "for=203.0.113.9"},
            {"Via": "1.1 proxy"},
            {"Host": "rebound.example"},
        ],
    )
    def test_disguised_strangers(self, start: Start, headers: dict[str, str]) -> None:
        """A proxy on this machine, and a page that gave its own name to 127.0.0.1, are not this machine."""
        running = start()
        for path in ("/", "/api/v1/runs"):
            text = running.ask(path, **headers).text
            assert self.LOG_LINE not in text
            assert "/data/eagle3" not in text
            assert "train_config.json" not in text
            assert "eagle3-synth100k" in text

    def test_show_log_text(self, start: Start) -> None:
        """`--web.show-log-text` shows it to everyone."""
        assert self.LOG_LINE in start(replace(OPTIONS, show_log_text=True)).ask("/", Via="1.1 proxy").text


class TestConnections:
    def test_keep_alive(self, start: Start) -> None:
        """Many scrapes use one connection."""
        running = start()
        connection = http.client.HTTPConnection(*running.address, timeout=DEADLINE_SECONDS)
        for _ in range(3):
            connection.request("GET", "/metrics")
            assert Answer(connection.getresponse()).status == 200
            mine = connection.sock.getsockname()
        connection.request("GET", "/-/healthy")
        assert Answer(connection.getresponse()).status == 200
        assert mine == connection.sock.getsockname()
        connection.close()

    def test_oldest_is_closed_past_the_limit(self, start: Start) -> None:
        """Half-open connections cannot keep a scrape out: the oldest gives way."""
        running = start(replace(OPTIONS, max_connections=4))
        idle = [running.connect() for _ in range(4)]
        assert running.ask("/-/healthy").status == 200
        assert idle[0].recv(1) == b""
        for one in idle:
            one.close()

    @pytest.mark.parametrize(("soft", "expected"), [(64, 32), (20_000, 512), (resource.RLIM_INFINITY, 512), (1, 1)])
    def test_descriptors_are_left_for_the_sources(
        self, monkeypatch: pytest.MonkeyPatch, soft: int, expected: int
    ) -> None:
        """Where few descriptors are allowed, connections take no more than half of them."""
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
        assert expected == affordable(512)

    def test_slow_header_is_cut(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        """A client that never ends its header is closed by the server."""
        monkeypatch.setattr(server_module, "IDLE_SECONDS", 0.2)
        running = start()
        with running.connect() as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            assert client.recv(100) == b""

    def test_unread_answer_is_cut(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        """A client that asks and never reads is closed, and its requests are not piled up."""
        monkeypatch.setattr("training_exporter.web.handlers.WRITE_SECONDS", 0.2)
        running = start()
        requests = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000_000
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(6 * DEADLINE_SECONDS)  # it takes hundreds of answers to fill the buffers between
            client.connect(running.address)
            with pytest.raises(ConnectionError):
                client.sendall(requests)

    @pytest.mark.parametrize(
        "request_bytes",
        [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            b"GET /metrics\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
            b"POST /-/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n",
            b"\x00" * 70_000,
        ],
    )
    def test_malformed(self, start: Start, request_bytes: bytes) -> None:
        """What is no proper request ends its own connection and nothing else."""
        running = start()
        with running.connect() as client:
            answer = b""
            try:
                client.sendall(request_bytes)
                client.shutdown(socket.SHUT_WR)
                while part := client.recv(65_536):
                    answer += part
            except TimeoutError:
                raise  # left open
            except OSError:  # closed already, at any of the three
                answer = b""
        assert not answer.startswith(b"HTTP/1.1 200")
        assert running.ask("/metrics").status == 200

    def test_half_open_connections(self, start: Start) -> None:
        """Three hundred clients that never end their header cost neither threads nor scrapes."""
        running = start()
        threads = threading.active_count()
        held = [running.connect() for _ in range(300)]
        for one in held:
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        began = time.monotonic()
        assert {200} == {running.ask("/metrics").status for _ in range(20)}
        assert time.monotonic() - began < 5
        assert threading.active_count() <= threads + 2
        for one in held:
            one.close()

    def test_many_scrapes(self, start: Start) -> None:
        """A thousand scrapes by fifty clients are all answered, whole or refused, within bounded threads."""
        running = start()
        with ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(lambda _: running.ask("/metrics"), range(1000)))
        assert {answer.status for answer in answers} <= {200, 503}
        assert {len(a.text.splitlines()) for a in answers if a.status == 200} == {
            len(running.ask("/metrics").text.splitlines())
        }
        assert sum(thread.name.startswith("http") for thread in threading.enumerate()) <= 2

    def test_drain(self, start: Start, rich_view: NodeView) -> None:
        """A scrape in flight when the end comes is answered; new connections are not taken."""
        release, entered = threading.Event(), threading.Event()

        def slow() -> NodeView:
            if threading.current_thread().name.startswith("http"):
                entered.set()
                assert release.wait(DEADLINE_SECONDS)
            return rich_view

        running = start(view=slow)
        with ThreadPoolExecutor() as pool:
            scrape = pool.submit(running.ask, "/metrics")
            assert entered.wait(DEADLINE_SECONDS)
            running.server.stop()
            release.set()
            assert scrape.result().status == 200
        running.thread.join(DEADLINE_SECONDS)
        with pytest.raises(ConnectionRefusedError):
            running.connect()

    def test_hung_scrape_does_not_keep_it_alive(self, start: Start, rich_view: NodeView) -> None:
        """The end does not wait longer than the grace time for a request that hangs."""
        release, entered = threading.Event(), threading.Event()

        def hung() -> NodeView:
            if threading.current_thread().name.startswith("http"):
                entered.set()
                assert release.wait(DEADLINE_SECONDS)
            return rich_view

        running = start(view=hung)
        with running.connect() as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert entered.wait(DEADLINE_SECONDS)
            began = time.monotonic()
            running.server.stop()
            running.thread.join(DEADLINE_SECONDS)
            assert time.monotonic() - began < server_module.DRAIN_SECONDS + 0.5
            release.set()


class TestBind:
    @pytest.mark.parametrize(
        ("address", "expected"),
        [
            (":14311", (None, 14311)),
            ("127.0.0.1:1", ("127.0.0.1", 1)),
            ("[::1]:80", ("::1", 80)),
            ("host:65535", ("host", 65535)),
        ],
    )
    def test_address(self, address: str, expected: tuple[str | None, int]) -> None:
        """Addresses are written as for every exporter."""
        assert expected == parse_address(address)

    @pytest.mark.parametrize("address", ["14311", "", "::1:80", "host:", "host:http", "host:65536", "host:-1"])
    def test_no_address(self, address: str) -> None:
        """What is no address is said in words."""
        with pytest.raises(ServerError, match="is no address"):
            parse_address(address)

    # Tornado leaves the socket that it could not bind to the garbage collector
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_taken(self, start: Start) -> None:
        """A taken address is said with a way out, before anything is started."""
        host, port = start().address
        second = Server(replace(OPTIONS, listen_addresses=(f"{host}:{port}",)), view=lambda: pytest.fail("asked"))
        with pytest.raises(ServerError, match=r"cannot listen on .*: Address already in use; .*--web.listen-address"):
            second.bind()
        gc.collect()

    def test_unknown_host(self) -> None:
        """A host that does not exist is said in words."""
        server = Server(replace(OPTIONS, listen_addresses=("nowhere.invalid:80",)), view=lambda: pytest.fail("asked"))
        with pytest.raises(ServerError, match=r"cannot listen on nowhere\.invalid:80"):
            server.bind()

    @pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
    def test_both_families(self, start: Start) -> None:
        """Without a host, IPv4 and IPv6 are served on one port."""
        running = start(replace(OPTIONS, listen_addresses=(":0",)))
        port = running.address[1]
        for host in ("127.0.0.1", "::1"):
            connection = http.client.HTTPConnection(host, port, timeout=DEADLINE_SECONDS)
            connection.request("GET", "/-/healthy")
            assert connection.getresponse().status == 200
            connection.close()
