# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests about volumes and snapshots that Nova forwards to the volume service until 2.35."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.services.volume.rows import VolumeListing
from magnetar_core.document import Document, Documents
from magnetar_core.errors import InvalidField

RULE = "os_compute_api:os-volumes:"
SNAPSHOTS = f"{RULE}snapshots:"


@use_case(f"{RULE}list")
def list_volumes(caller: Caller, limit: int, offset: int = 0) -> Documents:
    """Return at most *limit* volumes of the caller's project, newest first. The first *offset* volumes are skipped."""
    volumes: Documents = caller.cloud.services.volume.volumes.list(
        caller.context, VolumeListing(limit=limit, offset=offset))[0]
    return volumes


#: The same as ``list_volumes``, with a policy rule of its own.
list_volumes_detail = use_case(f"{RULE}detail")(list_volumes.function)


@use_case(f"{RULE}show")
def show_volume(caller: Caller, id: str) -> Document:
    """Return the volume *id*. Raises ``NotFound``."""
    volume: Document = caller.cloud.services.volume.volumes.show(caller.context, id)
    return volume


@use_case(f"{RULE}create")
def create_volume(caller: Caller, size: int, *, name: str | None = None, description: str | None = None,
                  snapshot_id: str | None = None, volume_type: str | None = None,
                  metadata: Mapping[str, str] | None = None, zone: str | None = None) -> Document:
    """Create a volume of *size* GiB, empty or from the snapshot *snapshot_id*, and return it while its content is still
    being created. Raises ``InvalidRequest``, ``NotFound``, ``Forbidden``, and ``InvalidField`` when *zone* is not the
    availability zone of the volume service."""
    service = caller.cloud.services.volume
    if zone not in (None, "", service.zone):
        raise InvalidField("volume.availability_zone", f"must be {service.zone}, where all volumes are", zone)
    return service.create(caller.context, size, name=name, description=description, snapshot_id=snapshot_id,
                          volume_type=volume_type, metadata=metadata)


@use_case(f"{RULE}delete")
def delete_volume(caller: Caller, id: str) -> None:
    """Delete the volume *id*. Raises ``NotFound``, ``InvalidRequest`` while the volume is in use."""
    caller.cloud.services.volume.volumes.delete(caller.context, id)


@use_case(f"{SNAPSHOTS}list")
def list_volume_snapshots(caller: Caller, limit: int, offset: int = 0) -> Documents:
    """Return at most *limit* snapshots of the caller's project, newest first. The first *offset* snapshots are skipped.
    """
    snapshots: Documents = caller.cloud.services.volume.snapshots.list(
        caller.context, VolumeListing(limit=limit, offset=offset))[0]
    return snapshots


#: The same as ``list_volume_snapshots``, with a policy rule of its own.
list_volume_snapshots_detail = use_case(f"{SNAPSHOTS}detail")(list_volume_snapshots.function)


@use_case(f"{SNAPSHOTS}show")
def show_volume_snapshot(caller: Caller, id: str) -> Document:
    """Return the volume snapshot *id*. Raises ``NotFound``."""
    snapshot: Document = caller.cloud.services.volume.snapshots.show(caller.context, id)
    return snapshot


@use_case(f"{SNAPSHOTS}create")
def create_volume_snapshot(caller: Caller, volume_id: str, *, name: str | None = None, description: str | None = None,
                           force: bool = False) -> Document:
    """Create a snapshot of the volume *volume_id*, and return it while its content is still being copied. *force*:
    allow a volume that is in use. Raises ``NotFound``, ``InvalidRequest``, ``Forbidden``."""
    return caller.cloud.services.volume.create_snapshot(caller.context, volume_id, name=name, description=description,
                                                        in_use=force)


@use_case(f"{SNAPSHOTS}delete")
def delete_volume_snapshot(caller: Caller, id: str) -> None:
    """Delete the volume snapshot *id*. Raises ``NotFound``, ``InvalidRequest``."""
    caller.cloud.services.volume.snapshots.delete(caller.context, id)
