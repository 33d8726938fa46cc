# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of attachments (3.27), as Nova uses them: create, update with a connector, complete, delete."""

from __future__ import annotations

from magnetar_control.api.values import Id, record
from magnetar_control.services.volume import Embedded
from magnetar_control.web import Answer, Request
from magnetar_core.errors import InvalidRequest, NotFound
from magnetar_core.values import Choices, Nullable

from . import views
from .query import listing, page
from .values import CONNECTOR, ID, body

MODE = Nullable(Choices("rw", "ro", ""))
CREATE = record({"instance_uuid": ID, "volume_uuid": Id(), "connector": Nullable(CONNECTOR), "mode": MODE},
                "volume_uuid")
UPDATE = record({"connector": CONNECTOR}, "connector")
FILTERS = ("volume_id", "status", "id", "server_id")


class AttachmentRoutes:
    """What the routes do."""

    def __init__(self, service: Embedded) -> None:
        self.attachments = service.attachments

    def list(self, request: Request, detailed: bool = False) -> Answer:
        """A page of attachments."""
        check_since(request, 27)
        server = dict(request.query).get("instance_id")
        asked = listing(request, FILTERS, **({} if server is None else {"server_id": server}))
        shown = [views.attachment(one, detailed) for one in self.attachments.list(request.context, asked)]
        return Answer(page(request, "attachments", shown, asked.limit))

    def detail(self, request: Request) -> Answer:
        """The same in full."""
        return self.list(request, detailed=True)

    def show(self, request: Request) -> Answer:
        """One."""
        check_since(request, 27)
        return Answer({"attachment": views.attachment(self.attachments.show(request.context, request.params["id"]))})

    def create(self, request: Request) -> Answer:
        """Keep the volume for a server."""
        check_since(request, 27)
        given = body(request, "attachment", CREATE)
        request.params["id"] = self.attachments.create(
            request.context, given["volume_uuid"], given.get("instance_uuid"), given.get("mode") or "rw",
            given.get("connector"))
        return self.show(request)

    def update(self, request: Request) -> Answer:
        """A host is about to attach it."""
        check_since(request, 27)
        given = body(request, "attachment", UPDATE)
        self.attachments.update(request.context, request.params["id"], given["connector"])
        return self.show(request)

    def act(self, request: Request) -> Answer:
        """``os-complete`` (3.44): the server has it now."""
        check_since(request, 44)
        given = request.json()
        if not isinstance(given, dict) or list(given) != ["os-complete"]:
            raise InvalidRequest("The one action of an attachment is {\"os-complete\": {}}.")
        self.attachments.complete(request.context, request.params["id"])
        return Answer(None, 204)

    def delete(self, request: Request) -> Answer:
        """The server has it no more; what others have is answered."""
        check_since(request, 27)
        left = self.attachments.delete(request.context, request.params["id"])
        return Answer({"attachments": [views.attachment(one, detailed=False) for one in left]})


def check_since(request: Request, minor: int) -> None:
    """Raises ``NotFound`` before microversion 3.*minor*, as of a route that is not there."""
    if request.extra["version"] < (3, minor):
        raise NotFound(f"This is there from microversion 3.{minor} on; the request asked for "
                       f"3.{request.extra['version'][1]}.")
