# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of snapshots."""

from __future__ import annotations

from magnetar_control.api.values import Id, record
from magnetar_control.services.volume import Embedded
from magnetar_control.services.volume.rows import check_admin, check_writer
from magnetar_control.web import Answer, Request
from magnetar_core.errors import InvalidRequest
from magnetar_core.values import Choices

from . import views
from .query import listing, page
from .values import METADATA, NAMES, TRUTH, body, named

CREATE = record({**NAMES, "volume_id": Id(), "force": TRUTH, "metadata": METADATA}, "volume_id")
UPDATE = record({**NAMES, "metadata": METADATA})
RESET = record({"status": Choices("available", "error", "creating", "deleting", "error_deleting")}, "status")
FILTERS = ("name", "status", "volume_id", "id", "user_id")


class SnapshotRoutes:
    """What the routes do."""

    def __init__(self, service: Embedded) -> None:
        self.service, self.snapshots = service, service.snapshots

    def list(self, request: Request, detailed: bool = False) -> Answer:
        """A page of snapshots."""
        asked = listing(request, FILTERS)
        found, count = self.snapshots.list(request.context, asked)
        shown = [views.snapshot(request, one, detailed) for one in found]
        return Answer(page(request, "snapshots", shown, asked.limit, count))

    def detail(self, request: Request) -> Answer:
        """The same in full."""
        return self.list(request, detailed=True)

    def show(self, request: Request, status: int = 200) -> Answer:
        """One."""
        found = self.snapshots.show(request.context, request.params["id"])
        return Answer({"snapshot": views.snapshot(request, found)}, status)

    def create(self, request: Request) -> Answer:
        """Note what is to be taken. A volume in use needs ``force`` before 3.66, where that went away."""
        check_writer(request.context)
        given = body(request, "snapshot", CREATE)
        free = request.extra["version"] >= (3, 66)
        if free and given.get("force") is False:
            raise InvalidRequest("Invalid input received: force must be left out or true from microversion 3.66 on.")
        made = self.service.create_snapshot(request.context, given["volume_id"], metadata=given.get("metadata"),
                                            in_use=free or bool(given.get("force")), **named(given))
        request.params["id"] = made["id"]
        return self.show(request, 202)

    def update(self, request: Request) -> Answer:
        """Name, description, metadata."""
        given = body(request, "snapshot", UPDATE)
        values = {**named(given), **{name: given[name] for name in ("metadata",) if name in given}}
        self.snapshots.update(request.context, request.params["id"], **values)
        return self.show(request)

    def delete(self, request: Request) -> Answer:
        """Note that it is to go."""
        self.snapshots.delete(request.context, request.params["id"])
        return Answer(None, 202)

    def act(self, request: Request) -> Answer:
        """Admins' actions: os-reset_status, os-force_delete."""
        check_admin(request.context)
        if request.json() in ({"os-force_delete": {}}, {"os-force_delete": None}):
            self.snapshots.delete(request.context, request.params["id"], force=True)
        else:
            status = body(request, "os-reset_status", RESET)["status"]
            self.snapshots.reset_status(request.context, request.params["id"], status)
        return Answer(None, 202)
