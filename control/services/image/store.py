# SPDX-License-Identifier: GPL-3.0-or-later
"""Images in the database: who may see which, lists with filters and pages, changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from magnetar_core.errors import InvalidRequest

from .fields import VISIBILITIES, document
from .tables import deleted, images, members, tags

Condition = ColumnElement[bool]
Row = Mapping[Any, Any]
PAGE, LARGEST_PAGE = 25, 1000
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
COMPARED = {"gt": "__gt__", "gte": "__ge__", "lt": "__lt__", "lte": "__le__", "eq": "__eq__", "neq": "__ne__"}
#: Parameters of a list that are no filters.
CONTROLS = frozenset({"limit", "marker", "sort", "sort_key", "sort_dir", "visibility", "member_status"})


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


def page(connection: Connection, context: Context, query: Sequence[tuple[str, str]]) -> tuple[list[Document], bool]:
    """The images of a list, and whether more follow. Raises ``InvalidRequest`` naming the parameter."""
    limit = _limit(dict(query).get("limit"))
    keys = _sorting(query)
    conditions = [listed(context, dict(query)), *filters(query)]
    marker = dict(query).get("marker")
    if marker:
        conditions.append(_after(connection, context, marker, keys))
    order = [column.desc() if down else column.asc() for column, down in map(_column, keys)]
    found = connection.execute(
        select(images).where(*conditions).order_by(*order).limit(limit + 1)).mappings().all()
    return with_tags(connection, found[:limit]), len(found) > limit > 0


def listed(context: Context, query: Mapping[str, str]) -> Condition:
    """What a list shows: one's own, public ones, and shared ones that were accepted; by ``visibility`` others too."""
    wanted, status = query.get("visibility"), query.get("member_status", "accepted")
    if wanted not in (None, "all", *VISIBILITIES):
        raise InvalidRequest(f"visibility must be all or one of {', '.join(VISIBILITIES)}.")
    if status not in ("accepted", "pending", "rejected", "all"):
        raise InvalidRequest("member_status must be accepted, pending, rejected or all.")
    if wanted is None and context.is_admin and "member_status" not in query:
        return true()
    shown = true() if context.is_admin and "member_status" not in query else or_(
        images.c.visibility == "public", owned(context),
        member_of(context.project_id, None if status == "all" else status),
        (images.c.visibility == "community") if wanted in ("community", "all") else false())
    return and_(shown, images.c.visibility == wanted) if wanted in VISIBILITIES else shown


def filters(query: Sequence[tuple[str, str]]) -> list[Condition]:
    """Conditions of the other parameters; what is no field is a property."""
    found: list[Condition] = []
    if not any(name == "os_hidden" for name, _value in query):
        found.append(images.c.os_hidden.is_(False))
    for name, value in query:
        if name in CONTROLS:
            continue
        found.append(FILTERS[name](name, value) if name in FILTERS else _property(name, value))
    return found


def _equal(name: str, value: str) -> Condition:
    column = images.c[name]
    if value.startswith("in:"):
        return column.in_([one.strip('"') for one in value[3:].split(",")])
    return column == value


def _number(name: str, value: str) -> Condition:
    if not value.isascii() or not value.isdigit() or len(value) > 18:
        raise InvalidRequest(f"{name} must be a number of at most 18 digits.")
    if name.endswith("_min"):
        return images.c[name[:-4]] >= int(value)
    return images.c[name[:-4]] <= int(value) if name.endswith("_max") else images.c[name] == int(value)


def _flag(name: str, value: str) -> Condition:
    if value.lower() not in ("true", "false", "1", "0"):
        raise InvalidRequest(f"{name} must be true or false.")
    return images.c[name].is_(value.lower() in ("true", "1"))


def _tag(_name: str, value: str) -> Condition:
    return images.c.id.in_(select(tags.c.image_id).where(tags.c.tag == value))


def _time(name: str, value: str) -> Condition:
    operator, colon, text = value.partition(":")
    if operator not in COMPARED or not colon:
        operator, text = "eq", value
    column = func.substr(func.coalesce(images.c[name], images.c.created_at), 1, 19)
    condition: Condition = getattr(column, COMPARED[operator])(text.rstrip("Z")[:19])
    return condition


def _property(name: str, value: str) -> Condition:
    """The pair as it stands in the JSON text: its quotes are not escaped there, those inside of texts are."""
    pair = orjson.dumps({name: value}).decode()[1:-1]
    return func.replace(images.c.properties, pair, "") != images.c.properties


FILTERS: dict[str, Callable[[str, str], Condition]] = {
    **dict.fromkeys(("name", "status", "owner", "id", "disk_format", "container_format", "checksum", "os_hash_value"),
                    _equal),
    **dict.fromkeys(("size", "size_min", "size_max", "min_disk", "min_ram"), _number),
    **dict.fromkeys(("protected", "os_hidden"), _flag), **dict.fromkeys(("created_at", "updated_at"), _time),
    "tag": _tag}


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidRequest("limit must be a number of at most 9 digits.")
    return min(int(text), LARGEST_PAGE)


def _sorting(query: Sequence[tuple[str, str]]) -> list[tuple[str, bool]]:
    """Columns and whether downwards; the newest first when nothing is said. The id comes last."""
    keys = [value for name, value in query if name == "sort_key"]
    ways = [value for name, value in query if name == "sort_dir"]
    pairs = [(key, ways[min(at, len(ways) - 1)] if ways else "desc") for at, key in enumerate(keys)]
    for name, value in query:
        if name == "sort":
            words = (one.partition(":") for one in value.split(","))
            pairs += [(key.strip(), way or "desc") for key, _colon, way in words]
    if not pairs:
        pairs = [("created_at", ways[0] if ways else "desc")]
    for key, way in pairs:
        if key not in SORTS or way not in ("asc", "desc"):
            raise InvalidRequest(f"The list cannot be sorted by {key}:{way}; keys are {', '.join(sorted(SORTS))}, "
                                 "directions asc and desc.")
    return [(key, way == "desc") for key, way in (*pairs, ("id", pairs[-1][1]))]


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
