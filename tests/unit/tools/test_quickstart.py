# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of ./quickstart: what it makes, and what it says at the end."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def quickstart(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "quickstart", raising=False)
    return importlib.import_module("quickstart")


@pytest.mark.parametrize(("words", "site"), [
    ([], False), (["--site"], True), (["--network", "ovn"], True), (["--network", "none"], False),
    (["--network", "none", "--site"], True), (["--hosts", "2"], False)])
def test_the_host_with_ovn_is_asked_for(quickstart: ModuleType, words: list[str], site: bool) -> None:
    """Without it the end says how to get it; with it, what to try there."""
    given = quickstart.parse_options(words)
    said = quickstart.closing_text(given)
    assert given.site == site and ("./quickstart --site" in said) != site and ("cloud1" in said) == site


def test_all_belongs_to_down(quickstart: ModuleType) -> None:
    with pytest.raises(SystemExit):
        quickstart.parse_options(["--all"])


@pytest.mark.parametrize("words", [[], ["--site"], ["--hosts", "3"]])
def test_what_is_made(quickstart: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                      words: list[str]) -> None:
    made: list[str] = []
    monkeypatch.setattr(sys, "argv", ["quickstart", *words])
    monkeypatch.setattr(quickstart.machine, "need_root", lambda: None)
    monkeypatch.setattr(quickstart, "set_up", lambda: made.append("servers"))
    monkeypatch.setattr(quickstart, "cloud_on_ovn", lambda: made.append("site"))
    monkeypatch.setattr(quickstart, "make_lab_hosts", lambda count: made.append(f"{count} hosts"))
    assert quickstart.run_quickstart() == 0
    assert made == ["servers", *(["site"] if "--site" in words else []), *(["3 hosts"] if "--hosts" in words else [])]
    assert "--down" in capsys.readouterr().out
