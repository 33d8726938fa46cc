# SPDX-License-Identifier: GPL-3.0-or-later
"""Security groups on hosts, for ports that no engine has: the hosts' agents filter.

A host is told of each group that NICs there name, before the first of them comes (``conductor.steps.host_groups``).
From then on a row says that it has the group; whoever changes the group, or the addresses of its ports, notes in the
row that the host is to be told again, in the transaction of the change. A port that gets other groups is noted
likewise.

The agents know the addresses of their own guests. Those of other hosts matter on bridges only (networks of type flat):
what is sent from a network that the agents make never comes to another host from there.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy import ColumnElement, Connection, RowMapping, Select, bindparam, exists, select, union, update
from sqlalchemy import delete as deleting

from magnetar_control.services import Document
from magnetar_control.services.network.tables import (
    TAKEN,
    address_groups,
    addresses,
    networks,
    ports,
    security_group_hosts,
    security_group_rules,
    security_groups,
)
from magnetar_control.store.engine.database import Database, added

from .group_rules import NUMBERS

#: Groups, or ports, of a host that are told in one go.
AT_ONCE = 200
#: Rows in one statement.
MANY = 500
#: The version of uuids that follow from names.
FOLLOWS = 5
_HELD, _GROUP = security_group_hosts.c, security_groups.c
_DUE_HOSTS = union(select(_HELD.host).where(_HELD.due.is_(True)),
                   select(ports.c.host).where(ports.c.groups_due.is_(True), ports.c.host != ""))
_DUE_GROUPS = select(_HELD.group_id).where(_HELD.host == bindparam("at"), _HELD.due.is_(True)).limit(AT_ONCE)
_PORTS = select(*ports.c["id", "device_id", "mac_address", "security_groups", "port_security_enabled"]).where(
    ports.c.host == bindparam("at"), TAKEN)
_DUE_PORTS = _PORTS.where(ports.c.groups_due.is_(True)).limit(AT_ONCE)
_REVISED = update(security_groups).where(_GROUP.id == bindparam("at")).values(revision=_GROUP.revision + 1)
#: Ports that no engine has, and among them those on bridges.
OURS = ports.c.network_id.in_(select(networks.c.id).where(~networks.c.by_engine))
_PORTS_OF = _PORTS.where(ports.c.device_id.in_(bindparam("servers", expanding=True)), OURS)
_FLAT = ports.c.network_id.in_(select(networks.c.id).where(networks.c.type == "flat", ~networks.c.by_engine))


class DuePort(NamedTuple):
    """A server's port, whose host is to be told of its *groups* (``None``: it has no port security). *text*: what its
    row has."""

    id: str
    server: str
    mac: str
    groups: list[str] | None
    text: str


def _due_port(row: RowMapping) -> DuePort:
    return DuePort(row["id"], row["device_id"], row["mac_address"], of_port(row), row["security_groups"])


def of_port(row: RowMapping | Mapping[str, Any]) -> list[str] | None:
    """The groups of a port's row that its host filters by."""
    return sorted(orjson.loads(row["security_groups"])) if row["port_security_enabled"] else None


def changed(connection: Connection, units: Iterable[str]) -> None:
    """*units* (``group/UUID``, ``port/UUID``, ``addresses/UUID`` of an address group) have changed, in this
    transaction: their hosts are to be told."""
    kinds: dict[str, set[str]] = {"group": set(), "port": set(), "addresses": set()}
    for unit in units:
        kind, _slash, id = unit.partition("/")
        kinds.get(kind, set()).add(id)
    if kinds["port"]:
        connection.execute(update(ports).where(ports.c.id.in_(kinds["port"]), TAKEN, OURS).values(groups_due=True))
        kinds["group"] |= named(connection.execute(on_bridges(ports.c.id.in_(kinds["port"]))).scalars())
    if kinds["addresses"]:
        kinds["group"] |= set(connection.execute(select(security_group_rules.c.security_group_id).where(
            security_group_rules.c.remote_address_group_id.in_(kinds["addresses"]))).scalars())
    if kinds["group"]:  # in one order, since their rows stay locked
        connection.execute(_REVISED, [{"at": id} for id in sorted(kinds["group"])])
        connection.execute(update(security_group_hosts).where(_HELD.group_id.in_(kinds["group"])).values(due=True))


def on_bridges(which: ColumnElement[bool]) -> Select[str]:
    """Selects the groups of those of these ports that are on bridges of hosts."""
    return select(ports.c.security_groups).where(which, _FLAT)


def named(texts: Iterable[str]) -> set[str]:
    """The groups in these texts of ports' rows."""
    return {id for text in texts for id in orjson.loads(text)}


def forget(connection: Connection, host: str) -> None:
    """*host* is removed: it is told of nothing more."""
    connection.execute(deleting(security_group_hosts).where(_HELD.host == host))


class HostGroups:
    """What conductors ask and note, in the API *database*."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def hosts(self) -> list[str]:
        """Those that are to be told of something."""
        with self.database.read() as connection:
            return sorted(connection.execute(_DUE_HOSTS).scalars())

    def due(self, host: str) -> tuple[Sequence[str], Sequence[DuePort]]:
        """The groups, and the ports of servers, of which *host* is to be told next."""
        with self.database.read() as connection:
            groups = connection.execute(_DUE_GROUPS, {"at": host}).scalars().all()
            rows = connection.execute(_DUE_PORTS, {"at": host}).mappings().all()
        return groups, [_due_port(row) for row in rows]

    def claim(self, host: str, id: str) -> None:
        """*host* will have the group: from now on a change is noted. Before it is read for the host."""
        with self.database.write() as connection:
            added(connection, security_group_hosts, group_id=id, host=host, due=True)

    def document(self, id: str) -> Document | None:
        """The group in the agent's form (``kinds.GroupFilter``); ``None`` where there is none any more."""
        with self.database.read() as connection:
            # First of all: what changes afterwards has another revision.
            revision = connection.execute(select(_GROUP.revision).where(_GROUP.id == id)).scalar()
            if revision is None:
                return None
            rules = connection.execute(select(security_group_rules, address_groups.c.addresses).outerjoin(
                address_groups, address_groups.c.id == security_group_rules.c.remote_address_group_id).where(
                security_group_rules.c.security_group_id == id).order_by(security_group_rules.c.id)).mappings().all()
            members = connection.execute(select(addresses.c.ip_address).join(
                ports, ports.c.id == addresses.c.port_id).where(
                _FLAT, TAKEN, ports.c.security_groups.contains(f'"{id}"'))).scalars().all()
        return {"name": id, "revision": revision, "rules": [one for row in rules for one in _rules(row)],
                "members": sorted(members)}

    def told(self, host: str, id: str, revision: int) -> None:
        """*host* has the group as it was at *revision*."""
        with self.database.write() as connection:
            # Locked, so that a change which is not committed yet is waited for, and one that comes sees what is noted.
            now = connection.execute(select(_GROUP.revision).where(_GROUP.id == id).with_for_update(read=True)).scalar()
            if now == revision:
                connection.execute(update(security_group_hosts).where(
                    _HELD.group_id == id, _HELD.host == host).values(due=None))

    def gone(self, host: str, id: str) -> None:
        """*host* has the group no more. A project's ``default``, whose uuid follows from the project's, may come again:
        conductors remember that the host had it, so it stays noted."""
        this = (_HELD.group_id == id) & (_HELD.host == host)
        with self.database.write() as connection:
            if uuid.UUID(id).version == FOLLOWS:
                connection.execute(update(security_group_hosts).where(this, ~exists().where(_GROUP.id == id)).values(
                    due=None))
            else:
                connection.execute(deleting(security_group_hosts).where(this))

    def port_told(self, host: str, port: DuePort) -> None:
        """*host* knows the groups of the port."""
        with self.database.write() as connection:
            connection.execute(update(ports).where(
                ports.c.id == port.id, ports.c.host == host, ports.c.security_groups == port.text,
                ports.c.port_security_enabled.is_(port.groups is not None)).values(groups_due=None))

    def compare(self, host: str, found: Mapping[str, int]) -> None:
        """Note what the host has otherwise than it should. *found*: group to the revision that it has."""
        with self.database.read() as connection:
            held = connection.execute(select(_HELD.group_id, _GROUP.revision).outerjoin(
                security_groups, _GROUP.id == _HELD.group_id).where(_HELD.host == host, _HELD.due.is_(None))).all()
        other = [row.group_id for row in held if found.get(row.group_id) != row.revision]
        unknown = found.keys() - {row.group_id for row in held}
        if other or unknown:
            with self.database.write() as connection:
                for id in unknown:  # of a group that went while the host was away, or of another database
                    added(connection, security_group_hosts, group_id=id, host=host, due=True)
                connection.execute(update(security_group_hosts).where(
                    _HELD.host == host, _HELD.group_id.in_(other)).values(due=True))

    def held(self, host: str, servers: Collection[str]) -> list[DuePort]:
        """The ports of these servers on *host* that it filters."""
        found, ids = list[RowMapping](), sorted(servers)
        with self.database.read() as connection:
            for at in range(0, len(ids), MANY):
                found += connection.execute(_PORTS_OF, {"at": host, "servers": ids[at:at + MANY]}).mappings().all()
        return [_due_port(row) for row in found]

    def tell_again(self, host: str, ports_: Sequence[DuePort]) -> None:
        """*host* has these ports otherwise than it should: it is to be told."""
        with self.database.write() as connection:
            for at in range(0, len(ports_), MANY):
                connection.execute(update(ports).where(
                    ports.c.id.in_([one.id for one in ports_[at:at + MANY]]), ports.c.host == host, TAKEN).values(
                    groups_due=True))


def _rules(row: RowMapping) -> list[Document]:
    """A rule in the agent's form; of one that names an address group, one for each of its networks."""
    protocol = row["protocol"]
    found = {"direction": row["direction"], "ethertype": row["ethertype"],
             "protocol": None if protocol is None else NUMBERS[protocol] if protocol in NUMBERS else int(protocol),
             "port_range_min": row["port_range_min"], "port_range_max": row["port_range_max"],
             "remote_ip_prefix": row["remote_ip_prefix"], "remote_group": row["remote_group_id"]}
    if row["remote_address_group_id"] is None:
        return [found]
    return [{**found, "remote_ip_prefix": one} for one in orjson.loads(row["addresses"])
            if (":" in one) == (row["ethertype"] == "IPv6")]
