# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a cell's hosts for the scheduler: which hosts are up, the data of their last heartbeat, and how busy
they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, func, or_, select

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import host_states, servers
from magnetar_control.store.servers.servers import MAPPING, NETWORKING, SPAWNING
from magnetar_core.power import REBUILD

from .host_leases import NOT_REFUSED


class CellSnapshot(NamedTuple):
    """The state of a cell's hosts, for the scheduler; all mappings are by host name. *up*: data of the last heartbeat
    (``metrics``, ``images``) of each host that is up. *io_ops*: the number of servers whose task_state keeps the disks
    busy. *flavors*: the names of the servers' flavors; ``None`` if they were not requested. *refused*: hosts whose
    reports the conductor rejects."""

    up: Mapping[str, Mapping[str, Any]]
    io_ops: Mapping[str, int]
    flavors: Mapping[str, set[str]] | None = None
    refused: Collection[str] = ()


#: The state of a cell that does not answer: all its hosts count as down.
NOTHING = CellSnapshot({}, {})
#: The task_states in which a server keeps the disks of its host busy: Nova's, and those of a build, which Nova detects
#: by vm_state; task_state has an index.
HEAVY = ("scheduling", NETWORKING, MAPPING, SPAWNING, "resize_prep", "resize_migrating", *REBUILD, "rescuing",
         "unshelving", "image_snapshot", "image_backup")
_IO_OPS = select(servers.c.host, func.count()).where(
    servers.c.task_state.in_(HEAVY), servers.c.host.is_not(None), servers.c.deleted_at.is_(None)
).group_by(servers.c.host)
_FLAVORS = select(servers.c.host, servers.c.flavor).where(
    servers.c.host.is_not(None), servers.c.deleted_at.is_(None)).distinct()


def fetch_heard_hosts(seconds: float, database: Database) -> frozenset[str]:
    """Return the names of the hosts that sent a heartbeat within the last *seconds*, by the database's clock."""
    with database.read() as connection:
        return frozenset(connection.execute(select(host_states.c.host).where(
            host_states.c.seen_at > database.clock(-seconds), NOT_REFUSED)).scalars())


def read_cell_hosts(silence: float, flavors: bool, database: Database) -> CellSnapshot:
    """Return the state of a cell's hosts. A host counts as down after *silence* seconds without a heartbeat, by the
    database's clock. *flavors*: whether to also read the names of the servers' flavors."""
    with database.read() as connection:
        late = database.clock(-silence)
        query = select(host_states.c.host, host_states.c.told, NOT_REFUSED).where(
            or_(host_states.c.seen_at > late, ~NOT_REFUSED))
        rows = connection.execute(query).all()
        up = {host: orjson.loads(heartbeat) if heartbeat else {} for host, heartbeat, accepted in rows if accepted}
        refused = frozenset(host for host, _heartbeat, accepted in rows if not accepted)
        return CellSnapshot(up, io_ops(connection), flavor_names(connection) if flavors else None, refused)


def io_ops(connection: Connection) -> dict[str, int]:
    """Return, for each host of a cell, the number of servers whose task_state (one of ``HEAVY``) keeps the host's disks
    busy. Hosts without such servers are absent."""
    return dict(connection.execute(_IO_OPS).all())


def flavor_names(connection: Connection) -> dict[str, set[str]]:
    """Return, for each host of a cell, the names of its servers' flavors; hosts without servers are absent."""
    names_by_host: dict[str, set[str]] = {}
    for host, flavor in connection.execute(_FLAVORS):
        names_by_host.setdefault(host, set()).add(str(orjson.loads(flavor)["name"]))
    return names_by_host
