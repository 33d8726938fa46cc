# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares an answer with its sample: key sets closed on both sides, types, classes of strings, words, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from .classes import fits
from .samples import Evidence, Sample, escape, keys
from .shapes import Shape, is_word, kind_of, shape
from .tolerances import (
    MAY_BE_EMPTY,
    MAY_BE_NULL,
    OTHER_TYPES,
    OTHER_WORDS,
    USER_KEYED,
    matches,
    may_be_extra,
    may_be_missing,
    one_of,
)


@dataclass(frozen=True)
class Difference:
    """One place where answer and sample differ."""

    pointer: str
    what: str
    expected: str
    got: str

    def document(self) -> dict[str, str]:
        """For a line of JSON."""
        return asdict(self)


def short(value: Any) -> str:
    """A value, for people."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass
class Expectation:
    """What is known of one answer: the sample's shape and what it is of."""

    root: Shape
    area: str
    operation: str
    version: int
    #: Values come from Nova's own test fixtures: keys and types only.
    loose: bool = False
    nulls: frozenset[str] = frozenset()
    #: The thing that the case is about; of others in a list, words may be others.
    focus: str = ""
    #: Prefixes of links: {rel: url}.
    prefixes: dict[str, str] = field(default_factory=dict)


@lru_cache(maxsize=2048)
def _shape(evidence: Evidence, file: str) -> Shape:
    return shape(evidence.body(file), evidence.samples[file].dynamic)


def expectation(evidence: Evidence, sample: Sample, version: int, prefixes: dict[str, str] | None = None,
                focus: str = "") -> Expectation:
    """What *sample* says about an answer at *version*."""
    return Expectation(root=_shape(evidence, sample.file), area=sample.area, operation=sample.operation,
                       version=version, loose=sample.replay == "shape", nulls=evidence.nulls(sample.operation),
                       prefixes=prefixes or {}, focus=focus)


def differences(expected: Expectation, answer: Any) -> list[Difference]:
    """Every difference, in the order of the answer."""
    return list(_walk(expected, expected.root, answer, "", ""))


def _walk(expected: Expectation, here: Shape, value: Any, exact: str, key: str) -> Iterator[Difference]:
    kind = kind_of(value)
    if kind == "null" and "null" not in here.types:
        if here.pointer not in expected.nulls and not one_of(MAY_BE_NULL, here.pointer):
            yield Difference(exact, "null", "/".join(sorted(here.types)), "null")
        return
    if not _type_fits(kind, here):
        yield Difference(exact, "type", "/".join(sorted(here.types)), f"{kind} {short(value)}")
        return
    if isinstance(value, dict):
        yield from _object(expected, here, value, exact)
    elif isinstance(value, list):
        yield from _list(expected, here, value, exact, key)
    elif kind != "null" and here.types != {"null"}:
        yield from _scalar(expected, here, value, exact, key)


def _type_fits(kind: str, here: Shape) -> bool:
    if kind in here.types or here.types == {"null"} or not here.types:
        return True
    if kind == "integer" and "number" in here.types:
        return True
    return any(kind in types and matches(pattern, here.pointer) for pattern, types in OTHER_TYPES.items())


def _object(expected: Expectation, here: Shape, value: dict[str, Any], exact: str) -> Iterator[Difference]:
    if one_of(USER_KEYED, here.pointer):
        for key, inner in value.items():
            known = here.keys.get(key) or next(iter(here.keys.values()), None)
            if known is not None:
                yield from _walk(expected, known, inner, f"{exact}/{escape(key)}", "")
        return
    for key, known in here.keys.items():
        if key not in value and here.required(key) and not may_be_missing(known.pointer):
            yield Difference(f"{exact}/{escape(key)}", "missing", "/".join(sorted(known.types)), "nothing")
    for key, inner in value.items():
        pointer = f"{here.pointer}/{escape(key)}"
        if key in here.keys:
            yield from _walk(expected, here.keys[key], inner, f"{exact}/{escape(key)}", key)
        elif here.objects and not may_be_extra(pointer, expected.operation, expected.version):
            yield Difference(f"{exact}/{escape(key)}", "extra", "nothing", short(inner))
    if "href" in value and "rel" in value:
        yield from _link(expected, value, exact)


def _list(expected: Expectation, here: Shape, value: list[Any], exact: str, key: str) -> Iterator[Difference]:
    if not value and here.item is not None and here.item.types and here.filled \
            and not one_of(MAY_BE_EMPTY, here.pointer):
        yield Difference(exact, "empty", "at least one element", "[]")
    if here.item is None or not here.item.types:
        return
    for index, inner in enumerate(value):
        if expected.focus and isinstance(inner, dict) and inner.get("id") not in (None, expected.focus):
            yield from _walk(replace(expected, loose=True), here.item, inner, f"{exact}/{index}", key)
            continue
        yield from _walk(expected, here.item, inner, f"{exact}/{index}", key)


def _scalar(expected: Expectation, here: Shape, value: Any, exact: str, key: str) -> Iterator[Difference]:
    word = not expected.loose and is_word(key, expected.area) and here.literals
    if word and value not in here.literals | OTHER_WORDS.get((expected.operation, key), set()):
        yield Difference(exact, "word", " or ".join(sorted(map(repr, here.literals))), short(value))
    elif isinstance(value, str) and here.classes and not fits(value, frozenset(here.classes)):
        yield Difference(exact, "class", " or ".join(sorted(here.classes)), short(value))


def _link(expected: Expectation, link: dict[str, Any], exact: str) -> Iterator[Difference]:
    rel = str(link["rel"])
    prefix = expected.prefixes.get("self" if rel == "next" else rel)
    href = link["href"]
    if prefix and isinstance(href, str) and not re.match(re.escape(prefix) + r"(/|$)", href):
        yield Difference(f"{exact}/href", "link", f"{prefix}/...", short(href))


def absent(pointers: list[str], answer: Any) -> list[Difference]:
    """Differences for every pointer (with * for elements of lists) that an older answer must not have."""
    there = keys(answer)
    return [Difference(pointer, "too early", "nothing before its microversion", "there")
            for pointer in pointers if pointer in there]
