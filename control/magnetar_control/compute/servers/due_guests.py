# SPDX-License-Identifier: GPL-3.0-or-later
"""Marking of servers whose guests must learn of a change that is in no column of the server, such as a floating IP."""

from __future__ import annotations

from collections.abc import Collection

from magnetar_control.store.servers import servers
from magnetar_control.store.store import Store


def mark_guests_due(store: Store, server_ids: Collection[str]) -> None:
    """Mark servers whose metadata has changed, so that a conductor sends the new metadata to their guests later
    (``conductor.hosts.guest_updates``). Deleted servers, and servers in cells that do not answer, are ignored."""
    for id, (database, row) in servers.find_server_rows(store, server_ids).items():
        if row is not None:
            with database.write() as connection:
                servers.mark_guest_due(connection, id)
