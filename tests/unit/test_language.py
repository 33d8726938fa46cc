# SPDX-License-Identifier: GPL-3.0-or-later
"""The language of the tree keeps the budgets of ``tools.language``, and the module measures what it says."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tools import help_texts, language

MODULE = '''"""A dated module: it is to be read at once."""


def settle(one, server):
    """Return the server, by which it is meant."""
    found = server
    for port in found.ports:
        host = port.host
    return host


def _settle(kept):
    return kept


class Waiter:
    def settle(self):
        """Wait for the server."""
'''

PLUGIN = '''DOCUMENTATION = """
short_description: Manage servers at once
description:
  - Creates servers.
options:
  description:
    description: Text of it all.
    choices: {short: As those of lines.}
    default: at once
"""
EXAMPLES = """
# Whoever waits
- name: Make it anew
  server: {name: at once}
"""
'''
SPECS = "argument_specs: {main: {options: {agent_port: {description: [The port.], default: at once}}}}"


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    return language.measure_language(language.read_source())


@pytest.mark.parametrize("figure", language.BUDGETS)
def test_the_tree_keeps_its_budget(figures: dict[str, float], figure: str) -> None:
    assert figures[figure] <= language.BUDGETS[figure], f"see `python -m tools.language --worst 40` for {figure}"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in {"agent/a.py": MODULE, "tools/b.py": "def settle(): ...\ndef read_page(): ...\n",
                       "agent/tests/c.py": "def settle(): ...\n", "docs/page.md": "Servers wait.\n```\nwhat one\n```\n",
                       "README.md": "Who reads this? What follows is\nto be read.\n",
                       "changelogs/fragments/1.yml": "- Servers, but for one.\n",
                       "plugins/modules/server.py": PLUGIN, "roles/agent/meta/argument_specs.yml": SPECS}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_names_and_prose_are_counted(tree: Path) -> None:
    source = language.read_source(tree)
    assert [module.name for module in source] == ["agent/a.py", "plugins/modules/server.py", "tools/b.py"]
    assert language.files_of_functions(source) == {"settle": ["agent/a.py", "tools/b.py"], "read_page": ["tools/b.py"]}
    assert language.measure_language(source, tree) == pytest.approx({
        "shared names": 200 / 3, "one-word names": 200 / 3, "empty variables": 100 * 3 / 9,
        "patterns in docstrings": 1000 * 3 / 22, "patterns in pages": 1000 * 1 / 11, "patterns in fragments": 250,
        "patterns in help": 1000 * 5 / 21})


def test_texts_of_commands() -> None:
    parser = argparse.ArgumentParser(prog="magnetar", description="Runs servers.", add_help=False)
    commands = parser.add_subparsers(metavar="COMMAND")
    commands.add_parser("agent", help="Run an agent.", add_help=False).add_argument("--fake", help="simulate a host")
    texts = help_texts.command_texts(parser)
    assert texts["magnetar"][0] == "Runs servers." and texts["magnetar agent"][-1] == "simulate a host"


@pytest.mark.parametrize(("text", "kinds"), [
    ("Whoever waits gets a server.", ["subject who"]),
    ("Who is asked?", []),
    ("It waits. What follows is a server.", ["subject what"]),
    ("What is the server?", []),
    ("The host to\nwhich it goes.", ["preposition with which or whom"]),
    ("The server was not to be deleted.", ["is to with a verb"]),
    ("The state is that of the host.", ["pronoun as head"]),
    ("The agent mends it at once.", ["dated word"]),
    ("No more than one host, but for kvm1.", ["dated phrase"]),
    ("A host, else a cell.", ["trailing else"]),
    ("The server is deleted by it.", ["trailing pronoun"]),
    ("The agent deletes the server immediately.", []),
])
def test_each_kind_of_pattern(text: str, kinds: list[str]) -> None:
    assert sorted(language.count_patterns(text).elements()) == kinds


def test_the_worst_come_first(tree: Path) -> None:
    lines = dict(line.split(": ", 1) for line in language.worst_lines(language.read_source(tree), 2, tree))
    assert lines["shared names"] == "settle 2"
    assert lines["empty variables"] == "one 1, kept 1"
    assert lines["patterns in docstrings"] == "agent/a.py 3"
    assert lines["patterns in pages"].startswith("README.md ")


def test_the_command_prints_figures_and_budgets(tree: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["language", str(tree), "--worst", "1"])
    assert language.main() == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "shared names             66.7    10.0"
    assert "shared names: settle 2" in printed
