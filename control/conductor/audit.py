# SPDX-License-Identifier: GPL-3.0-or-later
"""What is stuck, lost or left behind: databases, services and agents compared. A cloud at rest has no findings.

``look`` reads everything once, ``CHECKS`` are pure functions over what it saw, ``check`` gives what they find twice: a
cloud at work changes while it is read, so one look alone means little.
A row that is missing says nothing: the database may be an older backup, or another one. That a server is deleted its
row says, or its mapping; what a guest may have is free only when its host says that the guest is without it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import exists, select
from sqlalchemy.exc import DBAPIError

from magnetar_control.agents import Agents
from magnetar_control.scheduler.request import amounts_of
from magnetar_control.services import Services
from magnetar_control.store import allocations, migrations
from magnetar_control.store.allocations import RESOURCES, Difference
from magnetar_control.store.store import CELL0, Store
from magnetar_control.store.tables import actions, hosts, server_mappings, servers
from magnetar_control.store.tables import allocations as claims
from magnetar_control.store.tables import migrations as moves_table
from magnetar_core.actions import BUILDING, ERROR, POWER, RESIZED
from magnetar_core.errors import MagnetarError

log = logging.getLogger(__name__)
#: Ids in one question.
MANY = 500
#: Power states that go with a vm_state; any, where it is not here.
POWERS = {"active": ("running",), "paused": ("paused",), "suspended": ("suspended",), "stopped": ("off", "crashed"),
          "rescued": ("running",)}


@dataclass(frozen=True)
class Finding:
    """*kind*: the name of the check; *id*: of the server, claim, port …; *place*: cell or host; *text*: for people."""

    kind: str
    id: str
    place: str
    text: str


#: How networks are called that a cloud makes on its hosts: whatever an operator made there has another name.
OF_THE_CLOUD = re.compile("mag-[0-9a-f]{8}")


@dataclass
class Seen:
    """One look. ``servers``: the rows of those that are not deleted, with ``cell_id``, by id; ``there``: what each host
    that answers has, by host and id."""

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
    #: Ids of servers that are deleted for sure: see ``former``.
    deleted: set[str] = field(default_factory=set)
    #: Ids of which nobody can say anything now: their cell does not answer, or has lost them.
    unknown: set[str] = field(default_factory=set)
    #: Of these, those whose cell answers and has no row of them, with the cell.
    lost: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)  # cells

    def without(self, row: Any, kind: str) -> bool | None:
        """Whether its guest has no volumes or NICs (*kind*) but those that the row knows; ``None`` while a host that
        may have the guest does not say."""
        places = {row.host, *(self.hosts[one.host_id].name for one in self.claims if one.server_id == row.id)} - {None}
        if not places <= self.there.keys():
            return None
        found = [_parts(row, guests[row.id])[kind] for guests in self.there.values() if row.id in guests]
        return all(there <= noted for noted, there in found)

    def idle(self, id: str) -> Any:
        """The row of a server to which nothing is done."""
        row = self.servers.get(id)
        return None if row is None or row.busy else row


# Looking --------------------------------------------------------------------------------------------------------
def look(store: Store, agents: Agents, services: Services, names: Iterable[str] | None = None) -> Seen:
    """Read everything: what is held before who holds it, so that what begins meanwhile is not taken for orphaned.
    *names*: the hosts whose agents are asked; all of them when left out."""
    seen = Seen()
    with store.api.write() as connection:  # the counters are compared under their lock
        seen.counters = allocations.audit(connection)
        seen.claims = list(connection.execute(select(claims)).all())
        seen.hosts = {row.id: row for row in connection.execute(select(hosts)).all()}
    seen.ports, seen.attachments = services.network.users(), services.volume.users()
    seen.networks = services.network.names()
    wanted = {row.name for row in seen.hosts.values()} if names is None else set(names)
    for host in seen.hosts.values():
        if host.name in wanted:
            _ask(seen, agents, host)
    for cell, database in store.databases():
        try:
            with database.read() as connection:
                _cell(seen, connection, cell.id)
        except DBAPIError:
            seen.silent.add(cell.id)
    _former(seen, store)
    return seen


def _ask(seen: Seen, agents: Agents, host: Any) -> None:
    try:
        with agents.client(host.endpoint) as client:
            found = {one["id"]: one for one in client.list("server")}
            nets = list(client.list("network"))
    except MagnetarError as error:
        log.info("host %s is not audited: %s", host.name, error.message)
        return
    seen.there[host.name], seen.nets[host.name] = found, nets


def _cell(seen: Seen, connection: Any, cell_id: str) -> None:
    """Rows of servers, each with whether something is done to it in the same statement."""
    work = exists().where(actions.c.server_id == servers.c.id, actions.c.state.in_(("queued", "running")))
    columns = [servers.c[name] for name in ("id", "project_id", "user_id", "vm_state", "task_state", "power_state",
                                            "host", "flavor", "volumes", "interfaces", "request", "updated_at")]
    for row in connection.execute(select(*columns, work.label("busy")).where(servers.c.deleted_at.is_(None))):
        if row.id in seen.servers:  # cell0 is first
            if not seen.servers[row.id].busy:
                seen.copies.add(row.id)
            seen.servers.pop(row.id)
        seen.servers[row.id], seen.cells[row.id] = row, cell_id
    table = moves_table
    for move in connection.execute(select(table).where(table.c.status.not_in(migrations.ENDED))):
        seen.moves.setdefault(move.server_id, []).append(move)


def _former(seen: Seen, store: Store) -> None:
    """Tell deleted servers from those that never were, and from those of which nobody can say anything."""
    asked = {row.server_id for row in seen.claims} | set(seen.ports.values()) | set(seen.attachments.values())
    asked.update(id for found in seen.there.values() for id in found)
    asked.update(seen.moves)
    ids = sorted(id for id in asked if id not in seen.servers)
    for at in range(0, len(ids), MANY):
        some = ids[at:at + MANY]
        deleted, lost = former(store, some, seen.silent)
        seen.deleted |= deleted
        seen.unknown.update(lost)
        seen.lost.update({id: cell for id, cell in lost.items() if cell not in seen.silent})
        if CELL0 in seen.silent:
            seen.unknown.update(set(some) - seen.deleted)


def former(store: Store, ids: Iterable[str], silent: Iterable[str] = ()) -> tuple[set[str], dict[str, str]]:
    """Of servers without a live row: those that are deleted, for their row in their cell says so or, where that
    answers, their mapping; and the cell of those that are mapped and of which nothing says so. *silent*: cells not to
    be asked."""
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


# Comparing ------------------------------------------------------------------------------------------------------
Found = Iterator[Finding]


def stuck(seen: Seen) -> Found:
    """Something seems to be done to a server, and nobody does it."""
    for id, row in seen.servers.items():
        if not row.busy and (row.task_state is not None or row.vm_state == BUILDING):
            yield Finding("stuck", id, seen.cells[id], f"server {id} is {row.vm_state}, {row.task_state}; no action "
                          "does anything to it")


def copy(seen: Seen) -> Found:
    """A crash between the copy into the cell and the end of the one in cell0."""
    for id in seen.copies:
        yield Finding("copy", id, CELL0, f"server {id} is in its cell, and still in cell0")


def counter(seen: Seen) -> Found:
    """Counters of hosts."""
    for one in seen.counters:
        yield Finding("counter", one.host, one.host, f"host {one.host} counts {one.counted}, its claims are {one.held}")


def lost(seen: Seen) -> Found:
    """A server that nothing says was deleted, and that its cell does not know: it may well live."""
    for id, cell in seen.lost.items():
        names = sorted(name for name, found in seen.there.items() if id in found)
        yield Finding("lost", id, cell, f"server {id} is mapped to cell {cell}, whose database has no row of it (an "
                      f"older backup, or another database?); hosts that have it: "
                      f"{', '.join(names) or 'none that answers'}; nothing of it is touched")


def orphan(seen: Seen) -> Found:
    """A claim of a server that is gone, or one of a host that the server has nothing to do with any more."""
    for claim in seen.claims:
        row, name = seen.servers.get(claim.server_id), seen.hosts[claim.host_id].name
        free = name in seen.there and claim.server_id not in seen.there[name]
        if row is None:
            if claim.server_id in seen.deleted or (free and claim.server_id not in seen.unknown):
                yield _claim("orphan", seen, claim, "is of a server that is gone")
            continue
        moving = {move.uuid for move in seen.moves.get(row.id, ())}
        if row.busy or claim.consumer_id in moving or (row.vm_state == ERROR and row.host):
            continue  # of a failed move both hosts stay claimed until somebody looks
        if (free and name != row.host) or (name == row.host and claim.consumer_id != row.id):
            yield _claim("elsewhere", seen, claim, f"is held while the server is on {row.host}")


def _claim(kind: str, seen: Seen, claim: Any, why: str) -> Finding:
    name = seen.hosts[claim.host_id].name
    return Finding(kind, claim.consumer_id, name, f"the claim of {claim.consumer_id} (server {claim.server_id}) on "
                   f"{name} {why}")


def unclaimed(seen: Seen) -> Found:
    """A server on a host that does not hold what its flavor says."""
    held = {(claim.consumer_id, seen.hosts[claim.host_id].name): claim for claim in seen.claims}
    for id, row in seen.servers.items():
        if row.busy or not row.host or row.vm_state == ERROR:
            continue
        blocks = orjson.loads(row.request).get("blocks") or ()
        amounts = amounts_of(orjson.loads(row.flavor), any(
            one["boot_index"] == 0 and one["destination_type"] == "volume" for one in blocks))
        claim = held.get((id, row.host))
        had = None if claim is None else tuple(int(getattr(claim, name)) for name in RESOURCES)
        if had != tuple(amounts):
            yield Finding("unclaimed", id, row.host, f"server {id} needs {tuple(amounts)}, and holds {had}")


def port(seen: Seen) -> Found:
    """A port of a server that is gone, or that does not know it."""
    for id, server in seen.ports.items():
        row = seen.servers.get(server)
        if row is None and server in seen.deleted:
            yield Finding("port", id, server, f"port {id} is of server {server}, which is gone")
        elif row is not None and not row.busy and id not in {
                one["port_id"] for one in orjson.loads(row.interfaces)}:
            yield from _kept("port", "nics", seen, row, id)


def attachment(seen: Seen) -> Found:
    """An attachment of a server that is gone, or that does not know it; or the other way round."""
    for id, server in seen.attachments.items():
        row = seen.servers.get(server)
        if row is None and server in seen.deleted:
            yield Finding("attachment", id, server, f"attachment {id} is of server {server}, which is gone")
        elif row is not None and not row.busy and id not in _attached(row):
            yield from _kept("attachment", "volumes", seen, row, id)
    for server, row in seen.servers.items():
        for id in [] if row.busy else _attached(row):
            if seen.attachments.get(id) != server:
                yield Finding("detached", id, server, f"server {server} has attachment {id}, which nobody keeps for it")


def _kept(kind: str, parts: str, seen: Seen, row: Any, id: str) -> Found:
    """Kept for a server whose row lacks it. The guest may have it nevertheless: then it is told only."""
    without = seen.without(row, parts)
    if without:
        yield Finding(kind, id, row.id, f"{kind} {id} is kept for server {row.id}, which does not have it")
    elif without is False:
        yield Finding("kept", id, row.id, f"{kind} {id} is kept for server {row.id}, whose row lacks it; its guest has "
                      f"{parts} that the row does not know")


def _attached(row: Any) -> list[str]:
    return [one["attachment_id"] for one in orjson.loads(row.volumes) if one.get("attachment_id")]


def move(seen: Seen) -> Found:
    """A move that neither goes on nor waits for a word."""
    for id, moves in seen.moves.items():
        row = seen.servers.get(id)
        for one in moves:
            waits = row is not None and row.vm_state == RESIZED and one.status in migrations.KEPT
            if not waits and (row is None or not row.busy) and id not in seen.unknown:
                yield Finding("move", one.uuid, id, f"migration {one.uuid} of server {id} is {one.status}, and nobody "
                              "goes on with it")


def left(seen: Seen) -> Found:
    """A server on a host that was deleted, or that nobody knows, or that is elsewhere."""
    for host, found in seen.there.items():
        for id in found:
            row = seen.servers.get(id)
            if row is None and id not in seen.unknown:
                kind = "left" if id in seen.deleted else "stranger"
                yield Finding(kind, id, host, f"host {host} has server {id}, which "
                              + ("is deleted" if kind == "left" else "no database knows"))
            elif row is not None and not row.busy and row.host != host:
                yield Finding("double", id, host, f"host {host} has server {id}, which is on {row.host}")


def absent(seen: Seen) -> Found:
    """A server that its host does not have, or has in another power state."""
    for id, row in seen.servers.items():
        if row.busy or row.host not in seen.there or row.vm_state == ERROR:
            continue
        resource = seen.there[row.host].get(id)
        if resource is None:
            yield Finding("absent", id, row.host, f"server {id} is {row.vm_state}, and {row.host} does not have it")
            continue
        for kind, (noted, there) in _parts(row, resource).items():
            if noted != there:
                yield Finding(kind, id, row.host, f"server {id} is to have the {kind} {sorted(noted)}, and has "
                              f"{sorted(there)}")
        power, may = resource["power_state"], POWERS.get(row.vm_state)
        if (may and power not in may) or POWER.get(power, 0) != row.power_state:
            yield Finding("power", id, row.host, f"server {id} is {row.vm_state} ({row.power_state}), not {power}")


def _parts(row: Any, resource: Any) -> dict[str, tuple[set[str], set[str]]]:
    """Volumes and NICs: those that the row knows, and those that the guest has."""
    return {"volumes": ({one["volume_id"] for one in orjson.loads(row.volumes)},
                        {one["id"] for one in resource["volumes_attached"]}),
            "nics": ({one["mac"] for one in orjson.loads(row.interfaces)},
                     {one["mac"] for one in resource["networks"]})}


def network(seen: Seen) -> Found:
    """A network of the cloud that was deleted, and that no server of the host uses."""
    for host, nets in seen.nets.items():
        used = {nic.get(name) for one in seen.there[host].values() for nic in one.get("networks") or ()
                for name in ("network", "network_id")}
        for net in nets:
            ours = OF_THE_CLOUD.fullmatch(net["name"])
            if ours and net["name"] not in seen.networks | used and net["id"] not in used:
                yield Finding("network", net["name"], host, f"host {host} has network {net['name']}, which is deleted")


CHECKS: tuple[Callable[[Seen], Found], ...] = (
    stuck, copy, counter, lost, orphan, unclaimed, port, attachment, move, left, absent, network)


def findings(seen: Seen) -> list[Finding]:
    """What the checks find in one look."""
    return [found for one in CHECKS for found in one(seen)]


def check(store: Store, agents: Agents, services: Services, pause: float = 2.0) -> list[Finding]:
    """What is found in two looks, *pause* seconds apart: nothing, in a cloud that is well."""
    return twice(store, agents, services, pause)[0]


def twice(store: Store, agents: Agents, services: Services, pause: float = 2.0) -> tuple[list[Finding], Seen]:
    """As ``check``, with the last look, which tells who did not answer."""
    seen = look(store, agents, services)
    before = set(findings(seen))
    if not before:
        return [], seen
    time.sleep(pause)
    seen = look(store, agents, services)
    return [one for one in findings(seen) if one in before], seen
