# SPDX-License-Identifier: GPL-3.0-or-later
"""Metadata of servers: keys and values that their owners and their guests read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from magnetar_control.api.nova.app import guard
from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.values import METADATA
from magnetar_control.api.values import OneKey, Wrapped
from magnetar_control.compute import quotas as quota
from magnetar_control.store import servers
from magnetar_control.web import Answer
from magnetar_core.errors import InvalidRequest, MagnetarError, NotFound

RULE = "os_compute_api:server-metadata:"
PATH = "/servers/{server_id}/metadata"


def changed(call: Call, column: str, made: Callable[[Any], Any]) -> Any:
    """Set a document of the server of the path to what *made* makes of it, in one transaction that looks at the
    server's state again. Returns the new document."""
    with call.database.write() as connection:
        row = servers.row(connection, call.server.id, lock=True)
        if row is None:
            raise servers.Moved
        if row.deleted_at:
            raise NotFound(f"Instance {call.server.id} could not be found.")
        call.server = row
        guard(call, str(call.operation.act))
        found = made(orjson.loads(getattr(row, column)))
        servers.change(connection, row.id, **{column: servers.text(found)})
    return found


def index(call: Call) -> dict[str, Any]:
    """GET …/metadata."""
    return {"metadata": orjson.Fragment(call.server.metadata)}


def show(call: Call) -> dict[str, Any]:
    """GET …/metadata/{id}."""
    found, key = orjson.loads(call.server.metadata), call.params["id"]
    if key not in found:
        raise _missing()
    return {"meta": {key: found[key]}}


def _missing() -> MagnetarError:
    return NotFound("Metadata item was not found")


def _merged(call: Call, more: dict[str, str]) -> dict[str, str]:
    most = quota.limits(call, call.server.project_id)["metadata_items"]

    def made(old: dict[str, str]) -> dict[str, str]:
        new = {**old, **more}
        quota.check_metadata(most, new)
        return new

    found: dict[str, str] = changed(call, "metadata", made)
    return found


def create(call: Call) -> dict[str, Any]:
    """POST …/metadata: add to what is there."""
    return {"metadata": _merged(call, call.body)}


def replace(call: Call) -> dict[str, Any]:
    """PUT …/metadata: these instead of those that are there."""
    quota.check_metadata(quota.limits(call, call.server.project_id)["metadata_items"], call.body)
    return {"metadata": changed(call, "metadata", lambda _old: call.body)}


def update(call: Call) -> dict[str, Any]:
    """PUT …/metadata/{id}."""
    if call.params["id"] not in call.body:
        raise InvalidRequest("Request body and URI mismatch: the key in meta must be that of the path.")
    _merged(call, call.body)
    return {"meta": call.body}


def delete(call: Call) -> Answer:
    """DELETE …/metadata/{id}."""
    key = call.params["id"]

    def without(old: dict[str, str]) -> dict[str, str]:
        if key not in old:
            raise _missing()
        return {name: value for name, value in old.items() if name != key}

    changed(call, "metadata", without)
    return Answer(None, 204)


def _row(method: str, name: str, handler: Callable[[Call], Any], rule: str, path: str = PATH, **more: Any) -> Operation:
    return Operation(method=method, path=path, handler=handler, name=f"servers.metadata.{name}", rule=RULE + rule,
                     target="server", **more)


BODY = Wrapped("metadata", METADATA)
OPERATIONS = (
    _row("GET", "list", index, "index", strict=102),
    _row("POST", "create", create, "create", act="metadata", body=BODY),
    _row("PUT", "replace", replace, "update_all", act="metadata", body=BODY),
    _row("GET", "show", show, "show", PATH + "/{id}", strict=102),
    _row("PUT", "update", update, "update", PATH + "/{id}", act="metadata", body=Wrapped("meta", OneKey(METADATA))),
    _row("DELETE", "delete", delete, "delete", PATH + "/{id}", act="metadata", status=204),
)
