# SPDX-License-Identifier: GPL-3.0-or-later
"""Metadata of servers: keys and values that their owners and their guests read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import Target, guard, not_found, notify, of_server
from magnetar_control.store.servers import servers
from magnetar_core.errors import NotFound
from magnetar_core.values import MapOf, Text

#: A key, and all that a server may have; each project's quota is far below.
KEY = Text(1, 255, r"[a-zA-Z0-9\-_:. ]{1,255}", "may have letters, digits, blanks and - _ : . only")
METADATA = MapOf(KEY, Text(0, 255), 100000)
RULE = "os_compute_api:server-metadata:"
Metadata = dict[str, str]


def change_document(caller: Caller, target: Target, column: str, change: Callable[[Any], Any]) -> Any:
    """Set a JSON column of a server (*column* is also its row of ``ACTIONS``) to what *change* makes of it, in one
    transaction that looks at the server's state again. Returns the new document."""
    with target.database.write() as connection:
        row = servers.row(connection, target.row.id, lock=True)
        if row is None:
            raise servers.Moved
        if row.deleted_at:
            raise not_found(row.id)
        guard(caller, Target(target.database, row), column)
        found = change(orjson.loads(getattr(row, column)))
        servers.change(connection, row.id, **{column: servers.text(found)})
        notify(caller, target, connection)
    return found


@of_server(rule=f"{RULE}index")
def index(_caller: Caller, target: Target) -> str:
    """All of it, as JSON text."""
    return str(target.row.metadata)


@of_server(rule=f"{RULE}show")
def show(_caller: Caller, target: Target, key: str) -> str:
    """One value. Raises ``NotFound``."""
    found: Metadata = orjson.loads(target.row.metadata)
    if key not in found:
        raise _missing()
    return found[key]


def _missing() -> NotFound:
    return NotFound("Metadata item was not found")


def _most(caller: Caller, target: Target) -> int:
    """How many items the quota of the server's project lets be."""
    return quotas.limits(caller, target.row.project_id)["metadata_items"]


@of_server("metadata", f"{RULE}create")
def create(caller: Caller, target: Target, metadata: Metadata) -> Metadata:
    """Add items to those that are there, and return all."""
    most = _most(caller, target)

    def added(old: Metadata) -> Metadata:
        new = {**old, **metadata}
        quotas.check_metadata(most, new)
        return new

    found: Metadata = change_document(caller, target, "metadata", added)
    return found


#: Set items, and leave the others as they are.
update = of_server("metadata", f"{RULE}update")(create.function)


@of_server("metadata", f"{RULE}update_all")
def replace(caller: Caller, target: Target, metadata: Metadata) -> Metadata:
    """These items in place of those that are there."""
    quotas.check_metadata(_most(caller, target), metadata)
    found: Metadata = change_document(caller, target, "metadata", lambda _old: metadata)
    return found


@of_server("metadata", f"{RULE}delete")
def delete(caller: Caller, target: Target, key: str) -> None:
    """Remove an item. Raises ``NotFound``."""
    def without(old: Metadata) -> Metadata:
        if key not in old:
            raise _missing()
        return {name: value for name, value in old.items() if name != key}

    change_document(caller, target, "metadata", without)
