"""What each address of the server answers."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.openmetrics.exposition import ALLOWUTF8, UNDERSCORES
from tornado.web import Application, RequestHandler

from training_exporter.options import ServeOptions
from training_exporter.report import page
from training_exporter.report.document import document
from training_exporter.report.history import History
from training_exporter.runs.view import NodeView
from training_exporter.web.authentication import Authenticator, BusyError
from training_exporter.web.clients import is_local, is_name_allowed
from training_exporter.web.reloading import Reloading, ReloadingError
from training_exporter.web.web_config import WebConfig, WebConfigFile

logger = logging.getLogger(__name__)

WRITE_SECONDS = 30.0
SCRAPE_SECONDS = 9.5  # Prometheus gives up after 10 unless it says otherwise
SCRAPE_MARGIN_SECONDS = 0.5

_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


@dataclass(slots=True, eq=False)
class Site:
    """What the handlers of one server share."""

    options: ServeOptions
    view: Callable[[], NodeView]
    history: History
    registry: CollectorRegistry
    ready: Callable[[], bool]
    healthy: Callable[[], bool]
    reloading: Reloading
    pool: Executor
    web_config: WebConfigFile | None = None
    authenticator: Authenticator = field(default_factory=Authenticator)
    scrapes: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # no request is in flight
    _in_flight: set[RequestHandler] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.idle.set()

    def began(self, handler: RequestHandler) -> None:
        self._in_flight.add(handler)
        self.idle.clear()

    def ended(self, handler: RequestHandler) -> None:
        self._in_flight.discard(handler)
        if not self._in_flight:
            self.idle.set()

    @property
    def web(self) -> WebConfig:
        return WebConfig() if self.web_config is None else self.web_config.current


def application(site: Site) -> Application:
    """The routes of one server."""
    shared = {"site": site}
    path = site.options.telemetry_path
    routes: list[Any] = [
        (path, MetricsHandler, shared),
        *([("/", PageHandler, shared)] if path != "/" else []),
        ("/api/v1/runs", RunsHandler, shared),
        ("/-/healthy", HealthyHandler, shared),
        ("/-/ready", ReadyHandler, shared),
        ("/-/reload", ReloadHandler, shared),
    ]
    return Application(
        routes,
        default_handler_class=NotFoundHandler,
        default_handler_args=shared,
        log_function=_log_request,
    )


def _log_request(handler: RequestHandler) -> None:
    request = handler.request
    logger.debug("%s %s %r from %s", handler.get_status(), request.method, request.path, request.remote_ip)


class Handler(RequestHandler):
    """Authentication, headers, errors as plain text, and an end to answers that nobody reads."""

    site: Site

    def initialize(self, site: Site) -> None:
        self.site = site

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")

    async def prepare(self) -> None:
        self.site.began(self)
        for name, value in self.site.web.headers.items():
            self.set_header(name, value)
        if not is_name_allowed(self.request, self.site.web):
            self.answer(403, "This client certificate is not allowed here.")
        elif self.site.web.users:
            await self._authenticate()

    async def _authenticate(self) -> None:
        try:
            known = await self.site.authenticator.check(self.request.headers.get("Authorization"), self.site.web.users)
        except BusyError:
            self.set_header("Retry-After", "5")
            self.answer(503, "Too many passwords are being checked.")
            return
        if not known:
            self.set_header("WWW-Authenticate", "Basic")
            self.answer(401, "Unauthorized")

    def finish(self, chunk: str | bytes | dict[str, Any] | None = None) -> Any:  # noqa: ANN401 (the type of the base class)
        sent = asyncio.ensure_future(super().finish(chunk))
        deadline = asyncio.get_running_loop().call_later(WRITE_SECONDS, self._give_up)
        sent.add_done_callback(lambda _: deadline.cancel())
        sent.add_done_callback(lambda _: self.site.ended(self))
        return sent

    def on_connection_close(self) -> None:
        self.site.ended(self)

    def compute_etag(self) -> None:
        """None: every answer is new."""

    def write_error(self, status_code: int, **_: object) -> None:
        if status_code == 405:
            allowed = [method for method in self.SUPPORTED_METHODS if _implements(self, method)]
            self.set_header("Allow", ", ".join(allowed))
        self.answer(status_code, f"{status_code} {self._reason}")

    def answer(self, status: int, text: str) -> None:
        """End the request with a line of plain text."""
        self.set_status(status)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(text + "\n")

    def private(self) -> bool:
        """Whether this client may see log text, arguments and paths."""
        web = self.site.web
        return self.site.options.show_log_text or bool(web.users) or web.verifies_clients or is_local(self.request)

    def _give_up(self) -> None:
        connection = self.request.connection
        if connection is not None:
            connection.stream.close()  # type: ignore[attr-defined]  # the interface leaves out the stream


class _GetHandler(Handler, ABC):
    """Answers GET and HEAD."""

    @abstractmethod
    async def get(self) -> None:
        """Answer GET."""

    async def head(self) -> None:
        await self.get()

    async def in_pool(self, call: Callable[[], bytes], seconds: float) -> bytes:
        """The result of `call`, made in a thread, or TimeoutError."""
        loop = asyncio.get_running_loop()
        return await asyncio.wait_for(loop.run_in_executor(self.site.pool, call), seconds)


class MetricsHandler(_GetHandler):
    """The exposition, in the format and encoding that the scraper asks for."""

    async def get(self) -> None:
        site = self.site
        if 0 < site.options.max_requests <= site.scrapes:
            self.set_header("Retry-After", "1")
            self.answer(503, f"Limit of concurrent scrapes reached ({site.options.max_requests}), try again later.")
            return
        site.scrapes += 1
        try:
            await self._scrape()
        finally:
            site.scrapes -= 1

    async def _scrape(self) -> None:
        encoder, content_type = _encoder(self.request.headers.get("Accept", ""))
        names = self.get_query_arguments("name[]")
        registry = self.site.registry.restricted_registry(names) if names else self.site.registry
        compressed = gzip_accepted(self.request.headers.get("Accept-Encoding", ""))
        try:
            body = await self.in_pool(partial(_render, encoder, registry, compressed), self._seconds())
        except asyncio.TimeoutError:
            self.answer(503, "The scrape's timeout is over.")
            return
        self.set_header("Content-Type", content_type)
        self.set_header("Vary", "Accept, Accept-Encoding")
        if compressed:
            self.set_header("Content-Encoding", "gzip")
        await self.finish(body)

    def _seconds(self) -> float:
        try:
            asked = float(self.request.headers.get("X-Prometheus-Scrape-Timeout-Seconds", ""))
        except ValueError:
            return SCRAPE_SECONDS
        return min(max(asked - SCRAPE_MARGIN_SECONDS, 0.1), 300.0) if asked > 0 else SCRAPE_SECONDS


class PageHandler(_GetHandler):
    """The status page."""

    async def get(self) -> None:
        refreshing = self.get_query_argument("refresh", "on") != "off"
        call = partial(self._html, private=self.private(), refreshing=refreshing)
        body = await self.in_pool(call, SCRAPE_SECONDS)
        if refreshing:
            self.set_header("Refresh", str(page.REFRESH_SECONDS))
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", _PAGE_POLICY)
        self.set_header("Referrer-Policy", "no-referrer")
        await self.finish(body)

    def _html(self, *, private: bool, refreshing: bool) -> bytes:
        options = self.site.options
        text = page.render(
            document(self.site.view(), self.site.history, private=private),
            telemetry_path=options.telemetry_path,
            collectors=options.collectors,
            refreshing=refreshing,
        )
        return text.encode("utf-8", "replace")


class RunsHandler(_GetHandler):
    """The document that `status --json` prints too."""

    async def get(self) -> None:
        body = await self.in_pool(partial(self._json, private=self.private()), SCRAPE_SECONDS)
        self.set_header("Content-Type", "application/json; charset=utf-8")
        await self.finish(body)

    def _json(self, *, private: bool) -> bytes:
        return (json.dumps(document(self.site.view(), self.site.history, private=private)) + "\n").encode()


class HealthyHandler(_GetHandler):
    """Whether the exporter itself works; never depends on a source."""

    async def get(self) -> None:
        if self.site.healthy():
            self.answer(200, "training-exporter is healthy.")
        else:
            self.answer(503, "training-exporter does not take in what its sources say.")


class ReadyHandler(_GetHandler):
    """Whether every enabled source has answered or failed once."""

    async def get(self) -> None:
        if self.site.ready():
            self.answer(200, "training-exporter is ready.")
        else:
            self.set_header("Retry-After", "1")
            self.answer(503, "training-exporter waits for the first answer of its sources.")


class ReloadHandler(Handler):
    """Reads the configuration again."""

    async def post(self) -> None:
        if not self.site.options.enable_lifecycle:
            self.answer(403, "Reload by HTTP is not enabled (--web.enable-lifecycle).")
        elif "Origin" in self.request.headers:
            self.answer(403, "Reload is not for web pages.")  # which could send it from a browser behind the firewall
        else:
            try:
                faults = await self.site.reloading.ask()
            except ReloadingError:
                self.set_header("Retry-After", "5")
                self.answer(503, "A reload is under way.")
                return
            self.answer(500 if faults else 200, "\n".join(faults) or "Configuration reloaded.")

    put: Callable[..., Awaitable[None]] = post


class NotFoundHandler(Handler):
    """Every other address."""

    async def prepare(self) -> None:
        await super().prepare()
        if not self._finished:
            self.answer(404, "404 Not Found")


def _implements(handler: RequestHandler, method: str) -> bool:
    return getattr(type(handler), method.lower()) is not getattr(RequestHandler, method.lower())


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        encoder, content_type = choose_encoder("")
    if isinstance(encoder, partial) and encoder.keywords.get("escaping") == UNDERSCORES:
        # our names need none, and to make sure of that character by character costs a third of the scrape
        encoder = partial(encoder, escaping=ALLOWUTF8)
    return encoder, content_type


def _render(encoder: Callable[[Any], bytes], registry: object, compressed: bool) -> bytes:
    body = encoder(registry)
    # the fastest level leaves 8 of 38 kB, the sixth 7 in three times the time
    return gzip.compress(body, compresslevel=1) if compressed else body
