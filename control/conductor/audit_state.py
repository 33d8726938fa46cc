# SPDX-License-Identifier: GPL-3.0-or-later
"""What the audit compares: rows of all databases, what the services keep, and what the hosts have."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import exists, select
from sqlalchemy.exc import DBAPIError

from magnetar_control.agents import Agents
from magnetar_control.services import Services
from magnetar_control.store import allocations, migrations
from magnetar_control.store.allocations import Difference
from magnetar_control.store.store import CELL0, Store
from magnetar_control.store.tables import actions, hosts, server_mappings, servers
from magnetar_control.store.tables import allocations as claims
from magnetar_control.store.tables import migrations as moves_table
from magnetar_core.errors import MagnetarError

log = logging.getLogger(__name__)
#: Ids in one query.
MANY = 500


@dataclass
class AuditState:
    """One reading. ``servers``: rows of servers that are not deleted, by id. ``there``: guests by host and id, of the
    hosts that answer."""

    hosts: Mapping[str, Any] = field(default_factory=dict)  # by id
    claims: list[Any] = field(default_factory=list)
    counters: list[Difference] = field(default_factory=list)
    ports: Mapping[str, str] = field(default_factory=dict)
    attachments: Mapping[str, str] = field(default_factory=dict)
    networks: set[str] = field(default_factory=set)
    servers: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)  # of servers, by their id
    copies: set[str] = field(default_factory=set)
    moves: dict[str, list[Any]] = field(default_factory=dict)
    there: dict[str, dict[str, Any]] = field(default_factory=dict)
    nets: dict[str, list[Any]] = field(default_factory=dict)
    #: Ids of deleted servers; see ``deleted_servers``.
    deleted: set[str] = field(default_factory=set)
    #: Ids whose cell does not answer or has no row of them.
    unknown: set[str] = field(default_factory=set)
    #: Of these, those whose cell answers, with the cell.
    lost: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)  # cells that do not answer

    def without(self, row: Any, kind: str) -> bool | None:
        """Whether the guest has no volumes or NICs (*kind*) beyond those of its row; ``None`` while a host that may
        have the guest does not answer."""
        places = {row.host, *(self.hosts[one.host_id].name for one in self.claims if one.server_id == row.id)} - {None}
        if not places <= self.there.keys():
            return None
        found = [parts(row, guests[row.id])[kind] for guests in self.there.values() if row.id in guests]
        return all(there <= noted for noted, there in found)

    def idle(self, id: str) -> Any:
        """The row of a server without an action."""
        row = self.servers.get(id)
        return None if row is None or row.busy else row


def read_state(store: Store, agents: Agents, services: Services, names: Iterable[str] | None = None) -> AuditState:
    """Read everything; claims, ports and attachments before servers, so that those of new servers do not look orphaned.
    *names*: the hosts whose agents are asked; all when left out."""
    state = AuditState()
    with store.api.write() as connection:  # the counters are compared under their lock
        state.counters = allocations.audit(connection)
        state.claims = list(connection.execute(select(claims)).all())
        state.hosts = {row.id: row for row in connection.execute(select(hosts)).all()}
    state.ports, state.attachments = services.network.users(), services.volume.users()
    state.networks = services.network.names()
    wanted = {row.name for row in state.hosts.values()} if names is None else set(names)
    for host in state.hosts.values():
        if host.name in wanted:
            _read_host(state, agents, host)
    for cell, database in store.databases():
        try:
            with database.read() as connection:
                _read_cell(state, connection, cell.id)
        except DBAPIError:
            state.silent.add(cell.id)
    _tell_deleted(state, store)
    return state


def _read_host(state: AuditState, agents: Agents, host: Any) -> None:
    try:
        with agents.client(host.endpoint) as client:
            found = {one["id"]: one for one in client.list("server")}
            nets = list(client.list("network"))
    except MagnetarError as error:
        log.info("host %s is not audited: %s", host.name, error.message)
        return
    state.there[host.name], state.nets[host.name] = found, nets


def _read_cell(state: AuditState, connection: Any, cell_id: str) -> None:
    """Rows of servers, each with whether it has an action, in one statement."""
    work = exists().where(actions.c.server_id == servers.c.id, actions.c.state.in_(("queued", "running")))
    columns = [servers.c[name] for name in ("id", "project_id", "user_id", "vm_state", "task_state", "power_state",
                                            "host", "flavor", "volumes", "interfaces", "request", "updated_at")]
    for row in connection.execute(select(*columns, work.label("busy")).where(servers.c.deleted_at.is_(None))):
        if row.id in state.servers:  # cell0 is first
            if not state.servers[row.id].busy:
                state.copies.add(row.id)
            state.servers.pop(row.id)
        state.servers[row.id], state.cells[row.id] = row, cell_id
    table = moves_table
    for move in connection.execute(select(table).where(table.c.status.not_in(migrations.ENDED))):
        state.moves.setdefault(move.server_id, []).append(move)


def _tell_deleted(state: AuditState, store: Store) -> None:
    """Tell deleted servers from unknown ones, and from those of cells that do not answer."""
    asked = {row.server_id for row in state.claims} | set(state.ports.values()) | set(state.attachments.values())
    asked.update(id for found in state.there.values() for id in found)
    asked.update(state.moves)
    ids = sorted(id for id in asked if id not in state.servers)
    for at in range(0, len(ids), MANY):
        some = ids[at:at + MANY]
        deleted, lost = deleted_servers(store, some, state.silent)
        state.deleted |= deleted
        state.unknown.update(lost)
        state.lost.update({id: cell for id, cell in lost.items() if cell not in state.silent})
        if CELL0 in state.silent:
            state.unknown.update(set(some) - state.deleted)


def deleted_servers(store: Store, ids: Iterable[str], silent: Iterable[str] = ()) -> tuple[set[str], dict[str, str]]:
    """Of servers without a live row: the deleted ones, and the cell of those that are mapped and not known to be
    deleted. A server is deleted when its row in its cell says so or, where the cell answers, its mapping. *silent*:
    cells that are not asked."""
    some, silent, rows = list(ids), set(silent), []
    with store.api.read() as connection:
        mapped = {row.server_id: row for row in connection.execute(
            select(server_mappings).where(server_mappings.c.server_id.in_(some)))}
    for cell, database in store.databases():
        if cell.id not in silent:
            with database.read() as connection:
                rows += [(row.id, row.deleted_at, cell.id) for row in connection.execute(
                    select(servers.c.id, servers.c.deleted_at).where(servers.c.id.in_(some)))]
    live = {id for id, deleted_at, _cell in rows if deleted_at is None}
    deleted = {id for id, mapping in mapped.items() if mapping.deleted and mapping.cell_id not in silent}
    deleted |= {id for id, deleted_at, cell in rows if deleted_at and (id not in mapped or mapped[id].cell_id == cell)}
    deleted -= live
    return deleted, {id: mapping.cell_id for id, mapping in mapped.items() if id not in deleted | live}


def parts(row: Any, resource: Any) -> dict[str, tuple[set[str], set[str]]]:
    """Volumes and NICs: those of the row, and those of the guest."""
    return {"volumes": ({one["volume_id"] for one in orjson.loads(row.volumes)},
                        {one["id"] for one in resource["volumes_attached"]}),
            "nics": ({one["mac"] for one in orjson.loads(row.interfaces)},
                     {one["mac"] for one in resource["networks"]})}
