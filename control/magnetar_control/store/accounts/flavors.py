# SPDX-License-Identifier: GPL-3.0-or-later
"""Flavors, and which projects may use those that are not public."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, Row, Select, bindparam, delete, insert, or_, select, update

from magnetar_control.store.engine.database import added, now
from magnetar_control.store.engine.paging import beyond
from magnetar_control.store.engine.tables import flavor_projects, flavors

#: Nova's sort keys to columns; equal rows are sorted by creation.
SORTS = {"created_at": "created_at", "description": "description", "ephemeral_gb": "ephemeral", "flavorid": "id",
         "id": "number", "is_public": "is_public", "memory_mb": "ram", "name": "name", "root_gb": "disk",
         "swap": "swap", "updated_at": "updated_at", "vcpus": "vcpus", "rxtx_factor": "rxtx_factor",
         # Nova has these for all flavors alike.
         "disabled": "number", "vcpu_weight": "number"}


def visible(project: Any) -> ColumnElement[bool]:
    """Public flavors, and those that *project* has access to."""
    mine = select(flavor_projects.c.flavor_number).where(flavor_projects.c.project_id == project)
    return or_(flavors.c.is_public, flavors.c.number.in_(mine))


#: One flavor, and one that a project sees: each new server asks, and making the statement takes longer.
_ONE = select(flavors).where(flavors.c.id == bindparam("id"))
_SEEN = _ONE.where(visible(bindparam("project")))


def find(connection: Connection, id: str, project: str | None = None, *, everything: bool = False) -> Row[Any] | None:
    """The flavor, if *project* may see it or *everything* is seen."""
    if everything:
        return connection.execute(_ONE, {"id": id}).one_or_none()
    return connection.execute(_SEEN, {"id": id, "project": project}).one_or_none()


def page(connection: Connection, limit: int, sort: str, *, descending: bool, project: str, public: bool | None,
         least_ram: int | None, least_disk: int | None, name: str | None,
         marker: str | None) -> Sequence[Row[Any]] | None:
    """The rows; ``None`` when there is no such marker. *project*: whose private flavors are seen beside the public
    ones. *public*: only public ones (True), only private ones (False), or all (``None``)."""
    given = {"project": project, "most": limit}
    question, seen = _question(sort, descending, public)
    if marker is not None:
        at = connection.execute(select(flavors).where(flavors.c.id == marker, seen), given).one_or_none()
        if at is None:
            return None
        order = [(column, descending) for column in (flavors.c[SORTS[sort]], flavors.c.number)]
        question = question.where(beyond(order, [getattr(at, column.name) for column, _down in order], nulls=True))
    if least_ram is not None:
        question = question.where(flavors.c.ram >= least_ram)
    if least_disk is not None:
        question = question.where(flavors.c.disk >= least_disk)
    if name is not None:
        question = question.where(flavors.c.name.regexp_match(name))
    return connection.execute(question, given).all()


@lru_cache(maxsize=100)
def _question(sort: str, descending: bool, public: bool | None) -> tuple[Select[Any], ColumnElement[bool]]:
    """The common part of lists, cached, and the condition of what is seen: making the statement takes longer than
    executing it."""
    seen: ColumnElement[bool] = flavors.c.number.is_not(None)
    if public is not None:
        seen = visible(bindparam("project")) if public else flavors.c.is_public.is_(False)
    question: Select[Any] = select(flavors).where(seen).limit(bindparam("most", type_=Integer))
    for one in (flavors.c[SORTS[sort]], flavors.c.number):
        question = question.order_by(one.desc().nulls_last() if descending else one.asc().nulls_first())
    return question, seen


def taken(connection: Connection, id: str, name: str) -> str | None:
    """``id`` or ``name``, whichever another flavor has already."""
    row = connection.execute(select(flavors.c.id).where(or_(flavors.c.id == id, flavors.c.name == name))).first()
    return None if row is None else "id" if row.id == id else "name"


def make(connection: Connection, **values: Any) -> Row[Any]:
    """Insert a flavor. No project has access to a private one yet, not even the caller's, as in Nova."""
    return connection.execute(insert(flavors).values(created_at=now(), **values).returning(flavors)).one()


def change(connection: Connection, /, number: int, **values: Any) -> None:
    """Set columns."""
    connection.execute(update(flavors).where(flavors.c.number == number).values(updated_at=now(), **values))


def locked(connection: Connection, number: int) -> Mapping[Any, Any] | None:
    """The row, locked until the transaction ends."""
    question = select(flavors).where(flavors.c.number == number).with_for_update()
    return connection.execute(question).mappings().one_or_none()


def remove(connection: Connection, id: str) -> bool:
    """Delete a flavor; servers keep their copy. ``False`` when there is none."""
    return connection.execute(delete(flavors).where(flavors.c.id == id)).rowcount == 1


def projects(connection: Connection, number: int) -> Sequence[str]:
    """Projects with access to a private flavor."""
    return connection.execute(select(flavor_projects.c.project_id).where(
        flavor_projects.c.flavor_number == number).order_by(flavor_projects.c.project_id)).scalars().all()


def grant(connection: Connection, number: int, project: str) -> bool:
    """Give a project access; ``False`` when it has access already."""
    return added(connection, flavor_projects, flavor_number=number, project_id=project)


def withdraw(connection: Connection, number: int, project: str) -> bool:
    """Take a project's access; ``False`` when it has none."""
    return connection.execute(delete(flavor_projects).where(
        flavor_projects.c.flavor_number == number, flavor_projects.c.project_id == project)).rowcount == 1
