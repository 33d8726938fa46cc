# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages name files of the tree; each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: A path from the top of the tree, without words to fill in such as ``<noun>``.
NAMED = re.compile(r"`((?:agent|bench|control|docs|plugins|roles|tests|tools)/[\w./-]+)`")
#: A name in a file: "`file`: `name`".
IN_FILE = re.compile(r"`([\w./-]+\.py)`: `(\w+)`")
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    assert not [name for name in NAMED.findall(page.read_text(encoding="utf-8")) if not (ROOT / name).exists()]


def test_functions_that_the_page_of_places_names_exist() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    places = IN_FILE.findall(page)
    assert len(places) > 10
    assert not [(file, name) for file, name in places if not re.search(
        rf"^ *(def {name}\(|class {name}\b|{name}\b.* = )", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)]


def test_every_case_of_a_fault_names_its_file() -> None:
    """Each row of the page of faults that has a column ``File`` names a file there."""
    page = (ROOT / "docs/reference/faults.md").read_text(encoding="utf-8")
    tables = [table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)]
    rows = [row for head, _line, *rows in tables if head.endswith("| File |") for row in rows]
    assert len(rows) > 30
    assert not [row for row in rows if not re.search(r"\| `(agent|control)/magnetar_\w+/[\w/]+\.py` \|$", row)]
