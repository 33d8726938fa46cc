# SPDX-License-Identifier: GPL-3.0-or-later
"""The check that a host has enough PCI devices for a claim, next to the devices that its servers hold. Devices of a
server and its migration on one host count once: only one of the two uses them at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import orjson
from sqlalchemy import Connection, select

from magnetar_control.store.engine.tables import allocations, hosts
from magnetar_core.hardware import pci

#: Number of devices of each alias, by server.
Counts = Mapping[str, Mapping[str, int]]


class DeviceRoom(NamedTuple):
    """The PCI devices of a host, free and claimed. *pools*: groups of equal devices, with the number of devices in each
    group. *held*: the number of devices that servers claim on the host, by server uuid, then by PCI alias."""

    pools: Sequence[pci.DevicePool]
    held: Counts


def lock_device_room(connection: Connection, host_id: str, excluded_servers: Sequence[str] = ()) -> DeviceRoom | None:
    """Lock the host's row and return its PCI devices and the claims on them; ``None`` when the host does not exist.
    *excluded_servers*: uuids of servers whose devices count as free."""
    info = connection.execute(select(hosts.c.info).where(hosts.c.id == host_id).with_for_update()).scalar_one_or_none()
    if info is None:
        return None
    devices_by_server: dict[str, dict[str, int]] = {}
    for server, text in connection.execute(select(allocations.c.server_id, allocations.c.devices).where(
            allocations.c.host_id == host_id, allocations.c.devices != "{}")):
        if server not in excluded_servers:
            of = devices_by_server.setdefault(server, {})
            of.update({alias: max(count, of.get(alias, 0)) for alias, count in orjson.loads(text).items()})
    return DeviceRoom(pci.device_pools(orjson.loads(info)), devices_by_server)


def devices_suffice(room: DeviceRoom, requested: Counts) -> bool:
    """Return whether the host has enough PCI devices for *requested*: numbers of devices by server uuid, then by PCI
    alias. A server keeps the devices that it already claims on the host, so only additional ones must be free. *room*:
    from ``lock_device_room``."""
    more = [{alias: count - room.held.get(server, {}).get(alias, 0) for alias, count in devices.items()}
            for server, devices in requested.items()]
    if not any(count > 0 for counts in more for count in counts.values()):
        return True
    return pci.pools_suffice(room.pools, [pool.total for pool in room.pools], more, occupied=room.held.values())


def claimed_devices_suffice(connection: Connection, host_id: str, claimed: Counts) -> bool:
    """Return whether the host has enough PCI devices for the claims *claimed*, which the caller's transaction has
    already written to the database: numbers of devices by server uuid, then by PCI alias. Locks the host's row until
    the transaction ends."""
    room = lock_device_room(connection, host_id, tuple(claimed))
    return room is not None and devices_suffice(room, claimed)
