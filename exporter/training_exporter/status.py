"""`status`: the experiment that people do by hand, in one command."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO
from urllib.error import URLError
from urllib.parse import unquote, urlsplit, urlunsplit

from training_exporter import config
from training_exporter.clock import SystemClock
from training_exporter.documents import DocumentError
from training_exporter.monitor import Monitor
from training_exporter.options import ServeOptions
from training_exporter.report import stacks, terminal
from training_exporter.report.document import SCHEMA_VERSION, Document, document
from training_exporter.report.history import History

FINE, WARNING, BAD, CANNOT_TELL = 0, 1, 2, 3

_BAD_STATES = ("stalled", "degraded", "failed")
_WARNING_STATES = ("no_progress", "absent")

STEP_SECONDS = 1.0
# From the first look at the processes over their logs and checkpoints to a verdict.
SETTLE_SECONDS = 4.0
READY_SECONDS = 10.0
URL_SECONDS = 10.0
MOST_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """The parsed flags of `status`."""

    seconds: float = 10.0
    json: bool = False
    url: str | None = None
    watch: bool = False
    stacks: bool = False
    serve: ServeOptions = field(default_factory=ServeOptions)


class StatusError(Exception):
    """Nothing can be told; the message says why."""


def run(options: StatusOptions, out: TextIO, progress: TextIO = sys.stderr) -> int:
    """Print the state of every run of this node, or of the exporter at `options.url`; returns the exit code."""
    colour = out.isatty() and "NO_COLOR" not in os.environ
    code = CANNOT_TELL
    try:
        for found in _documents(options, progress):
            if options.watch and out.isatty():
                out.write("\x1b[H\x1b[2J")
            _write(found, options, out, colour=colour)
            code = exit_code(found)
    except (StatusError, DocumentError) as error:
        progress.write(f"{error}\n")
        return CANNOT_TELL
    return code


def exit_code(found: Document) -> int:
    """2 if a run is stalled, degraded or failed; 3 if that cannot be told; 1 for a warning; else 0."""
    states = [run["verdict"]["state"] for run in found["runs"]]
    if any(state in _BAD_STATES for state in states):
        return BAD
    processes = found["sources"].get("processes")
    if (
        "unknown" in states
        or (processes is not None and not processes["success"])
        or any(run.get("unseen") for run in found["runs"])
    ):
        return CANNOT_TELL
    if any(state in _WARNING_STATES for state in states):
        return WARNING
    return FINE


def fetch(url: str) -> Document:
    """The document of a running exporter. Raises StatusError."""
    address, headers = _request_parts(url)
    try:
        request = urllib.request.Request(address, headers=headers)  # noqa: S310 (the scheme was checked)
        with urllib.request.urlopen(request, timeout=URL_SECONDS) as response:  # noqa: S310 (likewise)
            found = json.loads(response.read(MOST_BYTES))
    except json.JSONDecodeError as error:
        raise StatusError(f"{address}: not the document of an exporter; expected http://HOST:PORT") from error
    except (URLError, OSError, ValueError) as error:
        raise StatusError(f"{address}: {error}") from error
    if not isinstance(found, dict) or found.get("version") != SCHEMA_VERSION or not _has_parts(found):
        raise StatusError(f"{address}: not the document of an exporter of this version")
    return found


def _has_parts(found: Document) -> bool:
    kinds = {"runs": list, "gpus": list, "sources": dict}
    return all(isinstance(found.get(key), kind) for key, kind in kinds.items())


def _request_parts(url: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StatusError(f"{url}: expected http://HOST:PORT")
    headers = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    path = parts.path if parts.path.strip("/") else "/api/v1/runs"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", "")), headers


def _documents(options: StatusOptions, progress: TextIO) -> Iterator[Document]:
    if options.url is not None:
        yield fetch(options.url)
        while options.watch:
            time.sleep(options.seconds)
            try:
                found = fetch(options.url)
            except StatusError as error:  # it may be restarting, and who watches goes on watching
                progress.write(f"{error}\n")
            else:
                yield found
        return
    path = options.serve.config_file
    monitor = Monitor(config.load(path) if path else config.Config(), options.serve, SystemClock())
    monitor.start()
    try:
        history = History(STEP_SECONDS)
        yield _sampled(monitor, history, options.seconds, progress)
        while options.watch:
            yield _sampled(monitor, history, options.seconds, progress)
    finally:
        monitor.stop()


def _sampled(monitor: Monitor, history: History, seconds: float, progress: TextIO) -> Document:
    began = time.monotonic()
    end, late = began + max(seconds, SETTLE_SECONDS), began + max(seconds, READY_SECONDS)
    while (now := time.monotonic()) < end or (now < late and not monitor.ready()):
        history.add(monitor.view())
        if progress.isatty():
            progress.write(f"\rlooking for {max(0.0, end - now):.0f} s ... ")
            progress.flush()
        time.sleep(min(STEP_SECONDS, max(0.05, end - now)))
    if progress.isatty():
        progress.write("\r\x1b[K")
    view = monitor.view()
    history.add(view)
    return document(view, history, private=True)


def _write(found: Document, options: StatusOptions, out: TextIO, *, colour: bool) -> None:
    dumped = _stacks(found, options) if options.stacks else {}
    if options.json:
        shown: dict[str, Any] = dict(found)
        if options.stacks:
            shown["stacks"] = {run: [_stack_json(stack) for stack in every] for run, every in dumped.items()}
        out.write(json.dumps(shown, indent=2) + "\n")
    else:
        out.write(terminal.render(found, colour=colour))
        for run, every in dumped.items():
            out.write(f"{run}\n" + "".join(f"{line}\n" for line in stacks.lines(every)))
    out.flush()


def _stacks(found: Document, options: StatusOptions) -> dict[str, tuple[stacks.Stack, ...]]:
    if options.url is not None:
        raise StatusError("--stacks looks at processes of this machine and goes without --url")
    return {
        run["name"]: stacks.collect((rank["rank"], rank["pid"]) for rank in run["ranks"] if rank["pid"] is not None)
        for run in found["runs"]
    }


def _stack_json(stack: stacks.Stack) -> dict[str, Any]:
    return {"ranks": list(stack.ranks), "frames": list(stack.frames), "error": stack.error}
