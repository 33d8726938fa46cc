# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a host has PCI devices enough for a claim, beside those that servers hold of it. What a server and its
migration hold of one host counts once: one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import orjson
from sqlalchemy import Connection, select

from magnetar_control.store.engine.tables import allocations, hosts
from magnetar_core.hardware import pci

#: How many devices of each alias, by server.
Counts = Mapping[str, Mapping[str, int]]


class DeviceRoom(NamedTuple):
    """The devices *there*, and what servers have *had* of them."""

    there: Sequence[pci.DevicePool]
    had: Counts


def read(connection: Connection, host_id: str, without: Sequence[str] = ()) -> DeviceRoom | None:
    """The room of a host, ``None`` where that has gone. Locks its row. *without*: servers whose devices do not count.
    """
    info = connection.execute(select(hosts.c.info).where(hosts.c.id == host_id).with_for_update()).scalar_one_or_none()
    if info is None:
        return None
    had: dict[str, dict[str, int]] = {}
    for server, text in connection.execute(select(allocations.c.server_id, allocations.c.devices).where(
            allocations.c.host_id == host_id, allocations.c.devices != "{}")):
        if server not in without:
            of = had.setdefault(server, {})
            of.update({alias: max(count, of.get(alias, 0)) for alias, count in orjson.loads(text).items()})
    return DeviceRoom(pci.pools(orjson.loads(info)), had)


def suffices(room: DeviceRoom, wanted: Counts) -> bool:
    """Whether there are enough for what is *wanted* by server. What a server has there is its own."""
    more = [{alias: count - room.had.get(server, {}).get(alias, 0) for alias, count in devices.items()}
            for server, devices in wanted.items()]
    if not any(count > 0 for one in more for count in one.values()):
        return True
    return pci.suffice(room.there, [pool.total for pool in room.there], more, held=room.had.values())


def sufficed(connection: Connection, host_id: str, claimed: Counts) -> bool:
    """Whether the host has devices enough for what is *claimed* by server, and written already. Locks its row."""
    room = read(connection, host_id, tuple(claimed))
    return room is not None and suffices(room, claimed)
