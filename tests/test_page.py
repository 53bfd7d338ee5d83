"""The status page: what a person needs, and nothing that a log line could do to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from training_exporter.model import SOURCES, Health
from training_exporter.palette import BY_STATE
from training_exporter.report import page
from training_exporter.report.document import document
from training_exporter.report.history import History
from training_exporter.runs.view import NodeView, Verdict

EMPTY = NodeView(time_seconds=1_700_000_000.0, wall_shift_seconds=0.0)


def html(view: NodeView, *, private: bool = True, history: History | None = None) -> str:
    """The page of a view."""
    found = document(view, history or History(), private=private)
    return page.render(found, telemetry_path="/metrics", collectors=SOURCES)


class _Tags(HTMLParser):
    """Collects the tags and their attributes, and checks that they close."""

    VOID = frozenset({"meta", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    """All tags of a well-formed page."""
    parser = _Tags()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser.tags


class TestRender:
    def test_verdict_and_evidence(self, rich_view: NodeView) -> None:
        """State, sentence, budget, risk and each witness are there."""
        text = html(rich_view)
        for words in (
            "validating",
            "Validating for 12 min.",
            "Lost if it ended now: 1 h 30 min of work since the last complete checkpoint.",
            "0 % busy, 197 W (at rest 80, training 380, effort 10 %), 38.9 GiB of 95.6 GiB",
            "full_acc_0 0.8125",
            "also in the directory: train_config.json",
        ):
            assert words in text

    def test_no_run_says_what_was_looked_for(self) -> None:
        """Without GPU and job the page says so, and how a run would be found."""
        text = html(replace(EMPTY, health={"gpu": Health(success=False, error="NVML is not installed")}))
        assert "No training run found" in text
        assert "torchrun" in text
        assert "No GPU" in text
        assert "NVML is not installed" in text

    def test_no_foreign_asset(self, rich_view: NodeView) -> None:
        """The page loads nothing: no script, no style, no image, no font of another place."""
        loaded = [
            (tag, attributes) for tag, attributes in tags(html(rich_view)) if "src" in attributes or tag == "script"
        ]
        assert loaded == []
        links = [attributes["href"] for tag, attributes in tags(html(rich_view)) if tag == "link"]
        assert links == ["data:,"]
        assert not re.search(r"url\(|@import|https?://", html(rich_view))

    @pytest.mark.parametrize("private", [True, False])
    def test_hostile_log_line(self, rich_view: NodeView, private: bool) -> None:
        """Markup in a log line, a run name or a hint stays text."""
        run = rich_view.runs[0]
        assert run.log is not None
        evil = '"><script>alert(1)</script>{{ 7 * 7 }}\x1b[2J'
        hostile = replace(run, name=evil, script=evil, hints=(evil,), log=replace(run.log, last_line=evil))
        text = html(replace(rich_view, runs=(hostile,)), private=private)
        assert "script" not in {tag for tag, _ in tags(text)}
        assert "&lt;script&gt;alert(1)" in text
        assert "\x1b" not in text

    def test_private(self, rich_view: NodeView) -> None:
        """A stranger sees the verdict, and no word that the job itself wrote."""
        text = html(rich_view, private=False)
        assert "validating" in text
        assert "recompile_limit" not in text
        assert "train_config.json" not in text
        assert "--web.show-log-text" in text

    @pytest.mark.parametrize(("state", "tone"), [("stalled", "bad"), ("no_progress", "warn"), ("training", "calm")])
    def test_tone(self, rich_view: NodeView, state: str, tone: str) -> None:
        """A bad state looks bad, and is in the title of the browser's tab."""
        run = replace(rich_view.runs[0], verdict=Verdict(state, 1, cause="collective"))
        text = html(replace(rich_view, runs=(run,)))
        assert f'<article class="{tone}"' in text
        assert f"<title>{state.replace('_', ' ')}: eagle3-synth100k - training-exporter</title>" in text

    def test_band(self, rich_view: NodeView) -> None:
        """The band shows the states of the past in their share of time."""
        history = History()
        for second, state in ((0, "training"), (30, "training"), (60, "stalled"), (80, "stalled")):
            run = replace(rich_view.runs[0], verdict=Verdict(state, 1))
            history.add(replace(rich_view, time_seconds=rich_view.time_seconds + second, runs=(run,)))
        text = html(rich_view, history=history)
        assert "training for 1 min, stalled for 20 s" in text
        assert f'style="width:75.00%;background:{BY_STATE["training"].colour}"' in text
        assert f'style="width:25.00%;background:{BY_STATE["stalled"].colour}"' in text
        for state in ("training", "stalled"):
            assert f'<i style="background:{BY_STATE[state].colour}"></i> {state}</span>' in text

    def test_band_keeps_validation_apart(self) -> None:
        """States that are both well differ in the band, as they do on the dashboards."""
        assert page.colour("validating") != page.colour("training")
        assert page.colour("a state of a newer version") == BY_STATE[""].colour

    def test_unseen_run(self, rich_view: NodeView) -> None:
        """Of a run that shows its processes alone the page claims no phase, and promises no page."""
        absent = {"gpu": True, "logs": True, "checkpoints": True}
        run = replace(rich_view.runs[0], verdict=Verdict("starting", 20), absent=absent, blind={}, gpus=(), log=None)
        text = html(replace(rich_view, runs=(run,)))
        assert '<article class="warn"' in text
        assert '<span class="state">cannot tell</span>' in text
        assert f"<title>cannot tell: {run.name} - training-exporter</title>" in text
        assert "it pages after" not in text
        assert "Starting for" not in text
        dead = html(replace(rich_view, runs=(replace(run, verdict=Verdict("degraded", 90, cause="rank")),)))
        assert '<span class="state">degraded</span>' in dead

    def test_commands_are_set_as_code(self, rich_view: NodeView) -> None:
        """What one can type stands out, and is escaped like everything else."""
        run = replace(rich_view.runs[0], hints=("use `a | tee <FILE>` or `b`",))
        assert "use <code>a | tee &lt;FILE&gt;</code> or <code>b</code>" in html(replace(rich_view, runs=(run,)))

    def test_curves(self, rich_view: NodeView) -> None:
        """What the GPUs and the log did over the past is drawn, with its numbers in words."""
        history = History()
        run = rich_view.runs[0]
        assert run.log is not None
        for second, lines, working in ((0, 0, 0.0), (30, 30, 30.0), (60, 45, 45.0)):
            log = replace(run.log, lines_total=lines)
            history.add(
                replace(
                    rich_view,
                    time_seconds=rich_view.time_seconds + second,
                    runs=(replace(run, log=log),),
                    gpus=tuple(replace(gpu, working_seconds_total=working) for gpu in rich_view.gpus),
                )
            )
        text = html(rich_view, history=history)
        assert "GPUs working: 50 %, at most 100 %" in text
        assert "Log lines a minute: 30, at most 60" in text
        assert '<rect x="50.00" y="50.0" width="50.00" height="50.0"/>' in text

    def test_ended_run_has_no_rates(self, rich_view: NodeView) -> None:
        """What a run did in its last minute is not what it does now that it is over."""
        history = History()
        run = replace(rich_view.runs[0], read_bytes_total=0.0)
        assert run.log is not None
        history.add(replace(rich_view, runs=(run,)))
        log = replace(run.log, lines_total=run.log.lines_total + 300)
        later = replace(run, log=log, read_bytes_total=2.0**30)
        ended = replace(later, alive=False, verdict=Verdict("ended", 15), processes={}, process_states={}, gpus=())
        shown = {}
        for state in (later, ended):
            view = replace(rich_view, time_seconds=rich_view.time_seconds + 60, runs=(state,))
            history.add(view)
            found = document(view, history, private=True)["runs"][0]
            text = " ".join(f"{line['witness']}: {line['text']}" for line in found["evidence"])
            rates = ("17.1 MiB/s read", "300 a minute", "8 workers expected", "cpu: ")
            shown[state.alive] = [words in text for words in rates]
            assert (found["rates"]["lines_per_second"] is None) != state.alive
            assert ("Log lines a minute: 300, at most 300" in html(view, history=history)) == state.alive
        assert shown == {True: [True] * 4, False: [False] * 4}


class TestCheckpointsOfBefore:
    def test_no_contradiction_to_a_start(self, rich_view: NodeView) -> None:
        """A run that starts beside checkpoints of an earlier start says whose they are, and loses its own work only."""
        now = rich_view.time_seconds
        run = replace(rich_view.runs[0], verdict=Verdict("starting", 20), start_seconds=now - 120)
        text = html(replace(rich_view, runs=(run,)))
        assert "3 complete checkpoints, the last of step 3,500 with 15.8 GiB, from before this start" in text
        assert "Lost if it ended now: 2 min of work: the checkpoints are from before it." in text
        assert "from before" not in html(rich_view)

    def test_size_is_of_the_last(self, rich_view: NodeView) -> None:
        """Without a known step, too, the size is said of the last checkpoint and not of all."""
        run = rich_view.runs[0]
        assert run.checkpoints is not None
        text = html(replace(rich_view, runs=(replace(run, checkpoints=replace(run.checkpoints, last_step=None)),)))
        assert "3 complete checkpoints, the last with 15.8 GiB; " in text


class TestDocument:
    def test_is_json(self, rich_view: NodeView) -> None:
        """Every value is JSON without extensions, NaN included."""
        text = json.dumps(document(rich_view, History(), private=True), allow_nan=False)
        assert json.loads(text)["runs"][0]["name"] == rich_view.runs[0].name

    def test_times_are_wall_times(self, rich_view: NodeView) -> None:
        """Times are on the wall clock, ages on the steady one."""
        found = document(rich_view, History(), private=True)
        run = found["runs"][0]
        assert rich_view.time_seconds + 5 == found["time"]
        assert found["time"] - run["activity"]["log"] == 30.0
        assert run["checkpoints"]["age_seconds"] == 5400.0
        assert rich_view.time_seconds + 5 - 30 + 600 == run["pages_at"]

    def test_strangers_get_no_words_of_the_job(self, rich_view: NodeView) -> None:
        """Without the right, log text, paths and file names are not in the document at all."""
        text = json.dumps(document(rich_view, History(), private=False))
        for word in ("/data", "recompile_limit (8)", "train_config.json", "checkpoint-3500"):
            assert word not in text

    def test_schema_is_documented(self, rich_view: NodeView) -> None:
        """Every key of the document stands in docs/api.md."""
        page_text = (Path(__file__).parent.parent / "docs" / "api.md").read_text()
        words = set(re.findall(r"`([a-z_0-9]+)`", page_text))
        history = History()
        history.add(rich_view)
        found = document(rich_view, history, private=True)
        found["gpus"] = [{**gpu, "xid_errors": {}} for gpu in found["gpus"]]
        for run in found["runs"]:  # these are keyed by values, not by words of the schema
            for key in ("gpu_memory_bytes", "processes", "process_states"):
                run[key] = {}
        assert set() == set(_keys(found)) - words


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)
