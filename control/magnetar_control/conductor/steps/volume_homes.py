# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of the host that stores a volume, when the server of the volume moves to another host. If several hosts
reach the pool of a volume, the volume moves with the server, without a copy."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from magnetar_control.conductor.worker.work import DOWN, HostDown, RunningAction
from magnetar_control.documents import VolumeOfServer
from magnetar_control.services.volume.access import VolumeAccess
from magnetar_core.errors import Conflict

log = logging.getLogger(__name__)


def must_move(work: RunningAction, attachment: VolumeOfServer, volume_host: str, host: str) -> bool:
    """Return whether *host*, which has the server, must become the host that stores the volume. The answer is ``False``
    if *volume_host*, the storing host now, is *host* already. Otherwise it is ``True`` if the volume is the root disk,
    or *volume_host* is down."""
    return volume_host != host and (attachment["boot_index"] == 0 or not work.conductor.is_up(volume_host))


def bring_volume(work: RunningAction, attachment: VolumeOfServer, host: str) -> str:
    """Return the name of the host that stores the volume for a server on *host*. First make *host* the storing host if
    ``must_move`` requires this and *host* can reach the storage pool that contains the volume."""
    volumes, id = work.conductor.services.volume, attachment["volume_id"]
    place: str = volumes.where(id)
    if must_move(work, attachment, place, host) and host in volumes.homes.hosts(id):
        move_volume(work, id, host)
        return host
    return place


def move_volume(work: RunningAction, id: str, host: str) -> None:
    """Make *host* the host that stores the volume *id* of the server. Raises ``HostDown`` if the agent of *host* does
    not answer, and ``Conflict`` if *host* cannot become the storing host."""
    try:
        work.conductor.services.volume.homes.move(id, host, work.id, work.confirm_lease)
    except DOWN as error:
        raise HostDown(f"The agent of host {host} does not answer: {error.message}") from None


def leave_dead_hosts(work: RunningAction, host: str, ids: Collection[str]) -> None:
    """If the host that stores one of the server's volumes *ids* is down, make *host*, which has the server, the storing
    host of this volume. Do this for each of *ids*. Skip volumes that *host* cannot access directly."""
    access: Mapping[str, VolumeAccess] = work.conductor.services.volume.homes.access(ids) if ids else {}
    for id, volume in access.items():
        if volume.host == host or work.conductor.is_up(volume.host) or not (volume.direct and host in volume.hosts):
            continue
        try:
            move_volume(work, id, host)
        except Conflict as error:  # another server has it too, or something is done with it
            log.info("server %s: volume %s stays with host %s, which is down: %s", work.id, id, volume.host,
                     error.message)


def hosts_for_volumes(work: RunningAction, source: str | None = None) -> frozenset[str] | None:
    """Return the names of the hosts on which the server can be rebuilt with all its volumes; ``None`` for any host.
    *source*: the server's old host, which is down; ``None`` if the server is on no host."""
    hosts: frozenset[str] | None = work.conductor.services.volume.homes.hosts_for_build(
        work.volumes, source, work.conductor.is_up)
    return hosts


def volumes_behind_fence(work: RunningAction, source: str) -> list[str]:
    """Return the uuids of the server's volumes to which a guest on the old host *source* can still write unless
    *source* is fenced (switched off)."""
    access: Mapping[str, VolumeAccess] = work.conductor.services.volume.homes.access(
        [attachment["volume_id"] for attachment in work.volumes])
    return sorted(id for id, volume in access.items() if volume.needs_fence(source))
