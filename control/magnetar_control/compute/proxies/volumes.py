# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes and their snapshots as Nova passes them on, until 2.35."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.services import Document, Documents
from magnetar_control.services.volume.rows import VolumeListing
from magnetar_core.errors import InvalidField

RULE = "os_compute_api:os-volumes:"
SNAPSHOTS = f"{RULE}snapshots:"


@use_case(f"{RULE}list")
def page(caller: Caller, limit: int, offset: int = 0) -> Documents:
    """The volumes of the caller's project, newest first."""
    found: Documents = caller.cloud.services.volume.volumes.list(
        caller.context, VolumeListing(limit=limit, offset=offset))[0]
    return found


#: As ``page``, by a rule of its own.
page_detail = use_case(f"{RULE}detail")(page.function)


@use_case(f"{RULE}show")
def show(caller: Caller, id: str) -> Document:
    """One. Raises ``NotFound``."""
    found: Document = caller.cloud.services.volume.volumes.show(caller.context, id)
    return found


@use_case(f"{RULE}create")
def create(caller: Caller, size: int, *, name: str | None = None, description: str | None = None,
           snapshot_id: str | None = None, volume_type: str | None = None, metadata: Mapping[str, str] | None = None,
           zone: str | None = None) -> Document:
    """A volume that is being made. Raises ``InvalidRequest``, ``NotFound``, ``Forbidden``."""
    service = caller.cloud.services.volume
    if zone not in (None, "", service.zone):
        raise InvalidField("volume.availability_zone", f"must be {service.zone}, where all volumes are", zone)
    return service.create(caller.context, size, name=name, description=description, snapshot_id=snapshot_id,
                          volume_type=volume_type, metadata=metadata)


@use_case(f"{RULE}delete")
def delete(caller: Caller, id: str) -> None:
    """Raises ``NotFound``, ``InvalidRequest`` while it is in use."""
    caller.cloud.services.volume.volumes.delete(caller.context, id)


@use_case(f"{SNAPSHOTS}list")
def snapshots(caller: Caller, limit: int, offset: int = 0) -> Documents:
    """Those of the caller's project, newest first."""
    found: Documents = caller.cloud.services.volume.snapshots.list(
        caller.context, VolumeListing(limit=limit, offset=offset))[0]
    return found


#: As ``snapshots``, by a rule of its own.
snapshots_detail = use_case(f"{SNAPSHOTS}detail")(snapshots.function)


@use_case(f"{SNAPSHOTS}show")
def show_snapshot(caller: Caller, id: str) -> Document:
    """One. Raises ``NotFound``."""
    found: Document = caller.cloud.services.volume.snapshots.show(caller.context, id)
    return found


@use_case(f"{SNAPSHOTS}create")
def create_snapshot(caller: Caller, volume_id: str, *, name: str | None = None, description: str | None = None,
                    force: bool = False) -> Document:
    """A snapshot that is being taken; *force*: also of a volume in use. Raises ``NotFound``, ``InvalidRequest``,
    ``Forbidden``."""
    return caller.cloud.services.volume.create_snapshot(caller.context, volume_id, name=name, description=description,
                                                        in_use=force)


@use_case(f"{SNAPSHOTS}delete")
def delete_snapshot(caller: Caller, id: str) -> None:
    """Raises ``NotFound``, ``InvalidRequest``."""
    caller.cloud.services.volume.snapshots.delete(caller.context, id)
