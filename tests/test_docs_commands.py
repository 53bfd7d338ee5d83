"""Every block of commands or configuration in README.md, CONTRIBUTING.md and docs/ is tried, or says why it cannot be.

An indented block and one marked `sh` are commands: they are run, in order, in a machine made for the page. A comment in
the line before a block says what else is to be known of it:

    <!-- not run here: REASON -->     it is left out
    <!-- stays: URL -->               it does not end by itself: it is started until the URL answers
    <!-- prints: WORD -->             it is repeated until it prints the word
    <!-- retried: REASON -->          it is repeated until it succeeds
    <!-- after the demo -->           what stays is ended before

Blocks marked `yaml`, `json` and `ini` are read, and where their keys say what they are, by the program they are for.
docs/benchmarks.md is left out: `make bench` writes it, and its blocks are the usage of what was run and what came out.
"""

from __future__ import annotations

import configparser
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from docs_place import Place
from rule_player import promtools
from tools import ROOT, output, tool
from training_exporter import config
from training_exporter.scenario import load as scenario

WRITTEN = {"benchmarks.md"}
DOCS = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in WRITTEN)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
COMMENT = re.compile(r"<!--\s*(?P<word>not run here|stays|prints|retried|after the demo)(?::\s*(?P<text>.*?))?\s*-->")
COMMANDS = {"", "sh"}
SHOWN = {"text"}  # what a program printed


@dataclass(frozen=True, slots=True)
class Block:
    """One block; `line` is where it begins."""

    page: Path
    line: int
    language: str
    text: str
    notes: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page in their order, those inside lists too."""
    notes: dict[str, str] = {}
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            notes = {found["word"]: found["text"] or "" for found in COMMENT.finditer(token.content)}
        elif token.type in {"code_block", "fence"}:
            yield Block(page, (token.map or [0])[0] + 1, token.info.strip(), token.content, notes)
            notes = {}
        elif token.type == "inline":
            notes = {}


BLOCKS = [block for page in PAGES if page.exists() for block in blocks_of(page)]
CONFIGURATIONS = [block for block in BLOCKS if block.language not in COMMANDS | SHOWN]
RUN = [block for block in BLOCKS if block.language in COMMANDS]


def test_every_block_is_known() -> None:
    """No language but those that are tried here, no note that stands before no block, no reason that is empty."""
    assert {block.language for block in BLOCKS} <= COMMANDS | SHOWN | {"yaml", "json", "ini"}
    written = sum(len(COMMENT.findall(page.read_text(encoding="utf-8"))) for page in PAGES if page.exists())
    assert written == sum(len(block.notes) for block in BLOCKS)
    assert all(len(block.notes.get("not run here", "a reason")) > 7 for block in BLOCKS)


def _prometheus(text: str, folder: Path) -> None:
    file = folder / "prometheus.yml"
    file.write_text(text, encoding="utf-8")
    output(promtools()[-1], "check", "config", "--syntax-only", file)


def _rules(text: str, folder: Path) -> None:
    file = folder / "rules.yml"
    file.write_text(text, encoding="utf-8")
    output(promtools()[-1], "check", "rules", file)


def _alertmanager(text: str, folder: Path) -> None:
    file = folder / "alertmanager.yml"
    file.write_text(text, encoding="utf-8")
    output(tool("amtool"), "check-config", file)


def _exporter(text: str, folder: Path) -> None:
    file = folder / "training-exporter.yml"
    file.write_text(text, encoding="utf-8")
    config.load(file)


def _scenario(text: str, folder: Path) -> None:
    del folder
    scenario.parse("docs.yaml", text)


# By a key of the first level: who reads such a file.
READERS: dict[str, Callable[[str, Path], None]] = {
    "scrape_configs": _prometheus,
    "groups": _rules,
    "route": _alertmanager,
    "runs": _exporter,
    "discovery": _exporter,
    "segments": _scenario,
}


@pytest.mark.parametrize("block", CONFIGURATIONS, ids=lambda block: block.name)
def test_configuration(block: Block, tmp_path: Path) -> None:
    """It can be read, and who reads such a file finds no fault."""
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "ini":
        configparser.ConfigParser(strict=False, interpolation=None).read_string(block.text)
    else:
        document: Any = yaml.safe_load(block.text)
        assert document is not None
        readers = {READERS[key] for key in document if key in READERS} if isinstance(document, dict) else set()
        for reader in readers:
            reader(block.text, tmp_path)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Place]]:
    """The machine of each page, made when its first block is run."""
    made: dict[Path, Place] = {}

    def of(page: Path) -> Place:
        if page not in made:
            for place in made.values():  # pages come in order: those before are done
                place.end()
            stories = [block.text for block in BLOCKS if block.page == page and "segments:" in block.text]
            files = {"story.yaml": stories[0]} if stories else {}
            made[page] = Place(tmp_path_factory.mktemp(page.stem), files)
        return made[page]

    yield of
    for place in made.values():
        place.end()
        place.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, for namespaces in which a page may write to /opt and /etc")
@pytest.mark.parametrize(
    "block", [block for block in RUN if "not run here" not in block.notes], ids=lambda block: block.name
)
def test_commands(block: Block, places: Callable[[Path], Place]) -> None:
    """They do what a reader expects of them: succeed, or stay and answer."""
    place = places(block.page)
    if "after the demo" in block.notes:
        place.end()
    if "stays" in block.notes:
        place.end()  # a reader ends what stays before the next
        place.stay(block.text, block.notes["stays"])
    elif "prints" in block.notes or "retried" in block.notes:
        place.until(block.text, block.notes.get("prints", ""))
    else:
        place.run(block.text)


def test_an_alert_fires_after_few_commands() -> None:
    """From nothing to a firing alert on one training box takes fewer than ten commands."""
    box = (ROOT / "docs/install.md").read_text(encoding="utf-8").split("\n## ")
    (section,) = [text for text in box if text.startswith("One training box")]
    before, found, _ = section.partition("amtool alert")
    assert found
    commands = re.findall(r"^ {4}\S.*$", before, re.MULTILINE)
    assert len(commands) + 1 < 10
