# SPDX-License-Identifier: GPL-3.0-or-later
"""Members: the projects that a shared image is shared with, and whether they have accepted it (Image API v2,
"Sharing")."""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, delete, func, or_, select, update

from magnetar_control.services import Context
from magnetar_control.store.engine.database import Database, insert_if_absent, utc_now
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, Forbidden, NotFound, TooLarge

from . import images
from .images import check_image_writer, owns_image
from .tables import images as images_table
from .tables import members

#: Maximum number of members of an image (Glance's image_member_quota).
MOST = 128


class Members:
    def __init__(self, database: Database) -> None:
        self.database = database

    def list(self, context: Context, image_id: str) -> tuple[RowMapping, ...]:
        """Return the members of an image (the projects that it is shared with): all of them for the owner; for a
        member, only its own row."""
        with self.database.read() as connection:
            image = images.require_image_document(connection, context, image_id)
            rows = connection.execute(select(members).filter_by(image_id=image_id).order_by(members.c.member))
            return tuple(row for row in rows.mappings() if owns_image(context, image)
                         or row["member"] == context.project_id)

    def list_all(self, context: Context) -> tuple[RowMapping, ...]:
        """Return all members of the caller's images, and the caller's own memberships in other projects' images, sorted
        by image."""
        mine = or_(images_table.c.owner == context.project_id, members.c.member == context.project_id)
        with self.database.read() as connection:
            return tuple(connection.execute(select(members).join(
                images_table, images_table.c.id == members.c.image_id).where(mine).order_by(
                    members.c.image_id, members.c.member)).mappings())

    def show(self, context: Context, image_id: str, project: str) -> RowMapping:
        """Return the row of the member *project* of an image. Raises ``NotFound``."""
        with self.database.read() as connection:
            return _member(connection, context, image_id, project)[1]

    def add(self, context: Context, image_id: str, project: str) -> RowMapping:
        """Share an image with the project *project*, which may then accept it. Return the row of the new member. Raises
        ``NotFound``, ``Forbidden``, ``Conflict``, ``TooLarge``."""
        with self.database.write() as connection:
            # locked, so that no other client adds a member or removes the image
            image = images.require_image_document(connection, context, image_id, lock=True)
            _check_sharer(context, image)
            if image["visibility"] != "shared":
                raise Forbidden(f"The image is {image['visibility']}; only images of visibility shared have members.")
            if not insert_if_absent(connection, members, image_id=image_id, member=project, status="pending",
                                    created_at=utc_now()):
                raise Conflict(f"The image is shared with {project} already.")
            shared = select(func.count()).where(members.c.image_id == image_id)
            if (count := connection.execute(shared).scalar_one()) > MOST:
                raise TooLarge(f"An image may be shared with {MOST} projects, and this would be {count}. Take some "
                               "away, or make it a community image.")
            return _member(connection, context, image_id, project)[1]

    def answer(self, context: Context, image_id: str, project: str, status: str) -> RowMapping:
        """Accept or reject an image that is shared with the project *project*. *status*: pending, accepted or rejected.
        Return the changed member. Only this project and administrators may set the status. Raises ``NotFound``,
        ``Forbidden``."""
        with self.database.write() as connection:
            _member(connection, context, image_id, project)
            check_image_writer(context)
            if not context.is_admin and project != context.project_id:
                raise Forbidden("Only the project with which it is shared accepts or rejects an image.")
            connection.execute(update(members).filter_by(image_id=image_id, member=project).values(
                status=status, updated_at=utc_now()))
            return _member(connection, context, image_id, project)[1]

    def remove(self, context: Context, image_id: str, project: str) -> None:
        with self.database.write() as connection:
            image, _row = _member(connection, context, image_id, project)
            _check_sharer(context, image)
            connection.execute(delete(members).filter_by(image_id=image_id, member=project))


def _member(connection: Connection, context: Context, image_id: str, project: str) -> tuple[Document, RowMapping]:
    """Return the image, and the row of its member *project*. Raises ``NotFound`` unless the caller owns the image or
    belongs to *project*."""
    image = images.require_image_document(connection, context, image_id)
    row = connection.execute(select(members).filter_by(image_id=image_id, member=project)).mappings().first()
    if row is None or not (owns_image(context, image) or project == context.project_id):
        raise NotFound(f"The image is not shared with {project}.")
    return image, row


def _check_sharer(context: Context, image: Document) -> None:
    if not owns_image(context, image):
        raise Forbidden("Only the project whose image it is says with whom it is shared.")
    check_image_writer(context)
