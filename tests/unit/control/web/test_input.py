# SPDX-License-Identifier: GPL-3.0-or-later
"""What clients send costs no more than it is long."""

from __future__ import annotations

import ast
import asyncio
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import orjson
import pytest

import magnetar_agent
import magnetar_control
import magnetar_core
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Application
from magnetar_control.web.asgi import AsgiServer
from magnetar_control.web.request import parse_json
from magnetar_control.web.routing import LONGEST, Route, Router
from magnetar_core.errors import InvalidRequest
from magnetar_core.nesting import DEEPEST
from magnetar_core.values import Text

PATH = "/v3/things/{id}/tags/{tag}"
ROUTER = Router([Route(method="GET", path=PATH, handler=print)])


def patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    """The patterns of all modules, but those of short texts, whose length is looked at first."""
    for module in pkgutil.walk_packages(magnetar_control.__path__, "magnetar_control."):
        if ".migrations." not in module.name:
            for name, value in vars(importlib.import_module(module.name)).items():
                pattern = value.pattern if isinstance(value, Text) and value.max > LONGEST else value
                if isinstance(pattern, re.Pattern):
                    yield f"{module.name}.{name}", pattern


def unbounded(parsed: object) -> int:
    """Repetitions without a limit, one after another or in each other, that a match may have to share text among."""
    found = 0
    for operation, value in parsed:  # type: ignore[attr-defined]
        if operation in (_parser.MAX_REPEAT, _parser.MIN_REPEAT):
            found += (value[1] is _parser.MAXREPEAT) + unbounded(value[2])
        elif operation in (_parser.SUBPATTERN, _parser.ASSERT, _parser.ASSERT_NOT):
            found += unbounded(value[-1])
        elif operation is _parser.BRANCH:
            found += max(map(unbounded, value[1]))
    return found


def test_no_pattern_has_two_repetitions_that_share_a_text() -> None:
    """A match that fails would try all ways to share it: the time grows with the square of the length."""
    found = dict(patterns())
    assert len(found) > 5
    assert [name for name, pattern in found.items() if unbounded(_parser.parse(pattern.pattern)) > 1] == []


#: Patterns with two of them that share no text: what is between cannot be part of either.
APART = {r"^([1-9][0-9]*)\.(0|[1-9][0-9]*)$"}


def written() -> Iterator[tuple[str, str]]:
    """The patterns that stand in calls of ``re``."""
    for package in (magnetar_agent, magnetar_control, magnetar_core):
        for path in Path(package.__path__[0]).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.") and node.args \
                        and isinstance(node.args[0], ast.Constant):
                    value = node.args[0].value
                    yield f"{path.name}:{node.lineno}", value if isinstance(value, str) else value.decode("latin-1")


def test_none_that_stands_where_it_is_used_either() -> None:
    found = dict(written())
    assert len(found) > 50
    assert [where for where, text in found.items() if unbounded(_parser.parse(text)) > 1 and text not in APART] == []


def test_words_of_paths_are_short() -> None:
    long = "\u00e9" * LONGEST
    (_route, params), = ROUTER.find(f"/v3/things/1/tags/{'%C3%A9' * LONGEST}")["GET"]
    assert params == {"id": "1", "tag": long}
    for word in ("1" * 12_000, "%31" * (LONGEST + 1)):
        for path in (f"/v3/things/{word}/tags/a", f"/v3/{word}"):
            with pytest.raises(Fault, match="255 characters") as refused:
                ROUTER.find(path)
            assert refused.value.status == 400


@pytest.mark.parametrize("url, answered", [
    (None, "http://evil.example"), ("https://cloud.example/", "https://cloud.example")])
def test_links_begin_as_the_request_says_only_without_a_public_url(url: str | None, answered: str) -> None:
    class Rooted(Application):
        def handle(self, request: Request) -> Answer:
            return Answer({"root": request.root, "base": request.base})

    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/image/v2", "query_string": b"", "scheme": "http",
             "headers": [(b"host", b"evil.example"), (b"x-forwarded-host", b"evil.example")]}
    asyncio.run(AsgiServer({"/image": Rooted()}, trusted=True, url=url)(scope, None, send))
    assert orjson.loads(sent[1]["body"]) == {"root": answered, "base": answered + "/image"}


@pytest.mark.parametrize("begin, end", [(b"[", b"]"), (b'{"a":', b"}"), (b"[1,", b",2]")])
def test_what_could_not_be_written_again_is_not_read(begin: bytes, end: bytes) -> None:
    """orjson reads 1,024 levels and writes 254: what is kept would break each list with it."""
    assert parse_json(begin * DEEPEST + b"1" + end * DEEPEST)
    for deep in (DEEPEST + 1, 254, 1000):
        with pytest.raises(InvalidRequest, match="100 objects and lists in each other"):
            parse_json(begin * deep + b"1" + end * deep)


@pytest.mark.parametrize("word", ["*", "%2F", "%2a", "{id}"])
def test_words_of_paths_are_no_patterns(word: str) -> None:
    assert ROUTER.find(f"/v3/things/{word}") == {}
    (_route, params), = ROUTER.find(f"/v3/things/{word}/tags/b")["GET"]
    assert params == {"id": {"%2F": "/", "%2a": "*"}.get(word, word), "tag": "b"}
