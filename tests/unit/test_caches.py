# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever may grow while a process lives stands in docs/reference/caches.md with its bound: each cached function, and
each dict, set or queue that begins empty."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("agent", "control", "plugins/module_utils/core")
EMPTY = ("dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "WeakValueDictionary", "WeakKeyDictionary")
#: Classes of which one is made for a request, an answer, an action or an operation, and goes with it.
SHORT_LIVED = frozenset(("Call", "ListQuery", "Operation", "Request", "ServerView", "RunningAction"))


def empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in EMPTY and (
        not value.args or value.func.id in ("deque", "defaultdict"))


def growing(path: Path) -> set[str]:
    """Names of what may grow in a module: of functions, module-level names, and attributes with their class."""
    found = set()
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.AnnAssign | ast.Assign) and empty(node.value):
            found |= {one.id for one in (node.targets if isinstance(node, ast.Assign) else [node.target])
                      if isinstance(one, ast.Name)}
    for one in ast.walk(tree):
        if isinstance(one, ast.FunctionDef):
            found |= {one.name for how in one.decorator_list if re.search(r"\b(lru_cache|cache)\b", ast.unparse(how))}
        if isinstance(one, ast.Assign) and re.match(r"(functools\.)?lru_cache\(", ast.unparse(one.value)):
            found |= {ast.unparse(target) for target in one.targets}
        if isinstance(one, ast.ClassDef) and one.name not in SHORT_LIVED:
            found |= {f"{one.name}.{target.attr}" for node in ast.walk(one) if isinstance(node, ast.FunctionDef)
                      and node.name == "__init__" for line in ast.walk(node)
                      if isinstance(line, ast.AnnAssign | ast.Assign) and empty(line.value)
                      for target in (line.targets if isinstance(line, ast.Assign) else [line.target])
                      if isinstance(target, ast.Attribute)}
    return found


def test_each_has_its_bound() -> None:
    page = (ROOT / "docs/reference/caches.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines()
            if line.startswith("| `")]
    told = [(where.strip("`"), name) for where, names, bound in rows if bound for name in re.findall("`(.+?)`", names)]
    assert len(told) == len(set(told)), "a name stands twice"
    found = {(str(path.relative_to(ROOT)).removeprefix("plugins/module_utils/"), name)
             for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") for name in growing(path)}
    assert found == set(told)
