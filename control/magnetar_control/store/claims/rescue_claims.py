# SPDX-License-Identifier: GPL-3.0-or-later
"""The disk that a server holds of its host besides its flavor's, while it is rescued."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from magnetar_control.store.engine.database import now
from magnetar_control.store.engine.tables import allocations, hosts

from .allocations import RAISE, Amounts, raised_by


def set_disk(connection: Connection, server_id: str, host: str, disk_gb: int) -> bool:
    """Set the GiB of disk that a server holds of the host of this name, whatever else it holds there.

    Return ``False``, with nothing changed, where the host has less left. A server without a claim, such as one that an
    operator has brought, gets none here: the audit sees to it. For a ``write`` transaction of the API database.
    """
    mine = select(allocations.c.host_id, allocations.c.disk_gb).join_from(
        allocations, hosts, hosts.c.id == allocations.c.host_id).where(
        allocations.c.consumer_id == server_id, hosts.c.name == host).with_for_update(of=allocations)
    held = connection.execute(mine).one_or_none()
    if held is None or held.disk_gb == disk_gb:
        return True
    more = Amounts(disk_gb=disk_gb - held.disk_gb)
    if not connection.execute(RAISE, raised_by(held.host_id, more, 0, anyway=True)).rowcount:
        return False
    connection.execute(update(allocations).where(
        allocations.c.consumer_id == server_id, allocations.c.host_id == held.host_id).values(
        disk_gb=disk_gb, generation=allocations.c.generation + 1, updated_at=now()))
    return True
