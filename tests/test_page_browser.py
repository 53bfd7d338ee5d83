"""The status page in a real browser: no error, no foreign request, readable for everyone, on every screen."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from training_exporter.options import ServeOptions
from training_exporter.runs.verdict import CODES
from training_exporter.runs.view import NodeView
from training_exporter.scenario import load
from training_exporter.server import Server
from training_exporter.simulate import play

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("playwright", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="Chromium is not installed")

PHONE_WIDTH = 390
LATER_SECONDS = 120
SERIOUS = {"serious", "critical"}
IMAGES = Path(__file__).parent.parent / "docs" / "images"
# What docs/page.md shows; written by `--update-golden`, never compared, because fonts differ.
PICTURES = {
    ("collective-hang", "light"): "page-stalled.png",
    ("slow-validation", "dark"): "page-validating.png",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 (may be missing, see above)

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield chromium
        chromium.close()


class Shown:
    """A running server with one view."""

    def __init__(self, view: NodeView, past: Iterable[NodeView]) -> None:
        self.server = Server(ServeOptions(listen_addresses=("127.0.0.1:0",)), view=lambda: view)
        for moment in past:
            self.server.recall(moment)
        self.server.bind()
        self.url = "http://{}:{}/".format(*self.server.addresses[0])
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End the server."""
        self.server.stop()
        self.thread.join(10)


Show = Callable[..., str]


@pytest.fixture
def show() -> Iterator[Show]:
    """Serves a view, and its past if given, at the address that it returns."""
    with contextlib.ExitStack() as exits:

        def start(view: NodeView, past: Iterable[NodeView] = ()) -> str:
            shown = Shown(view, past)
            exits.callback(shown.stop)
            return shown.url

        yield start


class Visit:
    """One look at the page, with all that the browser complained about and asked for."""

    def __init__(self, browser: Browser, url: str, *, width: int = 1000, colours: str = "light") -> None:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=colours)
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)

    def barriers(self) -> list[str]:
        """Serious findings of axe-core."""
        found = axe.Axe().run(self.page).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in SERIOUS]


def played(name: str) -> list[NodeView]:
    """A shipped scenario until a while after it first shows what it is about."""
    wanted = (CODES["no_progress"], 1000) if name != "healthy" else (CODES["training"], CODES["training"])
    if name == "slow-validation":
        wanted = CODES["validating"], CODES["validating"]
    views, left = [], LATER_SECONDS
    for _, view, _ in play(load.find(name)):
        views.append(view)
        there = left < LATER_SECONDS or any(wanted[0] <= run.verdict.code <= wanted[1] for run in view.runs)
        left -= there
        if left == 0:
            return views
    raise AssertionError(f"{name} never comes to its point")


class TestScenarios:
    @pytest.mark.parametrize("name", sorted(load.shipped()))
    def test_scenario(self, browser: Browser, show: Show, name: str, update_golden: bool) -> None:
        """Every shipped scenario loads in both colours without complaint or barrier, and its state can be read."""
        *past, view = played(name)
        url, state = show(view, past), view.runs[0].verdict.state.replace("_", " ")
        for colours in ("light", "dark"):
            visit = Visit(browser, url, colours=colours)
            assert visit.page.get_by_text(state, exact=True).first.is_visible()
            assert ([], [url], []) == (visit.complaints, visit.requests, visit.barriers())
            if update_golden and (name, colours) in PICTURES:
                visit.page.screenshot(path=IMAGES / PICTURES[name, colours], full_page=True)


class TestScreens:
    @pytest.mark.parametrize("colours", ["light", "dark"])
    def test_everything_at_once(self, browser: Browser, show: Show, rich_view: NodeView, colours: str) -> None:
        """A page with every kind of line has no barrier either."""
        assert Visit(browser, show(rich_view), colours=colours).barriers() == []

    def test_phone(self, browser: Browser, show: Show, rich_view: NodeView) -> None:
        """On a phone nothing has to be scrolled sideways."""
        visit = Visit(browser, show(rich_view), width=PHONE_WIDTH)
        assert visit.page.evaluate("document.documentElement.scrollWidth") == PHONE_WIDTH

    def test_hostile_log_line(self, browser: Browser, show: Show, rich_view: NodeView) -> None:
        """Markup and escape sequences of a log line are text to read: nothing runs, nothing is loaded."""
        run = rich_view.runs[0]
        assert run.log is not None
        line = '<script>alert(1)</script><img src="http://192.0.2.1/x" onerror="alert(2)">\x1b]0;owned\x07\x1b[2J'
        url = show(replace(rich_view, runs=(replace(run, log=replace(run.log, last_line=line)),)))
        visit = Visit(browser, url)
        assert visit.page.get_by_text("<script>alert(1)</script><img src=").is_visible()
        assert visit.page.get_by_text("\\x1b]0;owned\\x07\\x1b[2J").is_visible()
        assert ([], [url], 0) == (visit.complaints, visit.requests, visit.page.locator("script, img").count())

    def test_nothing_found(self, browser: Browser, show: Show) -> None:
        """The page of an idle machine is a page too."""
        url = show(NodeView(time_seconds=1_700_000_000.0, wall_shift_seconds=0.0))
        visit = Visit(browser, url)
        assert visit.page.get_by_text("No training run found").is_visible()
        assert ([], [url], []) == (visit.complaints, visit.requests, visit.barriers())
