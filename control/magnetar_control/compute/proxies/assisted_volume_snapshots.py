# SPDX-License-Identifier: GPL-3.0-or-later
"""Assisted volume snapshots, which are always refused, after all other checks.

In Nova, volume services whose volumes are files request them: QEMU then writes to an overlay of a disk in use. Here the
agents own the volumes, and copy a disk in use into a snapshot themselves. They start a server with the volume's single
file, so an overlay would be lost at the next start.
"""

from __future__ import annotations

from typing import Any

from magnetar_control.compute.caller import Caller, use_case
from magnetar_core.errors import InvalidRequest, MagnetarError, NotFound

RULE = "os_compute_api:os-assisted-volume-snapshots:"


@use_case(f"{RULE}create")
def create_assisted_snapshot(caller: Caller, volume_id: str) -> None:
    """Refuse the request, because volumes here have no assisted snapshots: always raise ``InvalidRequest``, also (as in
    Nova) when no server has the volume."""
    _refuse_snapshot(caller, volume_id, InvalidRequest)


@use_case(f"{RULE}delete")
def delete_assisted_snapshot(caller: Caller, _snapshot_id: str, volume_id: str) -> None:
    """Refuse the request, because volumes here have no assisted snapshots: always raise ``InvalidRequest``, or
    ``NotFound`` when no server has the volume."""
    _refuse_snapshot(caller, volume_id, NotFound)


def _refuse_snapshot(caller: Caller, volume_id: str, unknown: type[MagnetarError]) -> None:
    volume: dict[str, Any] | None = caller.cloud.services.volume.show(caller.context, volume_id)
    servers = [attachment["server_id"] for attachment in (volume or {}).get("attachments") or ()
               if attachment["server_id"]]
    if not servers:
        raise unknown(f"No volume Block Device Mapping with id {volume_id}.")
    if len(servers) > 1:
        raise InvalidRequest(f"Block Device Mapping {volume_id} is a multi-attach volume and is not valid for this "
                             "operation.")
    raise InvalidRequest(f"Volume {volume_id} has no assisted snapshots: it is not a file of a storage that the volume "
                         "service and the server's host share (such as NFS or GlusterFS), which needs them. Ask the "
                         "volume service for a snapshot; it takes one of a volume in use by itself.")
