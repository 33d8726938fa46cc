# SPDX-License-Identifier: GPL-3.0-or-later
"""Assisted volume snapshots: a volume service whose volumes are files asks for QEMU's overlay of a disk in use. Volumes
here are the agents' own, who copy a disk in use into a snapshot by themselves, and start a server with the volume's one
file: an overlay beside it would be lost with the next start. So each is refused, when all else is right."""

from __future__ import annotations

from typing import Any

from magnetar_control.compute.caller import Caller, use_case
from magnetar_core.errors import InvalidRequest, MagnetarError, NotFound

RULE = "os_compute_api:os-assisted-volume-snapshots:"


@use_case(f"{RULE}create")
def create(caller: Caller, volume_id: str) -> None:
    """Raises ``InvalidRequest``, also where no server has the volume, as in Nova."""
    _refuse(caller, volume_id, InvalidRequest)


@use_case(f"{RULE}delete")
def delete(caller: Caller, _snapshot_id: str, volume_id: str) -> None:
    """Raises ``InvalidRequest``, or ``NotFound`` where no server has the volume."""
    _refuse(caller, volume_id, NotFound)


def _refuse(caller: Caller, volume_id: str, unknown: type[MagnetarError]) -> None:
    volume: dict[str, Any] | None = caller.cloud.services.volume.show(caller.context, volume_id)
    servers = [one["server_id"] for one in (volume or {}).get("attachments") or () if one["server_id"]]
    if not servers:
        raise unknown(f"No volume Block Device Mapping with id {volume_id}.")
    if len(servers) > 1:
        raise InvalidRequest(f"Block Device Mapping {volume_id} is a multi-attach volume and is not valid for this "
                             "operation.")
    raise InvalidRequest(f"Volume {volume_id} has no assisted snapshots: it is not a file of a storage that the volume "
                         "service and the server's host share (such as NFS or GlusterFS), which needs them. Ask the "
                         "volume service for a snapshot; it takes one of a volume in use by itself.")
