# SPDX-License-Identifier: GPL-3.0-or-later
"""Which servers are deleted, by what all databases say."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select

from magnetar_control.store.engine.tables import server_mappings, servers
from magnetar_control.store.store import Store


def deleted_servers(store: Store, ids: Iterable[str], silent: Iterable[str] = ()) -> tuple[set[str], dict[str, str]]:
    """Of servers without a live row: the deleted ones, and the cell of those that are mapped and not known to be
    deleted. A server is deleted when its row in its cell says so or, where the cell answers, its mapping. *silent*:
    cells that are not asked."""
    some, silent, rows = list(ids), set(silent), []
    with store.api.read() as connection:
        mapped = {row.server_id: row for row in connection.execute(
            select(server_mappings).where(server_mappings.c.server_id.in_(some)))}
    for cell, database in store.databases():
        if cell.id not in silent:
            with database.read() as connection:
                rows += [(row.id, row.deleted_at, cell.id) for row in connection.execute(
                    select(servers.c.id, servers.c.deleted_at).where(servers.c.id.in_(some)))]
    live = {id for id, deleted_at, _cell in rows if deleted_at is None}
    deleted = {id for id, mapping in mapped.items() if mapping.deleted and mapping.cell_id not in silent}
    deleted |= {id for id, deleted_at, cell in rows if deleted_at and (id not in mapped or mapped[id].cell_id == cell)}
    deleted -= live
    return deleted, {id: mapping.cell_id for id, mapping in mapped.items() if id not in deleted | live}
