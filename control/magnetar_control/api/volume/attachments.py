# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of attachments (3.27), as Nova uses them: create, update with a connector, complete, delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from magnetar_control.api.values import Id, build_record
from magnetar_control.services.volume.rows import VolumeListing
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document, Documents
from magnetar_core.errors import InvalidRequest, NotFound
from magnetar_core.values import Nullable

from . import views
from .nouns import VolumeResourceRoutes
from .values import CONNECTOR, ID, MODE, checked_body

CREATE = build_record({"instance_uuid": ID, "volume_uuid": Id(), "connector": Nullable(CONNECTOR), "mode": MODE},
                      "volume_uuid")
UPDATE = build_record({"connector": CONNECTOR}, "connector")


class AttachmentRoutes(VolumeResourceRoutes):
    name, accepted = "attachment", 200
    filters = ("volume_id", "status", "id", "server_id")
    view = staticmethod(views.volume_attachment_view)

    def routes(self) -> list[Guarded]:
        return [*(replace(route, handler=_since(27, route.handler)) for route in super().routes()),
                guarded_route("POST attachments/{id}/action", _since(44, self.act), 204)]

    def page(self, request: Request, listing: VolumeListing, detailed: bool) -> tuple[Documents, int | None]:
        return self.store.list(request.context, listing)[0], None

    def create(self, request: Request) -> Document:
        """Create an attachment, which reserves a volume for a server, and return it."""
        attachment = checked_body(request, "attachment", CREATE)
        request.params["id"] = self.store.create(
            request.context, attachment["volume_uuid"], attachment.get("instance_uuid"), attachment.get("mode") or "rw",
            attachment.get("connector"))
        return self.show(request)

    def update(self, request: Request) -> Document:
        self.store.update(*request.service_arguments(checked_body(request, "attachment", UPDATE)["connector"]))
        return self.show(request)

    def act(self, request: Request) -> None:
        """Complete the attachment after the server has connected the volume: the action ``os-complete`` (3.44)."""
        document = request.json()
        if not isinstance(document, dict) or list(document) != ["os-complete"]:
            raise InvalidRequest("The one action of an attachment is {\"os-complete\": {}}.")
        self.store.complete(*request.service_arguments())

    def delete(self, request: Request) -> Document:
        """Delete the attachment. Return the other attachments of the volume."""
        return {"attachments": [self.view(request, row, detailed=False)
                                for row in self.store.delete(*request.service_arguments())]}


def _since(minor: int, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """Return a handler that calls *handler*, but raises ``NotFound`` before microversion 3.*minor*, as for an unknown
    route."""
    def checked(request: Request) -> Any:
        if request.extra["version"] < (3, minor):
            raise NotFound(f"This is there from microversion 3.{minor} on; the request asked for "
                           f"3.{request.extra['version'][1]}.")
        return handler(request)

    return checked
