# SPDX-License-Identifier: GPL-3.0-or-later
"""Metadata of servers: keys and values that their owners and their guests read."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.nova.operation import Call, body_as, noun, shown_as
from magnetar_control.api.nova.values import METADATA
from magnetar_control.api.values import OneKey, Wrapped
from magnetar_control.compute.servers import metadata
from magnetar_core.errors import InvalidRequest


def update(call: Call) -> dict[str, Any]:
    """PUT …/metadata/{id}."""
    metadata.update.check_allowed(call, call.target)  # who may not change it reads that, whatever the body says
    if call.params["id"] not in call.body:
        raise InvalidRequest("Request body and URI mismatch: the key in meta must be that of the path.")
    metadata.update(call, call.target, call.body)
    return {"meta": call.body}


_row = noun("servers.metadata", "/servers/{server_id}/metadata", target="server")
_ALL = {"body": Wrapped("metadata", METADATA), "given": body_as("metadata"), "shown": shown_as("metadata")}
OPERATIONS = (
    _row("GET", "", "list", metadata.index, shown=lambda _call, text: {"metadata": orjson.Fragment(text)}, strict=102),
    _row("POST", "", "create", metadata.create, **_ALL),
    _row("PUT", "", "replace", metadata.replace, **_ALL),
    _row("GET", "/{id}", "show", metadata.show, shown=lambda call, value: {"meta": {call.params["id"]: value}},
         strict=102),
    _row("PUT", "/{id}", "update", metadata.update, handler=update, body=Wrapped("meta", OneKey(METADATA))),
    _row("DELETE", "/{id}", "delete", metadata.delete, status=204),
)
