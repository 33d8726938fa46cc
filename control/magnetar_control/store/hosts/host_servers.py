# SPDX-License-Identifier: GPL-3.0-or-later
"""What the scheduler asks about the servers that hosts of a cell have."""

from __future__ import annotations

import orjson
from sqlalchemy import Connection, func, select

from magnetar_control.store.engine.tables import servers
from magnetar_control.store.servers.servers import MAPPING, NETWORKING, SPAWNING
from magnetar_core.power import REBUILD

#: The task_states in which a server keeps the disks of its host busy: Nova's, and those of one that is being built,
#: which Nova knows by its vm_state; task_state has an index.
HEAVY = ("scheduling", NETWORKING, MAPPING, SPAWNING, "resize_prep", "resize_migrating", *REBUILD, "rescuing",
         "unshelving", "image_snapshot", "image_backup")
_IO_OPS = select(servers.c.host, func.count()).where(
    servers.c.task_state.in_(HEAVY), servers.c.host.is_not(None), servers.c.deleted_at.is_(None)
).group_by(servers.c.host)
_FLAVORS = select(servers.c.host, servers.c.flavor).where(
    servers.c.host.is_not(None), servers.c.deleted_at.is_(None)).distinct()


def io_ops(connection: Connection) -> dict[str, int]:
    """The number of servers with a ``HEAVY`` task_state on each host of a cell; hosts without are absent."""
    return dict(connection.execute(_IO_OPS).all())


def flavor_names(connection: Connection) -> dict[str, set[str]]:
    """Names of the flavors of the servers on each host of a cell; hosts without are absent."""
    found: dict[str, set[str]] = {}
    for host, flavor in connection.execute(_FLAVORS):
        found.setdefault(host, set()).add(str(orjson.loads(flavor)["name"]))
    return found
