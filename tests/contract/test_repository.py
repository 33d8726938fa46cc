# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules which every file of the repository keeps."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
import warnings
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tools import index

ROOT = Path(__file__).resolve().parents[2]
TRACKED = [ROOT / name for name in subprocess.run(
    ["git", "ls-files"], check=True, cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout.splitlines()]
PYTHON = [path for path in TRACKED if path.suffix == ".py" and path.exists()]
#: Alembic's files are as it writes them.
SIZED = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in ("agent", "control", "plugins")
         and "versions" not in path.parts]


@pytest.mark.parametrize("path", SIZED, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short(path):
    """A file is cut by meaning, so that it may be longer than 400 lines where its parts belong together."""
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    assert lines <= 600
    if lines > 400:
        warnings.warn(f"{path.relative_to(ROOT)} has {lines} lines", stacklevel=1)
    long = [node.name for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno - node.lineno >= 40]
    assert not long


def test_folders_are_rooms():
    """A folder of source has at most thirty files. Ansible wants all modules in one folder."""
    counted = Counter(str(path.parent.relative_to(ROOT)) for path in SIZED if path.name != "__init__.py")
    assert not {folder: files for folder, files in counted.items() if files > 30 and folder != "plugins/modules"}


def test_every_python_file_names_its_licence():
    named = "SPDX-License-Identifier: GPL-3.0-or-later"
    assert not [path for path in PYTHON if path.stat().st_size and named not in path.read_text()[:400]]


def test_tests_with_guests_are_where_the_stage_lab_looks():
    marked = re.compile(r"pytest\.mark\.lab\b")
    places = tuple(ROOT / name for name in ("tests/lab", "tests/contract"))
    assert not [path for path in PYTHON if marked.search(path.read_text()) and not path.is_relative_to(places[0])
                and not path.is_relative_to(places[1])]


def test_no_file_names_a_place_of_one_machine():
    pattern = re.compile(r"(?<![\w.}])/(?:work|root)/[a-z]")
    assert not [path for path in PYTHON if path != Path(__file__) and pattern.search(path.read_text())]


def test_the_action_group_lists_every_module_that_asks_an_agent():
    runtime = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())
    modules = (ROOT / "plugins/modules").glob("[a-z]*.py")
    listed = sorted(path.stem for path in modules if "magnetar.compute.connection" in path.read_text())
    assert runtime["action_groups"]["all"] == listed
    routing = runtime["plugin_routing"]["modules"]
    assert [name for name in routing if routing[name] == {"action_plugin": "magnetar.compute.direct"}] == listed


def test_every_module_and_every_page_is_in_the_table_of_its_kind():
    text = (ROOT / "docs/reference/modules.md").read_text(encoding="utf-8")
    modules = {path.stem for path in (ROOT / "plugins/modules").glob("*.py")}
    assert not [name for name in modules if f"`{name}`" not in text and f"`{name.removesuffix('_info')}`" not in text]
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert text == index.index_page(), "python -m tools.index >docs/index.md"
    assert not [path.name for path in (ROOT / "docs").rglob("*.md")
                if f"({path.relative_to(ROOT / 'docs')})" not in text and path != ROOT / "docs/index.md"]


def test_os_packages_are_named_in_bindep_alone():
    """Tasks of roles take them from there, by profile. Some are commands and units by the same name."""
    lines = (ROOT / "bindep.txt").read_text(encoding="utf-8").splitlines()
    names = {line.split()[0] for line in lines if line and not line.startswith("#")}
    names -= {"openssl", "postgresql", "ovn-central"}
    named = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, sorted(names)))})(?![\w./-])")
    tasks = [path for path in TRACKED if path.match("roles/*/tasks/*.yml")]
    assert tasks
    assert not [(str(path.relative_to(ROOT)), line) for path in tasks for line in path.read_text().splitlines()
                if not re.match(r"\s*(#|- name:)", line) and named.search(line)]


def test_the_distribution_lists_every_package():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {"magnetar_agent.templates"}
    for name, folder in setuptools["package-dir"].items():
        for init in (ROOT / folder).rglob("__init__.py"):
            found.add(".".join([name, *init.parent.relative_to(ROOT / folder).parts]))
    assert set(setuptools["packages"]) == found


def test_promises_of_security_have_their_tests():
    """Each file of tests that a page names is there, and each test that it names in a file."""
    page = (ROOT / "docs/reference/security-promises.md").read_text()
    assert len(re.findall(r"`[\w/]+\.py::\w+`", page)) > 100
    text = "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    named = set(re.findall(r"`((?:contract|fuzz|lab|unit)/[\w/]+\.py)(?:::(\w+))?`", text))
    assert sorted(path for path, _name in named if not (ROOT / "tests" / path).exists()) == []
    assert sorted(f"{path}::{name}" for path, name in named if name and not re.search(
        rf"^(async )?def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE)) == []


def test_helpers_of_tests_are_in_support():
    """No module has anything from a module of tests."""
    named = re.compile(r"^\s*(from [\w.]*\btest_\w+ import|(from [\w.]+ )?import .*\btest_\w+$)", re.MULTILINE)
    assert not [str(path.relative_to(ROOT)) for path in PYTHON
                if path.relative_to(ROOT).parts[:2] != ("tests", "lab") and named.search(path.read_text())]
