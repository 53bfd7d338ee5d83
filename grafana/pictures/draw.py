#!/usr/bin/env python3
"""Draws the pictures of docs/dashboards.md: the committed dashboards over played scenarios, in real Prometheus data.

For people who change the dashboards, not part of the exporter. Needs node, npm, Chromium, Prometheus and the test
requirements; the components (some 460 MB) go to build/pictures. Grafana itself is not involved: what is drawn are its
published UI components.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "build/pictures"
OUT = ROOT / "docs/images"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "grafana")]

from playwright.sync_api import Page, sync_playwright  # noqa: E402 - after the project's own

import dashboard_stage as stage  # noqa: E402 - found through the line above
from training_exporter.scenario.load import shipped  # noqa: E402 - likewise
from training_exporter.scenario.play import EPOCH_SECONDS  # noqa: E402 - likewise

SLOW = HERE / "slow-validation.yaml"
SHIPPED = [path for name, path in shipped().items() if name != "slow-validation"]
NOW = 117 * 60
WIDTH = 1400
HEIGHT = 4000  # tables only draw the rows that are in view
# What the twin does after the same two minutes of validation: its GPUs draw the same power, and nothing moves.
SILENCE = {
    "for": "20m",
    "label": "dead, and to nvidia-smi the same",
    "gpu": {"util": 0, "mem_util": 0, "watts": 238, "memory_mib": 39791, "sm_mhz": 2400, "temp_c": 58},
}
# When most of the shipped stories have come to their point.
FLEET_NOW = 50 * 60


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: a dashboard from its top down to a grid row, some seconds into the stories."""

    board: str
    words: str
    run: str = "slow-validation"
    node: str = "node-1"
    now_seconds: int = NOW
    rows: int = 99
    modes: tuple[str, ...] = ("light", "dark")
    sights: tuple[str, ...] = ()  # simulated colour blindness, in the light mode


SHOTS = {
    "fleet": Shot("fleet", "Seven runs on seven nodes", run="FLEET", now_seconds=FLEET_NOW, sights=("deuteranopia",)),
    "run-validating": Shot("run", "A slow validation", rows=23, sights=("deuteranopia",)),
    "run-dead": Shot("run", "Its dead twin", run="dead-twin", node="node-2", rows=23, sights=("deuteranopia",)),
    "run": Shot("run", "All of the run dashboard", modes=("light",)),
    "node": Shot("node", "The node of the slow validation", modes=("dark",)),
}
# Grafana's charts draw themselves some frames after they are mounted, and say nothing when they have.
SETTLED_MS = 2500
ADDRESS = "http://pictures.test/"
PAGE = '<!DOCTYPE html><meta charset="utf-8"><body style="margin:0"><div id="root"></div></body>'


def main() -> int:
    """Everything, from the scenarios to docs/images."""
    WORK.mkdir(parents=True, exist_ok=True)
    OUT.mkdir(parents=True, exist_ok=True)
    data = _record()
    program = stage.prometheus("2.42") or Path(shutil.which("prometheus") or "prometheus")
    with stage.serving(program, data) as answers:
        scenes = {name: _scene(answers, shot) for name, shot in SHOTS.items()}
    _bundle()
    _draw(scenes)
    return 0


def _record() -> Path:
    """A fleet: the slow validation, its dead twin and what is shipped."""
    folder = WORK / "recorded"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    story = yaml.safe_load(SLOW.read_text(encoding="utf-8"))
    story["run"]["name"] = "dead-twin"
    story["segments"][-1] = SILENCE
    twin = folder / "dead-twin.yaml"
    twin.write_text(yaml.safe_dump(story, sort_keys=False), encoding="utf-8")
    files = [SLOW, twin, *SHIPPED]
    nodes = {}
    for number, file in enumerate(files, start=1):
        nodes[f"node-{number}"] = folder / f"{number}.om"
        stage.simulate(file, nodes[f"node-{number}"])
    stage.record(nodes, folder / "data")
    return folder / "data"


def _scene(answers: stage.Answers, shot: Shot) -> dict[str, Any]:
    """The panels of a shot with the answers to all of their queries."""
    document = json.loads((ROOT / f"grafana/dashboards/{shot.board}.json").read_text(encoding="utf-8"))
    shown = [panel for panel in document["panels"] if panel["gridPos"]["y"] < shot.rows]
    now = EPOCH_SECONDS + shot.now_seconds
    run = "|".join(_fleet()) if shot.run == "FLEET" else shot.run
    chosen = {"$job": ".+", "$run": run, "$node": shot.node, "$gpu": ".+", "$__rate_interval": "1m"}
    return {
        "title": document["title"],
        "subtitle": shot.words,
        "panels": shown,
        "answers": [[_answer(answers, target, chosen, now) for target in panel.get("targets", ())] for panel in shown],
        "from": EPOCH_SECONDS,
        "to": now,
        "width": WIDTH,
    }


def _fleet() -> list[str]:
    """The runs of the fleet; at that moment the twin is no more than a second copy of the first."""
    stories = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in (SLOW, *SHIPPED))
    return [story["run"]["name"] for story in stories]


def _answer(answers: stage.Answers, target: dict[str, Any], chosen: dict[str, str], now: float) -> list[Any]:
    query = target["expr"]
    for name, value in chosen.items():
        query = query.replace(name, value)
    return answers.ranges(query, EPOCH_SECONDS if target["range"] else now, now, 30)


def _bundle() -> None:
    """The drawing code with Grafana's components as one script."""
    for name in ("package.json", "app.jsx"):
        shutil.copy(HERE / name, WORK / name)
    if not (WORK / "node_modules/@grafana/ui").exists():
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=WORK, check=True)  # noqa: S607 - of this machine
    loaders = [f"--loader:.{kind}=dataurl" for kind in ("svg", "png", "ttf")]
    command = ["node", "node_modules/esbuild/bin/esbuild", "app.jsx", "--bundle", "--outfile=app.js", "--minify"]
    options = ["--jsx=automatic", "--main-fields=browser,module,main", '--define:process.env.NODE_ENV="production"']
    subprocess.run([*command, *options, *loaders, "--log-level=error"], cwd=WORK, check=True)  # noqa: S603 - fixed words


def _draw(scenes: dict[str, dict[str, Any]]) -> None:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        for name, scene in scenes.items():
            for mode in SHOTS[name].modes:
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
                _show(page, {**scene, "mode": mode})
                _save(page, OUT / f"dashboard-{name}-{mode}.png")
                for sight in SHOTS[name].sights if mode == "light" else ():
                    session = page.context.new_cdp_session(page)
                    session.send("Emulation.setEmulatedVisionDeficiency", {"type": sight})
                    _save(page, OUT / f"dashboard-{name}-{sight}.png")
                page.close()
        browser.close()


def _show(page: Page, scene: dict[str, Any]) -> None:
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    # from an address, because a page without one has no local storage
    page.route(ADDRESS, lambda route: route.fulfill(body=PAGE, content_type="text/html"))
    page.goto(ADDRESS)
    page.add_style_tag(path=WORK / "app.css")
    page.add_script_tag(path=WORK / "app.js")
    if not faults:
        page.evaluate("scene => window.draw(scene)", scene)
    page.wait_for_timeout(SETTLED_MS)
    if faults:
        raise RuntimeError(f"{scene['title']}: {faults[0]}")


def _save(page: Page, path: Path) -> None:
    page.locator("#root").screenshot(path=path)


if __name__ == "__main__":
    sys.exit(main())
