# SPDX-License-Identifier: GPL-3.0-or-later
"""Flavors, and which projects may use those that are not public."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    insert,
    or_,
    select,
    update,
)

from .database import added, now
from .tables import flavor_projects, flavors

#: Nova's sort keys to columns; equal rows are sorted by creation.
SORTS = {"created_at": "created_at", "description": "description", "ephemeral_gb": "ephemeral", "flavorid": "id",
         "id": "number", "is_public": "is_public", "memory_mb": "ram", "name": "name", "root_gb": "disk",
         "swap": "swap", "updated_at": "updated_at", "vcpus": "vcpus", "rxtx_factor": "rxtx_factor",
         # Nova has these for all flavors alike.
         "disabled": "number", "vcpu_weight": "number"}


@dataclass(frozen=True)
class FlavorQuery:
    """*project*: whose private flavors are seen beside the public ones. *public*: only public ones (True), only private
    ones (False), or all (``None``)."""

    limit: int
    sort: str = "flavorid"
    descending: bool = False
    project: str | None = None
    public: bool | None = True
    least_ram: int | None = None
    least_disk: int | None = None
    name: str | None = None
    marker: str | None = None


def visible(project: str | BindParameter[Any] | None) -> ColumnElement[bool]:
    """Public flavors, and those that *project* has access to."""
    mine = select(flavor_projects.c.flavor_number).where(flavor_projects.c.project_id == project)
    return or_(flavors.c.is_public, flavors.c.number.in_(mine))


def find(connection: Connection, id: str, project: str | None = None, *, everything: bool = False) -> Row[Any] | None:
    """The flavor, if *project* may see it or *everything* is seen."""
    where = [flavors.c.id == id] if everything else [flavors.c.id == id, visible(project)]
    return connection.execute(select(flavors).where(*where)).one_or_none()


def page(connection: Connection, wanted: FlavorQuery) -> Sequence[Row[Any]] | None:
    """The rows; ``None`` when there is no such marker."""
    given = {"project": wanted.project, "most": wanted.limit}
    question, seen = _question(wanted.sort, wanted.descending, wanted.public)
    if wanted.marker is not None:
        at = connection.execute(select(flavors).where(flavors.c.id == wanted.marker, seen), given).one_or_none()
        if at is None:
            return None
        question = question.where(_beyond(flavors.c[SORTS[wanted.sort]], wanted.descending, at))
    where = _conditions(wanted)
    return connection.execute(question.where(*where) if where else question, given).all()


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


def _conditions(wanted: FlavorQuery) -> list[ColumnElement[bool]]:
    """The conditions of filters."""
    where: list[ColumnElement[bool]] = []
    if wanted.least_ram is not None:
        where.append(flavors.c.ram >= wanted.least_ram)
    if wanted.least_disk is not None:
        where.append(flavors.c.disk >= wanted.least_disk)
    if wanted.name is not None:
        where.append(flavors.c.name.regexp_match(wanted.name))
    return where


def _beyond(column: Any, descending: bool, at: Row[Any]) -> ColumnElement[bool]:
    """The condition of rows after the marker; null sorts first."""
    value, number = getattr(at, column.name), flavors.c.number
    later = number < at.number if descending else number > at.number
    if value is None:
        return and_(column.is_(None), later) if descending else or_(and_(column.is_(None), later), column.is_not(None))
    further = or_(column < value, column.is_(None)) if descending else column > value
    return or_(further, and_(column == value, later))


def taken(connection: Connection, id: str, name: str) -> str | None:
    """``id`` or ``name``, whichever another flavor has already."""
    row = connection.execute(select(flavors.c.id).where(or_(flavors.c.id == id, flavors.c.name == name))).first()
    return None if row is None else "id" if row.id == id else "name"


def make(connection: Connection, **values: Any) -> Row[Any]:
    """Insert a flavor. No project has access to a private one yet, not even the caller's, as in Nova."""
    connection.execute(insert(flavors).values(created_at=now(), **values))
    return connection.execute(select(flavors).where(flavors.c.id == values["id"])).one()


def change(connection: Connection, number: int, **values: Any) -> None:
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
