# SPDX-License-Identifier: GPL-3.0-or-later
"""os-aggregates: hosts put together by administrators, and the availability zones that come of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magnetar_control.api.nova.fields import ApiField, Fields, View
from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.values import (
    KEY,
    record,
)
from magnetar_control.api.values import Wrapped
from magnetar_control.compute import aggregates
from magnetar_control.compute.caller import UseCase
from magnetar_control.store.aggregates import Aggregate
from magnetar_core.errors import InvalidField
from magnetar_core.kinds.common import NAME
from magnetar_core.values import MapOf, Nullable, Text

PATH = "/os-aggregates"
ZONE = Nullable(Text(1, 255, r"[^\s\x00-\x1f\x7f:](?:[^\x00-\x1f\x7f:]*[^\s\x00-\x1f\x7f:])?",
                     "must be printable text without a colon, and without a blank at the beginning or the end"))
HOST = Text(1, 255, r"[a-zA-Z0-9._-]+", "must be the name of a host")
#: create: what POST answers.
FIELDS = Fields(
    ApiField("id", shows="create show"),
    ApiField("uuid", shows="create show", since=41),
    ApiField("name", NAME, takes="create update", required="create", shows="create show"),
    ApiField("availability_zone", ZONE, name="zone", takes="create update", shows="create show"),
    ApiField("created_at", shows="create show"),
    ApiField("updated_at", shows="create show"),
    ApiField("deleted", shows="create show", show=lambda _view, _row: False),
    ApiField("deleted_at", shows="create show", show=lambda _view, _row: None),
    ApiField("hosts", shows="show"),
    ApiField("metadata", shows="show"))


def _shown(call: Call, row: Aggregate, answer: str = "show") -> dict[str, Any]:
    return {"aggregate": View(call, FIELDS, answer).document(row)}


def index(call: Call) -> dict[str, Any]:
    """GET /os-aggregates."""
    return {"aggregates": [*map(View(call, FIELDS).document, aggregates.every(call))]}


def show(call: Call) -> dict[str, Any]:
    """GET /os-aggregates/{id}."""
    return _shown(call, aggregates.show(call, call.params["id"]))


def create(call: Call) -> dict[str, Any]:
    """POST /os-aggregates."""
    return _shown(call, aggregates.create(call, **FIELDS.arguments(call.body)), "create")


def update(call: Call) -> dict[str, Any]:
    """PUT /os-aggregates/{id}: name, zone."""
    if not call.body:
        raise InvalidField("aggregate", "must name name or availability_zone")
    return _shown(call, aggregates.update(call, call.params["id"], call.body))


def delete(call: Call) -> None:
    """DELETE /os-aggregates/{id}: an empty one."""
    aggregates.delete(call, call.params["id"])


def add_host(call: Call) -> dict[str, Any]:
    """The action add_host."""
    return _shown(call, aggregates.add_host(call, call.params["id"], call.body["host"]))


def remove_host(call: Call) -> dict[str, Any]:
    """The action remove_host."""
    return _shown(call, aggregates.remove_host(call, call.params["id"], call.body["host"]))


def set_metadata(call: Call) -> dict[str, Any]:
    """The action set_metadata: keys are added and changed; null takes one away."""
    return _shown(call, aggregates.set_metadata(call, call.params["id"], call.body["metadata"]))


def _row(method: str, path: str, handler: Callable[[Call], Any], name: str, use: UseCase[..., Any],
         **more: Any) -> Operation:
    return Operation(method=method, path=path, handler=handler, name=f"os-aggregates.{name}", use=use, **more)


def _action(handler: Callable[[Call], Any], name: str, use: UseCase[..., Any], body: Any) -> Operation:
    return _row("POST", PATH + "/{id}/action", handler, f"action.{name}", use, action=name, body=Wrapped(name, body))


OPERATIONS = (
    _row("GET", PATH, index, "list", aggregates.every, strict=102),
    _row("POST", PATH, create, "create", aggregates.create, body=Wrapped("aggregate", FIELDS.body("create"))),
    _row("GET", PATH + "/{id}", show, "show", aggregates.show, strict=102),
    _row("PUT", PATH + "/{id}", update, "update", aggregates.update, body=Wrapped("aggregate", FIELDS.body("update"))),
    _row("DELETE", PATH + "/{id}", delete, "delete", aggregates.delete),
    _action(add_host, "add_host", aggregates.add_host, record({"host": HOST}, "host")),
    _action(remove_host, "remove_host", aggregates.remove_host, record({"host": HOST}, "host")),
    _action(set_metadata, "set_metadata", aggregates.set_metadata, record(
        {"metadata": MapOf(KEY, Nullable(Text(0, 255)), 1000)}, "metadata")),
)
