# SPDX-License-Identifier: GPL-3.0-or-later
"""Images in the database: who may see which, lists with filters and pages, changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import (
    BindParameter,
    Connection,
    and_,
    bindparam,
    delete,
    false,
    func,
    insert,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from magnetar_control.services import Context, Document
from magnetar_control.store.database import added, now
from magnetar_control.store.paging import beyond
from magnetar_core.errors import InvalidRequest, NotFound

from .fields import document
from .tables import deleted, images, members, tags

Condition = ColumnElement[bool]
Page = tuple[list[Document], bool]
Row = Mapping[Any, Any]
#: Columns by which lists are sorted, with what stands for nothing, so that pages never skip a row.
SORTS: dict[str, Any] = {
    "name": "", "status": "", "container_format": "", "disk_format": "", "size": 0, "id": "", "created_at": "",
    "updated_at": "", "owner": "", "visibility": "", "min_disk": 0, "min_ram": 0}
_ID: BindParameter[str] = bindparam("id")
_PROJECT: BindParameter[str] = bindparam("project")
#: Statements that each new server needs, made once: an image by id, with a row for each tag; and where a project that
#: is no administrator's may see it. A project that is none (NULL) owns nothing.
_BY_ID = select(images, tags.c.tag).outerjoin(tags, tags.c.image_id == images.c.id).where(
    images.c.id == _ID).order_by(tags.c.tag)
_SHARED = select(members.c.image_id).where(members.c.member == _PROJECT)
_VISIBLE = _BY_ID.where(or_(
    images.c.visibility.in_(("public", "community")), images.c.owner == _PROJECT,
    (images.c.visibility == "shared") & images.c.id.in_(_SHARED)))


@dataclass(frozen=True, kw_only=True)
class ImageListing:
    """Which images a list has. *visibility*: that one, or ``all``; left out: one's own, public ones, and shared ones
    that were accepted. *member_status*: shared ones in that status, or ``all``. *filters*: (field, operator, value), of
    which all hold; operators are eq, neq, gt, gte, lt, lte and in; what is no field is a property. *sort*: fields, and
    whether downwards. At most *limit* (``None``: all) after the image *marker*."""

    visibility: str | None = None
    member_status: str | None = None
    filters: Sequence[tuple[str, str, Any]] = ()
    sort: Sequence[tuple[str, bool]] = (("created_at", True),)
    limit: int | None = None
    marker: str | None = None


def member_of(project_id: str | None, status: str | None) -> Condition:
    """Shared with a project, with that member status (any: ``None``)."""
    if project_id is None:
        return false()
    member = members.c
    found = select(member.image_id).where(member.member == project_id, *[member.status == status] if status else [])
    return (images.c.visibility == "shared") & images.c.id.in_(found)


def owned(context: Context) -> Condition:
    """The condition of the project's own images."""
    return images.c.owner == context.project_id if context.project_id is not None else false()


def find(connection: Connection, context: Context | None, id: str, lock: bool = False) -> Document | None:
    """The image, when *context* may see it (``None``: the control plane itself). *lock*: nobody else changes it until
    the transaction ends."""
    values: dict[str, str | None] = {"id": id}
    query = _BY_ID
    if context is not None and not context.is_admin:
        query, values["project"] = _VISIBLE, context.project_id
    rows = connection.execute(query.with_for_update(of=images) if lock else query, values).mappings().all()
    if not rows:
        return None
    image = {name: value for name, value in rows[0].items() if name != "tag"}
    return document(image, [row["tag"] for row in rows if row["tag"] is not None])


def seen(connection: Connection, context: Context, id: str, lock: bool = False) -> Document:
    """As ``find``; raises ``NotFound``."""
    image = find(connection, context, id, lock)
    if image is None:
        raise NotFound(f"No image found with ID {id}.")
    return image


def with_tags(connection: Connection, rows: Sequence[Row]) -> list[Document]:
    """Rows as documents, with their tags."""
    found = defaultdict(list)
    ids = [row["id"] for row in rows]
    for id, tag in connection.execute(select(tags).where(tags.c.image_id.in_(ids)).order_by(tags.c.tag)):
        found[id].append(tag)
    return [document(row, found[row["id"]]) for row in rows]


def add(connection: Connection, values: Row, names: Iterable[str]) -> None:
    """A new image."""
    connection.execute(insert(images).values({**values, "created_at": now()}))
    set_tags(connection, values["id"], names)


def change(connection: Connection, id: str, values: Row, status: Sequence[str] = ()) -> bool:
    """Change columns of an image (in one of the states *status*); whether there was such a one."""
    condition = images.c.id == id
    if status:
        condition &= images.c.status.in_(status)
    return connection.execute(update(images).where(condition).values({**values, "updated_at": now()})).rowcount > 0


def set_tags(connection: Connection, id: str, names: Iterable[str]) -> None:
    """The image has these tags and no others."""
    connection.execute(delete(tags).where(tags.c.image_id == id))
    rows = [{"image_id": id, "tag": name} for name in names]
    if rows:
        connection.execute(insert(tags), rows)


def remove(connection: Connection, id: str) -> None:
    """Remove the image with its members and tags; that it was there stays known."""
    connection.execute(delete(images).where(images.c.id == id))
    added(connection, deleted, id=id, deleted_at=now())


def was_there(connection: Connection, id: str) -> bool:
    """Whether an image of that id was deleted."""
    return connection.execute(select(deleted.c.id).where(deleted.c.id == id)).first() is not None


def page(connection: Connection, context: Context, listing: ImageListing) -> Page:
    """The images of a list, and whether more follow. Raises ``InvalidRequest`` for a marker that is not there."""
    keys = [*listing.sort, ("id", listing.sort[-1][1])]
    conditions = [_listed(context, listing), *(_filter(*one) for one in listing.filters)]
    if listing.marker:
        conditions.append(_after(connection, context, listing.marker, keys))
    order = [column.desc() if down else column.asc() for column, down in map(_column, keys)]
    query = select(images).where(*conditions).order_by(*order)
    limit = listing.limit
    if limit is None:
        return with_tags(connection, connection.execute(query).mappings().all()), False
    found = connection.execute(query.limit(limit + 1)).mappings().all()
    return with_tags(connection, found[:limit]), len(found) > limit > 0


def _listed(context: Context, listing: ImageListing) -> Condition:
    wanted, status = listing.visibility, listing.member_status
    everything = context.is_admin and status is None
    if wanted is None and everything:
        return true()
    status = status or "accepted"
    shown = true() if everything else or_(
        images.c.visibility == "public", owned(context),
        member_of(context.project_id, None if status == "all" else status),
        (images.c.visibility == "community") if wanted in ("community", "all") else false())
    return shown if wanted in (None, "all") else and_(shown, images.c.visibility == wanted)


def _filter(name: str, operator: str, value: Any) -> Condition:
    if name == "tag":
        return images.c.id.in_(select(tags.c.image_id).where(tags.c.tag == value))
    if name not in images.c or name == "properties":
        # The pair as it stands in the JSON text: its quotes are not escaped there, those inside of texts are.
        pair = orjson.dumps({name: value}).decode()[1:-1]
        return func.replace(images.c.properties, pair, "") != images.c.properties
    column: Any = images.c[name]
    if name in ("created_at", "updated_at"):
        column = func.substr(func.coalesce(column, images.c.created_at), 1, 19)
    return OPERATORS[operator](column, value)


#: Operators of filters.
OPERATORS: Mapping[str, Callable[[Any, Any], Condition]] = {
    "eq": lambda column, value: column.is_(value) if isinstance(value, bool) else column == value,
    "neq": lambda column, value: column != value, "gt": lambda column, value: column > value,
    "gte": lambda column, value: column >= value, "lt": lambda column, value: column < value,
    "lte": lambda column, value: column <= value, "in": lambda column, value: column.in_(value)}


def _column(key: tuple[str, bool]) -> tuple[Any, bool]:
    name, down = key
    return func.coalesce(images.c[name], SORTS[name]), down


def _after(connection: Connection, context: Context, marker: str, keys: Sequence[tuple[str, bool]]) -> Condition:
    """What follows the image *marker* in this order."""
    row = find(connection, context, marker)
    if row is None:
        raise InvalidRequest(f"The marker {marker} is no image that you can see.")
    return beyond([_column(key) for key in keys], [SORTS[name] if row[name] is None else row[name]
                                                   for name, _down in keys])
