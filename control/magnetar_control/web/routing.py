# SPDX-License-Identifier: GPL-3.0-or-later
"""Routes: a method and a path with ``{parameters}`` to what does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

from .answer import Fault


@dataclass(frozen=True, kw_only=True)
class Route:
    """*path* such as ``/users/{id}``; *handler* takes the ``Request``. *stream*: the content is not read beforehand."""

    method: str
    path: str
    handler: Callable[..., Any]
    stream: bool = False


R = TypeVar("R", bound=Route)
#: Characters of a word of a path at most: no name or id has more.
LONGEST = 255
#: For services that take a slash at the end of any path, as Keystone and Neutron do.
ANY_SLASH = 99
#: Keys of the tree that are no words: of parameters, and of what ends there.
_ANY, _END = object(), object()


class Router(Generic[R]):
    """Finds routes by path. Several routes may have one method and path (another action, another version). *slash*: a
    path of at most so many words may end with a slash, as that of a version does; else an empty word is no word."""

    def __init__(self, routes: Iterable[R], slash: int = 0) -> None:
        self.routes, self._slash = tuple(routes), slash
        self._tree: dict[Any, Any] = {}
        for route in self.routes:
            node = self._tree
            names = []
            for word in words(route.path):
                named = word.startswith("{")
                if named:
                    names.append(word[1:-1])
                node = node.setdefault(_ANY if named else word, {})
            node.setdefault(_END, {}).setdefault(route.method, []).append((tuple(names), route))

    def find(self, path: str) -> dict[str, list[tuple[R, dict[str, str]]]]:
        """Method to the routes at *path*, each with its parameters; empty when the path is unknown. Raises as
        ``words`` does."""
        parts = words(path)
        if 1 < len(parts) <= self._slash + 1 and not parts[-1]:
            parts.pop()
        found, values = _walk(self._tree, parts, 0, ())
        if found is None:
            return {}
        return {method: [(route, dict(zip(names, values, strict=True))) for names, route in routes]
                for method, routes in found.items()}


def words(path: str) -> list[str]:
    """The words of a path, decoded; a word may be empty. Raises ``Fault`` 400 for one that is too long."""
    path = path.removeprefix("/")
    found = path.split("/") if path else []
    if "%" in path:
        found = [unquote(word) for word in found]
    if len(path) > LONGEST and any(len(word) > LONGEST for word in found):
        raise Fault(400, f"A word of the path has more than {LONGEST} characters; no name or id has.")
    return found


def _walk(node: dict[Any, Any], words: list[str], at: int, values: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    """Fixed words win over parameters; a dead end goes back."""
    if at == len(words):
        return node.get(_END), values
    fixed = node.get(words[at])
    if fixed is not None:
        found, got = _walk(fixed, words, at + 1, values)
        if found is not None:
            return found, got
    if words[at] and _ANY in node:
        return _walk(node[_ANY], words, at + 1, (*values, words[at]))
    return None, values
