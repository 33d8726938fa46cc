# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipes of docs/contributing.md: each example is applied to a copy, the tests and cases that it brings are run
there, and it touches as many places as the page says.

When an example no longer fits the tree: make its change anew, by the page, and write it down with
``git add -N . && git diff -U2 >tests/recipes/NAME.patch``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs/contributing.md"
#: What is not counted: tests, the changelog, and what a tool prints.
UNCOUNTED = re.compile(r"tests/|changelogs/|control/magnetar_control/store/migrations/|"
                       r"docs/reference/(configuration|agent|commands|errors|api-coverage|hardware)\.md$")
#: Tests that run the cases of a file.
TESTS_OF_CASES = {"tests/cases/scheduler/filters.yml": ("tests/unit/control/scheduler/test_filter_rows.py",
                                                        "tests/unit/control/scheduler/test_filters.py")}
#: The row of an example in the page's table, with its number of places.
ROW = re.compile(r"^\|.*\| (?P<places>\d+) \| `tests/recipes/(?P<name>[\w-]+)\.patch` \|$", re.MULTILINE)
PLACES = {row["name"]: int(row["places"]) for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))}
pytestmark = pytest.mark.slow


def touched(patch: Path) -> tuple[list[str], list[str]]:
    """The files that a patch changes or makes, and those that it makes."""
    text = patch.read_text(encoding="utf-8")
    return (re.findall(r"^\+\+\+ b/(.+)$", text, re.MULTILINE),
            re.findall(r"^--- /dev/null\n\+\+\+ b/(.+)$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout's files, under the names by which they are imported, too."""
    folder = tmp_path_factory.mktemp("recipes")
    for name in subprocess.run(["git", "ls-files"], check=True, cwd=ROOT, text=True, stdout=subprocess.PIPE
                               ).stdout.splitlines():
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    subprocess.run([sys.executable, "-c", "from tools.machine import link_checkout; link_checkout()"], check=True,
                   cwd=folder)
    return folder


def apply(patch: Path, folder: Path, *words: str) -> None:
    """Change the copy by the patch."""
    done = subprocess.run(["git", "apply", *words, str(patch)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{patch.name} no longer fits the tree, see the docstring here: {done.stderr}"


def test_the_page_has_a_row_for_each_example() -> None:
    assert sorted(PLACES) == sorted(path.stem for path in HERE.glob("*.patch"))


@pytest.mark.parametrize("name", PLACES)
def test_places(name: str) -> None:
    places = [file for file in touched(HERE / f"{name}.patch")[0] if not UNCOUNTED.match(file)]
    assert len(places) == PLACES[name], f"docs/contributing.md says {PLACES[name]} places: {places}"


@pytest.mark.parametrize("name", PLACES)
def test_example(name: str, copy: Path) -> None:
    patch = HERE / f"{name}.patch"
    changed, made = touched(patch)
    tests = [file for file in made if Path(file).name.startswith("test_")]
    tests += [test for file in changed for test in TESTS_OF_CASES.get(file, ())]
    assert tests, "the example brings no test"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "MAGNETAR_"))}
    environment.update(PYTHONPATH=f"{copy}/.cache/src", ANSIBLE_COLLECTIONS_PATH=f"{copy}/.cache")
    apply(patch, copy)
    try:
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=copy,
                              env=environment, capture_output=True, text=True, check=False)
    finally:
        apply(patch, copy, "--reverse")
    assert done.returncode == 0, done.stdout + done.stderr
