"""Where the alerts of an end-to-end test go: a real Alertmanager with the shipped configuration, and who it tells."""

from __future__ import annotations

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from e2e.harness import ROOT, SCALE, Program, fetch, free_port, wait_until

CONFIGURATION = ROOT / "alertmanager/alertmanager.yml"
WAITS = ("group_wait", "group_interval", "repeat_interval")
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}


class Inbox:
    """Every receiver of the configuration, as one web server that keeps what it is told."""

    def __init__(self) -> None:
        self._told: list[tuple[str, dict[str, Any]]] = []
        told = self._told

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told.append((self.path.strip("/"), body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def told(self, receiver: str | None = None, *, run: str, status: str = "firing") -> list[dict[str, str]]:
        """Labels of the alerts that a receiver, or any, was told of, oldest first; those of other runs are left out."""
        return [
            alert["labels"]
            for name, body in list(self._told)
            if receiver in (None, name)
            for alert in body["alerts"]
            if alert["status"] == status and alert["labels"].get("run", run) == run
        ]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class Alertmanager(Program):
    """A real Alertmanager with the shipped routes and inhibitions; its waits are scaled like the rules.

    Every receiver is `inbox`.
    """

    def __init__(self, folder: Path, inbox: Inbox) -> None:
        self.inbox = inbox
        self.address = f"127.0.0.1:{free_port()}"
        configuration = yaml.safe_load(CONFIGURATION.read_text())
        for route in (configuration["route"], *configuration["route"]["routes"]):
            route.update({wait: _divided(route[wait]) for wait in WAITS if wait in route})
        for receiver in configuration["receivers"]:
            receiver["webhook_configs"] = [{"url": f"{inbox.url}/{receiver['name']}", "send_resolved": True}]
        file = folder / "alertmanager.yml"
        file.write_text(yaml.safe_dump(configuration))
        unpacked = str(ROOT / ".tools/bin/prometheus-alertmanager")
        program = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager") or unpacked
        super().__init__(
            [
                program,
                f"--config.file={file}",
                f"--storage.path={folder / 'alertmanager'}",
                f"--web.listen-address={self.address}",
                "--cluster.listen-address=",
            ],
            folder / "alertmanager.log",
        )
        wait_until("Alertmanager is ready", self._is_ready, seconds=30)

    def muted(self, alert: str, run: str) -> bool:
        """Whether it knows of an alert of the run that another one inhibits."""
        found = [
            known["status"]["inhibitedBy"]
            for known in json.loads(fetch(f"http://{self.address}/api/v2/alerts"))
            if (known["labels"]["alertname"], known["labels"].get("run")) == (alert, run)
        ]
        return bool(found) and all(found)

    def _is_ready(self) -> bool:
        try:
            fetch(f"http://{self.address}/-/ready")
        except OSError:
            return False
        return True


def _divided(duration: str) -> str:
    return f"{int(1000 * int(duration[:-1]) * UNIT_SECONDS[duration[-1]] / SCALE)}ms"
