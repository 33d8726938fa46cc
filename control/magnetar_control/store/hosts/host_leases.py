# SPDX-License-Identifier: GPL-3.0-or-later
"""Heartbeats of hosts, and leases that make one conductor at a time watch a host. Each function handles all hosts of a
conductor in a few statements.

A heartbeat makes a host count as up. An evacuation begins only at a host that is not up (``services.is_host_heard``),
so the transaction that writes a heartbeat also checks for evacuations that have begun."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
from sqlalchemy import ARRAY, Connection, String, any_, bindparam, func, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from magnetar_control.store.engine.database import INSERT, Database, postgresql_now
from magnetar_control.store.engine.tables import host_states, migrations
from magnetar_control.store.servers.migrations import DONE, EVACUATION, LOST

#: Seconds of a lease.
LEASE = 12.0
#: The stored problem of a host that answers while servers that were evacuated are removed from it.
REMOVING = "servers that were evacuated are removed"
#: Prefix of the problem of a host that answers, but whose report is refused. Nova uses this prefix for reasons that
#: were not set by an operator.
REFUSED = "AUTO: "
#: Condition of hosts that are not refused.
NOT_REFUSED = or_(host_states.c.problem.is_(None), host_states.c.problem.not_like(f"{REFUSED}%"))
_EVACUATIONS = select(migrations.c.source, migrations.c.uuid).where(
    migrations.c.type == EVACUATION, migrations.c.status.in_((LOST, DONE)))
_REPORT = update(host_states).where(host_states.c.host == bindparam("name")).values(told=bindparam("text"))
_PROBLEM = update(host_states).where(host_states.c.host == bindparam("name")).values(problem=bindparam("text"))


class Renewal(NamedTuple):
    """The result of ``renew_host_leases``, as names of hosts. *up*: the heartbeat was written. *evacuated*: not up yet,
    because evacuated servers must first be removed from the host. *lost*: another conductor has the lease of the host
    (the right to receive its heartbeats), or the host has no row."""

    up: frozenset[str]
    evacuated: frozenset[str]
    lost: frozenset[str]


class _Statements(NamedTuple):
    """The SQL statements of this module for one database engine; ``_parameters`` returns their parameters."""

    known: Any
    free: Any
    up: Any
    held: Any
    new: Any


@cache
def _statements(kind: str) -> _Statements:
    """Return the SQL statements for an engine (``sqlite`` or ``postgresql``). The names of hosts are passed as one
    parameter, so the text of a statement does not depend on the number of hosts."""
    sqlite = kind == "sqlite"
    now, until = (bindparam("now"), bindparam("until")) if sqlite else (postgresql_now(), postgresql_now(LEASE))
    named: ColumnElement[bool] = host_states.c.host.in_(
        select(func.json_each(bindparam("names")).table_valued("value").c.value)) if sqlite \
        else host_states.c.host == any_(bindparam("names", type_=ARRAY(String)))
    free = or_(host_states.c.watcher == bindparam("holder"), host_states.c.lease_until.is_(None),
               host_states.c.lease_until < now)
    held = update(host_states).where(named).values(watcher=bindparam("holder"), lease_until=until)
    return _Statements(
        select(host_states.c.host, free.label("free")).where(named),
        select(host_states.c.host).where(named, free).order_by(host_states.c.host).with_for_update(),
        held.values(seen_at=now, problem=None), held,
        INSERT[kind](host_states).values(host=bindparam("name")).on_conflict_do_nothing())


def _parameters(database: Database, holder: str, names: Iterable[str]) -> dict[str, Any]:
    if database.kind == "postgresql":
        return {"names": list(names), "holder": holder}
    return {"names": orjson.dumps(list(names)).decode(), "holder": holder, "now": database.clock(),
            "until": database.clock(LEASE)}


def take_host_leases(database: Database, holder: str, names: Collection[str]) -> frozenset[str]:
    """Lease the hosts in *names* that no other conductor has leased, and return the names of the leased hosts.
    *holder*: the id of the conductor process, which receives the heartbeats of its hosts until the leases end."""
    statements = _statements(database.kind)
    if not names:
        return frozenset()
    parameters = _parameters(database, holder, names)
    with database.read() as connection:  # most are watched by others
        known = dict(connection.execute(statements.known, parameters).all())
    new = [name for name in names if name not in known]
    if not new and not any(known.values()):
        return frozenset()
    with database.write() as connection:
        if new:
            connection.execute(statements.new, [{"name": name} for name in new])
        taken = frozenset(connection.execute(statements.free, parameters).scalars())
        if taken:
            connection.execute(statements.held, _parameters(database, holder, taken))
    return taken


def renew_host_leases(database: Database, holder: str, heartbeats: Mapping[str, Collection[str]],
                      silent: Collection[str] = (), problems: Mapping[str, str | None] = MappingProxyType({}),
                      reports: Mapping[str, str | None] = MappingProxyType({})) -> Renewal:
    """Renew the leases of hosts whose heartbeats the conductor process *holder* receives, store which hosts have
    answered, and return the result. All mappings are by host name.

    *heartbeats*: for each host that answered, the uuids of evacuations whose old guests are stopped or removed there.
    *silent*: hosts that did not answer. *problems*: texts to store that say why a host is not up; ``None`` clears the
    stored text. *reports*: the content of heartbeats to store, as JSON text; ``None`` clears the stored content.
    """
    statements, names = _statements(database.kind), {*heartbeats, *silent, *problems}
    if not names:
        return Renewal(frozenset(), frozenset(), frozenset())
    with database.write() as connection:
        mine = frozenset(connection.execute(statements.free, _parameters(database, holder, names)).scalars())
        evacuated = _unhandled_evacuations(connection, heartbeats) & mine if heartbeats else frozenset[str]()
        up = mine & heartbeats.keys() - evacuated
        if up:
            connection.execute(statements.up, _parameters(database, holder, up))
        if mine - up:
            connection.execute(statements.held, _parameters(database, holder, mine - up))
        texts = {**problems, **dict.fromkeys(evacuated, REMOVING)}
        for query, values in ((_PROBLEM, texts), (_REPORT, reports)):
            if rows := [{"name": name, "text": text} for name, text in values.items() if name in mine]:
                connection.execute(query, rows)
    return Renewal(up, evacuated, frozenset(names) - mine)


def _unhandled_evacuations(connection: Connection, heartbeats: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Return the hosts on which guests of evacuated servers may still run. *heartbeats*: by host, the uuids of
    evacuations whose old guests are stopped or removed there; a host is returned if one of its evacuations is missing.
    """
    return frozenset(host for host, evacuation in connection.execute(_EVACUATIONS)
                     if host in heartbeats and evacuation not in heartbeats[host])
