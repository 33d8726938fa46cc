# SPDX-License-Identifier: GPL-3.0-or-later
"""Security groups on hosts, for ports on networks without an engine: the hosts' agents filter their packets.

Conductors send a host each security group of its NICs, before the first NIC with that group is plugged
(``conductor.steps.host_groups``). From then on a row of ``security_group_hosts`` records that the host's agent stores
the group. A transaction that changes the group, or the addresses of its ports, marks the row: the group must be sent to
the host again. A port that gets other groups is marked, too.

The agents know the addresses of their own guests. Addresses on other hosts matter on bridges only (networks of type
flat): packets of a network that the agents make do not reach other hosts.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, Select, bindparam, exists, select, union, update
from sqlalchemy import delete as deleting

from magnetar_control.services.network.tables import (
    TAKEN,
    address_groups,
    addresses,
    has_group,
    networks,
    ports,
    security_group_hosts,
    security_group_rules,
    security_groups,
)
from magnetar_control.store.engine.database import Database, insert_if_absent
from magnetar_core.document import Document

from .group_rules import NUMBERS

#: Maximum number of groups, and of ports, that conductors send to a host in one round.
BATCH_SIZE = 200
#: Maximum number of rows in one statement.
MANY = 500
#: The version of uuids that are derived from names.
FOLLOWS = 5
_HELD, _GROUP = security_group_hosts.c, security_groups.c
_DUE_HOSTS = union(select(_HELD.host).where(_HELD.due.is_(True)),
                   select(ports.c.host).where(ports.c.groups_due.is_(True), ports.c.host != ""))
_DUE_GROUPS = select(_HELD.group_id).where(_HELD.host == bindparam("at"), _HELD.due.is_(True)).limit(BATCH_SIZE)
_PORTS = select(*ports.c["id", "device_id", "mac_address", "security_groups", "port_security_enabled"]).where(
    ports.c.host == bindparam("at"), TAKEN)
_DUE_PORTS = _PORTS.where(ports.c.groups_due.is_(True)).limit(BATCH_SIZE)
_REVISED = update(security_groups).where(_GROUP.id == bindparam("at")).values(revision=_GROUP.revision + 1)
#: The SQL condition for ports on networks without an engine. ``_FLAT``: for ports on bridges of hosts.
OURS = ports.c.network_id.in_(select(networks.c.id).where(~networks.c.by_engine))
_PORTS_OF = _PORTS.where(ports.c.device_id.in_(bindparam("servers", expanding=True)), OURS)
_FLAT = ports.c.network_id.in_(select(networks.c.id).where(networks.c.type == "flat", ~networks.c.by_engine))


class DuePort(NamedTuple):
    """A server's port whose list of security groups must be sent to its host. *groups*: the sorted ids of the groups;
    ``None``: port security is off. *in_row*: the ids exactly as the port's row has them, to detect a change of the row.
    """

    id: str
    server: str
    mac: str
    groups: list[str] | None
    in_row: list[str]


def _due_port(row: RowMapping) -> DuePort:
    return DuePort(row["id"], row["device_id"], row["mac_address"], groups_of_port(row), row["security_groups"])


def groups_of_port(row: RowMapping | Mapping[str, Any]) -> list[str] | None:
    """Return the ids of the security groups that the host uses to filter the packets of the port *row*; ``None`` if its
    port security is off."""
    return sorted(row["security_groups"]) if row["port_security_enabled"] else None


def note_changed_units(connection: Connection, units: Iterable[str]) -> None:
    """Mark the rows of groups and ports that conductors must send to hosts again, because *units* have changed (keys:
    ``group/UUID``, ``port/UUID``, or ``addresses/UUID`` of an address group). Runs in the caller's transaction."""
    kinds: dict[str, set[str]] = {"group": set(), "port": set(), "addresses": set()}
    for unit in units:
        kind, _slash, id = unit.partition("/")
        kinds.get(kind, set()).add(id)
    if kinds["port"]:
        connection.execute(update(ports).where(ports.c.id.in_(kinds["port"]), TAKEN, OURS).values(groups_due=True))
        kinds["group"] |= groups_of_rows(connection.execute(on_bridges(ports.c.id.in_(kinds["port"]))))
    if kinds["addresses"]:
        kinds["group"] |= set(connection.execute(select(security_group_rules.c.security_group_id).where(
            security_group_rules.c.remote_address_group_id.in_(kinds["addresses"]))).scalars())
    if kinds["group"]:  # in sorted order, because the rows stay locked
        connection.execute(_REVISED, [{"at": id} for id in sorted(kinds["group"])])
        connection.execute(update(security_group_hosts).where(_HELD.group_id.in_(kinds["group"])).values(due=True))


def on_bridges(which: ColumnElement[bool]) -> Select[list[str]]:
    """Return the SQL statement that selects the security groups of ports on hosts' bridges (networks of type flat).
    *which*: the SQL condition for the ports."""
    return select(ports.c.security_groups).where(which, _FLAT)


def groups_of_rows(rows: Iterable[Row[Any]]) -> set[str]:
    """Return all group ids in *rows*; each row has only the column ``security_groups``, a list of ids."""
    return {id for (group_ids,) in rows for id in group_ids}


def forget_host_groups(connection: Connection, host: str) -> None:
    """Delete the rows that state which security groups *host* has, because the host is removed from the cloud."""
    connection.execute(deleting(security_group_hosts).where(_HELD.host == host))


class HostSecurityGroups:
    """The table of security groups that hosts have (the hosts' agents store the groups and filter packets by them).
    Conductors use the table to send changed groups to the hosts. *database*: the API database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def hosts(self) -> list[str]:
        """Return the sorted names of the hosts that must be sent changed groups or changed ports."""
        with self.database.read() as connection:
            return sorted(connection.execute(_DUE_HOSTS).scalars())

    def due(self, host: str) -> tuple[Sequence[str], Sequence[DuePort]]:
        """Return the next ids of security groups, and the next ports of servers, that must be sent to *host*: at most
        ``BATCH_SIZE`` of each."""
        with self.database.read() as connection:
            groups = connection.execute(_DUE_GROUPS, {"at": host}).scalars().all()
            rows = connection.execute(_DUE_PORTS, {"at": host}).mappings().all()
        return groups, [_due_port(row) for row in rows]

    def claim(self, host: str, id: str) -> None:
        """Insert the row which states that *host* has the security group *id*, so that later changes of the group are
        sent to the host. Call this before reading the group, so that no change is missed."""
        with self.database.write() as connection:
            insert_if_absent(connection, security_group_hosts, group_id=id, host=host, due=True)

    def document(self, id: str) -> Document | None:
        """Return the security group *id* with its rules and members in the form that agents need
        (``kinds.GroupFilter``); ``None`` when it no longer exists."""
        with self.database.read() as connection:
            # Read first: later changes have another revision.
            revision = connection.execute(select(_GROUP.revision).where(_GROUP.id == id)).scalar()
            if revision is None:
                return None
            rules = connection.execute(select(security_group_rules, address_groups.c.addresses).outerjoin(
                address_groups, address_groups.c.id == security_group_rules.c.remote_address_group_id).where(
                security_group_rules.c.security_group_id == id).order_by(security_group_rules.c.id)).mappings().all()
            members = connection.execute(select(addresses.c.ip_address).join(
                ports, ports.c.id == addresses.c.port_id).where(
                _FLAT, TAKEN, has_group(id))).scalars().all()
        return {"name": id, "revision": revision, "rules": [rule for row in rules for rule in _rules(row)],
                "members": sorted(members)}

    def mark_group_sent(self, host: str, id: str, revision: int) -> None:
        """Record that the security group *id* was sent to *host* in this *revision* (a number that each change of the
        group increases), so that it is not sent again. Do nothing if the group has changed since."""
        with self.database.write() as connection:
            # Locked, to wait for a change that is not committed yet; a later change sees this note.
            now = connection.execute(select(_GROUP.revision).where(_GROUP.id == id).with_for_update(read=True)).scalar()
            if now == revision:
                connection.execute(update(security_group_hosts).where(
                    _HELD.group_id == id, _HELD.host == host).values(due=None))

    def gone(self, host: str, id: str) -> None:
        """Record that *host* no longer has the security group *id*: delete the table's row for this host and group.
        Exception: the row of a project's group ``default`` remains, because this group may be created again, and then
        has the same uuid. While this group does not exist, its row is marked as sent."""
        this = (_HELD.group_id == id) & (_HELD.host == host)
        with self.database.write() as connection:
            if uuid.UUID(id).version == FOLLOWS:
                connection.execute(update(security_group_hosts).where(this, ~exists().where(_GROUP.id == id)).values(
                    due=None))
            else:
                connection.execute(deleting(security_group_hosts).where(this))

    def mark_port_sent(self, host: str, port: DuePort) -> None:
        """Record that the security groups of *port* were sent to *host*, so that they are not sent again. Do nothing if
        the groups or host of the port have changed since."""
        with self.database.write() as connection:
            connection.execute(update(ports).where(
                ports.c.id == port.id, ports.c.host == host, ports.c.security_groups == port.in_row,
                ports.c.port_security_enabled.is_(port.groups is not None)).values(groups_due=None))

    def compare(self, host: str, reported: Mapping[str, int]) -> None:
        """Compare the security groups that *host* reports with the table. Mark the differing groups, so that conductors
        send or remove them: groups that are missing on the host, have another revision, or should not be there.
        *reported*: {id of the group: revision on the host}."""
        with self.database.read() as connection:
            noted_rows = connection.execute(select(_HELD.group_id, _GROUP.revision).outerjoin(
                security_groups, _GROUP.id == _HELD.group_id).where(_HELD.host == host, _HELD.due.is_(None))).all()
        other = [row.group_id for row in noted_rows if reported.get(row.group_id) != row.revision]
        unknown = reported.keys() - {row.group_id for row in noted_rows}
        if other or unknown:
            with self.database.write() as connection:
                for id in unknown:  # group deleted while the host was away, or of another database
                    insert_if_absent(connection, security_group_hosts, group_id=id, host=host, due=True)
                connection.execute(update(security_group_hosts).where(
                    _HELD.host == host, _HELD.group_id.in_(other)).values(due=True))

    def held(self, host: str, servers: Collection[str]) -> list[DuePort]:
        """Return the ports of *servers* (uuids) on *host* whose packets the host's agent filters."""
        rows, ids = list[RowMapping](), sorted(servers)
        with self.database.read() as connection:
            for at in range(0, len(ids), MANY):
                rows += connection.execute(_PORTS_OF, {"at": host, "servers": ids[at:at + MANY]}).mappings().all()
        return [_due_port(row) for row in rows]

    def tell_again(self, host: str, ports_: Sequence[DuePort]) -> None:
        """Mark *ports_*, ports whose security groups on *host* are wrong, so that conductors send the groups of these
        ports again."""
        with self.database.write() as connection:
            for at in range(0, len(ports_), MANY):
                connection.execute(update(ports).where(
                    ports.c.id.in_([port.id for port in ports_[at:at + MANY]]), ports.c.host == host, TAKEN).values(
                    groups_due=True))


def _rules(row: RowMapping) -> list[Document]:
    """Convert the security group rule *row* to rules in the form that agents need: one for each network of its remote
    address group, or a single rule if *row* has no such group."""
    protocol = row["protocol"]
    rule = {"direction": row["direction"], "ethertype": row["ethertype"],
            "protocol": None if protocol is None else NUMBERS[protocol] if protocol in NUMBERS else int(protocol),
            "port_range_min": row["port_range_min"], "port_range_max": row["port_range_max"],
            "remote_ip_prefix": row["remote_ip_prefix"], "remote_group": row["remote_group_id"]}
    if row["remote_address_group_id"] is None:
        return [rule]
    return [{**rule, "remote_ip_prefix": prefix} for prefix in row["addresses"]
            if (":" in prefix) == (row["ethertype"] == "IPv6")]
