# SPDX-License-Identifier: GPL-3.0-or-later
"""Security groups of projects. Embedded networking keeps and shows them; it does not filter packets."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import Connection, or_, select

from magnetar_control.services import Context
from magnetar_control.store.database import added, now
from magnetar_control.web import Fault

from .tables import security_group_rules, security_groups

NAMESPACE = uuid.UUID("b0b7c1f0-54d3-5e5e-8a67-3f2f8f6f7b11")


def default_id(project_id: str | None) -> str:
    """Uuid of the group ``default`` of a project: it follows from the project, so that it is made once."""
    return str(uuid.uuid5(NAMESPACE, project_id or ""))


def default_group(connection: Connection, project_id: str | None) -> str:
    """The project's group ``default``, made when it is first needed."""
    id = default_id(project_id)
    if added(connection, security_groups, id=id, project_id=project_id or "", name="default",
             description="Default security group", created_at=now()):
        open_out(connection, project_id or "", id)
        for ethertype in ("IPv4", "IPv6"):
            _rule(connection, project_id or "", id, "ingress", ethertype, id)
    return id


def open_out(connection: Connection, project_id: str, group_id: str) -> None:
    """What each new group has: rules that let everything out."""
    for ethertype in ("IPv4", "IPv6"):
        _rule(connection, project_id, group_id, "egress", ethertype, None)


def _rule(connection: Connection, project_id: str, group_id: str, direction: str, ethertype: str,
          remote: str | None) -> None:
    added(connection, security_group_rules, id=str(uuid.uuid5(uuid.UUID(group_id), direction + ethertype)),
          project_id=project_id, security_group_id=group_id, direction=direction, ethertype=ethertype,
          remote_group_id=remote, description="", created_at=now())


def named(connection: Connection, context: Context, names: Sequence[str]) -> list[str]:
    """Uuids of the project's groups *names* (or uuids). Raises ``Fault`` 400 for one that is not there, 409 where
    several have the name."""
    table, project = security_groups, context.project_id or ""
    rows = connection.execute(select(table.c.id, table.c.name).where(
        table.c.project_id == project, or_(table.c.name.in_(names), table.c.id.in_(names)))).all()
    found = []
    for name in dict.fromkeys(names):
        ids = [row.id for row in rows if row.id == name] or [row.id for row in rows if row.name == name]
        if not ids and name == "default":
            ids = [default_id(project)]
        if not ids:
            raise Fault(400, f"Security group {name} not found for project {project}.", type="SecurityGroupNotFound")
        if len(ids) > 1:
            raise Fault(409, f"Multiple security groups found matching '{name}'. Use an ID to be more specific.")
        found.append(ids[0])
    return found
