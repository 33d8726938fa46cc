# SPDX-License-Identifier: GPL-3.0-or-later
"""The pictures of pages in a browser: each is small and on a page; the script names what it lacks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.lab import screens

ROOT = Path(__file__).resolve().parents[3]
PICTURES = sorted((ROOT / "docs/pictures").glob("*.png"))


def test_each_picture_is_small_and_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    assert [path.name for path in PICTURES if path.stat().st_size > screens.MOST_BYTES] == []
    assert [path.name for path in PICTURES if f"pictures/{path.name}" not in pages] == []
    assert {f"{name}.png" for name, _page, _view in screens.PAGES} <= {path.name for path in PICTURES}


@pytest.mark.parametrize(("program", "lacking"), [(None, screens.PROGRAM), ("/bin/true", "python -m tools.docsite")])
def test_what_is_lacking_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                  program: str | None, lacking: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: program)
    monkeypatch.setattr(screens, "SITE", tmp_path / "site")
    monkeypatch.setattr("sys.argv", ["screens", str(tmp_path)])
    assert screens.main() == 1
    assert lacking in capsys.readouterr().out
