# SPDX-License-Identifier: GPL-3.0-or-later
"""``./check``: where tests have their temporary files, and which stages run beside each other."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / "tools"
pytest_plugins = ("pytester",)


@pytest.fixture
def check(monkeypatch):
    """The module, by its file: ``check`` is also a command at the top of the tree."""
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    spec = importlib.util.spec_from_file_location("check", TOOLS / "check.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_files_in_memory_go_with_the_command_however_it_ends(check):
    with check.temporary_files() as (first, more):
        if not first:
            pytest.skip("no file system can be mounted here, or there is little memory")
        words = [*first, "sh", "-c", 'touch "$TMPDIR/file" && kill -KILL $$']
        assert subprocess.run(words, env={**os.environ, **more}, check=False).returncode == -signal.SIGKILL
        folder = Path(more["TMPDIR"])
        assert not folder.is_mount() and not list(folder.iterdir())


def test_where_memory_is_short_they_are_as_usual(check, monkeypatch):
    monkeypatch.setattr(check, "has_memory", lambda: False)
    with check.temporary_files() as found:
        assert found == ((), {})


@pytest.mark.parametrize(("chosen", "expected"), [
    (None, [(["tutorials"], []), (["ruff"], []),
            (["tests"], ["mypy", "imports", "ansible-lint", "changelog", "collection", "audit"]),
            (["lab", "deep"], ["docs", "sanity", "pylint", "slow"])]),
    (["deep", "slow"], [(["deep"], ["slow"])]), (["slow"], [(["slow"], [])]),
    (["ruff", "mypy", "imports"], [(["ruff"], []), (["imports"], ["mypy"])]),
    (["slow", "docs", "pylint"], [(["slow"], ["docs", "pylint"])])])
def test_what_runs_beside_what(check, chosen, expected):
    """Each stage runs once; deep follows lab while others still run beside it."""
    every = list(check.STAGES) if chosen is None else chosen
    found = list(check.split_tracks(every))
    assert found == expected
    assert sorted(name for both in found for names in both for name in names) == sorted(every)


def test_of_limited_time_stages_that_take_long_hear_and_no_other(check, monkeypatch):
    monkeypatch.setenv("MAGNETAR_UNTIL", "")
    check.limit_tests(60.0)
    assert 0 < float(os.environ["MAGNETAR_UNTIL"]) - time.time() <= 60
    told = {name: [word for word in stage.args if str(word).startswith("--turn=")]
            for name, (_what, stage) in check.STAGES.items() if hasattr(stage, "args")}
    turn = f"--turn={check.commit_hash()}"
    assert {name for name, words in told.items() if words == [turn]} == {"slow", "lab", "deep"}
    assert sum(map(len, told.values())) == 3


@pytest.mark.parametrize(("number", "stages"), [("00ff", ["deep", "lab"]), ("01ff", ["lab", "deep"])])
def test_of_limited_time_deep_comes_first_for_some_commits(check, monkeypatch, number, stages):
    monkeypatch.setenv("MAGNETAR_UNTIL", "")
    monkeypatch.setattr(check, "commit_hash", lambda: number)
    check.limit_tests(60.0)
    assert next(check.split_tracks(["lab", "deep"])) == (stages, [])


#: Files of tests in the order in which they are collected.
COLLECTED = ["tests/kill/test_kill.py", "tests/fuzz/test_fuzz.py", *(f"tests/unit/test_{one}.py" for one in "abcd"),
             "tests/lab/servers/test_a.py", "tests/lab/servers/test_b.py", "tests/lab/cloud/test_site.py"]


def turned(number):
    """The files of *COLLECTED* by their places."""
    place = conftest.turned_order([SimpleNamespace(nodeid=f"{file}::test") for file in COLLECTED], str(number))
    return sorted(COLLECTED, key=lambda file: place[file])


def test_of_limited_time_one_long_group_comes_first_and_the_others_last():
    long = [file for file in COLLECTED if conftest.group(file) in conftest.FIRST]
    for number in range(20):
        shared, first, short, last = (turned(number)[start:end] for start, end in ((0, 2), (2, 3), (3, 7), (7, 9)))
        assert {conftest.group(file) for file in shared} == {conftest.LIBVIRT}
        assert {*short} == {f"tests/unit/test_{one}.py" for one in "abcd"}
        assert {*shared, *first, *last} == {*long}


def test_each_file_comes_early_for_some_commits():
    orders = [turned(number) for number in range(100)]
    assert {order[0] for order in orders} == {"tests/lab/servers/test_a.py", "tests/lab/servers/test_b.py"}
    assert {order[2] for order in orders} == {"tests/kill/test_kill.py", "tests/fuzz/test_fuzz.py",
                                              "tests/lab/cloud/test_site.py"}
    assert {order[3] for order in orders} == {f"tests/unit/test_{one}.py" for one in "abcd"}
    assert turned(7) == turned(7)


def test_tests_of_long_groups_stop_earlier(monkeypatch):
    monkeypatch.setattr(conftest, "UNTIL", time.time() + conftest.MARGIN / 2)
    for file, late in (("tests/kill/test_kill.py", True), ("tests/unit/test_a.py", False),
                       ("tests/lab/servers/test_a.py", False)):
        item = SimpleNamespace(nodeid=f"{file}::test", get_closest_marker=lambda name: name == "slow")
        with pytest.raises(pytest.skip.Exception) if late else contextlib.nullcontext():
            conftest.pytest_runtest_setup(item)


MARKED = """
    import pytest
    {}

    {}
    def test_one():
        pass
"""


@pytest.mark.parametrize(("stage", "files"), [
    ("slow", {"test_b.py", "unit/control/access/test_c.py"}), ("tests", {"test_a.py", "test_b.py"}),
    ("lab", {"test_a.py", "test_b.py", "unit/control/access/test_c.py"})])
def test_a_stage_imports_only_files_that_can_have_its_tests(pytester, stage, files):
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text(encoding="utf-8"))
    for file, word in (("test_a", ""), ("test_b", "@pytest.mark.slow"), ("unit/control/access/test_c", "")):
        path = pytester.path / f"{file}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(MARKED.format("", word)), encoding="utf-8")
    done = pytester.runpytest_subprocess("--collect-only", "-q", "-p", "no:cacheprovider", "-W", "ignore",
                                         f"--stage={stage}")
    assert {line.partition("::")[0] for line in done.outlines if "::" in line} == files


def test_a_mark_that_a_stage_would_not_find_is_refused(pytester):
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(marks="import pytest\nLONG = pytest.mark.slow\n",
                        test_a=MARKED.format("from marks import LONG", "@LONG"))
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "ignore")
    assert done.ret != 0
    assert "test_one has the mark slow: its file must have one of the words" in done.stdout.str() + done.stderr.str()


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


#: A file of tests: what passes at the second run only, what never does, and what is too late.
UNSTEADY = """
import os, pathlib, pytest

def test_passes():
    pass

@pytest.mark.parametrize("word", ["a b", "é"])
def test_second(word):
    file = pathlib.Path(__file__).with_name(word)
    before = file.exists()
    file.touch()
    assert before

def test_never():
    assert "NEVER" not in os.environ
"""


@pytest.mark.parametrize(("stage", "more", "passes", "runs"), [
    ("slow", {}, True, 2), ("slow", {"NEVER": "1"}, False, 2), ("tests", {}, True, 2)])
def test_what_fails_beside_others_runs_once_more_alone(check, tmp_path, monkeypatch, stage, more, passes, runs):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_unsteady.py").write_text(UNSTEADY, encoding="utf-8")
    ran = []

    def run(*words, MAGNETAR_UNTIL=None, **_more):  # noqa: N803
        ran.append(MAGNETAR_UNTIL)
        pytest_words = [word for word in map(str, words) if not word.startswith("--stage")]
        pytest_words = pytest_words[pytest_words.index("pytest") + 1:]
        return subprocess.run([sys.executable, "-m", "pytest", *pytest_words], cwd=tmp_path, check=False,
                              env={**os.environ, **more}).returncode == 0

    monkeypatch.setattr(check, "run_command", run)
    monkeypatch.setattr(check.machine, "CACHE", tmp_path / ".cache")
    monkeypatch.setattr(check, "DURATIONS", tmp_path / "durations")
    assert check.run_tests(stage, 0, "not lab") == passes
    assert len(ran) == runs and ran[1:] == [""] * (runs - 1)


def test_many_that_fail_are_a_fault(check, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "run_command", None)
    (tmp_path / "v/cache").mkdir(parents=True)
    for failed in ({}, dict.fromkeys(map(str, range(check.UNSTEADY + 1)), True)):
        (tmp_path / "v/cache/lastfailed").write_text(json.dumps(failed), encoding="utf-8")
        assert not check.run_failed_alone(tmp_path)
