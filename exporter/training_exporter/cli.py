"""The command line."""

from __future__ import annotations

import argparse
import difflib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from voluptuous import Invalid

from training_exporter import __version__, commands
from training_exporter.config import duration_seconds

_EPILOG = """\
examples:
  training-exporter                       serve on :14311; finds torchrun jobs, logs, checkpoints and GPUs by itself
  training-exporter status                is the run on this node training, validating or dead? exit code 2 = dead
  training-exporter status --url http://node7:14311
  training-exporter parse-log train.log   what the exporter reads in a log
  training-exporter demo                  a run that hangs, without GPU; demo --scenario healthy shows one that is well

Each command explains itself with --help. Without a command, and when the first argument is a flag, it is serve.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words.insert(0, "serve")
    parsed = _parse(words)
    run: Callable[[argparse.Namespace], int] = parsed.run
    try:
        return run(parsed)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader (head, less) went away; keep Python from saying so once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parse(words: list[str]) -> argparse.Namespace:
    top = parser()
    parsed, unknown = top.parse_known_args(words)
    if unknown:
        # argparse would blame the command line as a whole
        command = commands_of(top)[words[0]]
        known = [flag for action in command._actions for flag in action.option_strings]  # noqa: SLF001 (argparse offers no other way)
        meant = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
        command.error(f"unknown argument {unknown[0]}" + (f"; did you mean {meant[0]}?" if meant else ""))
    return parsed


def parser() -> argparse.ArgumentParser:
    """The whole command line, from which docs/cli.md is made too."""
    top = argparse.ArgumentParser(
        prog="training-exporter",
        description="Tells whether a long multi-GPU training run is progressing, validating or dead.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"training-exporter {__version__}")
    subparsers = top.add_subparsers(metavar="COMMAND", required=True)
    _serve(_command(subparsers, "serve", commands.serve, "serve metrics and the status page (the default)"))
    _status(_command(subparsers, "status", commands.status, "sample this node for a moment and give the verdict"))
    _parse_log(_command(subparsers, "parse-log", commands.parse_log, "show what is read in a log file"))
    _check_config(_command(subparsers, "check-config", commands.check_config, "name every fault of a configuration"))
    _simulate(_command(subparsers, "simulate", commands.simulate, "play a scenario on a virtual clock"))
    _demo(_command(subparsers, "demo", commands.demo, "serve a made-up run, so that no GPU is needed"))
    return top


def commands_of(top: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parser of each command by name, in the order of `--help`."""
    actions = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001 (argparse offers no other way)
    return {name: command for action in actions for name, command in action.choices.items()}


def arguments_of(command: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments of one command without `--help`, positional ones first."""
    actions = [action for action in command._actions if not isinstance(action, argparse._HelpAction)]  # noqa: SLF001 (likewise)
    return sorted(actions, key=lambda action: bool(action.option_strings))


def _command(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=inspect.cleandoc(run.__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.set_defaults(run=run)
    return command


def _serve(command: argparse.ArgumentParser) -> None:
    _web_flags(command, ":14311")
    command.add_argument("--config.file", dest="config_file", type=Path, metavar="FILE", help="configuration (YAML)")
    command.add_argument(
        "--state.dir",
        dest="state_dir",
        type=Path,
        metavar="DIR",
        help="where what was learnt survives a restart (default: $STATE_DIRECTORY, $XDG_STATE_HOME/training-exporter "
        "or ~/.local/state/training-exporter)",
    )
    _source_flags(command)
    _log_flags(command)


def _web_flags(command: argparse.ArgumentParser, address: str, otherwise: str = "") -> None:
    command.set_defaults(default_addresses=(address,))
    web = command.add_argument_group("web")
    web.add_argument(
        "--web.listen-address",
        dest="listen_addresses",
        action="append",
        metavar="[HOST]:PORT",
        help="address to listen on, may be given again; without HOST all of IPv4 and IPv6 "
        f"(default: {address}{otherwise})",
    )
    web.add_argument(
        "--web.systemd-socket",
        dest="systemd_socket",
        action="store_true",
        help="listen on the sockets that systemd passes (socket activation) instead of an address",
    )
    web.add_argument(
        "--web.telemetry-path",
        dest="telemetry_path",
        type=_url_path,
        default="/metrics",
        metavar="PATH",
        help="where the metrics are (default: %(default)s)",
    )
    web.add_argument(
        "--web.config.file",
        dest="web_config_file",
        type=Path,
        metavar="FILE",
        help="TLS, client certificates and basic authentication in exporter-toolkit's format",
    )
    web.add_argument(
        "--web.max-requests",
        dest="max_requests",
        type=_count,
        default=40,
        metavar="N",
        help="scrapes at the same time, more get 503; 0 = no limit (default: %(default)s)",
    )
    web.add_argument(
        "--web.max-connections",
        dest="max_connections",
        type=_positive,
        default=512,
        metavar="N",
        help="open connections; one more closes the oldest (default: %(default)s)",
    )
    web.add_argument(
        "--web.enable-lifecycle",
        dest="enable_lifecycle",
        action="store_true",
        help="allow POST /-/reload",
    )
    web.add_argument(
        "--web.show-log-text",
        dest="show_log_text",
        action="store_true",
        help="show log lines, arguments and paths to every client, not only on this machine or authenticated",
    )


def _source_flags(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("sources")
    for name, what in (
        ("gpu", "GPUs by NVML"),
        ("processes", "launchers, workers and loaders by /proc"),
        ("logs", "log files of the runs"),
        ("checkpoints", "checkpoint directories of the runs"),
    ):
        group.add_argument(
            f"--collector.{name}",
            dest=f"collector_{name}",
            action=_Switch,
            default=True,
            help=f"watch {what} (default: on)",
        )
    group.add_argument(
        "--path.procfs",
        dest="procfs",
        type=Path,
        default=Path("/proc"),
        metavar="DIR",
        help="where /proc of the node is mounted (default: %(default)s)",
    )


def _log_flags(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("the exporter's own log")
    group.add_argument(
        "--log.level",
        dest="log_level",
        choices=("debug", "info", "warn", "error"),
        default="info",
        help="least severity (default: %(default)s)",
    )
    group.add_argument(
        "--log.format",
        dest="log_format",
        choices=("logfmt", "json"),
        default="logfmt",
        help="one line each on standard error (default: %(default)s)",
    )


def _status(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--for",
        dest="seconds",
        type=_seconds,
        default=10.0,
        metavar="10s",
        help="how long to look, at least 4 s (default: 10s)",
    )
    command.add_argument("--json", action="store_true", help="the document of /api/v1/runs instead of text")
    command.add_argument("--url", metavar="URL", help="ask a running exporter, which knows the history")
    command.add_argument("--watch", action="store_true", help="again and again, each --for, until interrupted")
    command.add_argument(
        "--stacks",
        action="store_true",
        help="add the ranks' Python stacks, equal ones folded (needs py-spy, no --url)",
    )
    command.add_argument("--config.file", dest="config_file", type=Path, metavar="FILE", help="configuration (YAML)")
    _source_flags(command)


def _parse_log(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="log file; - reads standard input")
    command.add_argument("--json", action="store_true", help="one JSON object a line")


def _check_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", type=Path, help="configuration file (YAML)")


def _simulate(command: argparse.ArgumentParser) -> None:
    command.add_argument("scenario", metavar="SCENARIO", help="a shipped name as in demo --scenario, or a file")
    command.add_argument("--json", action="store_true", help="one JSON object for each change of state")
    command.add_argument("--openmetrics", type=Path, metavar="OUT", help="write all scrapes for promtool tsdb")
    command.add_argument(
        "--interval", type=_seconds, default=15.0, metavar="15s", help="time between scrapes (default: 15s)"
    )


def _demo(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--scenario",
        default="collective-hang",
        metavar="NAME",
        help="healthy, slow-validation, collective-hang, loader-deadlock, rank-death, storage-hang, nan-loss or a file "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--speed", type=_factor, default=1.0, metavar="N", help="how much faster than real time (default: 1)"
    )
    command.add_argument(
        "--start",
        type=_seconds,
        metavar="40m",
        help="where in the scenario to begin (default: shortly before it shows what it is about)",
    )
    command.add_argument(
        "--monitoring",
        type=Path,
        metavar="DIR",
        help="folder with prometheus/ and alertmanager/: start both too, where they are installed",
    )
    _web_flags(command, "127.0.0.1:14311", ", or a free port where that one is taken")
    _log_flags(command)


class _Switch(argparse.Action):
    """`--collector.x` and, as kingpin has it, `--no-collector.x`."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: object) -> None:
        (yes,) = option_strings
        super().__init__([yes, f"--no-{yes[2:]}"], dest, nargs=0, **options)  # type: ignore[arg-type]

    def format_usage(self) -> str:
        """Both forms in one word."""
        return f"--[no-]{self.option_strings[0][2:]}"

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 (the signature of argparse)
        namespace: argparse.Namespace,
        values: object,  # noqa: ARG002 (likewise)
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, not (option_string or "").startswith("--no-"))


def _url_path(text: str) -> str:
    if not text.startswith("/") or not text.isascii() or any(sign in text for sign in "?#()[]{}*+|\\^$ "):
        raise argparse.ArgumentTypeError(f"{text!r} is no path such as /metrics")
    return text


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no count")
    return int(text)


def _positive(text: str) -> int:
    if (count := _count(text)) == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return count


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no factor such as 60")
    return factor


def _seconds(text: str) -> float:
    try:
        return duration_seconds(float(text) if text.replace(".", "", 1).isdigit() else text)
    except (Invalid, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
