# SPDX-License-Identifier: GPL-3.0-or-later
"""Routes: a method and a path with ``{parameters}`` to their handler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

from .answer import Fault


@dataclass(frozen=True, kw_only=True)
class Route:
    """A route of an application. *path*: such as ``/users/{id}``. *handler* receives the ``Request``. *stream*: whether
    the handler reads the request body itself, in chunks."""

    method: str
    path: str
    handler: Callable[..., Any]
    stream: bool = False


R = TypeVar("R", bound=Route)
#: Limit of characters of a word of a path: no name or id has more.
LONGEST = 255
#: For services that accept a slash at the end of any path, as Keystone and Neutron do.
ANY_SLASH = 99
#: Keys of the tree that are no words: of parameters, and of routes that end there.
_ANY, _END = object(), object()


class Router(Generic[R]):
    """Finds routes by path, in a tree of path segments. Several routes may have the same method and path, for different
    actions or versions. *slash*: paths with at most this number of segments may end with a slash, such as the path of
    an API version; in longer paths, an empty segment matches no route."""

    def __init__(self, routes: Iterable[R], slash: int = 0) -> None:
        self.routes, self._slash = tuple(routes), slash
        self._tree: dict[Any, Any] = {}
        for route in self.routes:
            node = self._tree
            names = []
            for segment in path_segments(route.path):
                named = segment.startswith("{")
                if named:
                    names.append(segment[1:-1])
                node = node.setdefault(_ANY if named else segment, {})
            node.setdefault(_END, {}).setdefault(route.method, []).append((tuple(names), route))

    def find(self, path: str) -> dict[str, list[tuple[R, dict[str, str]]]]:
        """Return, by HTTP method, the routes at *path*, each with the values of its path parameters by name; empty for
        an unknown path. Raises ``Fault`` 400 for a path segment that is too long."""
        parts = path_segments(path)
        if 1 < len(parts) <= self._slash + 1 and not parts[-1]:
            parts.pop()
        methods, values = _walk(self._tree, parts, 0, ())
        if methods is None:
            return {}
        return {method: [(route, dict(zip(names, values, strict=True))) for names, route in routes]
                for method, routes in methods.items()}


def path_segments(path: str) -> list[str]:
    """Return the segments of a path, percent-decoded; a segment may be empty. Raises ``Fault`` 400 for a segment that
    is too long."""
    path = path.removeprefix("/")
    segments = path.split("/") if path else []
    if "%" in path:
        segments = [unquote(segment) for segment in segments]
    if len(path) > LONGEST and any(len(segment) > LONGEST for segment in segments):
        raise Fault(400, f"A word of the path has more than {LONGEST} characters; no name or id has.")
    return segments


def _walk(node: dict[Any, Any], words: list[str], at: int, values: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    """Return (routes, values of path parameters) for the segments of a path, by a recursive search below *node*; the
    routes are ``None`` if there are none. *words*: all segments; *at*: the index of the next segment. *values*: the
    values of the parameters so far. A literal segment is tried before a parameter."""
    if at == len(words):
        return node.get(_END), values
    fixed = node.get(words[at])
    if fixed is not None:
        leaf, got = _walk(fixed, words, at + 1, values)
        if leaf is not None:
            return leaf, got
    if words[at] and _ANY in node:
        return _walk(node[_ANY], words, at + 1, (*values, words[at]))
    return None, values
