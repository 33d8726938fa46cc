# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of attachments (3.27), as Nova uses them: create, update with a connector, complete, delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from magnetar_control.api.values import Id, record
from magnetar_control.services import Document, Documents
from magnetar_control.services.volume.rows import VolumeListing
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import InvalidRequest, NotFound
from magnetar_core.values import Nullable

from . import views
from .nouns import NounRoutes
from .values import CONNECTOR, ID, MODE, body

CREATE = record({"instance_uuid": ID, "volume_uuid": Id(), "connector": Nullable(CONNECTOR), "mode": MODE},
                "volume_uuid")
UPDATE = record({"connector": CONNECTOR}, "connector")


class AttachmentRoutes(NounRoutes):
    name, accepted = "attachment", 200
    filters = ("volume_id", "status", "id", "server_id")
    view = staticmethod(views.attachment)

    def routes(self) -> list[Guarded]:
        return [*(replace(one, handler=_since(27, one.handler)) for one in super().routes()),
                route("POST attachments/{id}/action", _since(44, self.act), 204)]

    def page(self, request: Request, asked: VolumeListing, detailed: bool) -> tuple[Documents, int | None]:
        return self.store.list(request.context, asked)[0], None

    def create(self, request: Request) -> Document:
        """Keep the volume for a server."""
        given = body(request, "attachment", CREATE)
        request.params["id"] = self.store.create(
            request.context, given["volume_uuid"], given.get("instance_uuid"), given.get("mode") or "rw",
            given.get("connector"))
        return self.show(request)

    def update(self, request: Request) -> Document:
        self.store.update(*request.named(body(request, "attachment", UPDATE)["connector"]))
        return self.show(request)

    def act(self, request: Request) -> None:
        """``os-complete`` (3.44): the server has it now."""
        given = request.json()
        if not isinstance(given, dict) or list(given) != ["os-complete"]:
            raise InvalidRequest("The one action of an attachment is {\"os-complete\": {}}.")
        self.store.complete(*request.named())

    def delete(self, request: Request) -> Document:
        """The server has it no more; what others have is answered."""
        return {"attachments": [self.view(request, one, detailed=False) for one in self.store.delete(*request.named())]}


def _since(minor: int, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """*handler*; ``NotFound`` before microversion 3.*minor*, as of a route that is not there."""
    def checked(request: Request) -> Any:
        if request.extra["version"] < (3, minor):
            raise NotFound(f"This is there from microversion 3.{minor} on; the request asked for "
                           f"3.{request.extra['version'][1]}.")
        return handler(request)

    return checked
