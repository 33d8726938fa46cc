# SPDX-License-Identifier: GPL-3.0-or-later
"""Tags of servers (2.26): words to find them by."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.values import (
    TAG,
    TAGS,
)
from magnetar_control.api.values import Wrapped
from magnetar_control.compute import tags
from magnetar_control.web import Answer

PATH = "/servers/{server_id}/tags"


def index(call: Call) -> dict[str, Any]:
    """GET …/tags."""
    return {"tags": orjson.Fragment(tags.index(call, call.target))}


def show(call: Call) -> Answer:
    """GET …/tags/{id}: whether the server has the tag."""
    tags.show(call, call.target, call.params["id"])
    return Answer(None, 204)


def replace(call: Call) -> dict[str, Any]:
    """PUT …/tags: these instead of those that are there."""
    return {"tags": tags.replace(call, call.target, call.body)}


def update(call: Call) -> Answer:
    """PUT …/tags/{id}: 201 when the server has it now, 204 when it had it."""
    tag = TAG.check(call.params["id"], "tag")
    if not tags.add(call, call.target, tag):
        return Answer(None, 204)
    return Answer(None, 201, {"Location": f"{call.base}/servers/{call.target.row.id}/tags/{tag}"})


def delete(call: Call) -> Answer:
    """DELETE …/tags/{id}."""
    tags.delete(call, call.target, call.params["id"])
    return Answer(None, 204)


def delete_all(call: Call) -> Answer:
    """DELETE …/tags."""
    tags.delete_all(call, call.target)
    return Answer(None, 204)


def _row(method: str, name: str, handler: Any, use: Any, path: str = PATH, **more: Any) -> Operation:
    return Operation(method=method, path=path, handler=handler, name=f"servers.tags.{name}", use=use, target="server",
                     since=26, **more)


OPERATIONS = (
    _row("GET", "list", index, tags.index),
    _row("PUT", "replace", replace, tags.replace, body=Wrapped("tags", TAGS)),
    _row("DELETE", "delete_all", delete_all, tags.delete_all, status=204),
    _row("GET", "show", show, tags.show, PATH + "/{id}", status=204),
    _row("PUT", "update", update, tags.add, PATH + "/{id}", bodiless=True, status=201),
    _row("DELETE", "delete", delete, tags.delete, PATH + "/{id}", status=204),
)
