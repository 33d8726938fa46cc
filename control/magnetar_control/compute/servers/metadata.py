# SPDX-License-Identifier: GPL-3.0-or-later
"""Metadata of servers: keys and values that their owners and their guests read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.availability.ha_policy import check_ha_metadata
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import (
    ServerTarget,
    check_action_allowed,
    notify_server,
    server_not_found,
    server_use_case,
)
from magnetar_control.store.servers import servers
from magnetar_core.errors import NotFound
from magnetar_core.values import MapOf, Text

#: A key, and the limit of a server's metadata, which is far above each project's quota.
KEY = Text(1, 255, r"[a-zA-Z0-9\-_:. ]{1,255}", "may have letters, digits, blanks and - _ : . only")
METADATA = MapOf(KEY, Text(0, 255), 100000)
RULE = "os_compute_api:server-metadata:"
Metadata = dict[str, str]


def change_server_document(caller: Caller, target: ServerTarget, column: str, change: Callable[[Any], Any]) -> Any:
    """Replace the value of the JSON column *column* of a server (such as its metadata) by *change(current value)*, and
    return the new value. The same transaction checks that the server's lock and state still allow this, by the
    conditions that ``ACTIONS[column]`` defines for changes of the column."""
    with target.database.write() as connection:
        row = servers.fetch_server_row(connection, target.row.id, lock=True)
        if row is None:
            raise servers.Moved
        if row.deleted_at:
            raise server_not_found(row.id)
        check_action_allowed(caller, ServerTarget(target.database, row), column)
        document = change(getattr(row, column))
        servers.update_server_row(connection, row.id, **{column: servers.json_text(document)})
        notify_server(caller, target, connection)
    return document


@server_use_case(rule=f"{RULE}index")
def list_server_metadata(_caller: Caller, target: ServerTarget) -> str:
    """Return all metadata of the server, as JSON text."""
    return str(target.row.stored.metadata)


@server_use_case(rule=f"{RULE}show")
def show_server_metadata_item(_caller: Caller, target: ServerTarget, key: str) -> str:
    """Return the value of one metadata item of the server. Raises ``NotFound``."""
    if key not in target.row.metadata:
        raise _item_missing()
    return target.row.metadata[key]


def _item_missing() -> NotFound:
    return NotFound("Metadata item was not found")


def _metadata_limit(caller: Caller, target: ServerTarget) -> int:
    """Return the number of metadata items that the quota of the server's project allows."""
    return quotas.quota_limits(caller, target.row.project_id)["metadata_items"]


@server_use_case("metadata", f"{RULE}create")
def create_server_metadata(caller: Caller, target: ServerTarget, metadata: Metadata) -> Metadata:
    """Add or change items of the server's metadata, and return all items. Raises ``InvalidField`` when an item is a
    malformed policy for automatic evacuation (``ha_policy``)."""
    most = _metadata_limit(caller, target)
    check_ha_metadata(caller.cloud.settings, metadata)

    def added(old: Metadata) -> Metadata:
        new = {**old, **metadata}
        quotas.check_metadata_quota(most, new)
        return new

    all_metadata: Metadata = change_server_document(caller, target, "metadata", added)
    return all_metadata


#: The same as ``create_server_metadata``, with the policy rule for updates.
update_server_metadata = server_use_case("metadata", f"{RULE}update")(create_server_metadata.function)


@server_use_case("metadata", f"{RULE}update_all")
def replace_server_metadata(caller: Caller, target: ServerTarget, metadata: Metadata) -> Metadata:
    """Replace all metadata of the server with *metadata*, and return it. Raises ``InvalidField`` when an item is a
    malformed policy for automatic evacuation (``ha_policy``)."""
    quotas.check_metadata_quota(_metadata_limit(caller, target), metadata)
    check_ha_metadata(caller.cloud.settings, metadata)
    all_metadata: Metadata = change_server_document(caller, target, "metadata", lambda _old: metadata)
    return all_metadata


@server_use_case("metadata", f"{RULE}delete")
def delete_server_metadata_item(caller: Caller, target: ServerTarget, key: str) -> None:
    """Remove an item from the metadata of the server. Raises ``NotFound``."""
    def without(old: Metadata) -> Metadata:
        if key not in old:
            raise _item_missing()
        return {name: value for name, value in old.items() if name != key}

    change_server_document(caller, target, "metadata", without)
