# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a page of the audit: everything that databases, services and agents have about some servers and hosts.

Guests are read before claims; claims, ports and attachments are read before servers. Otherwise the claims, ports and
attachments of a server that is created meanwhile would look orphaned. Nothing is locked.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

from sqlalchemy import BindParameter, Executable, bindparam, exists, select
from sqlalchemy.exc import DBAPIError

from magnetar_control.agents import AgentClient, Agents
from magnetar_control.services import Services
from magnetar_control.store.accounts.quota_usage import find_wrong_usage
from magnetar_control.store.claims import host_counters
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import actions, allocations, hosts, migrations, server_mappings, servers
from magnetar_control.store.servers.deleted_servers import deleted_servers
from magnetar_control.store.servers.migrations import ENDED
from magnetar_control.store.store import CELL0, CellMapping, Store
from magnetar_core.errors import MagnetarError, NotFound

from .audit_state import AuditedClaim, AuditedHost, AuditedServer, AuditState, AuditSubjects

log = logging.getLogger(__name__)
#: Conditions: an action waits or runs; such an action exists for the server in the same query.
GOES_ON = actions.c.state.in_(("queued", "running"))
BUSY = exists().where(actions.c.server_id == servers.c.id, GOES_ON)
#: Ids in one query.
MANY = 500
#: Hosts that a page asks in addition to its own, and guests that it asks one by one instead of all of the host.
OTHER_HOSTS, FEW_GUESTS = 100, 10
#: Statuses of open migrations on an agent.
OPEN = ("prepared", "running", "moved", "failed")

_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_HOSTS = select(*hosts.c["id", "name", "endpoint", "cell_id", "servers"])
_CLAIMED = select(allocations.c.server_id).distinct().where(allocations.c.host_id.in_(_IDS))
_PLACED = select(servers.c.id).where(servers.c.host.in_(_IDS), servers.c.deleted_at.is_(None))
_CLAIMS = select(allocations, hosts.c.name.label("host")).join_from(
    allocations, hosts, hosts.c.id == allocations.c.host_id).where(allocations.c.server_id.in_(_IDS))
_MAPPINGS = select(server_mappings.c.server_id, server_mappings.c.cell_id).where(server_mappings.c.server_id.in_(_IDS))
_SERVERS = select(*(servers.c[name] for name in (
    "id", "project_id", "user_id", "vm_state", "task_state", "power_state", "host", "flavor", "image", "volumes",
    "interfaces", "request", "updated_at", "launched_at", "leaving", "cell_moves", "rescue_gb")),
    BUSY.label("busy")).where(servers.c.id.in_(_IDS), servers.c.deleted_at.is_(None))
_MOVES = select(*migrations.c["uuid", "server_id", "status", "source", "target"]).where(
    migrations.c.server_id.in_(_IDS), migrations.c.status.not_in(ENDED))


def split_ids(ids: Iterable[str]) -> Iterator[list[str]]:
    """Yield the *ids*, sorted, in lists that are short enough for one query."""
    ordered = sorted(ids)
    for at in range(0, len(ordered), MANY):
        yield ordered[at:at + MANY]


class AuditReader:
    """A reader of pages (batches of servers and hosts) for the audit, from databases, services and agents. *cell_ids*:
    the cells to audit in addition to cell0; ``None``: all. *host_names*: the hosts whose agents are asked; ``None``:
    all. A host or cell that fails to answer once is not asked again."""

    def __init__(self, store: Store, agents: Agents, services: Services, cell_ids: Collection[str] | None = None,
                 host_names: Iterable[str] | None = None) -> None:
        self.store, self.agents, self.services = store, agents, services
        with store.api.read() as connection:
            self.hosts = {row.name: AuditedHost(*row) for row in connection.execute(_HOSTS)}
        self.cell_ids = None if cell_ids is None else {CELL0, *cell_ids}
        self.asked = set(self.hosts) if host_names is None else set(host_names)
        self.servers_seen = 0
        self.silent_hosts: set[str] = set()
        self.silent_cells: set[str] = set()

    @property
    def cells(self) -> list[tuple[CellMapping, Database]]:
        """The audited cells, cell0 first."""
        return [(cell, database) for cell, database in self.store.databases() if self.audits_cell(cell.id)]

    def audits_cell(self, id: str | None) -> bool:
        """Return whether this reader audits the cell *id*. Return ``True`` for ``None``, the cell of a server that is
        mapped to no cell."""
        return self.cell_ids is None or id is None or id in self.cell_ids

    def read_page(self, subjects: AuditSubjects) -> AuditState:
        """Read everything about the servers and hosts in *subjects* from databases, services and agents, and return
        these data."""
        state = AuditState(hosts=self.hosts, subjects=subjects, ids=set(subjects.ids), silent=self.silent_cells)
        page_hosts = [self.hosts[name] for name in sorted(subjects.hosts) if name in self.hosts]
        for host in page_hosts:
            self._read_host(state, host)
        if any(state.nets.values()):
            state.networks = self.services.network.names()
        if page_hosts:
            self._read_counters(state, page_hosts)
            state.ids.update(*state.guests.values(), *state.open_migrations.values(), self._ids_on(page_hosts))
        if subjects.engine:
            state.engine = self.services.network.differences()
        if subjects.usage:
            self._read_usage(state)
        if state.ids:
            self._read_claims(state)
            self._read_servers(state)
            self._read_other_guests(state)
            self._read_deleted(state)
        return state

    def ask_cell(self, cell: CellMapping, database: Database, query: Executable, **parameters: Any) -> list[Any]:
        """Run *query* with *parameters* in the database of *cell*, and return the rows. Return an empty list when the
        cell does not answer."""
        if cell.id not in self.silent_cells:
            try:
                with database.read() as connection:
                    return list(connection.execute(query, parameters))
            except DBAPIError as error:
                log.info("cell %s is not audited: %s", cell.name, error.orig)
                self.silent_cells.add(cell.id)
        return []

    def ask_cell_about(self, cell: CellMapping, database: Database, query: Executable, ids: Iterable[str]) -> list[Any]:
        """Run *query* in the database of *cell* for the server *ids*, ``MANY`` ids at a time, and return all rows.
        Return an empty list when the cell does not answer."""
        return [row for some in split_ids(ids) for row in self.ask_cell(cell, database, query, ids=some)]

    def _read_host(self, state: AuditState, host: AuditedHost) -> None:
        if host.name not in self.asked or host.name in self.silent_hosts:
            return
        try:
            with self.agents.client(host.endpoint) as client:
                guests = {guest["id"]: guest for guest in client.list("server")}
                nets = list(client.list("network"))
                halves = client.list("migration", status=OPEN, fields=["id", "server"])
        except MagnetarError as error:
            self._note_silence(host.name, error)
            return
        state.guests[host.name], state.nets[host.name] = guests, nets
        migrations_by_server = state.open_migrations[host.name] = {}
        for migration in halves:
            migrations_by_server.setdefault(migration["server"], []).append(migration["id"])

    def _note_silence(self, name: str, error: MagnetarError) -> None:
        log.info("host %s is not audited: %s", name, error.message)
        self.silent_hosts.add(name)

    def _read_counters(self, state: AuditState, page_hosts: Collection[AuditedHost]) -> None:
        """Add to *state* the hosts whose counters of used resources differ from their claims. Each suspect host is
        checked again with its row locked, so that running claims cause no false findings."""
        ids = {host.name: host.id for host in page_hosts}
        with self.store.api.read() as connection:
            suspects = host_counters.audit_host_counters(connection, host_ids=ids.values(), lock=False)
        for name in sorted({suspect.host for suspect in suspects}):
            with self.store.api.write() as connection:
                state.counters += host_counters.audit_host_counters(connection, host_ids=[ids[name]])

    def _read_usage(self, state: AuditState) -> None:
        """Add to *state* the stored quota usages in each cell that differ from the resources of the cell's servers."""
        for cell, database in self.cells:
            try:
                with database.read() as connection:
                    state.usage += [(cell.id, comparison) for comparison in find_wrong_usage(connection)]
            except DBAPIError:
                self.silent_cells.add(cell.id)

    def _ids_on(self, page_hosts: Collection[AuditedHost]) -> set[str]:
        """Return the ids of servers that have a claim on one of *page_hosts*, or whose row names one of them as host.
        """
        with self.store.api.read() as connection:
            ids = set(connection.execute(_CLAIMED, {"ids": [host.id for host in page_hosts]}).scalars())
        names = [host.name for host in page_hosts]
        for cell, database in self.cells:
            ids.update(row.id for row in self.ask_cell_about(cell, database, _PLACED, names))
        return ids

    def _read_claims(self, state: AuditState) -> None:
        with self.store.api.read() as connection:
            for some in split_ids(state.ids):
                for claim in map(AuditedClaim, connection.execute(_CLAIMS, {"ids": some})):
                    state.claims.setdefault(claim.server_id, []).append(claim)
        state.ports, state.attachments = (
            {id: server for some in split_ids(state.ids) for id, server in service.users(some).items()}
            for service in (self.services.network, self.services.volume))

    def _read_servers(self, state: AuditState) -> None:
        """Read the rows of the page's servers, and whether each has an action, in one query; then read their open
        migrations. From cells that are not audited, read only the servers that are mapped to those cells."""
        mapped: dict[str, set[str]] = {}
        with self.store.api.read() as connection:
            for some in split_ids(state.ids):
                for row in connection.execute(_MAPPINGS, {"ids": some}):
                    mapped.setdefault(row.cell_id, set()).add(row.server_id)
        for cell, database in self.store.databases():
            ids = state.ids if self.audits_cell(cell.id) else mapped.get(cell.id, ())
            for server in map(AuditedServer, self.ask_cell_about(cell, database, _SERVERS, ids)):
                if server.id in state.servers:
                    _read_again(state, server, cell.id)
                else:
                    state.servers[server.id], state.cells[server.id] = server, cell.id
            for move in self.ask_cell_about(cell, database, _MOVES, ids):
                if state.cells.get(move.server_id, cell.id) == cell.id:
                    state.moves.setdefault(move.server_id, []).append(move)

    def _read_other_guests(self, state: AuditState) -> None:
        """Read guests of the page's servers also from hosts that are not in the page, but that the servers' rows or
        claims name."""
        ids_by_host: dict[str, set[str]] = {}
        for id in state.ids:
            for name in state.guest_hosts(id) - state.guests.keys():
                if name in self.hosts and name in self.asked and name not in self.silent_hosts:
                    ids_by_host.setdefault(name, set()).add(id)
        for name in sorted(ids_by_host)[:OTHER_HOSTS]:
            try:
                with self.agents.client(self.hosts[name].endpoint) as client:
                    state.guests[name] = _guests_among(client, ids_by_host[name])
            except MagnetarError as error:
                self._note_silence(name, error)

    def _read_deleted(self, state: AuditState) -> None:
        """Classify those servers of the page for which *state* has no row, and add their ids to sets of *state*.
        ``deleted``: the server is deleted. ``unknown``: the server may exist, but its cell does not answer or has no
        row for it. ``lost``: the unknown servers with a cell that answers."""
        for some in split_ids(state.ids - state.servers.keys()):
            deleted, lost = deleted_servers(self.store, some, self.silent_cells)
            state.deleted |= deleted
            state.unknown.update(lost)
            state.lost.update({id: cell for id, cell in lost.items() if cell not in self.silent_cells})
            if CELL0 in self.silent_cells:
                state.unknown.update(set(some) - state.deleted)


def _guests_among(client: AgentClient, ids: set[str]) -> dict[str, Any]:
    """Return the guests with these *ids* on the client's host, by id, as the agent reports them."""
    if len(ids) > FEW_GUESTS:
        return {guest["id"]: guest for guest in client.list("server") if guest["id"] in ids}
    guests = {}
    for id in ids:
        with suppress(NotFound):
            guests[id] = client.get("server", id)
    return guests


def _read_again(state: AuditState, row: AuditedServer, cell_id: str) -> None:
    """Add to *state* a second *row* of a server, found in the cell *cell_id*. ``state.servers`` keeps the row in the
    cell to which the server has moved. The cell of the older row is saved in ``state.copies`` if a move from that cell
    explains this row. It is saved in ``state.twins`` if nothing explains this row. The caller must add rows in cell0
    first."""
    had, cell = state.servers[row.id], state.cells[row.id]
    newer = cell == CELL0 or row.cell_moves > had.cell_moves or (had.leaving and not row.leaving)
    older, older_cell = (had, cell) if newer else (row, cell_id)
    if newer:
        state.servers[row.id], state.cells[row.id] = row, cell_id
        state.moves.pop(row.id, None)
    if older_cell != CELL0 and not older.leaving:
        state.twins[row.id] = older_cell
    elif not older.busy:
        state.copies[row.id] = older_cell
