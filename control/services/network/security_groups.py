# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Security groups of projects. Embedded networking keeps and shows them; it does not filter packets."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import BindParameter, Connection, RowMapping, bindparam, or_, select

from magnetar_control.services import Context, Document
from magnetar_control.store.database import added, now
from magnetar_core.errors import Conflict, InvalidRequest

from .resources import Resource, add, change, own, remove
from .tables import ports, security_group_rules, security_groups

NAMESPACE = uuid.UUID("b0b7c1f0-54d3-5e5e-8a67-3f2f8f6f7b11")
_NAMES: BindParameter[str] = bindparam("names", expanding=True)
_NAMED = select(security_groups.c.id, security_groups.c.name).where(
    security_groups.c.project_id == bindparam("project"),
    or_(security_groups.c.name.in_(_NAMES), security_groups.c.id.in_(_NAMES)))


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


def named(connection: Connection, context: Context, names: Sequence[str], *, make: bool = False) -> list[str]:
    """Uuids of the project's groups *names* (or uuids); *make*: in a transaction, which may make ``default``. Raises
    ``InvalidRequest`` for one that is not there, 409 where several have the name."""
    project = context.project_id or ""
    rows = connection.execute(_NAMED, {"project": project, "names": list(names)}).all()
    found = []
    for name in dict.fromkeys(names):
        ids = [row.id for row in rows if row.id == name] or [row.id for row in rows if row.name == name]
        if not ids and name == "default":
            ids = [default_group(connection, project) if make else default_id(project)]
        if not ids:
            raise InvalidRequest(f"Security group {name} not found for project {project}.",
                                 type="SecurityGroupNotFound")
        if len(ids) > 1:
            raise Conflict(f"Multiple security groups found matching '{name}'. Use an ID to be more specific.")
        found.append(ids[0])
    return found


def documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows, with their rules."""
    held: dict[str, list[Document]] = {row["id"]: [] for row in rows}
    for rule in connection.execute(select(security_group_rules).where(
            security_group_rules.c.security_group_id.in_(held))
            .order_by(security_group_rules.c.created_at, security_group_rules.c.id)).mappings():
        held[rule["security_group_id"]].append({**rule})
    return [{**row, "rules": held[row["id"]]} for row in rows]


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it, with rules that let everything out. There is one ``default``, which is made by itself."""
    if values["name"] == "default":
        raise Conflict("Default security group already exists.", type="SecurityGroupDefaultAlreadyExists")
    default_group(connection, values["project_id"])
    add(connection, security_groups, values)
    open_out(connection, values["project_id"], values["id"])


def update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Change it; the name ``default`` is kept."""
    if "name" in values and "default" in (row["name"], values["name"]) and row["name"] != values["name"]:
        raise Conflict("Updating default security group not allowed.", type="SecurityGroupCannotUpdateDefault")
    change(connection, security_groups, row["id"], values)


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Remove it, when no port has it."""
    if row["name"] == "default" and not context.is_admin:
        raise Conflict("Insufficient rights for removing default security group.",
                    type="SecurityGroupCannotRemoveDefault")
    held = ports.c.security_groups.contains(f'"{row["id"]}"')
    if connection.execute(select(ports.c.id).where(held).limit(1)).first():
        raise Conflict(f"Security Group {row['id']} in use.", type="SecurityGroupInUse")
    remove(connection, security_groups, row["id"])


def _prepare(connection: Connection, context: Context) -> None:
    if context.project_id:
        default_group(connection, context.project_id)


SECURITY_GROUP = Resource(
    name="security_group", table=security_groups, visible=own(security_groups), documents=documents, create=create,
    update=update, delete=delete, defaults={"description": "", "stateful": True}, before_list=_prepare)
