# SPDX-License-Identifier: GPL-3.0-or-later
"""The pictures of the pages are what their descriptions say, and each is on a page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tools.drawings import COLOURS, FOLDER, draw, drawings

ROOT = Path(__file__).parents[2]
DRAWN = dict(drawings())


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.name)
def test_the_file_is_as_it_is_drawn(path: Path) -> None:
    """When this fails: python -m tools.drawings"""
    assert path.read_text(encoding="utf-8") == DRAWN[path]


def test_each_file_has_a_description_and_is_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert sorted(FOLDER.glob("*.svg")) == sorted(DRAWN)
    assert [path.name for path in DRAWN if f"drawings/{path.name})" not in pages] == []


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.name)
def test_readers_without_the_picture_get_its_text_and_dark_readers_its_colours(path: Path) -> None:
    svg = ET.fromstring(DRAWN[path])
    title, text, style = svg[:3]
    assert title.text and len(text.text or "") > 100
    assert "prefers-color-scheme: dark" in (style.text or "")
    assert {shape.get("class") for shape in svg[3:]} <= COLOURS.keys()


@pytest.mark.parametrize("drawing", [
    {"box": [{"id": "a", "at": [0, 0], "text": "a text that is much too wide for one box"}]},
    {"actor": [{"id": "a", "text": "A"}, {"id": "b", "text": "B"}],
     "step": [{"from": "a", "to": "b", "text": "a text that is much too wide for one arrow"}]}])
def test_a_text_that_does_not_fit_is_refused(drawing: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="too wide"):
        draw({"title": "", "text": "", **drawing})
