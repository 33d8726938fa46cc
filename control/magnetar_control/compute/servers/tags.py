# SPDX-License-Identifier: GPL-3.0-or-later
"""Tags of servers: words by which users find servers."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import ServerTarget, server_use_case
from magnetar_core.errors import InvalidRequest, NotFound
from magnetar_core.values import ListOf, Text

from .metadata import change_server_document

TAG = Text(1, 60, r"[^,/\x00-\x1f\x7f]*",
           "must have 1 to 60 characters, without comma, slash and control characters")
TAGS = ListOf(TAG, 50, unique=True)
RULE = "os_compute_api:os-server-tags:"


@server_use_case(rule=f"{RULE}index")
def list_server_tags(_caller: Caller, target: ServerTarget) -> str:
    """Return all tags, as JSON text."""
    return str(target.row.stored.tags)


@server_use_case(rule=f"{RULE}show")
def show_server_tag(_caller: Caller, target: ServerTarget, tag: str) -> None:
    """Check that the server has the tag. Raises ``NotFound`` if it does not."""
    if tag not in target.row.tags:
        raise _tag_missing(target, tag)


def _tag_missing(target: ServerTarget, tag: str) -> NotFound:
    return NotFound(f"Server {target.row.id} has no tag '{tag[:60]}'")


@server_use_case("tags", f"{RULE}update_all")
def replace_server_tags(caller: Caller, target: ServerTarget, tags: Sequence[str]) -> list[str]:
    """Replace all tags of the server with *tags*, and return them."""
    new_tags: list[str] = change_server_document(caller, target, "tags", lambda _old: list(tags))
    return new_tags


@server_use_case("tags", f"{RULE}update")
def add_server_tag(caller: Caller, target: ServerTarget, tag: str) -> bool:
    """Add a tag to the server, and return whether the tag is new."""
    had: list[str] = []

    def added(old: list[str]) -> list[str]:
        had[:] = old
        if tag not in old and len(old) >= TAGS.max:
            raise InvalidRequest(f"The number of tags exceeded the per-server limit {TAGS.max}")
        return sorted({*old, tag})

    change_server_document(caller, target, "tags", added)
    return tag not in had


@server_use_case("tags", f"{RULE}delete")
def delete_server_tag(caller: Caller, target: ServerTarget, tag: str) -> None:
    """Remove a tag from the server. Raises ``NotFound``."""
    def without(old: list[str]) -> list[str]:
        if tag not in old:
            raise _tag_missing(target, tag)
        return [old_tag for old_tag in old if old_tag != tag]

    change_server_document(caller, target, "tags", without)


@server_use_case("tags", f"{RULE}delete_all")
def delete_server_tags(caller: Caller, target: ServerTarget) -> None:
    """Remove all tags from the server."""
    change_server_document(caller, target, "tags", lambda _old: [])
