# SPDX-License-Identifier: GPL-3.0-or-later
"""No circles of imports: whoever reads a module needs to know only those below it. Imports for type checking count."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGES = ["magnetar_agent"]


def modules(package: str) -> dict[str, Path]:
    """The modules of *package*, by name."""
    spec = importlib.util.find_spec(package)
    assert spec and spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    found = {}
    for path in root.rglob("*.py"):
        parts = [package, *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: Iterable[str]) -> Iterator[str]:
    """The modules that a module imports, anywhere in its text."""
    inside = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = inside[:len(inside) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                module = f"{base}.{alias.name}"
                yield module if module in known else base


def graph(package: str) -> dict[str, set[str]]:
    """Each module of *package*, and those of them that it imports."""
    known = modules(package)
    return {name: {one for one in imported(name, path, known) if one in known} - {name}
            for name, path in known.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_circles(package: str) -> None:
    try:
        TopologicalSorter(graph(package)).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))
