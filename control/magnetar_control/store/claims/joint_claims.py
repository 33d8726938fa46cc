# SPDX-License-Identifier: GPL-3.0-or-later
"""One claim of what a server and its migration hold of the same host."""

from __future__ import annotations

from collections import Counter

import orjson
from sqlalchemy import Connection, delete, select, update

from magnetar_control.store.engine.database import now
from magnetar_control.store.engine.tables import allocations

from . import inventories
from .allocations import RAISE, RESOURCES, Amounts, raised_by


def join(connection: Connection, server_id: str, migration_id: str, host_id: str) -> None:
    """Have the server hold what it and its migration hold of the host, and the migration nothing of it. Nothing else of
    the host is claimed for that, so it is not refused, even where the host gives less by now; and a claim of less
    afterwards is not, either. PCI devices that both have are the same ones."""
    query = select(allocations).where(allocations.c.host_id == host_id, allocations.c.consumer_id.in_(
        (server_id, migration_id))).order_by(allocations.c.consumer_id).with_for_update()
    held = {row.consumer_id: row for row in connection.execute(query)}
    theirs, mine = held.get(migration_id), held.get(server_id)
    if theirs is None:
        return
    values = {"consumer_id": server_id, "updated_at": now()}
    if mine is not None:
        parts = [[orjson.loads(getattr(row, name)) for row in (theirs, mine)]
                 for name in ("resources", "devices", "places")]
        (a, b), (c, d), (old, new) = parts
        values |= {name: getattr(theirs, name) + getattr(mine, name) for name in RESOURCES}
        values |= {name: inventories.text(one) for name, one in (
            ("resources", Counter(a) + Counter(b)), ("devices", Counter(c) | Counter(d)), ("places", old | new))}
        connection.execute(delete(allocations).where(
            allocations.c.consumer_id == server_id, allocations.c.host_id == host_id))
        connection.execute(RAISE, raised_by(host_id, Amounts(), -1, anyway=True))
    connection.execute(update(allocations).where(
        allocations.c.consumer_id == migration_id, allocations.c.host_id == host_id).values(values))
