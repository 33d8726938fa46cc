# SPDX-License-Identifier: GPL-3.0-or-later
"""Flavors, and the projects that may use private ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, Select, bindparam, delete, insert, or_, select, update

from magnetar_control.store.engine.conditions import keyset_condition, order_column
from magnetar_control.store.engine.database import insert_if_absent, utc_now
from magnetar_control.store.engine.prepared import PreparedQuery
from magnetar_control.store.engine.rows import DocumentColumn, SelectedRow
from magnetar_control.store.engine.tables import flavor_projects, flavors

#: Nova's sort keys to columns; equal rows are sorted by creation.
SORTS = {"created_at": "created_at", "description": "description", "ephemeral_gb": "ephemeral", "flavorid": "id",
         "id": "number", "is_public": "is_public", "memory_mb": "ram", "name": "name", "root_gb": "disk",
         "swap": "swap", "updated_at": "updated_at", "vcpus": "vcpus", "rxtx_factor": "rxtx_factor",
         # Nova's flavors all have the same value for these.
         "disabled": "number", "vcpu_weight": "number"}


class FlavorRow(SelectedRow):
    """A row of the table ``flavors``: MiB of ``ram`` and ``swap``, GiB of the disks."""

    number: int
    id: str
    name: str
    vcpus: int
    ram: int
    disk: int
    ephemeral: int
    swap: int
    rxtx_factor: float
    is_public: bool
    description: str | None
    created_at: str
    updated_at: str | None

    #: The decoded extra specs; lists pass the text of the column through instead.
    extra_specs = DocumentColumn[Mapping[str, str]]()


def visible_flavor_condition(project: Any) -> ColumnElement[bool]:
    """Return the SQL condition for flavors that *project* may use: public flavors, and private ones that it has access
    to. *project*: an id or an SQL parameter."""
    mine = select(flavor_projects.c.flavor_number).where(flavor_projects.c.project_id == project)
    return or_(flavors.c.is_public, flavors.c.number.in_(mine))


#: The queries for all flavors, for one, and for one that a project may see. Each new server needs a flavor, and
#: building a statement takes longer than executing it.
_ALL = FlavorRow.selection(flavors)
_ONE = PreparedQuery(_ALL.where(flavors.c.id == bindparam("id")))
_SEEN = PreparedQuery(_ONE.query.where(visible_flavor_condition(bindparam("project"))))


def fetch_flavor_row(connection: Connection, id: str, project: str | None = None, *,
                     everything: bool = False) -> FlavorRow | None:
    """Return the flavor with the id *id*; ``None`` when there is none that *project* may use. *everything*: return any
    flavor, even a private one of other projects."""
    return FlavorRow.optional((_ONE if everything else _SEEN).first(connection, {"id": id, "project": project}))


def fetch_flavor_rows(connection: Connection, limit: int, sort: str, *, descending: bool, project: str,
                      public: bool | None, least_ram: int | None, least_disk: int | None, name: str | None,
                      marker: str | None) -> list[FlavorRow] | None:
    """Return a page of at most *limit* flavors; ``None`` when the *marker* (the id of the last flavor of the previous
    page) does not exist. *public*: true: public flavors, and private ones that *project* has access to; false: only
    private flavors; ``None``: all. *sort*: the sort key. *least_ram*, *least_disk*: minimum MiB and GiB. *name*: a
    regular expression."""
    parameters = {"project": project, "most": limit}
    page, visibility = _question(sort, descending, public)
    further: list[ColumnElement[bool]] = []
    if marker is not None:
        at = connection.execute(_ALL.where(flavors.c.id == marker, visibility), parameters).one_or_none()
        if at is None:
            return None
        order = [(column, descending) for column in (flavors.c[SORTS[sort]], flavors.c.number)]
        further.append(keyset_condition(order, [getattr(at, column.name) for column, _down in order],
                                        nulls=bool(flavors.c[SORTS[sort]].nullable)))
    if least_ram is not None:
        further.append(flavors.c.ram >= least_ram)
    if least_disk is not None:
        further.append(flavors.c.disk >= least_disk)
    if name is not None:
        further.append(flavors.c.name.regexp_match(name))
    if not further:
        return FlavorRow.several(page.all(connection, parameters))
    return FlavorRow.several(connection.execute(page.query.where(*further), parameters))


@lru_cache(maxsize=100)
def _question(sort: str, descending: bool, public: bool | None) -> tuple[PreparedQuery, ColumnElement[bool]]:
    """Return (query of ``fetch_flavor_rows``, SQL condition for visible flavors). The query does not contain the other
    filters of ``fetch_flavor_rows`` yet. See ``fetch_flavor_rows`` for the parameters. The result is cached, because
    building a query takes longer than executing it."""
    visibility: ColumnElement[bool] = flavors.c.number.is_not(None)
    if public is not None:
        visibility = visible_flavor_condition(bindparam("project")) if public else flavors.c.is_public.is_(False)
    question: Select[Any] = _ALL.where(visibility).limit(bindparam("most", type_=Integer))
    for column in (flavors.c[SORTS[sort]], flavors.c.number):
        question = question.order_by(order_column(column, descending, nullable=bool(column.nullable)))
    return PreparedQuery(question), visibility


def duplicate_flavor_field(connection: Connection, id: str, name: str) -> str | None:
    """Return the field, ``id`` or ``name``, whose value belongs to another flavor already; ``None`` if both values are
    free."""
    row = connection.execute(select(flavors.c.id).where(or_(flavors.c.id == id, flavors.c.name == name))).first()
    return None if row is None else "id" if row.id == id else "name"


def insert_flavor_row(connection: Connection, **values: Any) -> FlavorRow:
    """Insert a flavor and return its row. No project gets access to a private flavor here, not even the caller's, as in
    Nova."""
    query = insert(flavors).values(created_at=utc_now(), **values)
    return FlavorRow(connection.execute(query.returning(*flavors.c[FlavorRow.columns])).one())


def update_flavor_row(connection: Connection, /, number: int, **values: Any) -> None:
    """Set the columns *values* of a flavor. *number*: the primary key of the flavor (its column ``number``)."""
    connection.execute(update(flavors).where(flavors.c.number == number).values(updated_at=utc_now(), **values))


def lock_flavor_row(connection: Connection, number: int) -> FlavorRow | None:
    """Lock the row of a flavor until the transaction ends, and return it; ``None`` if it does not exist. *number*: the
    primary key of the flavor."""
    query = _ALL.where(flavors.c.number == number).with_for_update()
    return FlavorRow.optional(connection.execute(query).one_or_none())


def remove_flavor_row(connection: Connection, id: str) -> bool:
    """Delete the flavor *id*. Existing servers do not change, because they have copies of their flavors. Return
    ``False`` if the flavor does not exist."""
    return connection.execute(delete(flavors).where(flavors.c.id == id)).rowcount == 1


def fetch_flavor_projects(connection: Connection, number: int) -> Sequence[str]:
    """Return the sorted ids of the projects that have access to a private flavor. *number*: the primary key of the
    flavor."""
    return connection.execute(select(flavor_projects.c.project_id).where(
        flavor_projects.c.flavor_number == number).order_by(flavor_projects.c.project_id)).scalars().all()


def fetch_flavor_access_rows(connection: Connection) -> Sequence[tuple[str, str, str]]:
    """Return (id of the flavor, its name, id of the project) for each permission to use a private flavor, sorted by
    the flavors' names."""
    return [(row.id, row.name, row.project_id) for row in connection.execute(select(
        flavors.c.id, flavors.c.name, flavor_projects.c.project_id).join_from(
            flavor_projects, flavors, flavors.c.number == flavor_projects.c.flavor_number).order_by(
                flavors.c.name, flavor_projects.c.project_id))]


def insert_flavor_access_row(connection: Connection, number: int, project: str) -> bool:
    """Give *project* access to a private flavor. Return ``False`` if it already has access. *number*: the primary key
    of the flavor."""
    return insert_if_absent(connection, flavor_projects, flavor_number=number, project_id=project)


def remove_flavor_access_row(connection: Connection, number: int, project: str) -> bool:
    """Remove the access of *project* to a private flavor. Return ``False`` if it has no access. *number*: the primary
    key of the flavor."""
    return connection.execute(delete(flavor_projects).where(
        flavor_projects.c.flavor_number == number, flavor_projects.c.project_id == project)).rowcount == 1
