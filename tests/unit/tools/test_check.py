# SPDX-License-Identifier: GPL-3.0-or-later
"""``./check``: where tests have their temporary files, and which stages run beside each other."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.fixture
def check(monkeypatch):
    """The module, which would begin to work at once."""
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    spec = importlib.util.spec_from_file_location("check", TOOLS / "check.py")
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(importlib.import_module("machine"), "main", lambda _work: 0)
    with pytest.raises(SystemExit):
        spec.loader.exec_module(found)
    return found


def test_files_in_memory_go_with_the_command_however_it_ends(check):
    with check.temporary() as (first, more):
        if not first:
            pytest.skip("no file system can be mounted here, or there is little memory")
        words = [*first, "sh", "-c", 'touch "$TMPDIR/file" && kill -KILL $$']
        assert subprocess.run(words, env={**os.environ, **more}, check=False).returncode == -signal.SIGKILL
        folder = Path(more["TMPDIR"])
        assert not folder.is_mount() and not list(folder.iterdir())


def test_where_memory_is_short_they_are_as_usual(check, monkeypatch):
    monkeypatch.setattr(check, "roomy", lambda: False)
    with check.temporary() as found:
        assert found == ((), {})


@pytest.mark.parametrize(("chosen", "expected"), [
    (None, [(["ruff"], []), (["tests"], ["mypy", "imports", "ansible-lint", "changelog", "collection", "audit"]),
            (["lab", "deep"], ["docs", "sanity", "pylint", "slow"])]),
    (["deep", "slow"], [(["deep"], ["slow"])]), (["slow"], [(["slow"], [])]),
    (["ruff", "mypy", "imports"], [(["ruff"], []), (["imports"], ["mypy"])]),
    (["slow", "docs", "pylint"], [(["slow"], ["docs", "pylint"])])])
def test_what_runs_beside_what(check, chosen, expected):
    """Each stage runs once; deep follows lab while others still run beside it."""
    every = list(check.STAGES) if chosen is None else chosen
    found = list(check.tracks(every))
    assert found == expected
    assert sorted(name for both in found for names in both for name in names) == sorted(every)
