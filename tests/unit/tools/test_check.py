# SPDX-License-Identifier: GPL-3.0-or-later
"""``./check``: where tests have their temporary files, and which stages run beside each other."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / "tools"
pytest_plugins = ("pytester",)


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


def test_of_limited_time_stages_that_take_long_hear_and_no_other(check, monkeypatch):
    monkeypatch.setenv("MAGNETAR_UNTIL", "")
    check.end_by(60.0)
    assert 0 < float(os.environ["MAGNETAR_UNTIL"]) - time.time() <= 60
    told = {name: [word for word in stage.args if str(word).startswith("--turn=")]
            for name, (_what, stage) in check.STAGES.items() if hasattr(stage, "args")}
    turn = f"--turn={check.commit()}"
    assert {name for name, words in told.items() if words == [turn]} == {"slow", "lab", "deep"}
    assert sum(map(len, told.values())) == 3


@pytest.mark.parametrize(("until", "outcomes"), [("1", {"passed": 1, "skipped": 1}), ("", {"passed": 2})])
def test_when_time_is_up_no_long_test_begins(pytester, monkeypatch, until, outcomes):
    """Neither its fixtures; what is quick runs, and what was left out is said."""
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def set_up():
            print("set up")

        @pytest.mark.slow
        def test_long(set_up):
            pass

        def test_quick():
            pass
    """)
    monkeypatch.setenv("MAGNETAR_UNTIL", until)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-s", "-W", "ignore")
    done.assert_outcomes(**outcomes)
    said = done.stdout.str()
    assert ("Left out, since" in said and "1 tests of" in said) == bool(until)
    assert ("set up" in said) == (not until)
