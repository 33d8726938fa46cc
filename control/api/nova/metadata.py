# SPDX-License-Identifier: GPL-3.0-or-later
"""Metadata of servers: keys and values that their owners and their guests read."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.values import (
    METADATA,
)
from magnetar_control.api.values import OneKey, Wrapped
from magnetar_control.compute import metadata
from magnetar_control.web import Answer
from magnetar_core.errors import InvalidRequest

PATH = "/servers/{server_id}/metadata"


def index(call: Call) -> dict[str, Any]:
    """GET …/metadata."""
    return {"metadata": orjson.Fragment(metadata.index(call, call.target))}


def show(call: Call) -> dict[str, Any]:
    """GET …/metadata/{id}."""
    key = call.params["id"]
    return {"meta": {key: metadata.show(call, call.target, key)}}


def create(call: Call) -> dict[str, Any]:
    """POST …/metadata: add to what is there."""
    return {"metadata": metadata.create(call, call.target, call.body)}


def replace(call: Call) -> dict[str, Any]:
    """PUT …/metadata: these instead of those that are there."""
    return {"metadata": metadata.replace(call, call.target, call.body)}


def update(call: Call) -> dict[str, Any]:
    """PUT …/metadata/{id}."""
    metadata.update.check(call, call.target)  # who may not change it reads that, whatever the body says
    if call.params["id"] not in call.body:
        raise InvalidRequest("Request body and URI mismatch: the key in meta must be that of the path.")
    metadata.update(call, call.target, call.body)
    return {"meta": call.body}


def delete(call: Call) -> Answer:
    """DELETE …/metadata/{id}."""
    metadata.delete(call, call.target, call.params["id"])
    return Answer(None, 204)


def _row(method: str, name: str, handler: Any, use: Any, path: str = PATH, **more: Any) -> Operation:
    return Operation(method=method, path=path, handler=handler, name=f"servers.metadata.{name}", use=use,
                     target="server", **more)


BODY = Wrapped("metadata", METADATA)
OPERATIONS = (
    _row("GET", "list", index, metadata.index, strict=102),
    _row("POST", "create", create, metadata.create, body=BODY),
    _row("PUT", "replace", replace, metadata.replace, body=BODY),
    _row("GET", "show", show, metadata.show, PATH + "/{id}", strict=102),
    _row("PUT", "update", update, metadata.update, PATH + "/{id}", body=Wrapped("meta", OneKey(METADATA))),
    _row("DELETE", "delete", delete, metadata.delete, PATH + "/{id}", status=204),
)
