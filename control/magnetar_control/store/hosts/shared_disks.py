# SPDX-License-Identifier: GPL-3.0-or-later
"""Storage that several hosts share for the own disks of their servers, as hosts report it: a folder (``disk_folder`` of
``kinds.Host``) or a pool of Ceph (``disk_pool``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .host_row import HostRow

if TYPE_CHECKING:
    from magnetar_control.store.servers.server_row import ServerRow


def shared_disks_of(row: HostRow | None, server: ServerRow) -> Mapping[str, Any]:
    """Return what the host *row* reports about its shared storage for servers' disks: the shared folder, or without one
    the Ceph pool. Return an empty mapping without such storage, or if *row* is ``None``. For a Ceph pool, also return
    an empty mapping if all disks of *server* are volumes, or its disks are not in the pool."""
    info = row.info if row is not None else {}
    if (folder := _report(info, "disk_folder")).get("id"):
        return folder
    pool = _report(info, "disk_pool")
    return pool if pool.get("id") and server.id not in (pool.get("others") or ()) and _has_own_disks(server) else {}


def find_shared_storage(info: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the id of the shared storage for servers' disks in *info*, a host's report, and whether the host can use
    it now; ``("", False)`` if it has none."""
    for storage in (_report(info, "disk_folder"), _report(info, "disk_pool")):
        if storage.get("id"):
            return str(storage["id"]), not storage.get("reason")
    return "", False


def do_hosts_share_disks(source: HostRow | None, target: HostRow | None, server: ServerRow) -> bool:
    """Return whether the host *target* can take over the disks of *server* on the host *source* without a copy: both
    hosts report the same shared storage. Also true while *target* cannot use the storage."""
    id = shared_disks_of(source, server).get("id")
    return bool(id) and target is not None and find_shared_storage(target.info)[0] == id


def _report(info: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    storage = info.get(field)
    return storage if isinstance(storage, Mapping) else {}


def _has_own_disks(server: ServerRow) -> bool:
    """Return whether the server has a disk that is not a volume: a root disk from an image, an ephemeral disk or a swap
    disk."""
    boots_from_volume = not server.image_id or any(volume["boot_index"] == 0 for volume in server.volumes)
    return not boots_from_volume or bool(server.flavor.get("ephemeral") or server.flavor.get("swap"))
