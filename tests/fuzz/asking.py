# SPDX-License-Identifier: GPL-3.0-or-later
"""Strategies of whole requests to a route: path, query, headers and body, mostly right, each wrong at times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from hypothesis import strategies as st

from magnetar_control.api.nova.versions import FIRST, NEWEST
from magnetar_control.web.asgi import QUERY_LIMIT

from .odd import RAW, Chance
from .routes import Schema, Target
from .sending import Sent

#: What stands in paths as it is, and is no word that a client would send.
ENCODED = (
    "%", "%zz", "%0", "%ff", "%C0%AF", "%ED%A0%80", "%2e%2e", "%2E", "%00", "a%00", "%2500", "%2F", "%252F", "a%2Fb",
    "%0a", "%0d%0a", "%20", "+", "%22", "%27", "..%2f", ";a=b", "%3Fa", "%F0%9F%98%80", "%31" * 255, "%31" * 256,
    "%31" * 4000, "x" * 20_000, "%e9" * 100, "é", "%u0041", "$", "@", "~", "%EF%BB%BF")
METHODS = (
    "GET", "GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND")
MEDIA = (
    "", "application/json", "text/plain", "application/x-www-form-urlencoded", "application/octet-stream",
    "multipart/form-data", "application/json; charset=utf-16", "APPLICATION/JSON", "application/problem+json", ";",
    "a", "\xff", "application/openstack-images-v2.1-json-patch")
VERSIONS = (
    "latest", "2.0", "2.1", f"2.{NEWEST}", f"2.{NEWEST + 1}", "3.0", "2", "2.", "2.01", "x", "", "2.1 2.2",
    "9" * 30 + ".1", "2.²", "-2.1", "2.1\x00")
#: Headers that applications look at.
HEADERS = (
    "x-request-id", "x-openstack-request-id", "x-subject-token", "x-service-token", "accept", "x-forwarded-host",
    "host", "x-forwarded-for", "x-forwarded-proto", "content-encoding", "expect", "x-project-id", "authorization",
    "range", "if-none-match", "accept-language", "user-agent")
VALUES = (
    "", " ", "a", "*/*", "req-8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", "req-" + "x" * 36, "Bearer ", "Bearer x",
    "Basic YTpi", "gzip", "100-continue", "bytes=0-", "\xff", "\x80" * 300, "x" * 8000, "a,b", "evil.example", "[::1",
    "a\tb")
QUERIES = (
    "", "&", "=", "a", "a=", "=a", "&&&", "%FF=%FE", "%00=1", "limit", "limit=", "limit=%00", "\xff", "?", "#", ";",
    "a=1;b=2", "limit=1&limit=2", "&".join("a=1" for _time in range(1100)), "marker=%ED%A0%80", "a[]=1")


class Asking:
    """*tokens*: by user; *known*: ids and names of what is there, by the word before them in paths."""

    def __init__(self, tokens: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> None:
        self.tokens, self.known = tokens, known
        self.all = tuple(dict.fromkeys(one for found in known.values() for one in found)) or ("a",)

    def requests(self, target: Target) -> st.SearchStrategy[Sent]:
        """Requests to a route."""
        @st.composite
        def made(draw: st.DrawFn) -> Sent:
            chance = Chance(draw, self.all)
            method = chance.one(METHODS) if chance.happens(1, 24) else target.method
            return Sent(target.id, method, self._path(chance, target.path), self._query(chance, target),
                        self._headers(chance, target), self._content(chance, target))

        return made()

    def _content(self, chance: Chance, target: Target) -> bytes:
        if target.body is not None:
            return chance.body(target.body)
        wanted = target.method in ("POST", "PUT", "PATCH") and chance.happens(1, 2)
        return chance.one(RAW) if wanted else b""

    def _path(self, chance: Chance, path: str) -> str:
        found, before = "", ""
        for word in re.split("(/)", path):
            found += self._word(chance, self.known.get(before) or self.all) if word.startswith("{") else word
            before = before if word == "/" else word
        return found

    def _word(self, chance: Chance, known: Sequence[str]) -> str:
        way = chance.one(range(8))
        if way == 7:
            return chance.one(ENCODED)
        return quoted(chance.one(known) if way < 5 else chance.word() if way == 5 else chance.one(self.all))

    def _query(self, chance: Chance, target: Target) -> str:
        known = list((target.query or {}).items())
        way = chance.one(range(8))
        if way < 2:
            return ""
        if way == 7:
            return chance.one(QUERIES)
        if way == 6 or not known:
            return f"{quoted(chance.word())}={quoted(chance.word())}"
        pairs = []
        for _time in range(1 + chance.one(range(3))):
            name, schema = chance.one(known)
            pairs.append(f"{quoted(name)}={quoted(self._parameter(chance, schema))}")
        return _filled(pairs) if way == 4 else "&".join(pairs * (2 if way == 5 else 1))

    def _parameter(self, chance: Chance, schema: Schema) -> str:
        way = chance.one(range(4))
        return chance.word() if way < 2 else chance.one(self.all) if way == 2 else str(chance.fit(schema))

    def _headers(self, chance: Chance, target: Target) -> tuple[tuple[str, str], ...]:
        media = chance.one(MEDIA if chance.happens(1, 12) else target.media)
        found = [("content-type", media), *self._version(chance, target)]
        if self.tokens:
            others = ("", "x", "\xff", *self.tokens.values())
            token = chance.one(others) if chance.happens(1, 5) else self.tokens["admin"]
            found += [("x-auth-token", token)] if token else []
        if chance.happens(1, 6):
            found.append((chance.one(HEADERS), chance.one(VALUES)))
        return tuple(found)

    def _version(self, chance: Chance, target: Target) -> tuple[tuple[str, str], ...]:
        odd = chance.happens(1, 16)
        if target.service == "compute":
            since, until = target.versions or (FIRST, NEWEST)
            minor = until if chance.happens(1, 2) else since + chance.one(range(until - since + 1))
            version = chance.one(VERSIONS) if odd else f"2.{minor}"
            if chance.happens(1, 5):
                return (("x-openstack-nova-api-version", version),)
            return (("openstack-api-version", f"compute {version}"),)
        if target.service == "volume":
            version = chance.one(VERSIONS) if odd else f"3.{70 if chance.happens(1, 2) else chance.one(range(71))}"
            return (("openstack-api-version", f"volume {version}"),)
        if target.service == "placement":
            version = chance.one(VERSIONS) if odd else f"1.{39 if chance.happens(1, 2) else chance.one(range(40))}"
            return (("openstack-api-version", f"placement {version}"),)
        return ()


def _filled(pairs: Sequence[str]) -> str:
    """As much as a query may hold, the same again and others."""
    found = ""
    for number in range(QUERY_LIMIT):
        more = f"{pairs[number % len(pairs)]}{number if number % 2 else ''}"
        if len(found) + len(more) >= QUERY_LIMIT:
            break
        found += f"&{more}" if found else more
    return found


def quoted(word: str) -> str:
    """As a part of a path or query."""
    return quote(word.encode("utf-8", "replace"), safe="")
