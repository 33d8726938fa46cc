# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas: limits of projects, and what they use, counted where the servers are. Over quota is 403."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Integer, cast, func, select

from magnetar_control.store.database import Database
from magnetar_control.store.tables import quotas, server_group_members, server_groups, servers
from magnetar_control.web import Fault

from .operation import Call

#: Resource to the setting of its default.
RESOURCES = {"instances": "quota_instances", "cores": "quota_cores", "ram": "quota_ram",
             "metadata_items": "quota_metadata_items", "key_pairs": "quota_key_pairs",
             "server_groups": "quota_server_groups", "server_group_members": "quota_server_group_members"}
DEFAULT = "default"
MESSAGE = "Quota exceeded for {names}: Requested {asked}, but already used {used} of {limits} {names}"


def limits(call: Call, project: str | None = None) -> dict[str, int]:
    """Limits of a project: its own, else the defaults set by admins, else those of the settings."""
    project = project or call.project
    with call.cloud.store.api.read() as connection:
        rows = connection.execute(select(quotas).where(quotas.c.project_id.in_((project, DEFAULT)))).all()
    own = {row.resource: row.limit for row in rows if row.project_id == project}
    default = {row.resource: row.limit for row in rows if row.project_id == DEFAULT}
    return {name: own.get(name, default.get(name, getattr(call.settings, setting)))
            for name, setting in RESOURCES.items()}


def used(call: Call, project: str | None = None) -> dict[str, int]:
    """What a project's servers use: instances, cores, ram. One query for each cell."""
    project = project or call.project
    total = {"instances": 0, "cores": 0, "ram": 0}
    for cell, database in call.cloud.store.databases():
        if cell.disabled:
            continue
        size = _sizes(database)
        with database.read() as connection:
            row = connection.execute(select(func.count(), func.sum(size["vcpus"]), func.sum(size["ram"])).where(
                servers.c.project_id == project, servers.c.deleted_at.is_(None))).one()
        for name, value in zip(total, row, strict=True):
            total[name] += int(value or 0)
    return total


def _sizes(database: Database) -> dict[str, Any]:
    from sqlalchemy.dialects.postgresql import JSONB

    if database.kind == "postgresql":
        flavor = cast(servers.c.flavor, JSONB)
        return {name: cast(flavor[name].astext, Integer) for name in ("vcpus", "ram")}
    return {name: func.json_extract(servers.c.flavor, f"$.{name}") for name in ("vcpus", "ram")}


def check_servers(call: Call, flavor: Mapping[str, Any], least: int, most: int) -> int:
    """How many servers of *flavor* may be made, from *least* to *most*. Raises ``Fault`` 403 when not even *least*."""
    limit, have = limits(call), used(call)
    each = {"instances": 1, "cores": flavor["vcpus"], "ram": flavor["ram"]}
    limited = [name for name in each if limit[name] >= 0 and each[name]]
    room: int = min([most, *((limit[name] - have[name]) // each[name] for name in limited)])
    if room >= least:
        return room
    over = [name for name in each if limit[name] >= 0 and have[name] + least * each[name] > limit[name]]
    raise Fault(403, MESSAGE.format(
        names=", ".join(over), asked=", ".join(str(least * each[name]) for name in over),
        used=", ".join(str(have[name]) for name in over), limits=", ".join(str(limit[name]) for name in over)))


def check_flavor(call: Call, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Whether a server may grow from one flavor to another. Raises ``Fault`` 403."""
    limit, have = limits(call), used(call)
    for name, key in (("cores", "vcpus"), ("ram", "ram")):
        more = new[key] - old[key]
        if more > 0 and limit[name] >= 0 and have[name] + more > limit[name]:
            raise Fault(403, MESSAGE.format(names=name, asked=more, used=have[name], limits=limit[name]))


def check_metadata(most: int, metadata: Mapping[str, Any] | None) -> None:
    """Whether a server may have so many metadata keys. Raises ``Fault`` 403."""
    if metadata and 0 <= most < len(metadata):
        raise Fault(403, f"Maximum number of metadata items exceeds {most}")


def check_keypairs(most: int, have: int) -> None:
    """Whether a user who has so many key pairs may have one more. Raises ``Fault`` 403."""
    if 0 <= most <= have:
        raise Fault(403, "Quota exceeded, too many key pairs.")


def check_group(call: Call, group: str) -> None:
    """Whether a server group may have one more server. Raises ``Fault`` 403."""
    most = limits(call)["server_group_members"]
    with call.cloud.store.api.read() as connection:
        have = connection.execute(select(func.count()).where(server_group_members.c.group_id == group)).scalar() or 0
    if 0 <= most <= have:
        raise Fault(403, "Quota exceeded, too many servers in group")


def groups_used(call: Call, project: str | None = None) -> int:
    """How many server groups a project has."""
    with call.cloud.store.api.read() as connection:
        return int(connection.execute(select(func.count()).where(
            server_groups.c.project_id == (project or call.project))).scalar() or 0)
