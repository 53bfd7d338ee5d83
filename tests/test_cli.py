"""The command line: what is understood, what is refused, and with which exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from training_exporter import __version__, cli, commands
from training_exporter.commands import Configuration, serve_options
from training_exporter.config import Config
from training_exporter.demo import DEFAULT
from training_exporter.model import SOURCES
from training_exporter.options import ServeOptions

ROOT = Path(__file__).parent.parent


def parsed_options(*words: str) -> ServeOptions:
    """The record that `serve` would get."""
    return serve_options(cli.parser().parse_args(["serve", *words]))


class TestMain:
    @pytest.mark.parametrize(
        ("words", "command"),
        [
            ([], "serve"),
            (["--log.level=debug"], "serve"),
            (["serve"], "serve"),
            (["check-config", "x"], "check_config"),
        ],
    )
    def test_serve_is_the_default(self, monkeypatch: pytest.MonkeyPatch, words: list[str], command: str) -> None:
        """No command, or a flag in its place, means `serve`."""
        called = []
        for name in ("serve", "check_config"):
            monkeypatch.setattr(commands, name, lambda _, name=name: called.append(name) or 7)
        assert cli.main(words) == 7
        assert [command] == called

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        """`--version` needs no command."""
        with pytest.raises(SystemExit) as caught:
            cli.main(["--version"])
        assert (0, f"training-exporter {__version__}\n") == (caught.value.code, capsys.readouterr().out)

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--web.listen-adress=:1"], "unknown argument --web.listen-adress=:1; did you mean --web.listen-address?"),
            (["status", "--bogus"], "unknown argument --bogus"),
            (["statsu"], "invalid choice: 'statsu'"),
            (["--web.telemetry-path=metrics"], "'metrics' is no path such as /metrics"),
            (["--web.max-requests=-1"], "'-1' is no count"),
            (["--web.max-connections=0"], "must be at least 1"),
            (["--log.level=loud"], "invalid choice: 'loud'"),
            (["status", "--for=soon"], "'soon': expected a duration like 90s, 10m or 1h30m"),
            (["demo", "--speed=0"], "'0' is no factor such as 60"),
            (["--web.max"], "unknown argument --web.max"),
        ],
    )
    def test_refused(self, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
        """A mistake ends with exit code 2 and a message that names it."""
        with pytest.raises(SystemExit) as caught:
            cli.main(words)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize("command", list(cli.commands_of(cli.parser())))
    def test_help_teaches(self, capsys: pytest.CaptureFixture[str], command: str) -> None:
        """Each command explains itself and every one of its arguments."""
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert len(capsys.readouterr().out.splitlines()) > 5
        assert all(action.help for action in cli.arguments_of(cli.commands_of(cli.parser())[command]))


class TestHelp:
    def test_switches(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The usage shows that a source can be switched off."""
        with pytest.raises(SystemExit):
            cli.main(["serve", "--help"])
        usage = capsys.readouterr().out.partition("\n\n")[0]
        assert all(f"[--[no-]collector.{name}]" in usage for name in SOURCES)

    def test_what_the_demo_shows(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The examples of `--help` say of the demo what it does without flags."""
        with pytest.raises(SystemExit):
            cli.main(["--help"])
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  training-exporter demo")]
        assert DEFAULT == cli.parser().parse_args(["demo"]).scenario == "collective-hang"
        assert "a run that hangs" in line
        assert "demo --scenario healthy shows one that is well" in line


class TestFiles:
    @pytest.mark.parametrize(
        "words",
        [
            ["parse-log", "MISSING"],
            ["simulate", "MISSING"],
            ["check-config", "MISSING"],
            ["demo", "--scenario", "MISSING"],
        ],
    )
    def test_missing_file(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]) -> None:
        """A file that is not there is exit code 1 and a sentence that names it."""
        missing = str(tmp_path / "missing")
        assert cli.main([word.replace("MISSING", missing) for word in words]) == 1
        shown = capsys.readouterr()
        (line,) = (shown.out + shown.err).splitlines()
        assert missing in line
        assert "[Errno" not in line
        assert (shown.out == "") == (words[0] != "check-config")

    def test_reader_that_goes_away(self) -> None:
        """`| head` ends the program quietly."""
        command = f"{sys.executable} -m training_exporter parse-log - | head -1"
        lines = "".join(f"step {number} loss 1.0\n" for number in range(20_000))
        result = subprocess.run(["sh", "-c", command], input=lines, capture_output=True, text=True, check=False)
        assert (len(result.stdout.splitlines()), result.stderr) == (1, "")


class TestServeOptions:
    def test_defaults(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Without flags the record is the default one, apart from where memory is kept."""
        monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
        assert ServeOptions(state_directory=tmp_path) == parsed_options()

    def test_flags(self, tmp_path: Path) -> None:
        """Flags arrive in the record."""
        options = parsed_options(
            "--web.listen-address=127.0.0.1:1",
            "--web.listen-address=[::1]:2",
            "--web.telemetry-path=/m",
            "--web.max-requests=0",
            "--web.enable-lifecycle",
            "--config.file=/etc/t.yaml",
            f"--state.dir={tmp_path / 'new'}",
            "--path.procfs=/host/proc",
            "--no-collector.gpu",
            "--no-collector.logs",
            "--collector.logs",
        )
        assert (
            ServeOptions(
                listen_addresses=("127.0.0.1:1", "[::1]:2"),
                telemetry_path="/m",
                max_requests=0,
                enable_lifecycle=True,
                config_file=Path("/etc/t.yaml"),
                state_directory=tmp_path / "new",
                procfs=Path("/host/proc"),
                collectors=frozenset(SOURCES) - {"gpu"},
            )
            == options
        )

    def test_state_directory_that_cannot_be(self, caplog: pytest.LogCaptureFixture) -> None:
        """Memory that cannot be kept is a warning and no end."""
        assert parsed_options("--state.dir=/proc/nothing").state_directory is None
        assert "nothing is kept over a restart: /proc/nothing cannot be written" in caplog.text

    def test_usual_state_directory(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Without systemd the directory is below XDG_STATE_HOME."""
        monkeypatch.delenv("STATE_DIRECTORY", raising=False)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        assert tmp_path / "training-exporter" == parsed_options().state_directory


class FakeMonitor:
    """Takes over configurations."""

    def __init__(self) -> None:
        self.taken: list[Config] = []

    def reload(self, settings: Config) -> None:
        self.taken.append(settings)


class TestConfiguration:
    def test_all_or_nothing(self, tmp_path: Path) -> None:
        """A bad file leaves the one before in force, and the state says so until a good one comes."""
        path = tmp_path / "config.yaml"
        monitor = FakeMonitor()
        configuration = Configuration(path, monitor)
        loaded = configuration.state().success_seconds
        path.write_text("runs: [{name: r, logs: [/a]}, {nam: x}]")
        assert [
            f"{path}: line 1: runs[1].nam: unknown key; did you mean 'name'?",
            f"{path}: line 1: runs[1].name: required key not provided",
        ] == configuration.reload()
        assert (False, loaded) == (configuration.state().successful, configuration.state().success_seconds)
        assert monitor.taken == []
        path.write_text("runs: [{name: r, logs: [/a]}]")
        assert configuration.reload() == []
        assert configuration.state().successful
        assert [run.name for run in monitor.taken[0].runs] == ["r"]

    def test_without_a_file(self) -> None:
        """Reloading without a file is no fault."""
        monitor = FakeMonitor()
        assert Configuration(None, monitor).reload() == []
        assert [Config()] == monitor.taken


class TestCheckConfig:
    def test_good(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A good file is said to be good."""
        path = tmp_path / "c.yaml"
        path.write_text("runs: []")
        assert cli.main(["check-config", str(path)]) == 0
        assert f"{path}: no fault found\n" == capsys.readouterr().out

    def test_bad(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Each fault is a line with file, line and key."""
        path = tmp_path / "c.yaml"
        path.write_text("runz: []\ndiscovery: 1\n")
        assert cli.main(["check-config", str(path)]) == 1
        assert [
            f"{path}: line 1: runz: unknown key; did you mean 'runs'?",
            f"{path}: line 2: discovery: expected a mapping of keys to values",
        ] == capsys.readouterr().out.splitlines()


class TestDocuments:
    def test_reference_is_fresh(self) -> None:
        """docs/metrics.md and docs/cli.md are what `docs/generate.py` would write now."""
        result = subprocess.run(
            [sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, check=False
        )
        assert (result.returncode, result.stderr) == (0, "")
