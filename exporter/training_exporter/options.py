"""What the command line of `serve` decided, as one frozen record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from training_exporter.model import SOURCES, SourceName


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The parsed flags of `serve`; the defaults are those of the command line."""

    listen_addresses: tuple[str, ...] = (":14311",)  # HOST:PORT, [HOST]:PORT or :PORT
    systemd_socket: bool = False  # take the sockets that systemd passed, and no address
    telemetry_path: str = "/metrics"
    web_config_file: Path | None = None  # exporter-toolkit format
    max_requests: int = 40  # scrapes at the same time, then 503; 0 = no limit
    max_connections: int = 512  # open sockets, then a new one closes the oldest
    enable_lifecycle: bool = False  # POST /-/reload
    show_log_text: bool = False  # log lines, argv and paths for every client
    config_file: Path | None = None
    procfs: Path = Path("/proc")
    state_directory: Path | None = None  # None: nothing is kept over a restart
    collectors: frozenset[SourceName] = frozenset(SOURCES)
