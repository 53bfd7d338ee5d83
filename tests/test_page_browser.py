"""The status page in a real browser: no error, no foreign request, readable for everyone, on every screen."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
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
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

PHONE_WIDTH = 390
SERIOUS = {"serious", "critical"}


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
    """A server whose view the test sets."""

    def __init__(self) -> None:
        self.view = NodeView(time_seconds=1_700_000_000.0, wall_shift_seconds=0.0)
        self.server = Server(ServeOptions(listen_addresses=("127.0.0.1:0",)), view=lambda: self.view)
        self.server.bind()
        self.url = "http://{}:{}/".format(*self.server.addresses[0])
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    """One server for all tests."""
    one = Shown()
    yield one
    one.server.stop()
    one.thread.join(10)


class Visit:
    """One look at the page, with all that the browser complained about and asked for."""

    def __init__(self, browser: Browser, url: str, *, width: int = 1000, colours: str = "light") -> None:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=colours)
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)

    def barriers(self) -> list[str]:
        """Serious findings of axe-core."""
        found = axe.Axe().run(self.page).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in SERIOUS]


def at_its_point(name: str) -> tuple[NodeView, str]:
    """What a shipped scenario shows first of what it is about, and the word for it."""
    wanted = (CODES["no_progress"], 1000) if name != "healthy" else (CODES["training"], CODES["training"])
    if name == "slow-validation":
        wanted = CODES["validating"], CODES["validating"]
    for _, view, _ in play(load.find(name)):
        for run in view.runs:
            if wanted[0] <= run.verdict.code <= wanted[1]:
                return view, run.verdict.state.replace("_", " ")
    raise AssertionError(f"{name} never comes to its point")


class TestScenarios:
    @pytest.mark.parametrize("name", sorted(load.shipped()))
    def test_scenario(self, browser: Browser, shown: Shown, name: str) -> None:
        """Every shipped scenario loads in both colours without complaint or barrier, and its state can be read."""
        shown.view, state = at_its_point(name)
        for colours in ("light", "dark"):
            visit = Visit(browser, shown.url, colours=colours)
            assert visit.page.get_by_text(state, exact=True).first.is_visible()
            assert ([], [shown.url], []) == (visit.complaints, visit.requests, visit.barriers())


class TestScreens:
    @pytest.mark.parametrize("colours", ["light", "dark"])
    def test_everything_at_once(self, browser: Browser, shown: Shown, rich_view: NodeView, colours: str) -> None:
        """A page with every kind of line has no barrier either."""
        shown.view = rich_view
        assert Visit(browser, shown.url, colours=colours).barriers() == []

    def test_phone(self, browser: Browser, shown: Shown, rich_view: NodeView) -> None:
        """On a phone nothing has to be scrolled sideways."""
        shown.view = rich_view
        visit = Visit(browser, shown.url, width=PHONE_WIDTH)
        assert visit.page.evaluate("document.documentElement.scrollWidth") == PHONE_WIDTH

    def test_nothing_found(self, browser: Browser, shown: Shown) -> None:
        """The page of an idle machine is a page too."""
        shown.view = NodeView(time_seconds=1_700_000_000.0, wall_shift_seconds=0.0)
        visit = Visit(browser, shown.url)
        assert visit.page.get_by_text("No training run found").is_visible()
        assert ([], [shown.url], []) == (visit.complaints, visit.requests, visit.barriers())
