# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages are easy to read: short paragraphs, lists and cells of tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "roles").rglob("README.md"), *ROOT.glob("*.md")])
#: Words of a paragraph or list entry, words of a table's cell, entries of a list.
PARAGRAPH, CELL, LIST = 90, 30, 12
_FENCE = re.compile(r"^ *(```+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"(?:[*-]|\d+\.) ")


def count_words(text: str) -> int:
    """Return the number of words, without targets of links."""
    return sum(bool(re.search(r"\w", word)) for word in re.sub(r"\]\([^)]*\)", "]", text).split())


def long_parts(page: str) -> Iterator[str]:
    """Yield the beginnings of the parts of a page that are too long."""
    for block in re.split(r"\n\s*\n", _FENCE.sub("", page)):
        lines = block.strip("\n").splitlines()
        if lines and lines[0].lstrip().startswith("|"):
            cells = (cell.strip() for line in lines for cell in re.split(r"(?<!\\)\|", line))
            yield from (cell[:60] for cell in cells if count_words(cell) > CELL)
        elif lines and _ENTRY.match(lines[0].lstrip()):
            if sum(bool(_ENTRY.match(line)) for line in lines) > LIST:
                yield lines[0][:60]
            yield from (entry[:60] for entry in re.split(r"\n(?=\s*(?:[*-]|\d+\.) )", block)
                        if count_words(entry) > PARAGRAPH)
        elif count_words(block) > PARAGRAPH:
            yield block[:60]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_parts_of_pages_are_short(page: Path) -> None:
    assert list(long_parts(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(("page", "parts"), [
    ("word " * 90, 0), ("word " * 91, 1), ("```\n" + "word " * 91 + "\n```\n", 0),
    ("| a | " + "word " * 30 + "|\n|---|---|\n", 0), ("| a | " + "word " * 31 + "|\n|---|---|\n", 1),
    ("- a\n" * 12, 0), ("- a\n" * 13, 1), ("- " + "word " * 91, 1), ("1. a\n" * 13, 1),
])
def test_what_is_too_long(page: str, parts: int) -> None:
    assert len(list(long_parts(page))) == parts
