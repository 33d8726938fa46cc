# SPDX-License-Identifier: GPL-3.0-or-later
"""Handlers of attachments (3.27), as Nova uses them: create, update with a connector, complete, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from magnetar_control.services import Document
from magnetar_control.web import Answer, Request
from magnetar_core.errors import InvalidRequest, NotFound

from . import attachments as rules
from . import taking, views
from .handling import may_write
from .tables import attachments, volumes

if TYPE_CHECKING:
    from .embedded import Embedded

CREATE: dict[str, taking.Check] = {"instance_uuid": taking.ident, "volume_uuid": taking.ident,
                                   "connector": taking.nothing, "mode": taking.text}
FILTERS = ("volume_id", "status", "id", "server_id")


class Attachments:
    """Handlers over the *service*."""

    def __init__(self, service: Embedded) -> None:
        self.database = service.database

    def list(self, request: Request, detailed: bool = False) -> Answer:
        """A page of attachments."""
        since(request, 27)
        listing = taking.Listing(request, attachments, FILTERS)
        if "instance_id" in listing.given:
            listing.given["server_id"] = listing.given["instance_id"]
        listing.given.setdefault("sort_key", "created_at")
        with self.database.read() as connection:
            rows, _count = listing.rows(connection)
            hosts = {row.id: row.host for row in connection.execute(select(volumes.c.id, volumes.c.host).where(
                volumes.c.id.in_([row["volume_id"] for row in rows])))}
        found: Document = {"attachments": [views.attachment(row, hosts.get(row["volume_id"]), detailed)
                                           for row in rows]}
        if links := listing.links(rows):
            found["attachments_links"] = links
        return Answer(found)

    def detail(self, request: Request) -> Answer:
        """The same in full."""
        return self.list(request, detailed=True)

    def show(self, request: Request) -> Answer:
        """One."""
        since(request, 27)
        with self.database.read() as connection:
            row = rules.one(connection, request.context, request.params["id"])
            host = connection.execute(select(volumes.c.host).where(volumes.c.id == row["volume_id"])).scalar()
        return Answer({"attachment": views.attachment(row, host)})

    def create(self, request: Request) -> Answer:
        """Keep the volume for a server."""
        since(request, 27)
        may_write(request)
        given = taking.body(request, "attachment", CREATE, ("volume_uuid",))
        mode = given.get("mode") or "rw"
        if mode not in ("rw", "ro"):
            raise taking.invalid("mode", "It must be rw or ro.")
        with self.database.write() as connection:
            row = rules.reserve(connection, request.context, given["volume_uuid"], given.get("instance_uuid"), None,
                                mode, _connector(given.get("connector")))
        request.params["id"] = row["id"]
        return self.show(request)

    def update(self, request: Request) -> Answer:
        """A host is about to attach it."""
        since(request, 27)
        may_write(request)
        given = taking.body(request, "attachment", {"connector": taking.record}, ("connector",))
        with self.database.write() as connection:
            row = rules.one(connection, request.context, request.params["id"])
            rules.connect(connection, row["id"], given["connector"])
        return self.show(request)

    def act(self, request: Request) -> Answer:
        """``os-complete`` (3.44): the server has it now."""
        since(request, 44)
        may_write(request)
        body = request.json()
        if not isinstance(body, dict) or list(body) != ["os-complete"]:
            raise InvalidRequest("The one action of an attachment is {\"os-complete\": {}}.")
        with self.database.write() as connection:
            row = rules.one(connection, request.context, request.params["id"])
            rules.complete(connection, row["id"])
        return Answer(None, 204)

    def delete(self, request: Request) -> Answer:
        """The server has it no more; what others have is answered."""
        since(request, 27)
        may_write(request)
        with self.database.write() as connection:
            row = rules.one(connection, request.context, request.params["id"])
            rules.drop(connection, row["id"])
            left = rules.of(connection, [row["volume_id"]])[row["volume_id"]]
        return Answer({"attachments": [views.attachment(one, None, detailed=False) for one in left]})


def since(request: Request, minor: int) -> None:
    """Raises ``NotFound`` before microversion 3.*minor*, as of a route that is not there."""
    if request.extra["version"] < (3, minor):
        raise NotFound(f"This is there from microversion 3.{minor} on; the request asked for "
                    f"3.{request.extra['version'][1]}.")


def _connector(value: object) -> Document | None:
    return taking.record("connector", value) if value else None
