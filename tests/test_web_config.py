"""`--web.config.file`: the format of exporter-toolkit, over real TLS connections."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import needs
from training_exporter import server as server_module
from training_exporter.documents import DocumentError, Fault
from training_exporter.options import ServeOptions
from training_exporter.runs.view import NodeView
from training_exporter.server import Server
from training_exporter.web.web_config import WebConfigFile, load

TLS = Path(__file__).parent / "data" / "tls"
DEADLINE_SECONDS = 10.0
# bcrypt of "secret" at cost 4, and as htpasswd marks it
DIGEST = "$2b$04$ObtVfq2SLD0OaAJjw0KlReyzbhWa84K3BPfQyhpLCPmnMtFy4fKQa"
HTPASSWD_DIGEST = DIGEST.replace("$2b$", "$2y$")

SERVER = f"tls_server_config:\n  cert_file: {TLS}/server.pem\n  key_file: {TLS}/server.key\n"
CLIENTS = f"{SERVER}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {TLS}/ca.pem\n"
USERS = f"basic_auth_users:\n  prometheus: {DIGEST}\n  apache: {HTPASSWD_DIGEST}\n"
WORDS = ("tls_server_config", "basic_auth_users", "http_server_config", "cert_file", "key_file", "headers", "x")


class Served:
    """A server under one web configuration."""

    def __init__(self, path: Path, view: NodeView) -> None:
        options = ServeOptions(listen_addresses=("127.0.0.1:0",), web_config_file=path)
        self.server = Server(options, view=lambda: view)
        self.server.bind()
        self.host, self.port = self.server.addresses[0]
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()

    def ask(
        self, path: str = "/metrics", *, tls: ssl.SSLContext | None = None, login: str | None = None
    ) -> tuple[int, bytes]:
        """Status and body of a request, over TLS if a context is given; `login` is USER:PASSWORD."""
        connection = (
            http.client.HTTPConnection(self.host, self.port, timeout=DEADLINE_SECONDS)
            if tls is None
            else http.client.HTTPSConnection(self.host, self.port, timeout=DEADLINE_SECONDS, context=tls)
        )
        headers = {"Via": "1.1 somewhere"}  # nobody is local here
        if login is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


Serve = Callable[[str], Served]


@pytest.fixture
def web_file(tmp_path: Path) -> Path:
    """Where the web configuration of a test is."""
    return tmp_path / "web.yaml"


@pytest.fixture
def serve(rich_view: NodeView, web_file: Path) -> Iterator[Serve]:
    """Starts a server under the given web configuration."""
    running: list[Served] = []

    def begin(text: str) -> Served:
        web_file.write_text(text)
        running.append(Served(web_file, rich_view))
        return running[-1]

    yield begin
    for one in running:
        one.server.stop()
        one.thread.join(DEADLINE_SECONDS)


def client(certificate: str | None = None) -> ssl.SSLContext:
    """A client that trusts the test authority, with a certificate of its own if one is named."""
    context = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
    if certificate is not None:
        context.load_cert_chain(TLS / f"{certificate}.pem", TLS / f"{certificate}.key")
    return context


class TestTls:
    def test_encrypted(self, serve: Serve) -> None:
        """The scrape works over TLS, and not without."""
        served = serve(SERVER)
        status, body = served.ask(tls=client())
        assert (status, b"training_step" in body) == (200, True)
        with pytest.raises((http.client.HTTPException, OSError)):
            served.ask()

    def test_client_certificate(self, serve: Serve) -> None:
        """With client certificates, only one of the right authority gets an answer."""
        served = serve(CLIENTS)
        assert served.ask(tls=client("client"))[0] == 200
        for certificate in (None, "stranger"):
            with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
                served.ask(tls=client(certificate))

    @pytest.mark.parametrize(("allowed", "status"), [("prometheus", 200), ("grafana", 403)])
    def test_client_name(self, serve: Serve, allowed: str, status: int) -> None:
        """`client_allowed_sans` admits certificates by name."""
        served = serve(f"{CLIENTS}  client_allowed_sans: [{allowed}]\n")
        assert status == served.ask(tls=client("client"))[0]

    def test_version(self, serve: Serve) -> None:
        """`min_version` refuses older protocols."""
        served = serve(f"{SERVER}  min_version: TLS13\n")
        old = client()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            served.ask(tls=old)
        assert served.ask(tls=client())[0] == 200

    def test_ciphers(self, serve: Serve) -> None:
        """Cipher suites are named as in Go."""
        served = serve(
            f"{SERVER}  max_version: TLS12\n  cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]\n"
        )
        with (
            socket.create_connection((served.host, served.port), DEADLINE_SECONDS) as plain,
            client().wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            assert connection.cipher() == ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLSv1.2", 256)

    def test_idle_handshake_blocks_nobody(self, serve: Serve) -> None:
        """A hundred clients that connect and say nothing do not keep a scrape waiting."""
        served = serve(SERVER)
        idle = [socket.create_connection((served.host, served.port), DEADLINE_SECONDS) for _ in range(100)]
        assert served.ask(tls=client())[0] == 200
        for one in idle:
            one.close()

    def test_idle_handshake_is_cut(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        """A client that never begins its handshake is closed by the server."""
        monkeypatch.setattr(server_module, "IDLE_SECONDS", 0.2)
        served = serve(SERVER)
        with socket.create_connection((served.host, served.port), DEADLINE_SECONDS) as idle:
            assert idle.recv(1) == b""


class TestUsers:
    @pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/runs", "/-/healthy", "/-/reload", "/nothing"])
    def test_nothing_without_a_password(self, serve: Serve, path: str) -> None:
        """No address answers anything but 401."""
        served = serve(USERS)
        for login in (None, "prometheus:wrong", "nobody:secret", "prometheus:", ":", "prometheus:" + "secret" * 100):
            assert served.ask(path, login=login) == (401, b"Unauthorized\n")

    @pytest.mark.parametrize("login", ["prometheus:secret", "apache:secret"])
    def test_password(self, serve: Serve, login: str) -> None:
        """The right password opens, again and again, and shows log text."""
        served = serve(USERS)
        for _ in range(3):
            assert served.ask(login=login)[0] == 200
        assert b"recompile_limit (8)" in served.ask("/", login=login)[1]

    def test_remembered_password_stays_the_users_own(self, serve: Serve) -> None:
        """A password that was right for one user is not right for a stranger."""
        served = serve(USERS)
        assert served.ask(login="prometheus:secret")[0] == 200
        assert served.ask(login="nobody:secret")[0] == 401

    def test_guesses_do_not_hold_up_scrapes(self, serve: Serve) -> None:
        """While many wrong passwords are checked, the known one is served at once."""
        slow = "$2b$12$" + "a" * 53
        served = serve(f"basic_auth_users:\n  prometheus: {DIGEST}\n  other: {slow}\n")
        assert served.ask(login="prometheus:secret")[0] == 200
        guesses = [threading.Thread(target=served.ask, kwargs={"login": f"other:{n}"}) for n in range(12)]
        for guess in guesses:
            guess.start()
        began = time.monotonic()
        assert served.ask(login="prometheus:secret")[0] == 200
        assert time.monotonic() - began < 1
        for guess in guesses:
            guess.join(DEADLINE_SECONDS)

    @pytest.mark.parametrize("header", ["Basic", "Basic !!!", "Bearer abc", "Basic " + base64.b64encode(b"x").decode()])
    def test_malformed_header(self, serve: Serve, header: str) -> None:
        """A header that is none is a missing password."""
        served = serve(USERS)
        connection = http.client.HTTPConnection(served.host, served.port, timeout=DEADLINE_SECONDS)
        connection.request("GET", "/", headers={"Authorization": header})
        assert connection.getresponse().status == 401
        connection.close()


class TestHeaders:
    def test_headers(self, serve: Serve) -> None:
        """Configured headers come with every answer."""
        served = serve("http_server_config: {http2: false, headers: {X-Frame-Options: deny}}\n")
        with urllib.request.urlopen(f"http://{served.host}:{served.port}/metrics", timeout=DEADLINE_SECONDS) as answer:
            assert answer.headers["X-Frame-Options"] == "deny"


class TestRefresh:
    def test_new_users_are_taken_over(self, serve: Serve, web_file: Path) -> None:
        """A changed file is in force within seconds, without a restart."""
        served = serve(USERS)
        assert served.ask()[0] == 401
        web_file.write_text("# nobody has to log in now\n")
        end = time.monotonic() + DEADLINE_SECONDS
        while served.ask()[0] == 401:
            assert time.monotonic() < end

    def test_new_certificate_is_taken_over(self, serve: Serve, tmp_path: Path) -> None:
        """A renewed certificate is presented though the configuration itself did not change."""
        for kind in ("pem", "key"):
            shutil.copy(TLS / f"server.{kind}", tmp_path / f"live.{kind}")
        served = serve("tls_server_config: {cert_file: live.pem, key_file: live.key}\n")
        assert served.ask(tls=client())[0] == 200
        for kind in ("pem", "key"):
            shutil.copy(TLS / f"client.{kind}", tmp_path / f"renewed.{kind}")
            (tmp_path / f"renewed.{kind}").replace(tmp_path / f"live.{kind}")
        unchecked = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
        unchecked.check_hostname = False
        end = time.monotonic() + DEADLINE_SECONDS
        while _presented(served, unchecked) != "client":
            assert time.monotonic() < end

    def test_bad_file_leaves_the_old(self, web_file: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A file that cannot be used is said once and changes nothing: the door stays locked."""
        web_file.write_text(USERS)
        file = WebConfigFile(web_file)
        web_file.write_text("basic_auth_usrs: {}\n")
        with caplog.at_level(logging.ERROR):
            assert [file.refresh(), file.refresh()] == [False, False]
        assert sorted(file.current.users) == ["apache", "prometheus"]
        assert caplog.text.count("did you mean 'basic_auth_users'?") == 1


def _presented(served: Served, context: ssl.SSLContext) -> str:
    with (
        socket.create_connection((served.host, served.port), DEADLINE_SECONDS) as plain,
        context.wrap_socket(plain) as connection,
    ):
        certificate = connection.getpeercert()
        assert certificate is not None
        return str(dict(part[0] for part in certificate["subject"])["commonName"])


def faults_of(path: Path) -> list[Fault]:
    """What is wrong with a file; nothing if it can be used."""
    try:
        load(path)
    except DocumentError as error:
        return error.faults
    return []


class TestLoad:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("basic_auth_users: {a: plain}", "line 1: basic_auth_users.a: expected a bcrypt hash"),
            ("basic_auth_users: [a]", "line 1: basic_auth_users: expected a mapping of user names"),
            ("tls_config: {}", "line 1: tls_config: unknown key; did you mean 'tls_server_config'?"),
            ("tls_server_config: {cert_file: a}", "tls_server_config.key_file: required key not provided"),
            ("tls_server_config: {cert_file: a, key_file: b}", "tls_server_config: certificate"),
            (f"{SERVER}  client_auth_type: RequireAnyClientCert\n", "line 4: tls_server_config.client_auth_type"),
            (f"{SERVER}  client_auth_type: RequireAndVerifyClientCert\n", "needs client_ca_file"),
            (f"{SERVER}  client_ca_file: {TLS}/ca.pem\n", "client_auth_type does not ask for them"),
            (f"{SERVER}  min_version: TLS10\n", "line 4: tls_server_config.min_version"),
            (f"{SERVER}  cipher_suites: [RC4]\n", "cipher suite RC4 is unknown"),
            (f"{SERVER}  curve_preferences: [X25519]\n", "not supported: Python cannot order the curves"),
            (SERVER.replace("server.key", "client.key"), "tls_server_config: certificate"),
            (SERVER.replace("server.key", "encrypted.key"), "the key is encrypted"),
            ("http_server_config: {headers: {X-Other: a}}", "headers.X-Other: unknown key"),
        ],
    )
    def test_faults(self, web_file: Path, text: str, message: str) -> None:
        """Each fault is named with key and line where the server would start."""
        web_file.write_text(text)
        with pytest.raises(DocumentError) as caught:
            load(web_file)
        assert message in str(caught.value)

    def test_missing_file(self, web_file: Path) -> None:
        """A file that is not there is a fault: no server without the lock that was asked for."""
        with pytest.raises(DocumentError, match="cannot be read"):
            load(web_file)

    @given(
        st.one_of(
            st.text(),
            st.recursive(
                st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from(["TLS13", DIGEST, "a.pem"])),
                lambda inner: st.one_of(
                    st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
                ),
            ).map(str),
        )
    )
    def test_any_text(self, text: str) -> None:
        """Whatever stands in the file, it is either taken whole or refused with its faults."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "web.yaml"
            path.write_text(text, encoding="utf-8", errors="replace")
            assert all(fault.message for fault in faults_of(path))

    def test_empty(self, web_file: Path) -> None:
        """A file that says nothing is a server without lock."""
        web_file.write_text("")
        assert (load(web_file).tls, load(web_file).users) == (None, {})


@needs("prometheus")
class TestPrometheus:
    def test_scrapes_with_certificate_and_password(self, serve: Serve, tmp_path: Path) -> None:
        """A real Prometheus scrapes through TLS, its client certificate and its password."""
        served = serve(CLIENTS + USERS)
        configuration = tmp_path / "prometheus.yml"
        configuration.write_text(
            f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: training-exporter
    scheme: https
    tls_config: {{ca_file: {TLS}/ca.pem, cert_file: {TLS}/client.pem, key_file: {TLS}/client.key}}
    basic_auth: {{username: prometheus, password: secret}}
    static_configs: [{{targets: ['{served.host}:{served.port}']}}]
"""
        )
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = ["prometheus", f"--config.file={configuration}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        prometheus = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            end = time.monotonic() + 30
            while _query(port, "training_step") != "4000":
                assert time.monotonic() < end
                time.sleep(0.1)
        finally:
            prometheus.terminate()
            prometheus.wait(DEADLINE_SECONDS)


def _query(port: int, expression: str) -> str | None:

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={expression}", timeout=1) as answer:
            found = json.loads(answer.read())["data"]["result"]
    except OSError:
        return None
    return str(found[0]["value"][1]) if found else None
