# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparison of answers with the fields in a published API. Data files in ``tests/cases/answers`` have the fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "cases" / "answers"
#: Keys that a row may have; see the head of ``volume.yml``.
KEYS = frozenset(("request", "as", "body", "status", "at", "has", "may", "since", "more", "from"))
Row = Mapping[str, Any]


def rows(service: str) -> list[Row]:
    """Return the rows of a service's data file."""
    found: list[Row] = yaml.safe_load((FOLDER / f"{service}.yml").read_text())
    assert all(row.keys() <= KEYS for row in found), [row.keys() - KEYS for row in found if row.keys() - KEYS]
    return found


def filled(value: Any, ids: Mapping[str, str]) -> Any:
    """Return *value* with *ids* in place of ``{names}``."""
    if isinstance(value, dict):
        return {name: filled(word, ids) for name, word in value.items()}
    return value.format(**ids) if isinstance(value, str) else value


def exists(row: Row, version: tuple[int, int]) -> bool:
    """Return whether the request of *row* exists at the microversion."""
    return version >= _version(row.get("from", "0.0"))


def differences(row: Row, document: Any, version: tuple[int, int]) -> Iterator[str]:
    """Yield the fields that an answer's *document* lacks, or has in addition to its *row*."""
    where = row["at"]
    if where is None:
        if document is not None:
            yield f"it has a body: {document}"
        return
    words = where.split(".") if where else []
    if words and isinstance(document, dict):
        yield from (f"beside {words[0]} it has {name}" for name in document.keys() - {words[0], *row.get("more", ())})
    for word in words:
        document = document[int(word) if word.isdecimal() else word]
    later = {name for since, names in row.get("since", {}).items() if version >= _version(since) for name in names}
    required = set(row["has"])
    yield from (f"it lacks {name}" for name in sorted(required - document.keys()))
    yield from (f"it has {name}" for name in sorted(document.keys() - required - later - set(row.get("may", ()))))


def _version(text: Any) -> tuple[int, int]:
    """Return 3.7 as (3, 7). YAML reads the keys as numbers, so files quote those that end in 0."""
    major, _dot, minor = str(text).partition(".")
    return int(major), int(minor or 0)
