# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit of the hosts' counters of claimed resources against the claims."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, Select, func, select, update

from magnetar_control.store.engine.tables import allocations, hosts
from magnetar_control.store.engine.tables import inventories as inventory_table

from .allocations import RESOURCES


class Difference(NamedTuple):
    """A host whose counters of claimed resources differ from the sums of its allocations. ``counted`` (the counters)
    and ``held`` (the sums) contain ``(vcpus, memory_mb, disk_gb, pcpus, servers)`` in this order. With a
    ``resource_class``, ``counted`` and ``held`` contain only the amount of that class."""

    host: str
    counted: tuple[int, ...]
    held: tuple[int, ...]
    resource_class: str = ""

    @property
    def text(self) -> str:
        """Return a sentence that describes the difference between the counters and the allocations."""
        class_suffix = f" of {self.resource_class}" if self.resource_class else ""
        return f"host {self.host} counts {self.counted}{class_suffix}, its claims are {self.held}"


def audit_host_counters(connection: Connection, repair: bool = False, host_ids: Collection[str] | None = None,
                        lock: bool = True) -> list[Difference]:
    """Return the hosts whose counters of claimed resources differ from the sum of their allocations. *repair*: set the
    counters to that sum.

    * *host_ids*: check only these hosts; all by default.
    * *lock*: lock the hosts' rows while counting (PostgreSQL, in a ``write`` transaction). Without the lock, a
      difference
      can be harmless: another transaction is making a claim at this moment.
    """
    counters = [hosts.c[f"{name}_used"] for name in RESOURCES] + [hosts.c.servers]
    some_hosts = [] if host_ids is None else [hosts.c.id.in_(list(host_ids))]
    rows = connection.execute(_locked(select(hosts.c.id, hosts.c.name, *counters).where(*some_hosts).order_by(
        hosts.c.id), lock)).all()
    some_claims = [] if host_ids is None else [allocations.c.host_id.in_(list(host_ids))]
    sums = [func.sum(allocations.c[name]) for name in RESOURCES]
    query = select(allocations.c.host_id, *sums, func.count().filter(allocations.c.owner.is_(None))).where(
        *some_claims).group_by(allocations.c.host_id)
    differences = _audit_classes(connection, {row.id: row.name for row in rows}, repair, host_ids, lock)
    claimed = {host: tuple(int(n) for n in amounts) for host, *amounts in connection.execute(query)}
    for id, name, *counted in rows:
        difference = Difference(name, tuple(counted), claimed.get(id, (0,) * (len(RESOURCES) + 1)))
        if difference.counted != difference.held:
            differences.append(difference)
            if repair:
                names = [*(f"{name}_used" for name in RESOURCES), "servers"]
                connection.execute(update(hosts).where(hosts.c.id == id).values(
                    dict(zip(names, difference.held, strict=True))))
    return differences


def _locked(query: Select[Any], lock: bool) -> Select[Any]:
    return query.with_for_update() if lock else query


def _audit_classes(connection: Connection, names: Mapping[str, str], repair: bool, host_ids: Collection[str] | None,
                   lock: bool) -> list[Difference]:
    """Return the hosts whose claimed amounts differ from the sums of their allocations, for ``audit_host_counters``.
    Checks only the resource classes that have no column in ``hosts``; the table ``inventories`` has their claimed
    amounts. *names*: names of the hosts by id. *repair*: set the claimed amounts to the sums. *host_ids*: check only
    these hosts; ``None`` for all. *lock*: lock the rows while counting."""
    table = inventory_table.c
    some_hosts = [] if host_ids is None else [table.host_id.in_(list(host_ids))]
    some_claims = [] if host_ids is None else [allocations.c.host_id.in_(list(host_ids))]
    rows = connection.execute(_locked(select(inventory_table).where(*some_hosts).order_by(
        table.host_id, table.resource_class), lock)).all()
    claimed: dict[tuple[str, str], int] = {}
    for host, text in connection.execute(select(allocations.c.host_id, allocations.c.resources).where(
            allocations.c.resources != "{}", *some_claims)):
        for name, n in orjson.loads(text).items():
            claimed[host, name] = claimed.get((host, name), 0) + n
    differences = []
    for row in rows:
        if row.used != (really := claimed.get((row.host_id, row.resource_class), 0)) and row.host_id in names:
            differences.append(Difference(names[row.host_id], (row.used,), (really,), row.resource_class))
            if repair:
                connection.execute(update(inventory_table).where(
                    table.host_id == row.host_id, table.resource_class == row.resource_class).values(used=really))
    return differences
