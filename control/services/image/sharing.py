# SPDX-License-Identifier: GPL-3.0-or-later
"""Members: the projects with which a shared image is shared, and whether they accepted it (Image API v2, "Sharing")."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from magnetar_control.services import Context, Document
from magnetar_control.store.database import Database, now
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, NotFound

from . import store
from .tables import members


def routes(database: Database) -> list[Guarded]:
    """The routes below an image."""
    every, verbs = "/v2/images/{id}/members", Sharing(database)
    one = every + "/{member}"
    return [Guarded(method="GET", path=every, handler=verbs.list),
            Guarded(method="POST", path=every, handler=verbs.add),
            Guarded(method="GET", path=one, handler=verbs.show),
            Guarded(method="PUT", path=one, handler=verbs.answer),
            Guarded(method="DELETE", path=one, handler=verbs.remove)]


class Sharing:
    """What the routes do."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def list(self, request: Request) -> Answer:
        """All members for the owner; for a member itself."""
        with self.database.read() as connection:
            image = self._shared(connection, request)
            found = [_shown(row) for row in connection.execute(select(members).where(
                members.c.image_id == image["id"]).order_by(members.c.member)).mappings()
                if _owns(request.context, image) or row["member"] == request.context.project_id]
        return Answer({"members": found, "schema": "/v2/schemas/members"})

    def show(self, request: Request) -> Answer:
        """One member."""
        with self.database.read() as connection:
            return Answer(_shown(self._member(connection, request)[1]))

    def add(self, request: Request) -> Answer:
        """Share the image with a project, which may accept it."""
        body = request.json()
        project = body.get("member") if isinstance(body, dict) else None
        if not isinstance(project, str) or not 0 < len(project) <= 255 or "\0" in project:
            raise InvalidRequest('The body must be {"member": id of a project}.')
        with self.database.write() as connection:
            image = self._shared(connection, request)
            self._only_owner(request, image)
            if image["visibility"] != "shared":
                raise Forbidden(f"The image is {image['visibility']}; only images of visibility shared have members.")
            row = {"image_id": image["id"], "member": project, "status": "pending", "created_at": now(),
                   "updated_at": None}
            if connection.execute(select(members.c.member).where(*_equal(image, project))).first() is not None:
                raise Conflict(f"The image is shared with {project} already.")
            connection.execute(insert(members).values(row))
        return Answer(_shown(row))

    def answer(self, request: Request) -> Answer:
        """The member's own answer: pending, accepted or rejected."""
        body = request.json()
        status = body.get("status") if isinstance(body, dict) else None
        if status not in ("pending", "accepted", "rejected"):
            raise InvalidRequest('The body must be {"status": pending, accepted or rejected}.')
        with self.database.write() as connection:
            image, row = self._member(connection, request)
            if not request.context.is_admin and row["member"] != request.context.project_id:
                raise Forbidden("Only the project with which it is shared accepts or rejects an image.")
            connection.execute(update(members).where(*_equal(image, row["member"])).values(
                status=status, updated_at=now()))
            return Answer(_shown(self._member(connection, request)[1]))

    def remove(self, request: Request) -> Answer:
        """Share it with the project no more."""
        with self.database.write() as connection:
            image, row = self._member(connection, request)
            self._only_owner(request, image)
            connection.execute(delete(members).where(*_equal(image, row["member"])))
        return Answer(status=204)

    def _shared(self, connection: Connection, request: Request) -> Document:
        image = store.find(connection, request.context, request.params["id"])
        if image is None:
            raise NotFound(f"No image found with ID {request.params['id']}.")
        return image

    def _member(self, connection: Connection, request: Request) -> tuple[Document, Any]:
        """The image and the row of the member that the URL names, which the owner and the member see."""
        image, project = self._shared(connection, request), request.params["member"]
        row = connection.execute(select(members).where(*_equal(image, project))).mappings().first()
        if row is None or not (_owns(request.context, image) or project == request.context.project_id):
            raise NotFound(f"The image is not shared with {project}.")
        return image, row

    def _only_owner(self, request: Request, image: Document) -> None:
        if not _owns(request.context, image):
            raise Forbidden("Only the project whose image it is says with whom it is shared.")
        if not request.context.is_admin and "member" not in request.context.roles:
            raise Forbidden("You are not authorized to complete this action: it needs the role member.")


def _owns(context: Context, image: Document) -> bool:
    return context.is_admin or (image["owner"] is not None and image["owner"] == context.project_id)


def _equal(image: Document, project: str) -> list[Any]:
    return [members.c.image_id == image["id"], members.c.member == project]


def _shown(row: Any) -> Document:
    return {"image_id": row["image_id"], "member_id": row["member"], "status": row["status"],
            "created_at": f"{row['created_at'][:19]}Z",
            "updated_at": f"{(row['updated_at'] or row['created_at'])[:19]}Z", "schema": "/v2/schemas/member"}
