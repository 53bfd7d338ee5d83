"""What each command does with its parsed arguments; what only one command needs is imported in it."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from training_exporter import config
from training_exporter.documents import DocumentError
from training_exporter.logging_setup import set_up_logging
from training_exporter.metrics import ReloadState
from training_exporter.model import SOURCES, SourceName
from training_exporter.options import ServeOptions

logger = logging.getLogger(__name__)

MOST_DESCRIPTORS = 65_536
# mallopt(3): M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD with their initial sizes, which stay as they are set
HEAP = ((-8, 1), (-3, 128 * 1024), (-1, 128 * 1024))


def serve(arguments: argparse.Namespace) -> int:
    """Serve metrics and the status page of this node.

    No configuration is needed: launchers, workers, their logs, checkpoints and GPUs are found. SIGHUP reads the
    configuration again: all of it is taken over or nothing. SIGTERM ends within two seconds.

    Addresses: / is the status page, /metrics the metrics, /api/v1/runs the same as JSON, /-/healthy and /-/ready are
    for probes, POST /-/reload is SIGHUP by HTTP.
    """
    from training_exporter.clock import SystemClock  # noqa: PLC0415 (only serve starts sources)
    from training_exporter.monitor import Monitor  # noqa: PLC0415
    from training_exporter.server import Server, ServerError  # noqa: PLC0415

    set_up_logging(arguments.log_level, arguments.log_format)
    raise_descriptor_limit()
    return_freed_memory()
    options = serve_options(arguments)
    try:
        settings = config.load(options.config_file) if options.config_file else config.Config()
        monitor = Monitor(settings, options, SystemClock())
        configuration = Configuration(options.config_file, monitor)
        server = Server(
            options,
            view=monitor.view,
            ready=monitor.ready,
            healthy=monitor.healthy,
            reload=configuration.reload,
            reload_state=configuration.state,
        )
        server.bind()
    except (DocumentError, ServerError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    monitor.start()
    try:
        server.run()
    finally:
        monitor.stop()
    return 0


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as it may take, up to MOST_DESCRIPTORS.

    The usual 1,024 are for programs that call select(2), and fewer than many logs and connections together need.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def return_freed_memory() -> None:
    """Have glibc give back what is freed; does nothing with another C library.

    By default each of the many threads fills a heap of its own, and blocks of up to 32 MiB are taken from there once
    one of that size was freed: memory that was used for a moment, for a scrape or a long line, is never seen again.
    """
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):
        for parameter, value in HEAP:
            library.mallopt(parameter, value)


class Reloadable(Protocol):
    """What takes over a configuration."""

    def reload(self, settings: config.Config, /) -> None: ...


class Configuration:
    """The file of a running server: all of it is taken over or nothing."""

    def __init__(self, path: Path | None, monitor: Reloadable) -> None:
        self._path = path
        self._monitor = monitor
        self._lock = threading.Lock()
        self._state = ReloadState(successful=True, success_seconds=time.time())

    def state(self) -> ReloadState:
        """How the last load went."""
        return self._state

    def reload(self) -> list[str]:
        """Read the file again; its faults, and then the configuration before stays in force."""
        with self._lock:
            try:
                settings = config.load(self._path) if self._path else config.Config()
            except DocumentError as error:
                logger.error("configuration is not taken over: %s", error)  # noqa: TRY400 (a message, not a bug of ours)
                self._state = ReloadState(successful=False, success_seconds=self._state.success_seconds)
                return str(error).splitlines()
            self._monitor.reload(settings)
            self._state = ReloadState(successful=True, success_seconds=time.time())
            logger.info("configuration is taken over")
            return []


def status(arguments: argparse.Namespace) -> int:
    """Tell whether the runs on this node are training, validating or dead, with the evidence.

    It does what people do by hand with nvidia-smi, ps, ls and tail: look, wait, look again. Two looks cannot show
    how long a run has been silent before; a running exporter can (--url).

    Exit code: 0 fine or no run, 1 warning (no progress, or an expected run is absent), 2 stalled, degraded or
    failed, 3 cannot tell. The worst run decides.

    Somebody else's job shows its processes only; its log, files and stacks need the rights of its owner or root:
    sudo training-exporter status --stacks. An exporter with passwords is asked as --url https://USER:PASSWORD@HOST:PORT.
    NO_COLOR=1 switches colours off.
    """
    from training_exporter import status as command  # noqa: PLC0415

    set_up_logging("error", "logfmt")
    options = command.StatusOptions(
        seconds=arguments.seconds,
        json=arguments.json,
        url=arguments.url,
        watch=arguments.watch,
        stacks=arguments.stacks,
        serve=ServeOptions(
            config_file=arguments.config_file,
            procfs=arguments.procfs,
            collectors=_collectors(arguments),
        ),
    )
    return command.run(options, sys.stdout)


def parse_log(arguments: argparse.Namespace) -> int:
    """Show what is read in a log: events, phases, metrics, known messages.

    With --json, one object a line: line and end_line (1-based), event, the phase after it, and where they are known
    split, epoch, epoch_total, step, step_total (as printed), metrics (name to number; "nan", "inf" and "-inf" as
    text), warning with its class, rank.

    Events: train_step, train_summary, validation, val_begin, val_progress, val_end, epoch_begin, epoch_end,
    train_begin, train_end, checkpoint_begin, checkpoint_progress, checkpoint_saved, compile, resume, progress,
    warning. Phases: setup, compile, train, validation, checkpoint, done, failed. Classes: benign, suspect, fatal.
    """
    from training_exporter import parse_log as command  # noqa: PLC0415

    return _said(lambda: command.run(arguments.file, json=arguments.json, out=sys.stdout))


def check_config(arguments: argparse.Namespace) -> int:
    """Name every fault of a configuration file with its key and line. Exit code: 0 if there is none, else 1."""
    try:
        config.load(arguments.file)
    except DocumentError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{arguments.file}: no fault found\n")
    return 0


def simulate(arguments: argparse.Namespace) -> int:
    """Play a scenario on a virtual clock through everything behind the sources, and print the changes of state.

    With --json, one object for each change: t (seconds since the start), run, state, cause. --openmetrics writes what
    Prometheus would have scraped, for `promtool tsdb create-blocks-from openmetrics`.
    """
    from training_exporter import simulate as command  # noqa: PLC0415

    return _said(
        lambda: command.run(
            arguments.scenario,
            json=arguments.json,
            openmetrics=arguments.openmetrics,
            interval_seconds=arguments.interval,
            out=sys.stdout,
        )
    )


def demo(arguments: argparse.Namespace) -> int:
    """Serve a made-up run in real or sped-up time, so that anyone without a GPU sees metrics, page and alerts."""
    from training_exporter import demo as command  # noqa: PLC0415

    set_up_logging(arguments.log_level, arguments.log_format)
    web = _web_options(arguments)
    if not arguments.listen_addresses:
        web = dataclasses.replace(web, listen_addresses=tuple(map(command.free_address, web.listen_addresses)))
    options = command.DemoOptions(
        scenario=arguments.scenario,
        speed=arguments.speed,
        start_seconds=arguments.start,
        serve=web,
        monitoring=arguments.monitoring,
    )
    return _said(lambda: command.run(options, sys.stdout))


def _said(run: Callable[[], int]) -> int:
    """The exit code of `run`; a file that cannot be read or written is said in words, with exit code 1."""
    try:
        return run()
    except BrokenPipeError:
        raise
    except OSError as error:
        named = error.filename is not None and error.strerror
        sys.stderr.write(f"{error.filename}: {error.strerror}\n" if named else f"{error}\n")
        return 1


def serve_options(arguments: argparse.Namespace) -> ServeOptions:
    """The record of the flags of `serve`."""
    web = _web_options(arguments)
    return dataclasses.replace(
        web,
        config_file=arguments.config_file,
        procfs=arguments.procfs,
        state_directory=_state_directory(arguments.state_dir),
        collectors=_collectors(arguments),
    )


def _web_options(arguments: argparse.Namespace) -> ServeOptions:
    return ServeOptions(
        listen_addresses=tuple(arguments.listen_addresses or arguments.default_addresses),
        systemd_socket=arguments.systemd_socket,
        telemetry_path=arguments.telemetry_path,
        web_config_file=arguments.web_config_file,
        max_requests=arguments.max_requests,
        max_connections=arguments.max_connections,
        enable_lifecycle=arguments.enable_lifecycle,
        show_log_text=arguments.show_log_text,
    )


def _collectors(arguments: argparse.Namespace) -> frozenset[SourceName]:
    return frozenset(name for name in SOURCES if getattr(arguments, f"collector_{name}"))


def _state_directory(chosen: Path | None) -> Path | None:
    """The directory to keep memory in, made if need be; None, with a warning, where that cannot be."""
    if chosen is None:
        chosen = _usual_state_directory()
    try:
        chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(chosen, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        logger.warning("nothing is kept over a restart: %s cannot be written (--state.dir)", chosen)
        return None
    return chosen


def _usual_state_directory() -> Path:
    if given := os.environ.get("STATE_DIRECTORY"):  # systemd; several are separated by colons
        return Path(given.partition(":")[0])
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local/state") / "training-exporter"
