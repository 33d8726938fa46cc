# SPDX-License-Identifier: GPL-3.0-or-later
"""Balance: the real load of the hosts of each cell, and the live migrations that would even it out or free a host.

Nothing is stored: each report starts from the hosts' present load. ``balance_moves`` does the moves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import DBAPIError

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.cloud import Cloud
from magnetar_control.compute.drains.server_moves import LIVE, choose_move
from magnetar_control.compute.hosts.find_host import unknown_host_error
from magnetar_control.compute.hosts.hypervisors import RULE
from magnetar_control.scheduler.balance import (
    BalancePlan,
    BalanceRules,
    LoadedHost,
    LoadedServer,
    plan_balance,
    plan_freeing,
)
from magnetar_control.scheduler.current_hosts import read_current_hosts
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.move_trial import MoveTrial
from magnetar_control.scheduler.room import PlacedServer, pages_of_hosts, read_host_inventories, read_placed_servers
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.servers import migrations
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_control.store.store import CELL0, CellMapping
from magnetar_core.errors import InvalidField, NotFound, Unavailable
from magnetar_core.kinds.capacity import MOST_MOVES

from .host_loads import HostLoad, read_host_loads

#: Seconds for which a server that was moved stays.
REST = 3600.0
#: The most moves of a request that names no limit and frees no host.
MOVES = 10
LOCKED = "It is locked."
RECENT = "It was moved, or a move of it was tried, within the last hour."
UNMEASURED = "Its agent has not measured it for a minute yet."
NOT_RUNNING = "It is not running. `magnetar host drain` moves servers that are off."


@dataclass(frozen=True)
class BalanceReport:
    """The load balance of the hosts of a cell. *plan*: the loads of the hosts, and the proposed live migrations.
    *unmeasured*: maps the name of each host without a measured load to the reason. *dropped*: the number of live
    migrations that are not proposed because of possible host failures. After these migrations, the servers of a failed
    host might find no room on the other hosts."""

    cell: CellMapping
    plan: BalancePlan
    unmeasured: Mapping[str, str]
    dropped: int = 0


@use_case(f"{RULE}list-detail")
def report_balance(caller: Caller, cell: str | None = None, host: str | None = None,
                   limit: int | None = None) -> list[BalanceReport]:
    """Return the load balance of each cell, or only of the cell named *cell*. Nothing is changed. *host*: propose
    migrations that move all servers off this host; the result then contains only the cell of this host. *limit*: the
    largest number of proposed migrations in all cells together. Raises ``NotFound`` for an unknown cell or host,
    ``Unavailable`` when a cell's database does not answer."""
    cloud, states = caller.cloud, read_current_hosts(caller.cloud.store, caller.cloud.settings)
    cells = _requested_cells(cloud, states, cell, host)
    left = limit if limit is not None or host else MOVES
    if left is not None and not 1 <= left <= MOST_MOVES:
        raise InvalidField("limit", f"must be a number from 1 to {MOST_MOVES}", left)
    reports: list[BalanceReport] = []
    for mapping, database in cells:
        try:
            report = _CellBalance(cloud, states, mapping, database, host, left).report()
        except DBAPIError:
            raise Unavailable(f"The database of the cell {mapping.name} does not answer. Try again when it does.",
                              headers={"Retry-After": "10"}) from None
        reports.append(report)
        left = None if left is None else left - len(report.plan.moves)
    return reports


def _requested_cells(cloud: Cloud, states: HostStates, cell: str | None,
                     host: str | None) -> list[tuple[CellMapping, Database]]:
    cells = [(mapping, database) for mapping, database in cloud.store.databases() if mapping.id != CELL0]
    if cell is not None:
        cells = [pair for pair in cells if cell in (pair[0].name, pair[0].id)]
        if not cells:
            raise NotFound(f"There is no cell {cell[:80]!r}. `magnetar cell list` shows the cells.", kind="cell",
                           key=cell[:80])
    if host is None:
        return cells
    row = states.rows.get(host)
    if row is None:
        raise unknown_host_error(host)
    cells = [pair for pair in cells if pair[0].id == row.cell_id]
    if not cells:
        raise InvalidField("host", f"is in another cell than {cell}", host)
    return cells


class _CellBalance:
    """The computation of the load balance of one cell. *freed*: the host that all servers should leave; ``None`` for
    none. *moves*: the largest number of proposed migrations."""

    def __init__(self, cloud: Cloud, states: HostStates, cell: CellMapping, database: Database, freed: str | None,
                 moves: int | None) -> None:
        self.cloud, self.cell, self.database, self.freed = cloud, cell, database, freed
        self.states, self.moves = states, moves
        self.names = sorted(name for name, row in states.rows.items() if row.cell_id == cell.id)

    def report(self) -> BalanceReport:
        """Read the loads, plan migrations, and return loads and plan. Drop migrations from the end of the plan until
        the plan does no harm to failover: if the servers of a failed host would find room on the other hosts now, they
        must also find room there after the migrations."""
        with self.database.read() as connection:
            moved, moving = migrations.fetch_recent_moves(connection, utc_now(-REST))
        loads, unmeasured = self._read_loads()
        trial = self._make_trial(self.states)
        hosts = [self._loaded_host(name, load, name in moving) for name, load in sorted(loads.items())]
        servers = self._loaded_servers(trial, loads, moved)
        safe = {room.host for room in trial.rooms(self.names) if room.holds}
        plan = self._plan(trial, hosts, servers, self.moves)
        proposed = len(plan.moves)
        while plan.moves and not all(room.holds for room in trial.rooms(safe)):
            trial = self._make_trial(read_current_hosts(self.cloud.store, self.cloud.settings))
            plan = self._plan(trial, hosts, servers, len(plan.moves) - 1)
        return BalanceReport(self.cell, plan, unmeasured, proposed - len(plan.moves))

    def _plan(self, trial: MoveTrial, hosts: Sequence[LoadedHost], servers: Sequence[LoadedServer],
              moves: int | None) -> BalancePlan:
        placed = {server.row.id: server for on_host in trial.servers_by_host.values() for server in on_host}

        def check(server: LoadedServer, target: str) -> str:
            return trial.move(placed[server.id], target) if server.id in placed else "It is gone."

        rules = BalanceRules(moves=moves)
        if self.freed is not None:
            return plan_freeing(hosts, servers, rules, check, self.freed)
        return plan_balance(hosts, servers, rules, check)

    def _make_trial(self, states: HostStates) -> MoveTrial:
        api, volumes = self.cloud.store.api, self.cloud.services.volume
        servers: dict[str, list[PlacedServer]] = {}
        for database, page in pages_of_hosts(self.cloud.store, states, self.names):
            servers |= read_placed_servers(api, database, volumes, states, page)
        return MoveTrial(states, read_host_inventories(api, states), servers)

    def _read_loads(self) -> tuple[dict[str, HostLoad], dict[str, str]]:
        """Return two mappings by host name: the loads of the hosts that are up, and, for each host without a known
        load, the reason."""
        up = {name: self.states.rows[name].endpoint for name in self.names if self.states.hosts[name].profile.up}
        loads, unmeasured = {}, {name: "It is down." for name in self.names if name not in up}
        for name, load in read_host_loads(self.cloud.agents, up).items():
            if isinstance(load, HostLoad):
                loads[name] = load
            else:
                unmeasured[name] = load
        return loads, unmeasured

    def _loaded_host(self, name: str, load: HostLoad, moving: bool) -> LoadedHost:
        """Return the host *name* with its *load*, and with flags for the planner: no server may leave or enter a
        disabled host or a host with a migration in progress (*moving*), and none may enter the host that is being
        emptied."""
        profile = self.states.hosts[name].profile
        free = profile.enabled and profile.cell_enabled and not moving
        return LoadedHost(name, load.cpus, load.memory_mb, load.cpus_used, load.memory_mb_used, gives=free,
                          takes=free and name != self.freed)

    def _loaded_servers(self, trial: MoveTrial, loads: Mapping[str, HostLoad],
                        moved: Collection[str]) -> list[LoadedServer]:
        servers = [server.row for host in loads for server in trial.servers_by_host.get(host, ())]
        ids = {volume["volume_id"] for row in servers for volume in row.volumes}
        serving_hosts = self.cloud.services.volume.serving_hosts(ids) if ids else {}
        loaded = []
        for row in servers:
            cpus, memory_mb = loads[row.host].servers.get(row.id, (None, 0))
            stays = _reason_to_stay(row, serving_hosts) or (RECENT if row.id in moved else "") or (
                UNMEASURED if cpus is None else "")
            loaded.append(LoadedServer(row.id, row.name, row.host, cpus or 0.0, memory_mb, stays))
        return loaded


def _reason_to_stay(row: ServerRow, serving_hosts: Mapping[Any, str]) -> str:
    """Return the reason why a server must not be moved; "" if it may be moved. *serving_hosts*: the storing host by
    volume uuid, for volumes that other hosts can use only through this host."""
    if row.task_state:
        return f"It has a running action ({row.task_state})."
    if row.locked_by:
        return LOCKED
    choice = choose_move(row, {volume["volume_id"] for volume in row.volumes
                               if serving_hosts.get(volume["volume_id"]) == row.host})
    if choice.action is None:
        return choice.reason
    return "" if choice.action == LIVE else NOT_RUNNING
