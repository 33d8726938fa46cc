# SPDX-License-Identifier: GPL-3.0-or-later
"""Tags of servers (2.26): words to find them by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from magnetar_control.api.nova.metadata import changed
from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.values import TAG, TAGS
from magnetar_control.api.values import Wrapped
from magnetar_control.web import Answer
from magnetar_core.errors import InvalidRequest, MagnetarError, NotFound

RULE = "os_compute_api:os-server-tags:"
PATH = "/servers/{server_id}/tags"


def index(call: Call) -> dict[str, Any]:
    """GET …/tags."""
    return {"tags": orjson.Fragment(call.server.tags)}


def show(call: Call) -> Answer:
    """GET …/tags/{id}: whether the server has the tag."""
    if call.params["id"] not in orjson.loads(call.server.tags):
        raise _missing(call)
    return Answer(None, 204)


def _missing(call: Call) -> MagnetarError:
    return NotFound(f"Server {call.server.id} has no tag '{call.params['id'][:60]}'")


def replace(call: Call) -> dict[str, Any]:
    """PUT …/tags: these instead of those that are there."""
    return {"tags": changed(call, "tags", lambda _old: call.body)}


def update(call: Call) -> Answer:
    """PUT …/tags/{id}: 201 when the server has it now, 204 when it had it."""
    tag = TAG.check(call.params["id"], "tag")
    had: list[str] = []

    def made(old: list[str]) -> list[str]:
        had.extend(old)
        if tag not in old and len(old) >= TAGS.max:
            raise InvalidRequest(f"The number of tags exceeded the per-server limit {TAGS.max}")
        return sorted({*old, tag})

    changed(call, "tags", made)
    if tag in had:
        return Answer(None, 204)
    return Answer(None, 201, {"Location": f"{call.base}/servers/{call.server.id}/tags/{tag}"})


def delete(call: Call) -> Answer:
    """DELETE …/tags/{id}."""
    def without(old: list[str]) -> list[str]:
        if call.params["id"] not in old:
            raise _missing(call)
        return [tag for tag in old if tag != call.params["id"]]

    changed(call, "tags", without)
    return Answer(None, 204)


def delete_all(call: Call) -> Answer:
    """DELETE …/tags."""
    changed(call, "tags", lambda _old: [])
    return Answer(None, 204)


def _row(method: str, name: str, handler: Callable[[Call], Any], rule: str, path: str = PATH, **more: Any) -> Operation:
    return Operation(method=method, path=path, handler=handler, name=f"servers.tags.{name}", rule=RULE + rule,
                     target="server", since=26, **more)


OPERATIONS = (
    _row("GET", "list", index, "index"),
    _row("PUT", "replace", replace, "update_all", act="tags", body=Wrapped("tags", TAGS)),
    _row("DELETE", "delete_all", delete_all, "delete_all", act="tags", status=204),
    _row("GET", "show", show, "show", PATH + "/{id}", status=204),
    _row("PUT", "update", update, "update", PATH + "/{id}", act="tags", bodiless=True, status=201),
    _row("DELETE", "delete", delete, "delete", PATH + "/{id}", act="tags", status=204),
)
