"""`status`: one block per run, honest exit codes, and nothing that a log could do to a terminal."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from training_exporter import status
from training_exporter.model import Health
from training_exporter.options import ServeOptions
from training_exporter.report import terminal
from training_exporter.report.document import Document, document
from training_exporter.report.history import History
from training_exporter.runs.view import NodeView, Verdict
from training_exporter.server import Server
from training_exporter.status import BAD, CANNOT_TELL, FINE, WARNING, StatusError, StatusOptions, exit_code, fetch

EMPTY = NodeView(time_seconds=1_700_000_000.0, wall_shift_seconds=0.0)


def found(view: NodeView, *, private: bool = True) -> Document:
    """The document of a view."""
    return document(view, History(), private=private)


def judged(view: NodeView, *states: str) -> Document:
    """A document with one run per state, all sources well."""
    runs = tuple(replace(view.runs[0], name=state, verdict=Verdict(state, 1)) for state in states)
    return found(replace(view, runs=runs, health={"processes": Health(success=True)}))


class Terminal(io.StringIO):
    """Text output that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def url(rich_view: NodeView) -> Iterator[str]:
    """A running exporter over the rich view."""
    server = Server(ServeOptions(listen_addresses=("127.0.0.1:0",)), view=lambda: rich_view)
    server.bind()
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield "http://{}:{}".format(*server.addresses[0])
    server.stop()
    thread.join(10)


class TestExitCode:
    @pytest.mark.parametrize(
        ("states", "code"),
        [
            ((), FINE),
            (("training", "validating", "quiet", "starting", "checkpointing", "finished", "ended"), FINE),
            (("training", "no_progress"), WARNING),
            (("absent",), WARNING),
            (("unknown", "no_progress"), CANNOT_TELL),
            (("unknown", "stalled"), BAD),
            (("degraded",), BAD),
            (("failed", "training"), BAD),
        ],
    )
    def test_worst_state_decides(self, rich_view: NodeView, states: tuple[str, ...], code: int) -> None:
        """A dead run outweighs what cannot be told, and that outweighs a warning."""
        assert code == exit_code(judged(rich_view, *states))

    def test_blind_process_list(self) -> None:
        """Without the process list, no run found is no good news."""
        view = replace(EMPTY, health={"processes": Health(success=False, error="denied")})
        assert exit_code(found(view)) == CANNOT_TELL

    def test_unseen_run(self, rich_view: NodeView) -> None:
        """A run that shows neither log nor GPU nor checkpoint, as to an unprivileged user, cannot be judged."""
        absent = dict.fromkeys(("gpu", "logs", "checkpoints"), True)
        run = replace(rich_view.runs[0], verdict=Verdict("starting", 20), absent=absent, blind={})
        healthy = {"processes": Health(success=True)}
        shown = found(replace(rich_view, runs=(run,), health=healthy))
        assert exit_code(shown) == CANNOT_TELL
        assert [step.partition(".")[0] for step in shown["runs"][0]["next"]] == [
            "Cannot tell more than that its processes exist"
        ]
        assert terminal.render(shown, colour=False).startswith(f"{run.name}  CANNOT TELL\n")
        assert (shown["runs"][0]["verdict"]["state"], shown["runs"][0]["expected"]) == ("starting", None)
        seen = replace(run, absent={**absent, "logs": False})
        assert exit_code(found(replace(rich_view, runs=(seen,), health=healthy))) == FINE


class TestRender:
    def test_block(self, rich_view: NodeView, monkeypatch: pytest.MonkeyPatch) -> None:
        """Verdict, budget, risk and every witness with its age are in the block of a run."""
        monkeypatch.setenv("COLUMNS", "140")
        lines = terminal.render(found(rich_view), colour=False).splitlines()
        assert lines[0] == "eagle3-synth100k  VALIDATING"
        text = " ".join(" ".join(lines).split())
        for words in (
            "verdict Validating for 12 min.",
            "expected Validating for 12 min, the last took 25 min; no sign of life for 30 s (10 min allowed)",
            "If nothing moves, it pages at ",
            "at risk 1 h 30 min of work",
            "0 % busy, 197 W (at rest 80, training 380, effort 10 %), 38.9 GiB of 95.6 GiB 11 min ago",
            "last: torch._dynamo hit config.recompile_limit (8)",
            "source checkpoints hangs: no answer within 20 s",
            "hint pipe the output through `| tee FILE`",
        ):
            assert words in text

    def test_no_run(self) -> None:
        """Nothing found is said, with what was looked for."""
        text = terminal.render(found(EMPTY), colour=False)
        assert text.startswith("No training run found. Looked for:\n  - launchers (torchrun")
        assert "No GPU." in text

    @pytest.mark.parametrize(("state", "sequence"), [("stalled", "\x1b[1;31m"), ("training", "\x1b[1;32m")])
    def test_colour(self, rich_view: NodeView, state: str, sequence: str) -> None:
        """On a terminal the state has a colour, and only the state."""
        text = terminal.render(judged(rich_view, state), colour=True)
        assert f"{sequence}{state.upper()}\x1b[0m" in text
        assert text.count("\x1b") == 2

    def test_hostile_words(self, rich_view: NodeView) -> None:
        """Escape sequences of a log, a name or a remote exporter show as text."""
        run = rich_view.runs[0]
        assert run.log is not None
        evil = "\x1b]0;owned\x07\x1b[2J\r"
        view = replace(rich_view, runs=(replace(run, name=evil, log=replace(run.log, last_line=evil), hints=(evil,)),))
        remote = json.loads(json.dumps(found(view)))
        remote["runs"][0]["name"] = remote["runs"][0]["evidence"][0]["text"] = evil
        for shown in (found(view), remote):
            text = terminal.render(shown, colour=False)
            assert "\x1b" not in text
            assert "\r" not in text
            assert "\\x1b]0;owned\\x07" in text

    def test_gpu_without_a_run(self, rich_view: NodeView) -> None:
        """GPUs that no run uses are listed."""
        text = terminal.render(found(replace(rich_view, runs=())), colour=False)
        assert "gpu 0, no run" in text


class TestFetch:
    def test_running_exporter(self, url: str) -> None:
        """The document of a running exporter is the one of `--json`."""
        assert [run["name"] for run in fetch(url)["runs"]] == ["eagle3-synth100k"]
        assert fetch(url) == fetch(f"{url}/") == fetch(f"{url}/api/v1/runs") == fetch(url.removeprefix("http://"))

    @pytest.mark.parametrize(("path", "said"), [("/metrics", "expected http://HOST:PORT"), ("/nothing", "404")])
    def test_something_else(self, url: str, path: str, said: str) -> None:
        """What is no document is said in words."""
        with pytest.raises(StatusError, match=said):
            fetch(url + path)

    @pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://host", "http://", "http://127.0.0.1:1"])
    def test_no_exporter(self, address: str) -> None:
        """Only HTTP is asked, and nobody there is said in words."""
        with pytest.raises(StatusError):
            fetch(address)

    def test_login_is_no_part_of_the_address(self) -> None:
        """User and password of the URL become a header and do not show in messages."""
        with pytest.raises(StatusError) as caught:
            fetch("http://user:s3cret@127.0.0.1:1/")
        assert "s3cret" not in str(caught.value)


class TestRun:
    def test_text(self, url: str) -> None:
        """Text without colours where nobody watches."""
        out = io.StringIO()
        assert status.run(StatusOptions(url=url), out) == FINE
        assert out.getvalue().startswith("eagle3-synth100k  VALIDATING\n")
        assert "\x1b" not in out.getvalue()

    def test_json(self, url: str) -> None:
        """`--json` is the document of `/api/v1/runs`."""
        out = io.StringIO()
        assert status.run(StatusOptions(url=url, json=True), out) == FINE
        assert fetch(url) == json.loads(out.getvalue())

    def test_no_color(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """NO_COLOR is honoured on a terminal."""
        monkeypatch.setenv("NO_COLOR", "1")
        out = Terminal()
        status.run(StatusOptions(url=url), out)
        assert "\x1b" not in out.getvalue()

    def test_watch(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """`--watch` looks again and again, over failures of the exporter, until it is interrupted."""
        answers = iter([fetch(url), StatusError("connection refused"), fetch(url), KeyboardInterrupt()])

        def ask(_: str) -> Document:
            answer = next(answers)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        monkeypatch.setattr(status, "fetch", ask)
        out, errors = Terminal(), io.StringIO()
        with pytest.raises(KeyboardInterrupt):
            status.run(StatusOptions(url=url, seconds=0.0, watch=True), out, errors)
        assert out.getvalue().count("\x1b[H\x1b[2J") == 2
        assert out.getvalue().count("VALIDATING") == 2
        assert errors.getvalue() == "connection refused\n"

    @pytest.mark.parametrize("stacks", [False, True])
    def test_cannot_tell(self, stacks: bool, url: str) -> None:
        """An exporter that does not answer, and stacks of a distant machine, are exit code 3 with a reason."""
        errors = io.StringIO()
        options = StatusOptions(url=url if stacks else "http://127.0.0.1:1", stacks=stacks)
        assert status.run(options, io.StringIO(), errors) == CANNOT_TELL
        assert errors.getvalue().strip()

    def test_this_node(self) -> None:
        """Without a server the node itself is sampled, whatever runs on it."""
        out = io.StringIO()
        options = StatusOptions(seconds=0.1, json=True, serve=ServeOptions(collectors=frozenset({"processes"})))
        code = status.run(options, out, io.StringIO())
        shown = json.loads(out.getvalue())
        assert exit_code(shown) == code
        assert shown["private"]
        assert shown["sources"]["processes"]["success"]
