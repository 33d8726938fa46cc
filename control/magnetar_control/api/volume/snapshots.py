# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of snapshots."""

from __future__ import annotations

from magnetar_control.api.values import Id, build_record
from magnetar_control.services.volume.rows import check_admin, check_volume_writer
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidRequest
from magnetar_core.values import Choices

from . import views
from .nouns import MOMENTS, VolumeResourceRoutes
from .values import METADATA, NAMES, TRUTH, checked_body, name_fields

CREATE = build_record({**NAMES, "volume_id": Id(), "force": TRUTH, "metadata": METADATA}, "volume_id")
RESET = build_record({"status": Choices("available", "error", "creating", "deleting", "error_deleting")}, "status")


class SnapshotRoutes(VolumeResourceRoutes):
    name = "snapshot"
    filters = ("name", "status", "volume_id", "id", "user_id", "metadata", *MOMENTS)
    view = staticmethod(views.snapshot_view)

    def routes(self) -> list[Guarded]:
        return [*super().routes(), guarded_route("POST snapshots/{id}/action", self.act, 202)]

    def create(self, request: Request) -> Document:
        """Create the database row of a new snapshot, and return it; a background worker then creates the snapshot.
        Before 3.66, a snapshot of a volume in use needs ``force``."""
        check_volume_writer(request.context)
        requested = checked_body(request, "snapshot", CREATE)
        free = request.extra["version"] >= (3, 66)
        if free and requested.get("force") is False:
            raise InvalidRequest("Invalid input received: force must be left out or true from microversion 3.66 on.")
        made = self.service.create_snapshot(request.context, requested["volume_id"], metadata=requested.get("metadata"),
                                            in_use=free or bool(requested.get("force")), **name_fields(requested))
        request.params["id"] = made["id"]
        return self.changed(request)

    def act(self, request: Request) -> None:
        """Run an action of administrators on the snapshot: os-reset_status or os-force_delete."""
        check_admin(request.context)
        if request.json() in ({"os-force_delete": {}}, {"os-force_delete": None}, {"os-force_delete": ""}):
            self.store.delete(*request.service_arguments(), force=True)
        else:
            self.store.reset_status(*request.service_arguments(checked_body(request, "os-reset_status",
                                                                            RESET)["status"]))
