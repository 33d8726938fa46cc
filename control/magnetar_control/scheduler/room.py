# SPDX-License-Identifier: GPL-3.0-or-later
"""Room to fail: whether all servers of each host would find a place on the other hosts (N+1).

Each host is looked at for itself, as if only this host had failed. Its servers are placed one after the other, largest
first, by the scheduler's filters and weights, as evacuations would do it. All claims are in memory only."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from magnetar_control.store.claims import inventories
from magnetar_control.store.claims.inventories import InventoryRow
from magnetar_control.store.engine.database import Database, is_database_unreachable
from magnetar_control.store.hosts import room_rows
from magnetar_control.store.hosts.room_rows import ClaimedHost, GroupOfHosts
from magnetar_control.store.hosts.shared_disks import shared_disks_of
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_control.store.store import Store

from .hosts import HostStates
from .request_spec import RequestSpec, hinted_host_fields, hinted_server_ids, spec_of_row
from .shared_disks import common_hosts, hosts_by_disk_storage
from .trial import Inventories, Trial

#: Number of hosts whose servers are read together.
PAGE = 50


class PlacedServer(NamedTuple):
    """A server on a host. ``spec``: the request with which the scheduler looks for another host. ``group``: its server
    group, if any."""

    row: ServerRow
    spec: RequestSpec
    group: GroupOfHosts | None


class HostRoom(NamedTuple):
    """The result of the capacity check for one host: whether its servers would fit on other hosts if it failed.
    ``servers``: the number of the host's servers; ``None`` if the database of its cell does not answer. ``unplaced``:
    (uuid, name) of the servers that would not fit, largest first. ``reason``: why the first of these would not fit."""

    host: str
    servers: int | None
    unplaced: Sequence[tuple[str, str]] = ()
    reason: str = ""

    @property
    def holds(self) -> bool:
        """Return whether all servers of the host would fit on other hosts."""
        return self.servers is not None and not self.unplaced


def check_room(store: Store, volumes: Any, states: HostStates, names: Collection[str],
               pause: Callable[[float], object] = lambda _seconds: None) -> list[HostRoom]:
    """Return for each of the hosts *names* whether all of its servers would fit on other hosts if this host failed.
    *volumes*: the volume service. *states*: all hosts; the check changes their claims in memory, so no other code may
    use this object. *pause*: called after each batch of at most ``PAGE`` hosts with the seconds that the batch took,
    for example to sleep."""
    trial = Trial(states, read_host_inventories(store.api, states))
    rooms: list[HostRoom] = []
    for database, page in pages_of_hosts(store, states, names):
        began = time.monotonic()
        try:
            servers_by_host = read_placed_servers(store.api, database, volumes, states, page)
        except SQLAlchemyError as error:
            if not is_database_unreachable(error):
                raise
            rooms += [HostRoom(host, None, (), f"The database of its cell ({database.name}) does not answer.")
                      for host in page]
            continue
        rooms += [check_host_room(trial, host, servers_by_host.get(host, [])) for host in page]
        pause(time.monotonic() - began)
    return sorted(rooms, key=lambda room: room.host)


def pages_of_hosts(store: Store, states: HostStates,
                    names: Collection[str]) -> Iterator[tuple[Database, list[str]]]:
    """Yield (database of a cell, names of hosts in this cell) for all of the hosts *names*, at most ``PAGE`` hosts at a
    time."""
    for cell, database in store.databases():
        of_cell = sorted(name for name in names if states.rows[name].cell_id == cell.id)
        for at in range(0, len(of_cell), PAGE):
            yield database, of_cell[at:at + PAGE]


def read_host_inventories(api: Database, states: HostStates) -> Inventories:
    """Return the inventories of custom resource classes of the hosts in *states*, by host, from the API database. Hosts
    without such inventories are left out."""
    with api.read() as connection:
        by_id: Mapping[str, Mapping[str, InventoryRow]] = inventories.fetch_inventory_rows(connection)
    return {name: by_id[host.id] for name, host in states.hosts.items() if host.id in by_id}


def read_placed_servers(api: Database, database: Database, volumes: Any, states: HostStates,
                        names: Collection[str]) -> dict[str, list[PlacedServer]]:
    """Return the servers on the hosts *names* of one cell, by host. Each server has a scheduler request as for an
    evacuation. The request allows any other host of the cell that can reach the server's volumes and, if the server's
    own disks are on shared storage, this storage."""
    with database.read() as connection:
        rows = room_rows.fetch_servers_of_hosts(connection, names)
    groups = {str(row.hints["group"]) for row in rows if row.hints.get("group")}
    hinted = {id for row in rows for id in hinted_server_ids(row.hints)}
    with api.read() as connection:
        group_by_id = room_rows.fetch_groups_with_hosts(connection, groups) if groups else {}
        claims = room_rows.fetch_claimed_hosts(connection, hinted) if hinted else []
    on_volumes = {row.id: row for row in rows if row.volumes}
    volume_hosts = volumes.homes.hosts_for_builds(
        {id: row.volumes for id, row in on_volumes.items()},
        {id: row.host for id, row in on_volumes.items()}) if on_volumes else {}
    servers_by_host: dict[str, list[PlacedServer]] = {}
    by_storage = hosts_by_disk_storage(states)
    for row in rows:
        spec = spec_of_row(
            row, host=None, ignored=frozenset([row.host]), cell_id=states.rows[row.host].cell_id,
            volume_hosts=common_hosts(volume_hosts.get(row.id),
                                      by_storage.get(shared_disks_of(states.rows[row.host], row).get("id", ""),
                                                     frozenset())),
            **hinted_host_fields(row.hints, _hosts_of_hinted(row, claims)))
        servers_by_host.setdefault(row.host, []).append(
            PlacedServer(row, spec, group_by_id.get(str(row.hints.get("group")))))
    return servers_by_host


def _hosts_of_hinted(row: ServerRow, claims: Iterable[ClaimedHost]) -> dict[str, list[str]]:
    """Return {uuid of a server: names of the server's hosts} for the servers to which the scheduler hints of *row*
    refer. Servers of other projects are left out. *claims*: the hosts of these servers; hosts of further servers in
    *claims* are ignored."""
    ids, where = set(hinted_server_ids(row.hints)), dict[str, list[str]]()
    for claim in claims if ids else ():
        if claim.server_id in ids and claim.project_id == row.project_id:
            where.setdefault(claim.server_id, []).append(claim.host)
    return where


def check_host_room(trial: Trial, host: str, servers: Sequence[PlacedServer]) -> HostRoom:
    """Return the result of the check whether all *servers* of *host* would fit on other hosts. The placements are
    simulated in *trial*, and then undone."""
    unplaced: list[PlacedServer] = []
    reason = ""
    for server in sorted(servers, key=_size, reverse=True):
        if trial.place(server.spec, server.group) is None:
            reason = reason or trial.why_not(server.spec, server.group)
            unplaced.append(server)
    trial.undo()
    return HostRoom(host, len(servers), [(server.row.id, server.row.name) for server in unplaced], reason)


def _size(server: PlacedServer) -> tuple[int, int, int, str]:
    amounts = server.spec.amounts
    return amounts.memory_mb, amounts.vcpus + amounts.pcpus, amounts.disk_gb, server.row.id
