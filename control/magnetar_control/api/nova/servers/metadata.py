# SPDX-License-Identifier: GPL-3.0-or-later
"""servers/{id}/metadata: keys and values for a server's owner and guest."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.nova.operation import Call, body_as, operation_factory, shown_as
from magnetar_control.api.nova.values import METADATA
from magnetar_control.api.values import OneKey, Wrapped
from magnetar_control.compute.servers import metadata
from magnetar_core.errors import InvalidRequest


def handle_update_metadata_item(call: Call) -> dict[str, Any]:
    """Set one item of a server's metadata, and return it as {meta: {key: value}}: PUT …/metadata/{id}. Raises
    ``InvalidRequest`` if the key in the body differs from the key in the URL."""
    # the policy error comes first, before errors in the body
    metadata.update_server_metadata.check_allowed(call, call.target)
    if call.params["id"] not in call.body:
        raise InvalidRequest("Request body and URI mismatch: the key in meta must be that of the path.")
    metadata.update_server_metadata(call, call.target, call.body)
    return {"meta": call.body}


_row = operation_factory("servers.metadata", "/servers/{server_id}/metadata", target="server")
_ALL = {"body": Wrapped("metadata", METADATA), "given": body_as("metadata"), "shown": shown_as("metadata")}
OPERATIONS = (
    _row("GET", "", "list", metadata.list_server_metadata, shown=lambda _call,
         text: {"metadata": orjson.Fragment(text)}, strict=102),
    _row("POST", "", "create", metadata.create_server_metadata, **_ALL),
    _row("PUT", "", "replace", metadata.replace_server_metadata, **_ALL),
    _row("GET", "/{id}", "show", metadata.show_server_metadata_item, shown=lambda call,
         value: {"meta": {call.params["id"]: value}}, strict=102),
    _row("PUT", "/{id}", "update", metadata.update_server_metadata, handler=handle_update_metadata_item,
         body=Wrapped("meta", OneKey(METADATA))),
    _row("DELETE", "/{id}", "delete", metadata.delete_server_metadata_item, status=204),
)
