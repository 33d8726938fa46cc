# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of snapshots."""

from __future__ import annotations

from magnetar_control.api.values import Id, record
from magnetar_control.services import Document
from magnetar_control.services.volume.rows import check_admin, check_writer
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import InvalidRequest
from magnetar_core.values import Choices

from . import views
from .nouns import MOMENTS, NounRoutes
from .values import METADATA, NAMES, TRUTH, body, named

CREATE = record({**NAMES, "volume_id": Id(), "force": TRUTH, "metadata": METADATA}, "volume_id")
RESET = record({"status": Choices("available", "error", "creating", "deleting", "error_deleting")}, "status")


class SnapshotRoutes(NounRoutes):
    name = "snapshot"
    filters = ("name", "status", "volume_id", "id", "user_id", "metadata", *MOMENTS)
    view = staticmethod(views.snapshot)

    def routes(self) -> list[Guarded]:
        return [*super().routes(), route("POST snapshots/{id}/action", self.act, 202)]

    def create(self, request: Request) -> Document:
        """Note what is to be taken. A volume in use needs ``force`` before 3.66, where that went away."""
        check_writer(request.context)
        given = body(request, "snapshot", CREATE)
        free = request.extra["version"] >= (3, 66)
        if free and given.get("force") is False:
            raise InvalidRequest("Invalid input received: force must be left out or true from microversion 3.66 on.")
        made = self.service.create_snapshot(request.context, given["volume_id"], metadata=given.get("metadata"),
                                            in_use=free or bool(given.get("force")), **named(given))
        request.params["id"] = made["id"]
        return self.changed(request)

    def act(self, request: Request) -> None:
        """Admins' actions: os-reset_status, os-force_delete."""
        check_admin(request.context)
        if request.json() in ({"os-force_delete": {}}, {"os-force_delete": None}, {"os-force_delete": ""}):
            self.store.delete(*request.named(), force=True)
        else:
            self.store.reset_status(*request.named(body(request, "os-reset_status", RESET)["status"]))
