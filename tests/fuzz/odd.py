# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts, JSON documents and bytes: what fits a JSON schema, and what is wrong with it in a place or two."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
#: What programs stumble over, in any place that takes text.
TEXTS = (
    "", " ", "a", "A b", "0", "-0", "1", "-1", "+1", " 1", "1\n", "1_000", "0x10", "1e3", "1.5", "9" * 18, "9" * 19,
    "9" * 40, "NaN", "inf", "-inf", "1e309", "nan", "null", "None", "true", "True", "false", "undefined", "[]", "{}",
    "{id}", "*", "%", "_", "'", '"', "''", '"a', "\\", "`", ";", "a;b", "a,b", ",", ",,", "a:b", ":", "a/b", "/",
    "//", "..", "../../a", ".", "a=b", "&", "?", "#", "(", ")", "(((((", "[", "[a", "a{", "a{9999999}", "(a+)+$",
    "a*?", "^", "$", "\\1", "(?=a)", "|", "\x00", "a\x00b", "\x01", "\t", "\n", "a\nb", "\r\n", "\x1b[0m", "\x7f",
    "\x85", "\xa0", "\xad", "²", "½", "\u0661", "é", "e\u0301", "ß", "İ", "\u0131", "ﬁ", "\u200b", "\u202e", "\u2028",
    "\ufeff", "\ufffd", "\ufffe", "\uffff", "\U0001f600", "\U0010ffff", "x" * 64, "x" * 65, "x" * 255, "x" * 256,
    "é" * 255, "\U0001f600" * 255, "x" * 5000, "x" * 70_000, "%s", "%n", "%00", "%2F", "${a}", "{{a}}", "<a>", "<!--",
    "&amp;", "]]>", "in:", "in:a,b", "in:\"a,b", "gte:1", "gt:", "neq:", "regex:(", "<in> a", "<or> a <or> b",
    "s== a", ">= x", ">= 1e999", "asc", "desc", "-name", "name:asc", "name:up", "00:00:5e:00:53:01",
    "52:54:00:12:34:56", "01:00:00:00:00:00", "10.0.0.1", "10.0.0.1/24", "0.0.0.0", "255.255.255.255", "10.1.0.0/24",
    "1.2.3", "0/0", "::", "::1", "fd00::1", "fe80::1%lo", "::ffff:1.2.3.4", "/dev/vdb", "vda", "YQ==", "YQ", "====",
    "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2026-13-01", "2026-02-30T00:00:00Z",
    "2026-01-01T00:00:00", "2026-W01-1", "20260101", "1970-01-01", "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d",
    "8C7D3C0E5D0F4A2B9D0E0C6C8A1F2B3D", "{8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}",
    "urn:uuid:8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", "default", "admin", "latest", "auto", "none", "all",
    "http://127.0.0.1:1/x", "file:///x", "/v3/x", "ssh-rsa AAAA", "self")
#: Texts of a format, as JSON schema names it, near what there is.
FORMATS = {
    "ipv4": ("10.7.0.1", "10.7.0.2", "10.7.0.9", "10.7.0.255", "10.8.0.1", "192.0.2.1", "192.0.2.9", "fd00:7::1", "::1",
             "127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "255.255.255.255"),
    "cidr": ("10.7.0.0/24", "10.7.0.128/25", "10.8.0.0/24", "10.8.0.1/24", "10.0.0.0/8", "192.0.2.0/28", "192.0.2.9/32",
             "fd00:7::/64", "fd00:8::/80", "fe80::/64", "ff00::/64", "127.0.0.0/8", "169.254.0.0/16", "0.0.0.0/0",
             "::/0", "10.7.0.9", "172.16.0.0/30", "100.64.0.0/10")}
#: Half a surrogate pair: JSON can say it, UTF-8 cannot.
HALF = ("\ud800", "a\udfff", "\udfff\ud800")
NUMBERS = (
    0, 1, -1, 2, 2**15, 2**31 - 1, 2**31, -2**31 - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -2**63, -2**63 - 1,
    2**64 - 1, 2**64, 10**40, -10**40, 10**400, 0.0, -0.0, 0.5, 1.0, -1.5, 1e16, 1e300, -1e300, 5e-324, float("nan"),
    float("inf"), float("-inf"))
#: How deep documents go, on either side of what parsers and writers take.
DEPTHS = (3, 120, 253, 254, 255, 300, 500)

_WORDS = st.text(max_size=12)
_INTEGERS = st.integers()


@cache
def _up_to(most: int) -> st.SearchStrategy[int]:
    return st.integers(0, most)


def deep(depth: int, keyed: bool) -> Any:
    """A document of so many lists, or objects, in each other."""
    found: Any = 1
    for _step in range(depth):
        found = {"a": found} if keyed else [found]
    return found


@cache
def _fitting(pattern: str, least: int, most: int, known: tuple[str, ...]) -> list[str]:
    return [one for one in (*known, *TEXTS) if least <= len(one) <= most and re.search(pattern, one)]


class Chance:
    """What Hypothesis draws, in the words of this package. Strategies are few and made once: to make one takes longer
    than most requests. *known*: ids and names of what is there."""

    def __init__(self, draw: st.DrawFn, known: tuple[str, ...]) -> None:
        self.draw, self.known = draw, known

    def one(self, found: Sequence[T]) -> T:
        """One of them."""
        return found[self.draw(_up_to(len(found) - 1))]

    def happens(self, times: int, of: int) -> bool:
        """As often as that; the simplest is that it does not."""
        return self.draw(_up_to(of - 1)) >= of - times

    def word(self) -> str:
        """Text that UTF-8 can say."""
        return self.draw(_WORDS) if self.happens(1, 4) else self.one(TEXTS)

    def scalar(self) -> Any:
        """Text, a number, truth or nothing."""
        way = self.draw(_up_to(9))
        if way < 4:
            return self.word()
        return (self.one(NUMBERS), self.one(NUMBERS), None, way == 7 and self.one((False, True)), self.draw(_INTEGERS),
                self.one(HALF))[way - 4]

    def value(self) -> Any:
        """Anything that is no document of ours."""
        way = self.draw(_up_to(11))
        if way < 6:
            return self.scalar()
        if way == 6:
            return [self.scalar() for _time in range(self.draw(_up_to(3)))]
        if way == 7:
            return {self.word(): self.scalar() for _time in range(self.draw(_up_to(3)))}
        if way == 8:
            return [self.scalar()] * self.one((2, 11, 129, 1001))
        if way == 9:
            return {f"k{at}": "v" for at in range(self.one((2, 81, 129, 1001)))}
        return deep(self.one(DEPTHS), self.one((False, True)))

    def fit(self, schema: Any) -> Any:
        """What fits *schema*, for the most part."""
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self.fit(self.one(schema[word]))
        if "enum" in schema:
            return self.one(list(schema["enum"]) or [None])
        if "const" in schema:
            return schema["const"]
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self.one(kind)
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            least = schema.get("minItems", 0)
            return [self.fit(schema.get("items") or {}) for _time in range(least + self.draw(_up_to(2)))]
        if kind in ("integer", "number"):
            least = int(schema.get("minimum", 0))
            return least + self.draw(_up_to(max(0, min(int(schema.get("maximum", 10)) - least, 10))))
        return {"string": self._text, "boolean": lambda _: self.one((False, True)), "null": lambda _: None}.get(
            kind, lambda _: self.value())(schema)

    def _object(self, schema: Any) -> Any:
        inner, needed = schema.get("properties", {}), schema.get("required", ())
        names = [name for name in inner if name not in needed]
        chosen = {self.one(names) for _time in range(self.draw(_up_to(4)))} if names else set()
        found = {name: self.fit(one) for name, one in inner.items() if name in needed or name in chosen}
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            for _time in range(self.draw(_up_to(2))):
                found[self.word() if self.happens(1, 3) else self.one(("a", "b", "key"))] = self.fit(more)
        return found

    def _text(self, schema: Any) -> str:
        known = tuple(one for one in self.known if len(one) == 36) if schema.get("format") == "uuid" else self.known
        if schema.get("format") == "uuid" and known:
            return self.one(known)
        if schema.get("format") in FORMATS:
            return self.one(FORMATS[schema["format"]])
        found = _fitting(schema.get("pattern", ""), schema.get("minLength", 0), schema.get("maxLength", 10**6), known)
        return self.one(found) if found else self.word()

    def document(self, schema: Any) -> Any:
        """What fits; mostly with something wrong in a place or two."""
        found = self.fit(schema)
        for _time in range(self.one((0, 1, 1, 1, 2))):
            at = self.one(places(found)[1:] or [()])
            found = changed(found, at, self.one(("put", "put", "put", "drop", "more")), self.value())
        return found

    def body(self, schema: Any) -> bytes:
        """The bytes of a body: a document, at times with keys twice, cut off or beside something else; or anything."""
        way = self.draw(_up_to(19))
        if way == 19:
            return self.one(RAW)
        if way == 18:
            return _bytes(self.value(), self.one((True, False)))
        content = _bytes(self.document(schema), self.one((True, False)))
        if way == 17:
            key = self.one(re.findall(rb'"(\w{1,30})":', content)[:20] or [b"a"])
            return content.replace(b"{", b'{"%s":%s,' % (key, _bytes(self.scalar(), True)), 1)
        if way == 16:
            return content[:self.draw(_up_to(min(len(content), 2000)))]
        return content


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values within, outer ones first."""
    found = [at]
    if len(at) < 6:
        items = enumerate(document) if isinstance(document, list) else ()
        for key, value in document.items() if isinstance(document, dict) else items:
            found += places(value, (*at, key))
            if len(found) > 40:
                break
    return found


def changed(document: Any, at: tuple[Any, ...], how: str, value: Any) -> Any:
    """*document* with another value *at* a place, without it, or with more beside it."""
    if not at:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    if len(at) > 1:
        copy[at[0]] = changed(copy[at[0]], at[1:], how, value)
    elif how == "drop":
        del copy[at[0]]
    elif how == "more" and isinstance(copy, dict):
        copy[value if isinstance(value, str) else "surprise"] = value
    elif how == "more":
        copy.append(value)
    else:
        copy[at[0]] = value
    return copy


#: Bodies that are no JSON, or hardly.
RAW = (
    b"", b" ", b"{", b"[", b"{}", b"[]", b"null", b"1", b'""', b"{}{}", b'{"a":}', b"\xff\xfe", b'{"a":"\xff"}',
    b"\xef\xbb\xbf{}", b'{"\\ud800":1}', b'{"a":"\\u0000"}', b'{"\\u0000":1}', b"{'a':1}", b"NaN", b"-", b"1e999",
    b'{"a":1e999}', b'{"a":NaN}', b'{"a":' + b"9" * 5000 + b"}", b"\x00", b"a=b&c=d", b"<a/>",
    *(b"[" * depth for depth in (2000, 200_000)), *(b'{"a":' * depth for depth in (2000, 100_000)),
    *(b"[" * depth + b"]" * depth for depth in (255, 900, 1024, 1025, 50_000)))


def _bytes(document: Any, escaped: bool) -> bytes:
    return json.dumps(document, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
