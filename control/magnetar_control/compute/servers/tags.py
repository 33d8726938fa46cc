# SPDX-License-Identifier: GPL-3.0-or-later
"""Tags of servers: words to find them by."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import Target, of_server
from magnetar_core.errors import InvalidRequest, NotFound
from magnetar_core.values import ListOf, Text

from .metadata import change_document

TAG = Text(1, 60, r"[^,/\x00-\x1f\x7f]*",
           "must have 1 to 60 characters, without comma, slash and control characters")
TAGS = ListOf(TAG, 50, unique=True)
RULE = "os_compute_api:os-server-tags:"


@of_server(rule=f"{RULE}index")
def index(_caller: Caller, target: Target) -> str:
    """All of them, as JSON text."""
    return str(target.row.tags)


@of_server(rule=f"{RULE}show")
def show(_caller: Caller, target: Target, tag: str) -> None:
    """Raises ``NotFound`` when the server does not have the tag."""
    if tag not in orjson.loads(target.row.tags):
        raise _missing(target, tag)


def _missing(target: Target, tag: str) -> NotFound:
    return NotFound(f"Server {target.row.id} has no tag '{tag[:60]}'")


@of_server("tags", f"{RULE}update_all")
def replace(caller: Caller, target: Target, tags: Sequence[str]) -> list[str]:
    """These in place of those that are there."""
    found: list[str] = change_document(caller, target, "tags", lambda _old: list(tags))
    return found


@of_server("tags", f"{RULE}update")
def add(caller: Caller, target: Target, tag: str) -> bool:
    """Add a tag; whether the server did not have it before."""
    had: list[str] = []

    def added(old: list[str]) -> list[str]:
        had[:] = old
        if tag not in old and len(old) >= TAGS.max:
            raise InvalidRequest(f"The number of tags exceeded the per-server limit {TAGS.max}")
        return sorted({*old, tag})

    change_document(caller, target, "tags", added)
    return tag not in had


@of_server("tags", f"{RULE}delete")
def delete(caller: Caller, target: Target, tag: str) -> None:
    """Remove a tag. Raises ``NotFound``."""
    def without(old: list[str]) -> list[str]:
        if tag not in old:
            raise _missing(target, tag)
        return [one for one in old if one != tag]

    change_document(caller, target, "tags", without)


@of_server("tags", f"{RULE}delete_all")
def delete_all(caller: Caller, target: Target) -> None:
    """Remove all tags."""
    change_document(caller, target, "tags", lambda _old: [])
