# SPDX-License-Identifier: GPL-3.0-or-later
"""Lists of volumes, snapshots and attachments: filters, sorting, pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, Table, func, select, true

from magnetar_control.services import Context
from magnetar_control.store.paging import beyond
from magnetar_core.errors import InvalidRequest

SORTED = ("id", "name", "size", "status", "created_at", "updated_at", "bootable")


@dataclass(frozen=True, kw_only=True)
class VolumeListing:
    """What a list is asked for. *filters*: by column; *named*: text in the name. *everywhere*: of all projects, or of
    *project_id*, for admins. *sort*: columns, and whether downwards. At most *limit* (``None``: all) after *offset*,
    and after the row *marker*. *count*: how many there are in all is told too."""

    filters: Mapping[str, Any] = field(default_factory=dict)
    named: str | None = None
    everywhere: bool = False
    project_id: str | None = None
    sort: Sequence[tuple[str, bool]] = (("created_at", True),)
    limit: int | None = None
    offset: int = 0
    marker: str | None = None
    count: bool = False


def mine(context: Context, table: Table, listing: VolumeListing) -> ColumnElement[bool]:
    """The condition of the projects whose rows are listed."""
    everybody = context.is_admin and listing.everywhere
    project = listing.project_id if everybody else context.project_id or ""
    return true() if project is None else table.c.project_id == project


def listed(connection: Connection, context: Context, table: Table,
           listing: VolumeListing) -> tuple[Sequence[RowMapping], int | None]:
    """A page of rows, and how many there are on all pages where that is asked."""
    equal = (table.c[name].is_(value) if isinstance(value, bool) else table.c[name] == value
             for name, value in listing.filters.items())
    query: Select[Any] = select(table).where(mine(context, table, listing), *equal)
    if listing.named is not None and "name" in table.c:
        query = query.where(table.c.name.contains(listing.named, autoescape=True))
    count = connection.execute(select(func.count()).select_from(query.subquery())).scalar() if listing.count else None
    order = _order(table, listing)
    if listing.marker is not None:
        query = query.where(_after(connection, context, table, listing, order))
    query = query.order_by(*(column.desc() if down else column.asc() for column, down in order)).offset(listing.offset)
    return connection.execute(query if listing.limit is None else query.limit(listing.limit)).mappings().all(), count


def _order(table: Table, listing: VolumeListing) -> list[tuple[Any, bool]]:
    order = []
    for name, down in (*listing.sort, ("id", True)):
        if name not in SORTED or name not in table.c:
            raise InvalidRequest(f"Invalid input received: {name} cannot be sorted by.")
        column = table.c[name]
        order.append((func.coalesce(column, "") if column.nullable else column, down))
    return order


def _after(connection: Connection, context: Context, table: Table, listing: VolumeListing,
           order: Sequence[tuple[Any, bool]]) -> ColumnElement[bool]:
    row = connection.execute(select(*(column for column, _down in order)).where(
        table.c.id == listing.marker, mine(context, table, listing))).first()
    if row is None:
        raise InvalidRequest(f"marker [{listing.marker}] not found.")
    return beyond(order, row)
