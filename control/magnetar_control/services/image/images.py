# SPDX-License-Identifier: GPL-3.0-or-later
"""Images in the database: permissions to see and change them (Glance's default rules), and lists with filters and
pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, false, func, insert, or_, select, true, update

from magnetar_control.services import Context
from magnetar_control.store.engine.conditions import COMPARE, has_pair, keyset_condition
from magnetar_control.store.engine.database import utc_now
from magnetar_core.document import Document
from magnetar_core.errors import Forbidden, InvalidRequest, NotFound

from .fields import HASH, image_document
from .tables import images, members, tags

Condition = ColumnElement[bool]
Page = tuple[list[Document], bool]
Row = Mapping[Any, Any]
#: Sort columns of lists, with the value that replaces null, so that pages never skip a row.
SORTS: dict[str, Any] = {
    "name": "", "status": "", "container_format": "", "disk_format": "", "size": 0, "id": "", "created_at": "",
    "updated_at": "", "owner": "", "visibility": "", "min_disk": 0, "min_ram": 0}
_PROJECT: Any = bindparam("project")
#: Statements that each new server needs, built once: an image by id, with a row for each tag, and the same for images
#: that a project may see without an administrator's rights. A request without a project (NULL) owns nothing.
_BY_ID = select(images, tags.c.tag).outerjoin(tags, tags.c.image_id == images.c.id).where(
    images.c.id == bindparam("id")).order_by(tags.c.tag)
_SHARED = select(members.c.image_id).where(members.c.member == _PROJECT)
_VISIBLE = _BY_ID.where(or_(
    images.c.visibility.in_(("public", "community")), images.c.owner == _PROJECT,
    (images.c.visibility == "shared") & images.c.id.in_(_SHARED)))


@dataclass(frozen=True, kw_only=True)
class ImageListing:
    """The parameters of a request for a list of images.

    *visibility*: return only images with this visibility, or ``all``; ``None``: the caller's own images, public ones,
    and accepted shared ones. *member_status*: return shared images in this status, or ``all``. *filters*: (field,
    operator, value), which must all match; operators are eq, neq, gt, gte, lt, lte and in; an unknown field is a
    property. *sort*: (field, whether descending). *limit*: maximum number, ``None`` for all. *marker*: the id of the
    last image of the previous page.
    """

    visibility: str | None = None
    member_status: str | None = None
    filters: Sequence[tuple[str, str, Any]] = ()
    sort: Sequence[tuple[str, bool]] = (("created_at", True),)
    limit: int | None = None
    marker: str | None = None


def find_image_document(connection: Connection, context: Context | None, id: str,
                        lock: bool = False) -> Document | None:
    """Return the image *id*; ``None`` if there is none that *context* may see. *context* ``None``: every image is
    visible; for calls by the control plane itself. *lock*: lock the image's row until the transaction ends."""
    if context is not None and not context.is_reader:
        return None
    values: dict[str, str | None] = {"id": id}
    query = _BY_ID
    if context is not None and not context.is_admin:
        query, values["project"] = _VISIBLE, context.project_id
    rows = connection.execute(query.with_for_update(of=images) if lock else query, values).mappings().all()
    if not rows:
        return None
    image = {name: value for name, value in rows[0].items() if name != "tag"}
    return image_document(image, [row["tag"] for row in rows if row["tag"] is not None])


def require_image_document(connection: Connection, context: Context | None, id: str, lock: bool = False) -> Document:
    """Return the image *id*. Raises ``NotFound`` if there is none that *context* may see. *context* ``None``: every
    image is visible; for calls by the control plane itself. *lock*: lock the image's row until the transaction ends."""
    image = find_image_document(connection, context, id, lock)
    if image is None:
        raise NotFound(f"No image found with ID {id}.")
    return image


def update_image_row(connection: Connection, id: str, values: Row, status: Sequence[str] = ()) -> bool:
    """Set the columns *values* of the image *id*, if its present status is one of *status* (empty: any status). Return
    whether the row was changed."""
    condition = images.c.id == id
    if status:
        condition &= images.c.status.in_(status)
    return connection.execute(update(images).where(condition).values({**values, "updated_at": utc_now()})).rowcount > 0


def set_tags(connection: Connection, id: str, names: Iterable[str]) -> None:
    """Replace all tags of the image *id* by the tags *names*."""
    connection.execute(delete(tags).where(tags.c.image_id == id))
    rows = [{"image_id": id, "tag": name} for name in names]
    if rows:
        connection.execute(insert(tags), rows)


def fetch_image_page(connection: Connection, context: Context, listing: ImageListing) -> Page:
    """Return the page of images that *listing* requests, and whether there are further pages. Raises ``InvalidRequest``
    for an unknown marker, and ``Forbidden`` for a caller without permission to read images."""
    if not context.is_reader:
        raise Forbidden("You are not authorized to complete this action: it needs the role reader of a project.")
    keys, limit = [*listing.sort, ("id", listing.sort[-1][1])], listing.limit
    order = [(func.coalesce(images.c[name], SORTS[name]), down) for name, down in keys]
    conditions = [_listed(context, listing), *(_filter(*image_filter) for image_filter in listing.filters)]
    if listing.marker:
        row = find_image_document(connection, context, listing.marker)
        if row is None:
            raise InvalidRequest(f"The marker {listing.marker} is no image that you can see.")
        conditions.append(keyset_condition(order, [SORTS[name] if row[name] is None else row[name] for name,
                                                   _down in keys]))
    query = select(images).where(*conditions).order_by(*(column.desc() if down else column for column, down in order))
    rows = connection.execute(query.limit(None if limit is None else limit + 1)).mappings().all()
    shown, tagged = rows[:limit], defaultdict(list)
    for id, tag in connection.execute(
            select(tags).where(tags.c.image_id.in_([row["id"] for row in shown])).order_by(tags.c.tag)):
        tagged[id].append(tag)
    return [image_document(row, tagged[row["id"]]) for row in shown], limit is not None and len(rows) > limit > 0


def _listed(context: Context, listing: ImageListing) -> Condition:
    visibility, status = listing.visibility, listing.member_status or "accepted"
    shown: Condition = true()
    if not context.is_admin or listing.member_status is not None:
        shared = select(members.c.image_id).where(
            members.c.member == context.project_id, *[members.c.status == status] if status != "all" else [])
        shown = or_(
            images.c.visibility == "public",
            false() if context.project_id is None else images.c.owner == context.project_id,
            (images.c.visibility == "shared") & images.c.id.in_(shared),
            (images.c.visibility == "community") if visibility in ("community", "all") else false())
    return shown if visibility in (None, "all") else shown & (images.c.visibility == visibility)


def _filter(name: str, comparison: str, value: Any) -> Condition:
    if name == "tag":
        return images.c.id.in_(select(tags.c.image_id).where(tags.c.tag == value))
    if name == "os_hash_algo":  # images with a hash
        return images.c.os_hash_value.is_not(None) if value == HASH else false()
    if name not in images.c or name in ("properties", "why"):
        return has_pair(images.c.properties, name, value)
    column: Any = images.c[name]
    if name in ("created_at", "updated_at"):
        column = func.substr(func.coalesce(column, images.c.created_at), 1, 19)
    return OPERATORS[comparison](column, value)


#: Operators of filters: the ones for times, extended to booleans and lists of texts.
OPERATORS: Mapping[str, Callable[[Any, Any], Condition]] = {
    **COMPARE, "eq": lambda column, value: column.is_(value) if isinstance(value, bool) else column == value,
    "in": lambda column, value: column.in_(value)}


def owns_image(context: Context, image: Document) -> bool:
    """Return whether the image belongs to the caller's project, or the caller is an administrator."""
    return context.is_admin or (image["owner"] is not None and image["owner"] == context.project_id)


def check_image_writer(context: Context) -> None:
    """Raise ``Forbidden`` if the caller has only permission to read images."""
    if not context.is_admin and "member" not in context.roles:
        raise Forbidden("You are not authorized to complete this action: it needs the role member.")


def check_image_owner(context: Context, image: Document) -> None:
    """Raise ``Forbidden`` if the caller neither owns *image* nor is an administrator."""
    check_image_writer(context)
    if not owns_image(context, image):
        raise Forbidden("You are not permitted to modify this image: it is another project's.")


def check_fields(context: Context, values: Document) -> None:
    """Raise ``Forbidden`` if *values* make an image public or give it to another project, and the caller is no
    administrator."""
    if not context.is_admin and values.get("visibility") == "public":
        raise Forbidden("Only administrators make images public; share it, or make it a community image.")
    if not context.is_admin and values.get("owner", context.project_id) != context.project_id:
        raise Forbidden("Only administrators give images to other projects.")


def check_readable(context: Context, image: Document) -> None:
    """Raise ``Forbidden`` if *image* is deactivated and the caller is no administrator: only administrators may then
    read the content."""
    if image["status"] == "deactivated" and not context.is_admin:
        raise Forbidden(f"Image {image['id']} is deactivated; an administrator may reactivate it.")
