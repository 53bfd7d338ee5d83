"""The HTTP server: bounded connections, deadlines on every read, graceful end on a signal."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from tornado.http1connection import HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets

from training_exporter.clock import SystemClock
from training_exporter.metrics import ReloadState, ViewCollector
from training_exporter.options import ServeOptions
from training_exporter.report.history import STEP_SECONDS, History
from training_exporter.runs.view import NodeView
from training_exporter.web.handlers import Site, application
from training_exporter.web.listeners import ActivationError, PatientSocket, passed_sockets
from training_exporter.web.reloading import Reloading
from training_exporter.web.web_config import WebConfigFile
from training_exporter.worker import Worker

logger = logging.getLogger(__name__)

# Below the usual minute of a half-open attack, above the usual scrape interval, so that scrapes keep their connection.
IDLE_SECONDS = 30
BODY_SECONDS = 5
BODY_BYTES = 64 * 1024
HEADER_BYTES = 32 * 1024
DRAIN_SECONDS = 1.5
WEB_CONFIG_SECONDS, WEB_CONFIG_DEADLINE_SECONDS = 1.0, 10.0


class ServerError(Exception):
    """The server cannot start; the message is for a person."""


class Server:
    """Serves the view. `bind` first, so that a taken address is known before any source starts; `run` blocks.

    The callables are asked from a worker thread and must not wait: `view` is the newest picture, `ready` whether
    every source answered once, `healthy` whether the exporter itself works, `reload` reads the configuration again
    and returns its faults, `reload_state` says how that went last.
    """

    def __init__(  # noqa: PLR0913 (keyword-only, each with a default that does nothing)
        self,
        options: ServeOptions,
        *,
        view: Callable[[], NodeView],
        ready: Callable[[], bool] = lambda: True,
        healthy: Callable[[], bool] = lambda: True,
        reload: Callable[[], list[str]] = list,
        reload_state: Callable[[], ReloadState | None] = lambda: None,
    ) -> None:
        self._options = options
        self._view = view
        self._sockets: list[socket.socket] = []
        self._addresses: list[tuple[str, int]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="http")
        self._history = History()
        self._web_config = WebConfigFile(options.web_config_file) if options.web_config_file else None
        registry = CollectorRegistry()
        registry.register(ViewCollector(view, reload_state))
        ProcessCollector(registry=registry)  # its own /proc/self never waits for anything outside
        self._site = Site(
            options=options,
            view=view,
            history=self._history,
            registry=registry,
            ready=ready,
            healthy=healthy,
            reloading=Reloading(reload),
            pool=self._pool,
            web_config=self._web_config,
        )

    def bind(self) -> None:
        """Take the addresses; ServerError says which one could not be had and why."""
        self._sockets = self._bound()
        # now, because a socket that is handed on to the event loop has no name for a moment
        self._addresses = [(name[0], name[1]) for name in (bound.getsockname() for bound in self._sockets)]

    def _bound(self) -> list[socket.socket]:
        if self._options.systemd_socket:
            try:
                return passed_sockets()
            except ActivationError as error:
                raise ServerError(f"--web.systemd-socket: {error}") from error
        sockets: list[socket.socket] = []
        for address in self._options.listen_addresses:
            host, port = parse_address(address)
            try:
                sockets += bind_sockets(port, host)
            except (OSError, UnicodeError) as error:
                for bound in sockets:
                    bound.close()
                taken = "; is another exporter running? --web.listen-address takes another" if _taken(error) else ""
                raise ServerError(f"cannot listen on {address}: {_reason(error)}{taken}") from error
        return sockets

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """Host and port of each bound socket."""
        return self._addresses

    def recall(self, view: NodeView) -> None:
        """Put a picture of the past into the history of the page, before `run`."""
        self._history.add(view)

    def close(self) -> None:
        """Give the addresses back without having run."""
        for bound in self._sockets:
            bound.close()
        self._sockets = []

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop`; requests in flight get DRAIN_SECONDS to end."""
        if not self._sockets:
            self.bind()
        try:
            asyncio.run(self._serve())
        finally:
            self._loop = None
            self._pool.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """End `run` from any thread, once it has begun; nothing to do if it has ended."""
        self._started.wait()
        loop = self._loop
        if loop is not None and self._stopping is not None:
            loop.call_soon_threadsafe(self._stopping.set)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = _BoundedServer.build(self._site, affordable(self._options.max_connections), self._web_config)
        self._sockets = [PatientSocket(bound, server.make_room) for bound in self._sockets]
        server.add_sockets(self._sockets)
        if threading.current_thread() is threading.main_thread():
            self._handle_signals(self._loop, self._stopping)
        self._started.set()
        for host, port in self.addresses:
            logger.info("listening on %s", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        tasks = [asyncio.create_task(self._remember())]
        if self._web_config is not None:
            tasks.append(asyncio.create_task(self._follow_web_config(self._web_config, server)))
        await self._stopping.wait()
        for task in tasks:
            task.cancel()
        await self._drain(server)

    def _handle_signals(self, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._site.reloading.signal)

    async def _remember(self) -> None:
        while True:
            self._history.add(self._view())
            await asyncio.sleep(STEP_SECONDS / 2)

    async def _follow_web_config(self, web_config: WebConfigFile, server: HTTPServer) -> None:
        # in a thread of its own, because the directory of certificates may be on a mount that hangs
        reader = Worker(
            "web configuration",
            web_config.refresh,
            interval_seconds=WEB_CONFIG_SECONDS,
            deadline_seconds=WEB_CONFIG_DEADLINE_SECONDS,
            clock=SystemClock(),
        )
        try:
            while True:
                reader.start()
                await asyncio.sleep(WEB_CONFIG_SECONDS)
                server.ssl_options = web_config.current.tls
        finally:
            reader.stop()

    async def _drain(self, server: _BoundedServer) -> None:
        server.stop()
        end = time.monotonic() + DRAIN_SECONDS
        try:
            await asyncio.wait_for(self._site.idle.wait(), DRAIN_SECONDS)
            await asyncio.wait_for(server.close_all_connections(), max(0.1, end - time.monotonic()))
        except asyncio.TimeoutError:
            logger.debug("requests still in flight at the end of the grace time")
            server.cut()


class _BoundedServer(HTTPServer):
    """Keeps at most so many connections: a new one closes the one that has waited longest."""

    _most: int
    _streams: dict[IOStream, None]  # in the order of their arrival

    @classmethod
    def build(cls, site: Site, most: int, web_config: WebConfigFile | None) -> _BoundedServer:
        server = cls(
            application(site),
            ssl_options=web_config.current.tls if web_config is not None else None,
            idle_connection_timeout=IDLE_SECONDS,
            body_timeout=BODY_SECONDS,
            max_body_size=BODY_BYTES,
            max_header_size=HEADER_BYTES,
            max_buffer_size=BODY_BYTES + HEADER_BYTES,
        )
        server._most = most
        server._streams = {}
        return server

    def cut(self) -> None:
        """Close every connection, whatever it is doing."""
        for stream in list(self._streams):
            stream.close()

    def make_room(self) -> bool:
        """Close the connection that has waited longest; False if there is none."""
        oldest = next(iter(self._streams), None)
        if oldest is None:
            return False
        del self._streams[oldest]
        oldest.close()
        return True

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        while len(self._streams) >= self._most:
            self.make_room()
        self._streams[stream] = None
        super().handle_stream(stream, address)

    def on_close(self, server_conn: object) -> None:
        if isinstance(server_conn, HTTP1ServerConnection):
            self._streams.pop(server_conn.stream, None)
        super().on_close(server_conn)


def affordable(most: int) -> int:
    """At most so many connections, and half of the descriptors that this process may have: sources need some too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(1, min(most, soft // 2))


def parse_address(address: str) -> tuple[str | None, int]:
    """Host (None = all of both families) and port of `HOST:PORT`, `[HOST]:PORT` or `:PORT`."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ServerError(f"{address!r} is no address: expected HOST:PORT or :PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ServerError(f"{address!r} is no address: an IPv6 host needs brackets, [{host}]:{port}")
    return host or None, int(port)


def _taken(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return str(error.args[-1] if error.args else error)
