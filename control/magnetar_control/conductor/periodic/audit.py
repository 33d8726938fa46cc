# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit compares databases, services and hosts, and finds what is stuck, lost or left behind.

``read_state`` reads everything once, ``CHECKS`` are pure functions over that, ``run_with_state`` returns what they find
twice: a cloud at work changes while it is read. A cloud at rest has no findings.
A missing row proves nothing: the database may be an older backup. A server counts as deleted when its row or its
mapping says so. A port or volume counts as free when the host says that the guest does not have it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import exists, select
from sqlalchemy.exc import DBAPIError

from magnetar_control.agents import Agents
from magnetar_control.scheduler.request_spec import held_by
from magnetar_control.services import Services
from magnetar_control.store.claims import allocations, nic_bandwidth
from magnetar_control.store.engine.tables import actions, hosts, migrations, servers
from magnetar_control.store.engine.tables import allocations as claims
from magnetar_control.store.servers.deleted_servers import deleted_servers
from magnetar_control.store.servers.migrations import ENDED, KEPT, any_at
from magnetar_control.store.store import CELL0, Store
from magnetar_core.errors import MagnetarError
from magnetar_core.power import BUILDING, ERROR, RESIZED, VM_STATES, number

log = logging.getLogger(__name__)
#: Whether an action waits or runs; whether a server of the same statement has one.
GOES_ON = actions.c.state.in_(("queued", "running"))
BUSY = exists().where(actions.c.server_id == servers.c.id, GOES_ON)
#: Ids in one query.
MANY = 500
#: Statuses of an agent's halves of migrations that have not ended.
OPEN = ("prepared", "running", "moved", "failed")


@dataclass
class AuditState:
    """One reading. ``servers``: rows that are not deleted, by id. ``there``: guests of hosts that answer, by host and
    id."""

    hosts: Mapping[str, Any] = field(default_factory=dict)  # by id
    claims: Sequence[Any] = ()
    counters: Sequence[allocations.Difference] = ()
    ports: Mapping[str, str] = field(default_factory=dict)
    attachments: Mapping[str, str] = field(default_factory=dict)
    networks: set[str] = field(default_factory=set)
    engine: Sequence[tuple[str, str]] = ()
    servers: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)  # of servers, by their id
    #: Cells, by servers that have a row there and another in their cell: one that has left, or moved from cell0; and
    #: one that nothing explains.
    copies: dict[str, str] = field(default_factory=dict)
    twins: dict[str, str] = field(default_factory=dict)
    moves: dict[str, list[Any]] = field(default_factory=dict)
    there: dict[str, dict[str, Any]] = field(default_factory=dict)
    nets: dict[str, list[Any]] = field(default_factory=dict)
    #: By host: its parts of migrations that have not ended, by their servers.
    halves: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)  # ids of deleted servers; see ``deleted_servers``
    unknown: set[str] = field(default_factory=set)  # ids whose cell does not answer or has no row of them
    lost: dict[str, str] = field(default_factory=dict)  # of these, those whose cell answers, with the cell
    silent: set[str] = field(default_factory=set)  # cells that do not answer

    def without(self, row: Any, kind: str) -> bool | None:
        """Whether the guest has no volumes or NICs (*kind*) beyond those of its row; ``None`` while a host that may
        have the guest does not answer."""
        places = {row.host, *(self.hosts[one.host_id].name for one in self.claims if one.server_id == row.id)} - {None}
        if not places <= self.there.keys():
            return None
        found = [parts(row, guests[row.id])[kind] for guests in self.there.values() if row.id in guests]
        return all(there <= noted for noted, there in found)


def read_state(store: Store, agents: Agents, services: Services, names: Iterable[str] | None = None) -> AuditState:
    """Read everything; claims, ports and attachments before servers, so that those of new servers do not look orphaned.
    *names*: the hosts whose agents are asked; all when left out."""
    state = AuditState()
    with store.api.write() as connection:  # the counters are compared under their lock
        state.counters = allocations.audit(connection)
        state.claims = connection.execute(select(claims)).all()
        state.hosts = {row.id: row for row in connection.execute(select(hosts)).all()}
    state.ports, state.attachments = services.network.users(), services.volume.users()
    state.networks, state.engine = services.network.names(), services.network.differences()
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
            halves = client.list("migration", status=OPEN, fields=["id", "server"])
    except MagnetarError as error:
        log.info("host %s is not audited: %s", host.name, error.message)
        return
    state.there[host.name], state.nets[host.name] = found, nets
    there = state.halves[host.name] = {}
    for one in halves:
        there.setdefault(one["server"], []).append(one["id"])


def _read_cell(state: AuditState, connection: Any, cell_id: str) -> None:
    """Rows of servers, each with whether it has an action, in one statement."""
    columns = [servers.c[name] for name in (
        "id", "project_id", "user_id", "vm_state", "task_state", "power_state", "host", "flavor", "image", "volumes",
        "interfaces", "request", "updated_at", "launched_at", "leaving", "cell_moves", "rescue_gb")]
    for row in connection.execute(select(*columns, BUSY.label("busy")).where(servers.c.deleted_at.is_(None))):
        if row.id in state.servers:
            _read_again(state, row, cell_id)
        else:
            state.servers[row.id], state.cells[row.id] = row, cell_id
    for move in connection.execute(select(migrations).where(migrations.c.status.not_in(ENDED))):
        if state.cells.get(move.server_id, cell_id) == cell_id:
            state.moves.setdefault(move.server_id, []).append(move)


def _read_again(state: AuditState, row: Any, cell_id: str) -> None:
    """A server has a row in two cells: the one that counts is in the cell where it goes. cell0 is read first."""
    had, cell = state.servers[row.id], state.cells[row.id]
    newer = cell == CELL0 or row.cell_moves > had.cell_moves or (had.leaving and not row.leaving)
    older, there = (had, cell) if newer else (row, cell_id)
    if newer:
        state.servers[row.id], state.cells[row.id] = row, cell_id
        state.moves.pop(row.id, None)
    if there != CELL0 and not older.leaving:
        state.twins[row.id] = there
    elif not older.busy:
        state.copies[row.id] = there


def _tell_deleted(state: AuditState, store: Store) -> None:
    """Tell deleted servers from unknown ones, and from those of cells that do not answer."""
    ids = sorted({row.server_id for row in state.claims}.union(
        state.ports.values(), state.attachments.values(), state.moves, *state.there.values(),
        *state.halves.values()) - state.servers.keys())
    for at in range(0, len(ids), MANY):
        some = ids[at:at + MANY]
        deleted, lost = deleted_servers(store, some, state.silent)
        state.deleted |= deleted
        state.unknown.update(lost)
        state.lost.update({id: cell for id, cell in lost.items() if cell not in state.silent})
        if CELL0 in state.silent:
            state.unknown.update(set(some) - state.deleted)


def parts(row: Any, resource: Any) -> dict[str, tuple[set[str], set[str]]]:
    """Volumes and NICs: those of the row, and those of the guest."""
    return {"volumes": ({one["volume_id"] for one in orjson.loads(row.volumes)},
                        {one["id"] for one in resource["volumes_attached"]}),
            "nics": ({one["mac"] for one in orjson.loads(row.interfaces)},
                     {one["mac"] for one in resource["networks"]})}


@dataclass(frozen=True)
class Finding:
    """*kind*: name of the check. *id*: of the server, claim, port … *place*: cell or host. *text*: for operators."""

    kind: str
    id: str
    place: str
    text: str


#: Names of networks that the cloud makes on hosts; those of operators have other names.
OF_THE_CLOUD = re.compile("mag-[0-9a-f]{8}")
Found = Iterator[Finding]


def stuck(state: AuditState) -> Found:
    """A server with a task_state, or building, without an action."""
    for id, row in state.servers.items():
        if not row.busy and (row.task_state is not None or row.vm_state == BUILDING):
            yield Finding("stuck", id, state.cells[id], f"server {id} is {row.vm_state}, {row.task_state}; no action "
                          "does anything to it")


def copy(state: AuditState) -> Found:
    """A server that has a row in two cells: a conductor crashed while it moved."""
    for id, cell in state.copies.items():
        yield Finding("copy", id, cell, f"server {id} is in its cell, and still in "
                      f"{'cell0' if cell == CELL0 else f'cell {cell}'}, which it has left")
    for id, cell in state.twins.items():
        yield Finding("twin", id, cell, f"server {id} has rows in the cells {state.cells[id]} and {cell}, and has left "
                      "neither (an older backup?): remove those of the cell to which it is not mapped")


def counter(state: AuditState) -> Found:
    """A host whose counters are not the sum of its claims."""
    for one in state.counters:
        yield Finding("counter", one.host, one.host, one.text)


def lost(state: AuditState) -> Found:
    """A server that is mapped to a cell without a row there, and that nothing says was deleted: it may be alive."""
    for id, cell in state.lost.items():
        names = sorted(name for name, found in state.there.items() if id in found)
        yield Finding("lost", id, cell, f"server {id} is mapped to cell {cell}, whose database has no row of it (an "
                      f"older backup, or another database?); hosts that have it: "
                      f"{', '.join(names) or 'none that answers'}; nothing of it is touched")


def orphan(state: AuditState) -> Found:
    """A claim of a server that is gone, or of a host that the server has left."""
    for claim in filter(allocations.is_of_server, state.claims):  # who made another one removes it
        row, name = state.servers.get(claim.server_id), state.hosts[claim.host_id].name
        free = name in state.there and claim.server_id not in state.there[name]
        if row is None:
            if claim.server_id in state.deleted or (free and claim.server_id not in state.unknown):
                yield _claim("orphan", state, claim, "is of a server that is gone")
            continue
        moving = {move.uuid for move in state.moves.get(row.id, ())}
        if row.busy or claim.consumer_id in moving or (row.vm_state == ERROR and row.host):
            continue  # of a failed move both hosts stay claimed until somebody looks
        if (free and name != row.host) or (name == row.host and claim.consumer_id != row.id):
            yield _claim("elsewhere", state, claim, f"is held while the server is on {row.host}")


def _claim(kind: str, state: AuditState, claim: Any, why: str) -> Finding:
    name = state.hosts[claim.host_id].name
    return Finding(kind, claim.consumer_id, name, f"the claim of {claim.consumer_id} (server {claim.server_id}) on "
                   f"{name} {why}")


def unclaimed(state: AuditState) -> Found:
    """A server whose claim on its host differs from its flavor."""
    held = {(claim.consumer_id, state.hosts[claim.host_id].name): claim for claim in state.claims}
    for id, row in state.servers.items():
        if row.busy or not row.host or row.vm_state == ERROR:
            continue
        (amounts, wanted), claim = held_by(row), held.get((id, row.host))
        needed = amounts, *nic_bandwidth.shared_out(wanted, orjson.loads(claim.places) if claim else {})
        had = claim and (allocations.Amounts(*(int(getattr(claim, name)) for name in allocations.RESOURCES)),
                         orjson.loads(claim.resources), orjson.loads(claim.devices))
        if had != needed:
            yield Finding("unclaimed", id, row.host, f"server {id} needs {_words(needed)}, and holds "
                                                     f"{_words(had) if had else 'nothing'}")


def _words(claimed: tuple[Sequence[int], Mapping[str, int], Mapping[str, int]]) -> str:
    amounts, *counts = claimed
    return ", ".join([str(tuple(amounts)), *(f"{n} {name}" for one in counts for name, n in sorted(one.items()))])


def port(state: AuditState) -> Found:
    """A port of a server that is gone, or whose row does not have it."""
    return _kept("port", state, state.ports, "nics",
                 lambda row: [one["port_id"] for one in orjson.loads(row.interfaces)])


def attachment(state: AuditState) -> Found:
    """An attachment of a server that is gone, or whose row does not have it; or a row with an attachment that the
    volume service does not have."""
    yield from _kept("attachment", state, state.attachments, "volumes", _attached)
    for server, row in state.servers.items():
        for id in [] if row.busy else _attached(row):
            if state.attachments.get(id) != server:
                yield Finding("detached", id, server, f"server {server} has attachment {id}, which nobody keeps for it")


def _kept(kind: str, state: AuditState, kept: Mapping[str, str], of: str, had: Callable[[Any], list[str]]) -> Found:
    """Ports or attachments (*kept*: their servers, by id) of servers that are gone, or whose rows do not have them.
    Those that guests have are only reported."""
    for id, server in kept.items():
        row = state.servers.get(server)
        if row is None and server in state.deleted:
            yield Finding(kind, id, server, f"{kind} {id} is of server {server}, which is gone")
        elif row is not None and not row.busy and id not in had(row):
            if without := state.without(row, of):
                yield Finding(kind, id, row.id, f"{kind} {id} is kept for server {row.id}, which does not have it")
            elif without is False:
                yield Finding("kept", id, row.id, f"{kind} {id} is kept for server {row.id}, whose row lacks it; its "
                              f"guest has {of} that the row does not know")


def _attached(row: Any) -> list[str]:
    """Also of a volume that is to take the place of one."""
    return [one["attachment_id"] for kept in orjson.loads(row.volumes) for one in (kept, kept.get("swap") or {})
            if one.get("attachment_id")]


def move(state: AuditState) -> Found:
    """A migration that neither goes on nor waits for confirm or revert."""
    for id, moves in state.moves.items():
        row = state.servers.get(id)
        for one in moves:
            waits = row is not None and row.vm_state == RESIZED and one.status in KEPT
            if not waits and (row is None or not row.busy) and id not in state.unknown:
                yield Finding("move", one.uuid, id, f"migration {one.uuid} of server {id} is {one.status}, and nobody "
                              "goes on with it")


def left(state: AuditState) -> Found:
    """A guest whose server is deleted, unknown, or on another host."""
    for host, found in state.there.items():
        for id in found:
            row = state.servers.get(id)
            if row is None and id not in state.unknown:
                kind = "left" if id in state.deleted else "stranger"
                yield Finding(kind, id, host, f"host {host} has server {id}, which "
                              + ("is deleted" if kind == "left" else "no database knows"))
            elif row is not None and not row.busy and row.host != host:
                kind = "spare" if _spare(state, row, host) else "double"
                yield Finding(kind, id, host, f"host {host} has server {id}, which is on {row.host}")


def half(state: AuditState) -> Found:
    """What is left of the move of a server, on a host that does not have it: the server is deleted, or its move has
    ended."""
    for host, found in state.halves.items():
        for id in found.keys() - state.there[host].keys():
            text, row = f"host {host} has a part of a migration of server {id}, ", state.servers.get(id)
            if id in state.deleted:
                yield Finding("half", id, host, f"{text}which is deleted")
            elif row and not row.busy and row.vm_state != ERROR and row.host != host and id not in state.moves:
                yield Finding("rest", id, host, f"{text}and nobody goes on with it")


def _spare(state: AuditState, row: Any, host: str) -> bool:
    """Whether a guest is what a build has left that failed there: the server has none on any host, or another on its
    own, and neither claim nor move leads to this one."""
    claimed = any(one.server_id == row.id and state.hosts[one.host_id].name == host for one in state.claims)
    own = row.host is None or (row.vm_state != ERROR and row.id in state.there.get(row.host, ()))
    return own and not claimed and not any_at(state.moves.get(row.id, ()), host)


def absent(state: AuditState) -> Found:
    """A server that its host does not have, or has with other volumes, NICs or power state."""
    for id, row in state.servers.items():
        if row.busy or row.host not in state.there or row.vm_state == ERROR:
            continue
        resource = state.there[row.host].get(id)
        if resource is None:
            yield Finding("absent", id, row.host, f"server {id} is {row.vm_state}, and {row.host} does not have it")
            continue
        for kind, (noted, there) in parts(row, resource).items():
            if noted != there:
                yield Finding(kind, id, row.host, f"server {id} is to have the {kind} {sorted(noted)}, and has "
                              f"{sorted(there)}")
        power, may = resource["power_state"], VM_STATES[row.vm_state].powers if row.vm_state in VM_STATES else ()
        if (may and power not in may) or number(power) != row.power_state:
            yield Finding("power", id, row.host, f"server {id} is {row.vm_state} ({row.power_state}), not {power}")


def network(state: AuditState) -> Found:
    """A deleted network that is still on a host and that no guest uses."""
    for host, nets in state.nets.items():
        used = {nic.get(name) for one in state.there[host].values() for nic in one.get("networks") or ()
                for name in ("network", "network_id")}
        for net in nets:
            ours = OF_THE_CLOUD.fullmatch(net["name"])
            if ours and net["name"] not in state.networks | used and net["id"] not in used:
                yield Finding("network", net["name"], host, f"host {host} has network {net['name']}, which is deleted")


def engine(state: AuditState) -> Found:
    """What the engine of networks has otherwise than the network service says."""
    for unit, text in state.engine:
        yield Finding("engine", unit, "", f"OVN: {text}")


CHECKS: tuple[Callable[[AuditState], Found], ...] = (
    stuck, copy, counter, lost, orphan, unclaimed, port, attachment, move, left, half, absent, network,
    engine)


def findings(state: AuditState) -> list[Finding]:
    """The findings of one reading."""
    return [found for one in CHECKS for found in one(state)]


def run_with_state(store: Store, agents: Agents, services: Services,
                   pause: float = 2.0) -> tuple[list[Finding], AuditState]:
    """The findings that two readings, *pause* seconds apart, have in common, and the last reading."""
    state = read_state(store, agents, services)
    before = set(findings(state))
    if not before:
        return [], state
    time.sleep(pause)
    state = read_state(store, agents, services)
    return [one for one in findings(state) if one in before], state
