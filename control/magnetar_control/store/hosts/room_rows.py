# SPDX-License-Identifier: GPL-3.0-or-later
"""Queries for ``scheduler.room``, which checks whether other hosts have room for the servers of a failed host. They
return the servers of some hosts, and the groups and servers that their scheduler hints refer to.

Each function answers for many servers with one query.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import orjson
from sqlalchemy import Connection, select

from magnetar_control.store.claims.allocations import Group
from magnetar_control.store.engine.tables import (
    allocations,
    hosts,
    server_group_members,
    server_groups,
    server_mappings,
    servers,
)
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.power import SOFT_DELETED

#: The columns of a server that a request to the scheduler reads, and those that reports and moves need.
_COLUMNS = ("id", "name", "project_id", "host", "vm_state", "task_state", "locked_by", "flavor", "image", "image_id",
            "interfaces", "volumes", "shares", "request", "hints", "availability_zone", "pinned_availability_zone",
            "launched_at")
_SERVERS = select(*servers.c[_COLUMNS])


class GroupOfHosts(NamedTuple):
    """A server group and the hosts of its members. ``group``: the group itself; its field ``hosts`` is empty.
    ``hosts``: by the member's uuid, the names of the hosts on which the member claims resources."""

    group: Group
    hosts: dict[str, list[str]]


class ClaimedHost(NamedTuple):
    """A host on which a server claims resources."""

    project_id: str
    server_id: str
    host: str


def fetch_servers_of_hosts(connection: Connection, names: Collection[str]) -> list[ServerRow]:
    """Return the servers on the hosts *names*, without soft-deleted ones. Their rows have only the columns that the
    scheduler and moves need."""
    return ServerRow.several(connection.execute(_SERVERS.where(
        servers.c.host.in_(list(names)), servers.c.deleted_at.is_(None), servers.c.vm_state != SOFT_DELETED)))


def fetch_groups_with_hosts(connection: Connection, ids: Iterable[str]) -> dict[str, GroupOfHosts]:
    """Return the server groups *ids* and the hosts of their members, by group uuid. Groups that do not exist are
    absent."""
    query = select(server_groups.c.id, server_groups.c.policy, server_groups.c.rules, server_group_members.c.server_id,
                   hosts.c.name).distinct().select_from(server_groups.outerjoin(
                       server_group_members, server_group_members.c.group_id == server_groups.c.id).outerjoin(
                       allocations, allocations.c.server_id == server_group_members.c.server_id).outerjoin(
                       hosts, hosts.c.id == allocations.c.host_id)).where(server_groups.c.id.in_(list(ids)))
    groups: dict[str, GroupOfHosts] = {}
    for id, policy, rules, server, host in connection.execute(query):
        if id not in groups:
            most = int((orjson.loads(rules) if rules else {}).get("max_server_per_host", 1))
            groups[id] = GroupOfHosts(Group(id, policy, most), {})
        if host is not None:
            groups[id].hosts.setdefault(server, []).append(host)
    return groups


def fetch_claimed_hosts(connection: Connection, server_ids: Iterable[str]) -> list[ClaimedHost]:
    """Return the hosts on which the servers *server_ids* claim resources."""
    query = select(server_mappings.c.project_id, allocations.c.server_id, hosts.c.name).distinct().join_from(
        allocations, hosts, hosts.c.id == allocations.c.host_id).join(
        server_mappings, server_mappings.c.server_id == allocations.c.server_id).where(
        allocations.c.server_id.in_(list(server_ids)))
    return list(map(ClaimedHost._make, connection.execute(query)))
