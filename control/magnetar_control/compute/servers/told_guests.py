# SPDX-License-Identifier: GPL-3.0-or-later
"""Guests that must be told of a change that is in no column of their servers, such as a floating IP."""

from __future__ import annotations

from collections.abc import Collection

from magnetar_control.store.servers import servers, told_guests
from magnetar_control.store.store import Store


def note_guests(store: Store, server_ids: Collection[str]) -> None:
    """Note that the guests of these servers must be told; a conductor does it (``conductor.hosts.guest_news``). Servers
    that are gone, and those of cells that do not answer, are left out."""
    for id, (database, row) in servers.find_each(store, server_ids).items():
        if row is not None:
            with database.write() as connection:
                told_guests.mark_due(connection, id)
