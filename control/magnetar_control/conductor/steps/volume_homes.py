# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a server's volumes, when the server gets another host. A volume in a pool that several hosts reach moves
along, without a copy."""

from __future__ import annotations

from magnetar_control.conductor.worker.work import Work
from magnetar_control.documents import VolumeOfServer


def must_move(work: Work, attachment: VolumeOfServer, place: str, host: str) -> bool:
    """Return whether the volume, which *place* has, must get the server's *host* as its host: as a root disk, or
    because *place* is down."""
    return place != host and (attachment["boot_index"] == 0 or not work.conductor.is_up(place))


def bring_volume(work: Work, attachment: VolumeOfServer, host: str) -> str:
    """Return the host of a volume of the server on *host*: *host* itself if the volume must move there and can."""
    volumes, id = work.conductor.services.volume, attachment["volume_id"]
    place: str = volumes.where(id)
    if must_move(work, attachment, place, host) and host in volumes.homes.hosts(id):
        volumes.homes.move(id, host, work.id, work.confirm_lease)
        return host
    return place


def hosts_for_volumes(work: Work, source: str | None = None) -> frozenset[str] | None:
    """Return the hosts that can have the server with all its volumes: those that reach its root disk, and the volumes
    of hosts that are down, as *source*; ``None`` for any host. A volume that only another host reaches, which is down,
    limits nothing: that host is waited for."""
    volumes = work.conductor.services.volume
    hosts: frozenset[str] | None = None
    for attachment in work.volumes:
        place = volumes.where(attachment["volume_id"])
        if attachment["boot_index"] == 0 or place == source or not work.conductor.is_up(place):
            reached: frozenset[str] = volumes.homes.hosts(attachment["volume_id"])
            if attachment["boot_index"] == 0 or place == source or len(reached) > 1:
                hosts = reached if hosts is None else hosts & reached
    return hosts
