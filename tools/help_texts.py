# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts that ``ansible-doc`` and ``--help`` print, for ``tools.language``."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

#: Keys of documentation whose values are prose, as a text or a list of texts.
PROSE_KEYS = frozenset(("short_description", "description", "notes", "requirements", "details", "returned"))
#: Comments of examples, and the names of their tasks.
COMMENTS = re.compile(r"^\s*(?:#|- name:)\s*(.+)$", re.MULTILINE)
FRAGMENTS = "ansible_collections.magnetar.compute.plugins.doc_fragments"


def read_documentation(root: Path) -> dict[str, list[str]]:
    """Return the texts that ``ansible-doc`` shows of modules, plugins and roles, by file."""
    plugins = (path for folder in ("modules", "inventory", "doc_fragments")
               for path in sorted((root / "plugins" / folder).glob("*.py")))
    texts = {str(path.relative_to(root)): list(_plugin_texts(path.read_text(encoding="utf-8"))) for path in plugins}
    for path in sorted(root.glob("roles/*/meta/argument_specs.yml")):
        texts[str(path.relative_to(root))] = list(_prose(yaml.safe_load(path.read_text(encoding="utf-8"))))
    return texts


def computed_options(root: Path) -> dict[str, list[str]]:
    """Return the texts of the options that are computed for the modules of *root*, by fragment. The collection must be
    in the folder ``.cache`` there."""
    folder = str(root / ".cache")
    sys.path.insert(0, folder)
    try:
        connection, options = (importlib.import_module(f"{FRAGMENTS}.{name}").ModuleDocFragment()
                               for name in ("connection", "options"))
        used = re.compile(r"magnetar\.compute\.options\.(\w+)")
        names = sorted({name for path in (root / "plugins/modules").glob("*.py")
                        for name in used.findall(path.read_text(encoding="utf-8"))})
        fragments = {"connection": connection.DOCUMENTATION,
                     **{f"options.{name}": getattr(options, name.upper()) for name in names}}
    finally:
        sys.path.remove(folder)
    return {name: list(_prose(yaml.safe_load(text))) for name, text in fragments.items()}


def command_texts(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Return the texts of the command of *parser* and of all its subcommands, by command."""
    texts = {parser.prog: [text for text in (
        parser.description, *(group.description or group.title for group in parser._action_groups),  # noqa: SLF001 - argparse has no public list
        *(action.help for action in parser._actions)) if text]}  # noqa: SLF001
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for subcommand in action.choices.values():
                texts |= command_texts(subcommand)
    return texts


def all_command_texts() -> dict[str, list[str]]:
    """Return the texts of ``magnetar`` with all subcommands, by command."""
    from magnetar_agent.cli import build_command_line
    from magnetar_control.cli import subcommands

    return command_texts(build_command_line(subcommands))


def _plugin_texts(source: str) -> Iterator[str]:
    """Yield the documentation texts in the source code of a plugin: those of its constants, such as ``DOCUMENTATION``,
    and the comments in ``EXAMPLES``."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()]
        for part in ast.walk(node.value) if names else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield from COMMENTS.findall(part.value) if "EXAMPLES" in names else _documented(part.value)


def _documented(text: str) -> Iterator[str]:
    """Yield the prose in *text* if it is YAML; other text has none."""
    try:
        yield from _prose(yaml.safe_load(text))
    except yaml.YAMLError:
        return


def _prose(document: Any) -> Iterator[str]:
    """Yield the prose of a document: the texts of ``PROSE_KEYS``, and the descriptions of choices."""
    if isinstance(document, list):
        for item in document:
            yield from _prose(item)
    if not isinstance(document, dict):
        return
    for key, value in document.items():
        if key in PROSE_KEYS and isinstance(value, str | list):
            yield from (text for text in ([value] if isinstance(value, str) else value) if isinstance(text, str))
        elif key == "choices" and isinstance(value, dict):
            yield from _prose([{"description": text} for text in value.values()])
        elif key not in ("sample", "default"):
            yield from _prose(value)
