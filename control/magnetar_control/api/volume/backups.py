# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of backups of volumes: list, show, create, update, restore, delete, and records for other databases."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.values import Id, build_record
from magnetar_control.services.volume.rows import check_admin, check_volume_writer
from magnetar_control.web import Fault, Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.values import Choices, Nullable, Text

from . import views
from .nouns import UPDATE, VolumeResourceRoutes
from .values import ID, METADATA, NAME, NAMES, TRUTH, checked_body, name_fields

#: Minor microversions: updates, metadata, and the zone of a backup.
UPDATES, WITH_METADATA, WITH_ZONE = 9, 43, 51
CREATE = {**NAMES, "volume_id": Id(), "snapshot_id": ID, "container": Nullable(Text(0, 255)), "incremental": TRUTH,
          "force": TRUTH}
#: The fields of a new backup at the latest microversion.
CREATE_NEW = build_record({**CREATE, "metadata": METADATA, "availability_zone": Nullable(Text(0, 255))}, "volume_id")
RESTORE = build_record({"volume_id": ID, "name": NAME})
RECORD = build_record({"backup_service": Text(1, 255), "backup_url": Text(1, 1 << 20)}, "backup_service", "backup_url")
RESET = build_record({"status": Choices("available", "error")}, "status")


class BackupRoutes(VolumeResourceRoutes):
    """The routes of volume backups in the Block Storage API, and their handlers."""

    name = "backup"
    filters = ("name", "status", "volume_id", "id")

    def routes(self) -> list[Guarded]:
        return [
            *super().routes(), guarded_route("POST backups/import_record", self.import_record, 201, who="admin"),
            guarded_route("GET backups/{id}/export_record", self.export_record, who="admin"),
            guarded_route("POST backups/{id}/restore", self.restore, 202),
            guarded_route("POST backups/{id}/action", self.act, 202)]

    def view(self, request: Request, row: Any, detailed: bool = True) -> Document:
        return views.backup_view(request, row, self.service.zone) if detailed else views.brief_backup_view(request, row)

    def create(self, request: Request) -> Document:
        """Create the database row of a new backup, and return it. A background worker then asks an agent to write the
        backup."""
        check_volume_writer(request.context)
        requested = checked_body(request, "backup", CREATE_NEW if self._since(request, WITH_ZONE) else build_record({
            **CREATE, **({"metadata": METADATA} if self._since(request, WITH_METADATA) else {})}, "volume_id"))
        if requested.get("availability_zone") not in (None, "", self.service.zone):
            raise InvalidField("backup.availability_zone", f"must be {self.service.zone}, the only zone of volumes",
                               requested["availability_zone"])
        backup = self.service.backups.create(
            request.context, requested["volume_id"], snapshot_id=requested.get("snapshot_id"),
            incremental=requested.get("incremental", False), force=requested.get("force", False),
            container=requested.get("container"), metadata=requested.get("metadata"), **name_fields(requested))
        return {"backup": views.brief_backup_view(request, backup)}

    def update(self, request: Request) -> Document:
        """Update name, description and metadata of the backup, and return it (3.9)."""
        if not self._since(request, UPDATES):
            raise Fault(404, f"Backups can be updated since microversion 3.{UPDATES}.")
        requested = checked_body(request, "backup", UPDATE if self._since(request, WITH_METADATA) else build_record(
            NAMES))
        values = {**name_fields(requested), **{name: requested[name] for name in ("metadata",) if name in requested}}
        if not values:
            raise InvalidField("backup", "must have a name, a description or metadata")
        self.store.update(*request.service_arguments(), **values)
        return {"backup": views.brief_backup_view(request, self.store.show(*request.service_arguments()))}

    def restore(self, request: Request) -> Document:
        """Request that a backup is restored to an existing volume or to a new one. Return {restore: {backup_id,
        volume_id, volume_name}}."""
        requested = checked_body(request, "restore", RESTORE)
        return {"restore": self.service.backups.restore(
            request.context, request.params["id"], requested.get("volume_id"), requested.get("name"))}

    def export_record(self, request: Request) -> Document:
        """Return the metadata of a backup as a backup record, which ``import_record`` of another cloud accepts."""
        return {"backup-record": self.service.backups.export_record(*request.service_arguments())}

    def import_record(self, request: Request) -> Document:
        """Add a backup to the caller's project from a backup record, and return the backup."""
        record = checked_body(request, "backup-record", RECORD)
        backup = self.service.backups.import_record(request.context, record["backup_service"], record["backup_url"])
        return {"backup": views.brief_backup_view(request, backup)}

    def act(self, request: Request) -> None:
        """Run an action of administrators on the backup: os-reset_status or os-force_delete."""
        check_admin(request.context)
        if request.json() in ({"os-force_delete": {}}, {"os-force_delete": None}, {"os-force_delete": ""}):
            self.service.backups.delete(request.context, request.params["id"], force=True)
        else:
            self.service.backups.reset_status(*request.service_arguments(checked_body(request, "os-reset_status",
                                                                                      RESET)["status"]))

    @staticmethod
    def _since(request: Request, minor: int) -> bool:
        """Return whether the microversion of the request is 3.*minor* or later."""
        return bool(request.extra["version"] >= (3, minor))
