# SPDX-License-Identifier: GPL-3.0-or-later
"""The row of a server, with its JSON documents as typed objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from magnetar_control.documents import (
    AddressesOfServer,
    FaultOfServer,
    FlavorOfServer,
    ImageOfServer,
    SecurityGroupOfServer,
    ServerNic,
    ServerRequest,
    ShareOfServer,
    VolumeOfServer,
)
from magnetar_control.store.engine.rows import DocumentColumn, StoredRow
from magnetar_control.store.engine.tables import column_defaults, servers

_DEFAULTS = column_defaults(servers)


class ServerRow(StoredRow):
    """A row of the table ``servers``. Callers must not modify its documents (decoded JSON columns), because they are
    cached."""

    id: str
    project_id: str
    user_id: str
    name: str
    description: str | None
    hostname: str | None
    vm_state: str
    task_state: str | None
    power_state: int
    progress: int
    host: Any
    instance_name: str | None
    availability_zone: str | None
    pinned_availability_zone: str | None
    flavor_id: str
    image_id: Any
    key_name: str | None
    user_data: str | None
    config_drive: bool
    locked_by: str | None
    locked_reason: str | None
    access_ip_v4: str | None
    access_ip_v6: str | None
    disk_config: str
    root_device_name: str | None
    reservation_id: str | None
    launch_index: int
    shelved_at: str | None
    shelved_image_id: str | None
    soft_deleted_at: str | None
    rescue_gb: int | None
    password: str | None
    cleared_password: str | None
    guest_revision: int
    guest_data_due: bool | None
    leaving: str | None
    cell_moves: int
    launched_at: str | None
    terminated_at: str | None
    deleted_at: str | None
    created_at: str
    updated_at: str | None

    flavor = DocumentColumn[FlavorOfServer]()
    #: The flavor before a resize that waits for confirm or revert.
    old_flavor = DocumentColumn[FlavorOfServer]()
    image = DocumentColumn[ImageOfServer]()
    metadata = DocumentColumn[Mapping[str, str]]()
    tags = DocumentColumn[Sequence[str]]()
    security_groups = DocumentColumn[Sequence[SecurityGroupOfServer]]()
    nics = DocumentColumn[Sequence[ServerNic]]("interfaces")
    addresses = DocumentColumn[AddressesOfServer]()
    #: The attached volumes, and those that are being attached.
    volumes = DocumentColumn[Sequence[VolumeOfServer]]()
    shares = DocumentColumn[Sequence[ShareOfServer]]()
    request = DocumentColumn[ServerRequest]()
    hints = DocumentColumn[Mapping[str, Any]]()
    trusted_certs = DocumentColumn[Sequence[str] | None]()
    fault = DocumentColumn[FaultOfServer | None]()

    def fault_line(self, default: str) -> str:
        """Return the last line of the server's fault message, its most specific part; *default* if it has no fault."""
        fault = self.fault
        text = str(fault.get("details") or fault["message"]).strip() if fault else ""
        return text.splitlines()[-1] if text else default

    @classmethod
    def of_values(cls, values: Mapping[Any, Any]) -> Self:
        """Return a row of these column values (by column name) that was not read from the database. Missing columns
        have their defaults."""
        return super().of_values({**_DEFAULTS, **values})
