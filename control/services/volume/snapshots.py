# SPDX-License-Identifier: GPL-3.0-or-later
"""Snapshots: copies of volumes as they were at one moment, on the same host."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import Connection, RowMapping, insert

from magnetar_control.services import Context, Document
from magnetar_control.store.database import now
from magnetar_control.web import Answer, Request
from magnetar_core.errors import Forbidden, InvalidRequest

from . import taking, views
from . import volumes as rules
from .handling import may_write, named
from .tables import snapshots, volumes
from .work import BELL

if TYPE_CHECKING:
    from .embedded import Embedded

CREATE: dict[str, taking.Check] = {
    "volume_id": taking.ident, "name": taking.text, "display_name": taking.text, "description": taking.text,
    "display_description": taking.text, "force": taking.boolean, "metadata": taking.metadata}
UPDATE = {name: CREATE[name] for name in ("name", "display_name", "description", "display_description", "metadata")}
FILTERS = ("name", "status", "volume_id", "id", "user_id")
DELETABLE = ("available", "error", "error_deleting")
STATUSES = ("available", "error", "creating", "deleting", "error_deleting")


def begin(connection: Connection, context: Context, volume: RowMapping, id: str, **values: Any) -> None:
    """Note a snapshot that is to be taken. Raises ``TooLarge`` when the project may not have another."""
    rules.within(connection, volume["project_id"], snapshots=1, gigabytes=volume["size"])
    connection.execute(insert(snapshots).values(
        id=id, project_id=volume["project_id"], user_id=context.user_id, volume_id=volume["id"], size=volume["size"],
        status="creating", host=volume["host"], bootable=volume["bootable"], volume_type=volume["volume_type"],
        task="create", created_at=now(), **values))


class Snapshots:
    """Handlers over the *service*."""

    def __init__(self, service: Embedded) -> None:
        self.database = service.database

    def list(self, request: Request, detailed: bool = False) -> Answer:
        """A page of snapshots."""
        listing = taking.Listing(request, snapshots, FILTERS)
        with self.database.read() as connection:
            rows, count = listing.rows(connection)
        found: Document = {"snapshots": [views.snapshot(request, row, detailed) for row in rows]}
        if links := listing.links(rows):
            found["snapshots_links"] = links
        return Answer(found if count is None else {**found, "count": count})

    def detail(self, request: Request) -> Answer:
        """The same in full."""
        return self.list(request, detailed=True)

    def show(self, request: Request) -> Answer:
        """One."""
        with self.database.read() as connection:
            row = rules.seen(connection, snapshots, request.context, request.params["id"])
        return Answer({"snapshot": views.snapshot(request, row)})

    def create(self, request: Request) -> Answer:
        """Note what is to be taken. A volume in use needs ``force`` before 3.66, where that went away."""
        may_write(request)
        given = taking.body(request, "snapshot", CREATE, ("volume_id",))
        free = request.extra["version"] >= (3, 66)
        if free and given.get("force") is False:
            raise InvalidRequest("Invalid input received: force must be left out or true from microversion 3.66 on.")
        statuses = ("available", "in-use") if free or given.get("force") else ("available",)
        id, context = str(uuid.uuid4()), request.context
        with self.database.write() as connection:
            row = rules.seen(connection, volumes, context, given["volume_id"])
            if row["status"] not in statuses:
                raise rules.wrong_status(volumes, row, statuses)
            begin(connection, context, row, id, metadata=orjson.dumps(given.get("metadata") or {}).decode(),
                  **named(given))
            self.database.ring(connection, BELL)
        request.params["id"] = id
        answer = self.show(request)
        answer.status = 202
        return answer

    def update(self, request: Request) -> Answer:
        """Name and description."""
        may_write(request)
        given = taking.body(request, "snapshot", UPDATE)
        values: dict[str, Any] = named(given)
        if "metadata" in given:
            values["metadata"] = orjson.dumps(given["metadata"]).decode()
        with self.database.write() as connection:
            row = rules.seen(connection, snapshots, request.context, request.params["id"])
            rules.set_(connection, snapshots, row["id"], **values)
        return self.show(request)

    def delete(self, request: Request) -> Answer:
        """Note that it is to go."""
        may_write(request)
        self._delete(request, DELETABLE)
        return Answer(None, 202)

    def _delete(self, request: Request, statuses: tuple[str, ...] | None) -> None:
        with self.database.write() as connection:
            row = rules.seen(connection, snapshots, request.context, request.params["id"])
            rules.asked(connection, snapshots, row, "delete", statuses, status="deleting")
            self.database.ring(connection, BELL)

    def act(self, request: Request) -> Answer:
        """Admins' actions: os-reset_status, os-force_delete."""
        body = request.json()
        if not request.context.is_admin:
            raise Forbidden("Policy doesn't allow this to be performed: it needs the role admin.")
        if body in ({"os-force_delete": {}}, {"os-force_delete": None}):
            self._delete(request, None)
            return Answer(None, 202)
        given = taking.body(request, "os-reset_status", {"status": taking.text}, ("status",))
        if given["status"] not in STATUSES:
            raise taking.invalid("status", f"It must be one of {', '.join(STATUSES)}.")
        values = {} if given["status"] in ("creating", "deleting") else {"task": None, "lease_until": None}
        with self.database.write() as connection:
            row = rules.seen(connection, snapshots, request.context, request.params["id"])
            rules.set_(connection, snapshots, row["id"], status=given["status"], **values)
        return Answer(None, 202)
