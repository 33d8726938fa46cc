# SPDX-License-Identifier: GPL-3.0-or-later
"""What the scheduler reads of a cell's hosts: which are up, what they told with their last heartbeat, how busy they
are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from sqlalchemy import select

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import host_states

from .host_servers import flavor_names, io_ops


class CellLook(NamedTuple):
    """*up*: the hosts of a cell that sent a heartbeat lately, with what they told then: ``metrics``, ``images``.
    *io_ops*: see ``servers.io_ops``. *flavors*: see ``servers.flavor_names``; ``None`` where nobody looks at it."""

    up: Mapping[str, Mapping[str, Any]]
    io_ops: Mapping[str, int]
    flavors: Mapping[str, set[str]] | None = None


#: Of a cell that does not answer: its hosts are down, as far as anybody can tell.
NOTHING = CellLook({}, {})


def heard_hosts(seconds: float, database: Database) -> frozenset[str]:
    """Return the hosts that sent a heartbeat within so many *seconds*, by the database's clock."""
    with database.read() as connection:
        return frozenset(connection.execute(select(host_states.c.host).where(
            host_states.c.seen_at > database.clock(-seconds))).scalars())


def look(silence: float, flavors: bool, database: Database) -> CellLook:
    """*silence*: seconds without a heartbeat, by the database's clock, after which a host is down."""
    with database.read() as connection:
        late = database.clock(-silence)
        query = select(host_states.c.host, host_states.c.told).where(host_states.c.seen_at > late)
        up = {host: orjson.loads(told) if told else {} for host, told in connection.execute(query)}
        return CellLook(up, io_ops(connection), flavor_names(connection) if flavors else None)
