"""The dashboards: generated from the exporter's own names, and held to the rules that keep them from failing silently.

The rules of dashboard-linter are here in our own words, each that we do not follow with its reason.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from boards import fleet, names, node, node_gpus, run, run_verdict
from boards.board import Band, Identity, Section, band, dashboard, panels_of, queries_of, selector_of
from boards.names import UnknownNameError, check_query, known_names, uses
from boards.panels import Field, Head, now, override, stat, thresholds
from training_exporter.palette import LOOKS
from training_exporter.runs.verdict import STALL_CAUSES

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "grafana" / "dashboards"
BUILDERS = {"fleet": fleet.build, "run": run.build, "node": node.build}
BOARDS = {name: json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in BUILDERS}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in panels_of(board)]
VARIABLES = [(name, variable) for name, board in BOARDS.items() for variable in board["templating"]["list"]]

# Of Grafana's 273 unit ids, those in use here; `suffix:` makes one of its own.
UNITS = {"Bps", "bytes", "celsius", "hertz", "locale", "none", "percentunit", "s", "short", "watt"}
CORE_PANELS = {"stat", "timeseries", "state-timeline", "table", "bargauge", "row", "text"}


def named(panel: tuple[str, dict[str, Any]]) -> str:
    """Identity of a case: dashboard and title."""
    return f"{panel[0]}: {panel[1].get('title') or panel[1].get('name')}"


def hexes(value: object) -> Iterator[str]:
    """Every colour written as #RRGGBB anywhere in a value."""
    if isinstance(value, dict):
        for part in value.values():
            yield from hexes(part)
    elif isinstance(value, list):
        for part in value:
            yield from hexes(part)
    elif isinstance(value, str) and re.fullmatch(r"#[0-9a-fA-F]{3,8}", value):
        yield value


def datasources(value: object) -> Iterator[object]:
    """Every data source that anything in a value names."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key == "datasource":
                yield part
            else:
                yield from datasources(part)
    elif isinstance(value, list):
        for part in value:
            yield from datasources(part)


def small(expr: str) -> dict[str, Any]:
    """A dashboard with one panel that asks `expr`."""
    tile = stat(Head(1, "Tile", "About it.", "Nothing"), [now(expr)], Field())
    return dashboard(Identity("tile", "Tile", "One tile.", "1h"), [Section(0, "", (band(4, (4, tile)),))], variables=())


class TestGenerate:
    def test_the_committed_dashboards_are_what_the_code_makes(self) -> None:
        """`--check` finds nothing to do."""
        done = subprocess.run(
            [sys.executable, ROOT / "grafana/generate.py", "--check"], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_stale_dashboard_is_named(self, tmp_path: Path) -> None:
        """`--check` fails and says which file, and writes nothing."""
        copy = tmp_path / "grafana"
        (copy / "dashboards").mkdir(parents=True)
        (copy / "boards").symlink_to(ROOT / "grafana/boards")
        (tmp_path / "prometheus").symlink_to(ROOT / "prometheus")
        script = copy / "generate.py"
        script.write_text((ROOT / "grafana/generate.py").read_text())
        done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert [line.split()[0] for line in done.stderr.splitlines()] == [
            f"grafana/dashboards/{name}.json" for name in BUILDERS
        ]
        assert list((copy / "dashboards").iterdir()) == []
        subprocess.run([sys.executable, script], check=True)
        assert {path.name: json.loads(path.read_text()) for path in (copy / "dashboards").iterdir()} == {
            f"{name}.json": board for name, board in BOARDS.items()
        }

    @pytest.mark.parametrize("metric", ["training_step", "training_gpu_power_watts", "training_exporter_build_info"])
    def test_a_metric_renamed_in_the_catalogue_stops_the_generator(
        self, metric: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The old name in a query is refused by name."""
        renamed = {(f"{name}_new" if name == metric else name): spec for name, spec in names.BY_NAME.items()}
        monkeypatch.setattr(names, "BY_NAME", renamed)
        with pytest.raises(UnknownNameError, match=f"is called {metric}:"):
            [build() for build in BUILDERS.values()]

    def test_a_renamed_recording_rule_stops_the_generator(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The rules are read as they are shipped."""
        rules = tmp_path / "recording.yml"
        text = names.RECORDING_RULES.read_text(encoding="utf-8")
        rules.write_text(text.replace("record: run:training_state:code", "record: run:training_verdict:code"))
        monkeypatch.setattr(names, "RECORDING_RULES", rules)
        with pytest.raises(UnknownNameError, match="is called run:training_state:code:"):
            fleet.build()

    def test_panels_that_do_not_fit_in_a_row_are_refused(self) -> None:
        """Grafana would move them without a word."""
        tile = stat(Head(1, "Tile", "About it.", "Nothing"), [now("up")], Field())
        with pytest.raises(ValueError, match="28 wide"):
            dashboard(
                Identity("wide", "Wide", "Too wide.", "1h"),
                [Section(0, "", (Band(4, ((14, tile), (14, tile))),))],
                variables=(),
            )


class TestUses:
    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("up", [("up", ())]),
            ('up{job="a", instance=~"b.+"} == 0', [("up", ("job", "instance"))]),
            ("sum by (run) (rate(a_total[5m]))", [(None, ("run",)), ("a_total", ())]),
            ("a / on (run) group_left (gpu) b", [("a", ()), (None, ("run",)), (None, ("gpu",)), ("b", ())]),
            ('run:a:b{x!="}"} offset 5m or vector(0)', [("run:a:b", ("x",))]),
            ('label_replace(a, "new", "$1", "old", "(.*)") # b', [("a", ())]),
            ("sum_over_time((a == bool 1)[24h:5m]) * 3e2 + 0x1f", [("a", ())]),
            ("histogram_quantile(0.9, a) unless on () absent(b)", [("a", ()), (None, ()), ("b", ())]),
            ("Inf > NaN", []),
        ],
    )
    def test_metrics_and_labels_are_found(self, query: str, found: list[tuple[str | None, tuple[str, ...]]]) -> None:
        """Functions, operators, strings, durations and comments are not taken for metrics."""
        assert list(uses(query)) == found


class TestCheckQuery:
    @pytest.mark.parametrize(
        ("query", "fault"),
        [
            ("training_stepp", "called training_stepp"),
            ("run:training_nothing:bool", "called run:training_nothing:bool"),
            ('training_step{gpu="0"}', "label gpu"),
            ('run:training_idle:seconds{signal="step"}', "label signal"),
            ("sum by (runn) (training_step)", "label runn"),
            ("training_step @@ 3", "cannot read the query at '@@ 3'"),
        ],
    )
    def test_what_no_series_has_is_refused(self, query: str, fault: str) -> None:
        """With the name at fault and the query it stands in."""
        with pytest.raises(UnknownNameError, match=re.escape(fault)):
            check_query(query, known_names())

    @pytest.mark.parametrize(
        "query",
        [
            'training_step{job="a", instance="b", run="c"}',
            'run_gpu:training_effort:avg5m{job="a", instance="b", run="c", gpu="0"}',
            'run:training_budget:seconds{budget="idle"}',
            'run:training_stall_cause:timestamp_seconds{cause="host"}',
            "max by (rank, gpu) (training_rank_info)",
            'sum by (fact) (label_replace(training_step, "fact", "x", "", ""))',
            'ALERTS{alertname="TrainingStalled", alertstate="firing", severity="critical"}',
        ],
    )
    def test_what_series_have_passes(self, query: str) -> None:
        """Labels of the scrape, of the catalogue, of a rule's level and expression, and those a query makes."""
        check_query(query, known_names())

    def test_a_dashboard_is_checked_as_a_whole(self) -> None:
        """Assembling one is enough to find a wrong name."""
        assert small("up")["uid"] == "tile"
        with pytest.raises(UnknownNameError, match="called training_stepp"):
            small("training_stepp")


class TestOverride:
    def test_names_of_properties_may_have_dots(self) -> None:
        """Grafana's nested properties are written with dots, which no Python keyword can hold."""
        assert override("Power", unit="watt", custom__lineWidth=1) == {
            "matcher": {"id": "byName", "options": "Power"},
            "properties": [{"id": "unit", "value": "watt"}, {"id": "custom.lineWidth", "value": 1}],
        }


class TestThresholds:
    def test_the_base_comes_first_and_has_no_value(self) -> None:
        """Grafana reads the first step as everything below the second."""
        assert thresholds((1, "#D55E00"), base="text") == {
            "mode": "absolute",
            "steps": [{"color": "text", "value": None}, {"color": "#D55E00", "value": 1}],
        }


class TestLinter:
    """The rules of grafana/dashboard-linter (main, 2026), by its names.

    Not followed, with the reason: template-instance-rule (our variable for it is `node`, which says what it chooses),
    target-job-rule and target-instance-rule for the series of the recording rules (a run spans nodes: they have neither
    label), uneditable-dashboard (people adapt dashboards; provisioned ones are protected by their provider), and
    template-job-rule's `all: .+` is followed for raw series only, as `up` is asked for the job that the rules name.
    """

    @pytest.mark.parametrize("name", BOARDS)
    def test_template_datasource_rule(self, name: str) -> None:
        """One variable chooses the data source; its name is none that the import dialog would replace."""
        found = [variable for board, variable in VARIABLES if board == name and variable["type"] == "datasource"]
        assert [(variable["name"], variable["label"], variable["query"]) for variable in found] == [
            ("datasource", "Data source", "prometheus")
        ]

    @pytest.mark.parametrize("name", BOARDS)
    def test_template_job_rule(self, name: str) -> None:
        """The scrape job can be chosen, several at a time, and all of them match everything."""
        job = next(variable for board, variable in VARIABLES if board == name and variable["name"] == "job")
        assert (job["multi"], job["includeAll"], job["allValue"]) == (True, True, ".+")

    @pytest.mark.parametrize("case", VARIABLES, ids=named)
    def test_template_on_time_change_reload_rule(self, case: tuple[str, dict[str, Any]]) -> None:
        """What is offered follows the time range: 2 reloads on change, 1 on opening."""
        assert case[1]["refresh"] == (1 if case[1]["type"] == "datasource" else 2)

    @pytest.mark.parametrize("case", VARIABLES, ids=named)
    def test_template_uses_all_value_rule(self, case: tuple[str, dict[str, Any]]) -> None:
        """All matches every value that is not empty, however long the list; Grafana would make one of all values."""
        assert case[1].get("allValue", ".+") == ".+"

    @pytest.mark.parametrize("name", BOARDS)
    def test_panel_and_target_datasource_rule(self, name: str) -> None:
        """Everything asks the chosen data source, by its object form: the string form crashes newer importers."""
        found = list(datasources(BOARDS[name]))
        assert found
        assert [each for each in found if each != {"type": "prometheus", "uid": "${datasource}"}] == []

    @pytest.mark.parametrize("case", PANELS, ids=named)
    def test_panel_title_description_rule(self, case: tuple[str, dict[str, Any]]) -> None:
        """Each panel says what it is and how to read it."""
        assert case[1]["title"]
        assert re.fullmatch(r"[^\s].*\.", case[1]["description"], re.DOTALL)

    @pytest.mark.parametrize("case", PANELS, ids=named)
    def test_panel_units_rule(self, case: tuple[str, dict[str, Any]]) -> None:
        """Each panel and each override has a unit that Grafana knows."""
        config = case[1]["fieldConfig"]
        units = [config["defaults"]["unit"]]
        units += [each["value"] for part in config["overrides"] for each in part["properties"] if each["id"] == "unit"]
        assert [unit for unit in units if unit not in UNITS and not unit.startswith("suffix:")] == []

    @pytest.mark.parametrize("case", PANELS, ids=named)
    def test_panel_no_targets_rule(self, case: tuple[str, dict[str, Any]]) -> None:
        """Each panel asks something, and each query has a letter of its own."""
        letters = [target["refId"] for target in case[1]["targets"]]
        assert letters
        assert len(set(letters)) == len(letters)

    @pytest.mark.parametrize("case", PANELS, ids=named)
    def test_target_rate_interval_rule(self, case: tuple[str, dict[str, Any]]) -> None:
        """A rate over time takes its window from the screen, or zooming out skips samples.

        Excluded: current values, whose window is part of what they mean.
        """
        over_time = [target["expr"] for target in case[1]["targets"] if target["range"]]
        windows = [
            window for expr in over_time for window in re.findall(r"\b(?:i?rate|increase)\([^\[]*\[(.*?)\]", expr)
        ]
        assert [window for window in windows if window != "$__rate_interval"] == []

    @pytest.mark.parametrize("name", BOARDS)
    def test_target_counter_agg_rule(self, name: str) -> None:
        """A counter is read through its rate or increase.

        Excluded: counts of rare events, whose number since the start is what one wants to see.
        """
        rare = {"training_run_restarts_total", "training_gpu_xid_errors_total", "training_log_messages_total"}
        bare = {
            metric
            for query in queries_of(BOARDS[name])
            for metric in re.findall(r"(?<!rate\()(?<!increase\()\b(training_\w+_total)\b", query)
        }
        assert bare - rare == set()

    @pytest.mark.parametrize("name", ["run", "node", "fleet"])
    def test_target_job_and_instance_rule(self, name: str) -> None:
        """Every raw series is selected by the run or the node of the screen; `run` is unique over jobs and nodes."""
        scope = {"run": {"run"}, "node": {"instance"}, "fleet": {"run"}}[name]
        joined = {"training_exporter_time_seconds", "training_gpu_effort_ratio", "training_gpu_power_watts"}
        joined |= {"training_gpu_busy_seconds_total", "training_gpu_working_seconds_total"}  # by training_run_gpu_info
        loose = {
            metric
            for panel in panels_of(BOARDS[name])
            for target in panel["targets"]
            for metric, labels in uses(target["expr"])
            if metric is not None and not scope & set(labels)
        }
        whole = {"fleet": {"up", "ALERTS", "training_run_info", "run:training_state:code"}}.get(name, set())
        assert loose - joined - whole == set()


class TestPortable:
    """What makes a dashboard load on Grafana 10.4 to 13 by import, by file and by API alike."""

    @pytest.mark.parametrize("name", BOARDS)
    def test_it_is_classic_json(self, name: str) -> None:
        """The newer format is refused by file provisioning; `__inputs` are only filled by the import dialog."""
        board = BOARDS[name]
        assert board["schemaVersion"] == 39
        assert {"elements", "layout", "apiVersion", "kind", "spec", "__inputs", "__elements"} & set(board) == set()

    @pytest.mark.parametrize("name", BOARDS)
    def test_identity_is_fixed(self, name: str) -> None:
        """Links and bookmarks hold the uid; an id of another Grafana would overwrite a dashboard there."""
        board = BOARDS[name]
        assert (board["uid"], board["id"], board["version"]) == (f"training-{name}", None, 1)
        assert board["editable"] is True

    def test_titles_are_unique(self) -> None:
        """Grafana refuses two of one title in a folder."""
        assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)

    @pytest.mark.parametrize("name", BOARDS)
    def test_only_core_panels(self, name: str) -> None:
        """Nobody has to install a plugin."""
        assert {panel["type"] for panel in BOARDS[name]["panels"]} <= CORE_PANELS

    @pytest.mark.parametrize("name", BOARDS)
    def test_panel_numbers_and_titles_are_unique(self, name: str) -> None:
        """Links to a panel hold its number; two of one title cannot be told apart when one of them is talked about."""
        numbers = [panel["id"] for panel in BOARDS[name]["panels"]]
        numbers += [inner["id"] for panel in BOARDS[name]["panels"] for inner in panel.get("panels", ())]
        assert len(set(numbers)) == len(numbers)
        titles = [panel["title"] for panel in panels_of(BOARDS[name])]
        assert sorted({title for title in titles if titles.count(title) > 1}) == []

    @pytest.mark.parametrize("name", BOARDS)
    def test_panels_do_not_overlap(self, name: str) -> None:
        """Each cell of the grid belongs to one panel."""
        cells = [
            (place["x"] + across, place["y"] + down)
            for panel in BOARDS[name]["panels"]
            for place in [panel["gridPos"]]
            for across in range(place["w"])
            for down in range(place["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(across for across, _ in cells) < 24

    def test_variable_names_are_those_that_bookmarks_hold(self) -> None:
        """`var-NAME=` is part of every shared link."""
        found = {name: [variable["name"] for board, variable in VARIABLES if board == name] for name in BOARDS}
        assert found == {
            "fleet": ["datasource", "job", "run"],
            "run": ["datasource", "job", "run", "node"],
            "node": ["datasource", "job", "node", "gpu"],
        }

    @pytest.mark.parametrize("case", [case for case in VARIABLES if case[1]["type"] == "query"], ids=named)
    def test_queries_of_variables_are_written_in_both_places(self, case: tuple[str, dict[str, Any]]) -> None:
        """Grafana runs one and shows the other."""
        assert case[1]["definition"] == case[1]["query"]["query"]
        assert selector_of(case[1]).startswith("training_")

    @pytest.mark.parametrize("name", BOARDS)
    def test_every_variable_is_used(self, name: str) -> None:
        """A choice that changes nothing misleads."""
        text = json.dumps([list(queries_of(BOARDS[name])), [panel["targets"] for panel in panels_of(BOARDS[name])]])
        chosen = [v["name"] for board, v in VARIABLES if board == name and v["type"] == "query"]
        assert [name for name in chosen if f"${name}" not in text] == []


class TestHonest:
    """What keeps a screen from looking calm when it is not."""

    @pytest.mark.parametrize("case", PANELS, ids=named)
    def test_an_empty_panel_says_what_is_missing(self, case: tuple[str, dict[str, Any]]) -> None:
        """In words that state a fact, and never a number."""
        assert re.search(r"[a-z]{2}", case[1]["fieldConfig"]["defaults"]["noValue"])

    @pytest.mark.parametrize("case", [case for case in PANELS if case[1]["type"] != "timeseries"], ids=named)
    def test_current_values_are_instant_queries(self, case: tuple[str, dict[str, Any]]) -> None:
        """The last point of a range may be minutes old; over time they are ranges."""
        wanted = case[1]["type"] != "state-timeline"
        assert {target["instant"] for target in case[1]["targets"]} == {wanted}

    @pytest.mark.parametrize("case", [case for case in PANELS if case[1]["type"] == "state-timeline"], ids=named)
    def test_state_timelines_colour_by_word(self, case: tuple[str, dict[str, Any]]) -> None:
        """With thresholds or another colour mode Grafana colours by value, and shows no word."""
        defaults = case[1]["fieldConfig"]["defaults"]
        assert "thresholds" not in defaults
        assert defaults["color"] == {"mode": "fixed", "fixedColor": "text"}
        assert defaults["mappings"]

    def test_every_state_has_its_word_and_colour_wherever_states_are_drawn(self) -> None:
        """The mapping of codes is complete and the same everywhere, and in the code of the exporter."""
        wanted = {str(look.code): (look.word, look.colour) for look in LOOKS}
        found = [
            {value: (each["text"], each["color"]) for value, each in mapping["options"].items()}
            for panel in PANELS
            for mapping in _mappings(panel[1])
            if "30" in mapping["options"]
        ]
        assert len(found) == 5
        assert [each for each in found if each != wanted] == []

    def test_every_cause_of_a_stall_has_words(self) -> None:
        """A new cause fails here."""
        assert set(run_verdict.STALLED) == set(STALL_CAUSES)

    @pytest.mark.parametrize("name", BOARDS)
    def test_no_colour_outside_the_palette(self, name: str) -> None:
        """The palette is what was checked for everybody's eyes."""
        assert set(hexes(BOARDS[name])) <= {look.colour for look in LOOKS}

    @pytest.mark.parametrize("case", [case for case in PANELS if case[1]["type"] == "table"], ids=named)
    def test_columns_of_a_table_are_named(self, case: tuple[str, dict[str, Any]]) -> None:
        """Each query of a table has a column with a title, or is left out on purpose."""
        options = case[1]["transformations"][1]["options"]
        placed = set(options["indexByName"])
        assert {"Time"} <= set(options["excludeByName"])
        letters = [target["refId"] for target in case[1]["targets"]]
        wanted = {f"Value #{letter}" for letter in letters} if len(letters) > 1 else {"Value"}
        assert wanted <= placed

    @pytest.mark.parametrize("case", [case for case in PANELS if len(case[1]["targets"]) > 1], ids=named)
    def test_tables_have_a_value_in_every_column(self, case: tuple[str, dict[str, Any]]) -> None:
        """One absent series would drop a column of a merged table: a stand-in is shown as n/a."""
        if case[1]["type"] == "table":
            shown = case[1]["fieldConfig"]["defaults"]["mappings"]
            assert shown[0]["options"]["-1"]["text"] == "n/a"


class TestLinks:
    def test_links_point_to_dashboards_that_exist(self) -> None:
        """Those at the top, those in tables and bands, and those in alerts."""
        alerts = (ROOT / "prometheus/rules/alerts.yml").read_text(encoding="utf-8")
        texts = [json.dumps(BOARDS), alerts]
        found = {uid for text in texts for uid in re.findall(r"(?:/d/|\}\})(training-\w+)", text)}
        assert found == {board["uid"] for board in BOARDS.values()}

    @pytest.mark.parametrize("name", BOARDS)
    def test_links_keep_time_and_data_source(self, name: str) -> None:
        """Whoever follows one sees the same hours of the same Prometheus."""
        urls = re.findall(r'"url": "(/d/training-[^"]*\?[^"]*)"', json.dumps(BOARDS[name]))
        assert [url for url in urls if "${__url_time_range}" not in url or "${datasource:queryparam}" not in url] == []
        assert {(link["keepTime"], link["includeVars"]) for link in BOARDS[name]["links"]} == {(True, True)}

    def test_links_name_variables_of_their_target(self) -> None:
        """An unknown `var-` is ignored without a word."""
        known = {board["uid"]: {f"var-{v['name']}" for v in board["templating"]["list"]} for board in BOARDS.values()}
        alerts = (ROOT / "prometheus/rules/alerts.yml").read_text(encoding="utf-8")
        found = re.findall(r"(training-(?:fleet|run|node))\?[^\"' ]*?(var-\w+)", json.dumps(BOARDS) + alerts)
        assert found
        assert [(uid, name) for uid, name in found if name not in known[uid]] == []


class TestAlerts:
    """Screens and alerts speak of the same limits."""

    ALERTS = (ROOT / "prometheus/rules/alerts.yml").read_text(encoding="utf-8")

    def test_memory_held_by_nobody_turns_yellow_where_the_alert_begins(self) -> None:
        """TrainingGpuMemoryOrphaned."""
        (limit,) = set(re.findall(r"training_gpu_unowned_memory_bytes\[5m\]\) > (\d+)\)", self.ALERTS))
        panel = next(panel for _, panel in PANELS if panel["title"] == "GPU memory held by no process")
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"] == int(limit)

    def test_the_reasons_counted_as_slow_are_those_of_the_alert(self) -> None:
        """TrainingGpuThrottled."""
        assert set(re.findall(r'training_gpu_clock_event_active{reason=~"([^"\\]*)"}', self.ALERTS)) == {
            node_gpus.HARMFUL
        }


class TestDocs:
    def test_the_table_of_states_is_that_of_the_palette(self) -> None:
        """Codes, words and colours in docs/dashboards.md."""
        text = (ROOT / "docs/dashboards.md").read_text(encoding="utf-8")
        found = re.findall(r"\| (\d+) \| ([\w ]+) \| (#\w+) ", text)
        assert sorted(found) == sorted((str(look.code), look.word, look.colour) for look in LOOKS)

    def test_every_picture_is_there_and_every_one_is_shown(self) -> None:
        """The pages of docs/ show what lies in docs/images, and nothing else lies there."""
        pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        text = "".join(page.read_text(encoding="utf-8") for page in pages)
        shown = set(re.findall(r"images/(dashboard-[\w-]+\.png)", text))
        assert shown == {path.name for path in (ROOT / "docs/images").glob("dashboard-*")}


class TestProvisioning:
    def test_the_provider_loads_dashboards_in_the_format_it_understands(self) -> None:
        """1 is the version of the file, and an edit that would be lost is not offered."""
        text = (ROOT / "grafana/provisioning/dashboards/training-exporter.yml").read_text(encoding="utf-8")
        found = yaml.safe_load(text)
        (provider,) = found["providers"]
        assert (found["apiVersion"], provider["type"], provider["allowUiUpdates"]) == (1, "file", False)

    def test_the_data_source_is_a_prometheus_reached_by_the_server(self) -> None:
        """Through the browser it would depend on who looks."""
        text = (ROOT / "grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8")
        (source,) = yaml.safe_load(text)["datasources"]
        assert (source["type"], source["access"]) == ("prometheus", "proxy")


def _mappings(panel: dict[str, Any]) -> Iterator[dict[str, Any]]:
    config = panel["fieldConfig"]
    yield from config["defaults"]["mappings"]
    for part in config["overrides"]:
        for each in part["properties"]:
            if each["id"] == "mappings":
                yield from each["value"]
