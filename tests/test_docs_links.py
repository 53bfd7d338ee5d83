"""Every link of the documentation to a file or heading of this folder leads somewhere."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tools import ROOT, sources

PAGES = [ROOT / name for name in sources() if name.endswith(".md")]


def parsed(page: Path) -> list[Token]:
    """The page as Markdown."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[str]:
    """Where its links and pictures lead, those to other hosts apart."""
    for token in parsed(page):
        for child in token.children or ():
            target = str(child.attrs.get("href") or child.attrs.get("src") or "")
            if target and "://" not in target:
                yield target


def anchors(page: Path) -> set[str]:
    """Its headings as addresses: lower case, signs gone, blanks as dashes."""
    tokens = parsed(page)
    titles = [inline.content for opening, inline in itertools.pairwise(tokens) if opening.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    """The file is there, and so is the heading in it."""
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link
