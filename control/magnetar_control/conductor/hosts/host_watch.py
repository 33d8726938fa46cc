# SPDX-License-Identifier: GPL-3.0-or-later
"""The watch over the agents of a cell's hosts: heartbeats, inventory, power states. Each host has one watcher, by
lease. One thread follows all hosts (``watch_loop``).

A host that returns counts as up only after the servers that were evacuated from it are removed there (``host_return``).
When a guest powers off by itself, or its QEMU dies, the watch saves the new state of its server. A guest whose server
was deleted while the host was away is removed from the host; unknown guests are left alone and logged.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.steps import host_groups
from magnetar_control.conductor.steps.migration import remove_server_from_host
from magnetar_control.conductor.worker.action_notifications import tell_power
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.services.volume.pools import save_host_pools, without_free_space
from magnetar_control.store.engine.database import ChangeCheck, utc_now
from magnetar_control.store.engine.tables import servers
from magnetar_control.store.hosts import cell_look, host_leases, hosts
from magnetar_control.store.scatter_gather import scatter_gather_cells
from magnetar_control.store.servers import server_passwords
from magnetar_control.store.servers.servers import SERVERS_CHANGED, end_consoles
from magnetar_control.store.store import CELL0
from magnetar_core.errors import MagnetarError, NotFound
from magnetar_core.http.client import Client
from magnetar_core.power import ACTIVE, PAUSED, POWERS, STOPPED, SUSPENDED

from . import host_return
from .host_reports import MALFORMED, check_scheduler_reads, malformed_report_error
from .watch_loop import REPORT_FIELDS, WatchLoop

log = logging.getLogger(__name__)
#: Seconds between two rounds over all hosts.
POLL_INTERVAL = 3.0
#: Seconds after which hosts are read although the API database looks unchanged.
UNCHANGED = 30.0
#: Seconds between two writes of the free space of a host's pools.
POOL_SIZES = 30.0
#: Properties of a host that are saved when they change.
SAVED_PROPERTIES = (
    "vcpus", "memory_mb", "disk_gb", "agent_version", "capabilities", "hypervisor_version", "consoles", "traits",
    "cpu_info", "architecture", "emulated_architectures", "virt_types", "machine_types", "address", "pcpus",
    "numa_cells", "firmware", "secure_boot", "tpm_versions", "disk_encryption", "memory_encryption", "ovn",
    "image_cache_gb", "disk_folder", "disk_pool", "pci_devices", "pci_pools", "mdevs", "providers", "resources",
    "bandwidths")
#: Columns of a host's row whose change says that the host may be back.
SET_BY_OPERATORS = attrgetter("endpoint", "disabled", "forced_down")
#: vm_states that change with the power state of the guest.
LIVELY = (ACTIVE, PAUSED, SUSPENDED, STOPPED)
#: Query of the servers of a host without an action. Built once, since each event runs it.
IDLE = select(servers.c.id, servers.c.vm_state, servers.c.power_state).where(
    servers.c.id.in_(bindparam("ids", expanding=True)), servers.c.host == bindparam("at"),
    servers.c.task_state.is_(None), servers.c.deleted_at.is_(None), servers.c.vm_state.in_(LIVELY))


class HostWatch:
    """The monitor of the hosts of one cell. The conductors of a cell divide its hosts among themselves by leases: a
    conductor watches the hosts whose leases it holds, and renews these leases in the database before they expire."""

    def __init__(self, conductor: Conductor) -> None:
        self.conductor = conductor
        self._kept: dict[str, tuple[Any, ...]] = {}
        #: The hosts of the settings that are registered.
        self._registered: Mapping[str, str] | None = None
        #: The reported pools of each host that are saved, and when they were saved.
        self._pools: dict[str, tuple[float, Any]] = {}
        #: Hosts of all cells in the last round.
        self._hosts: frozenset[str] = frozenset()
        #: What operators have set for the hosts of the cell, in the last round.
        self._settings: Mapping[str, tuple[Any, ...]] = {}

    @cached_property
    def _changes(self) -> ChangeCheck:
        return ChangeCheck(self.conductor.store.api, UNCHANGED)

    @cached_property
    def _loop(self) -> WatchLoop:
        return WatchLoop(self.conductor, self._follow, self._inventory, self._is_saved)

    def run(self) -> None:
        """Until the conductor ends, register hosts, begin to watch the hosts that no conductor watches (their leases
        have expired), and read from the database which hosts are up."""
        self._register()
        failure = ""
        while not self.conductor.over.is_set():
            try:
                if self._registered is not self.conductor.settings.hosts:
                    self._register()
                self._round()
                failure = ""
            except DBAPIError as error:
                log.warning("hosts of cell %s: %s", self.conductor.cell.name, error.orig)
            except Exception as error:
                if failure != (failure := repr(error)):
                    log.exception("hosts of cell %s: the round failed; it is repeated", self.conductor.cell.name)
            self.conductor.over.wait(POLL_INTERVAL)
        self._loop.close()

    def _register(self) -> None:
        """Ensure that each host in the settings has a row with this conductor's cell and with the endpoint from the
        settings. Insert missing rows, and update rows that have another cell or endpoint."""
        conductor = self.conductor
        conductor.read_hosts()
        where = {name: (row.cell_id, row.endpoint) for name, row in list(conductor.states.rows.items())}
        configured = conductor.settings.hosts
        new = [(name, endpoint) for name, endpoint in configured.items()
               if where.get(name) != (conductor.cell.id, endpoint)]

        def once() -> None:
            with conductor.store.api.write() as connection:
                for name, endpoint in new:
                    hosts.upsert_host_row(connection, name, conductor.cell.id, endpoint)

        if new:
            conductor.store.api.retried(once)
        conductor.read_hosts()
        conductor.recheck, self._registered = self.recheck, configured

    def _round(self) -> None:
        conductor = self.conductor
        if self._changes.may_have_changed() or conductor.states.has_assumed():
            conductor.read_hosts()
        names = [name for name, host in conductor.states.hosts.items() if host.profile.cell_id == conductor.cell.id]
        for name in list(self._kept.keys() - conductor.states.hosts.keys()):
            del self._kept[name]
            self._pools.pop(name, None)
        for name in self._hosts - conductor.states.hosts.keys():
            conductor.delivery.forget(name)  # a new host with this name has nothing
        self._hosts = frozenset(conductor.states.hosts)
        for name in self._loop.names.difference(names):
            self._loop.remove(name)
        settings = {name: SET_BY_OPERATORS(conductor.states.rows[name]) for name in names}
        for name in [name for name, values in settings.items() if self._settings.get(name, values) != values]:
            self._loop.wake(name)
        self._settings = settings
        if taken := host_leases.take_host_leases(conductor.database, conductor.holder, [
                name for name in names if name not in self._loop.names]):
            self._loop.add(taken)
        read_snapshot = partial(cell_look.read_cell_hosts, conductor.settings.host_down_after,
                                conductor.states.rules.looks_at_flavors)
        self._update_hosts(names, read_snapshot(conductor.database))
        if not self._loop.names:  # other conductors watch all hosts of the cell; otherwise the loop notes its attempt
            conductor.begin_settling()
        other_cells = [(cell, database) for cell, database in conductor.store.databases()
                       if cell.id not in (conductor.cell.id, CELL0)]
        snapshots_by_cell = scatter_gather_cells(other_cells, read_snapshot, POLL_INTERVAL)
        for cell_id, snapshot in snapshots_by_cell.items():
            self._update_hosts([name for name, host in list(conductor.states.hosts.items())
                                if host.profile.cell_id == cell_id], snapshot or cell_look.NOTHING)

    def _update_hosts(self, names: Sequence[str], snapshot: cell_look.CellSnapshot) -> None:
        for name in names:
            self.conductor.states.seen(name, snapshot)

    def _follow(self, name: str, event: str, document: Mapping[str, Any]) -> None:
        with self.conductor.client(name) as client:
            self._on_event(name, client, event, document)

    def _is_saved(self, name: str, heartbeat: Mapping[str, Any]) -> bool:
        """Return whether the host properties in *heartbeat* equal those that this conductor saved last, so that nothing
        must be written."""
        saved = self._kept.get(name)
        if saved is None or saved[0] != self._shares(name):
            return False
        if not self._has_pools(name, heartbeat.get("pools")):
            return False
        return all((value := heartbeat.get(key)) is None or value == known
                   for key, known in zip(SAVED_PROPERTIES, saved[1:], strict=True))

    def _shares(self, name: str) -> tuple[Any, ...]:
        """Return (allocation ratios, amounts reserved for the host itself), which settings and aggregates define for
        the host *name*."""
        return self.conductor.ratios_of(name), self.conductor.reserved

    def _has_pools(self, name: str, reports: Any) -> bool:
        """Return whether the storage pools in *reports* are already saved for the host *name*. If only the free space
        differs, the pools count as saved for ``POOL_SIZES`` seconds, because the free space changes all the time."""
        moment, saved = self._pools.get(name, (0.0, None))
        if reports is None or reports == saved:
            return True
        return time.monotonic() < moment + POOL_SIZES and without_free_space(reports) == without_free_space(saved)

    def _save_pools(self, name: str, reports: Any) -> None:
        """Save the storage pools in *reports*, which the agent of the host *name* has sent, unless they are already
        saved."""
        if not self._has_pools(name, reports):
            with self.conductor.store.api.write() as connection:
                save_host_pools(connection, name, reports)
            self._pools[name] = time.monotonic(), reports

    def _inventory(self, name: str, host: Mapping[str, Any]) -> None:
        """Save the properties of the host *name* as reported in *host*, and its resource limits, which are computed
        from the properties, the settings and the aggregates. Do nothing if neither the properties nor the settings and
        aggregates have changed."""
        conductor = self.conductor
        ratios = conductor.ratios_of(name)
        totals = (self._shares(name), *(host.get(key) for key in SAVED_PROPERTIES))
        try:
            self._save_pools(name, host.get("pools"))
        except MALFORMED as error:
            raise malformed_report_error(error) from error
        if self._kept.get(name) == totals:
            return
        report = {key: value for key, value in host.items() if key not in (*REPORT_FIELDS, "pools")}
        if row := conductor.states.rows.get(name):
            check_scheduler_reads(conductor.states, row, report)
        try:
            with conductor.store.api.write() as connection:
                hosts.save_host_inventory(connection, name, report, ratios, conductor.reserved)
        except MALFORMED as error:
            raise malformed_report_error(error) from error
        self._kept[name] = totals
        conductor.read_host(name)

    def _on_event(self, name: str, client: Client, event: str, document: Mapping[str, Any]) -> None:
        """Handle one event of the agent of the host *name*. If the event is about a server with a running action, pass
        it to that action. An event may be older than the result of the last action. So if the event differs from the
        server's row, read the server again from the host."""
        if event in ("servers", "server"):
            self._passwords(name, document.get("servers") or [document])
        if event == "servers":
            self._on_connect(name, document.get("servers") or [])
        elif event == "server" and not document.get("removed") and not (
                self.conductor.running_actions.tell_action(name, document)):
            self._recheck(name, client, document)

    def _passwords(self, name: str, resources: Sequence[Mapping[str, Any]]) -> None:
        """Save the encrypted passwords that guests have published. If a user has cleared a password in the API, clear
        it on the host too. *resources*: servers of the host *name*, as its agent reports them."""
        passwords = {resource["id"]: str(resource["password"]) for resource in resources if resource.get("password")}
        if not passwords:
            return
        database = self.conductor.database
        with database.read() as connection:
            differing = server_passwords.fetch_differing_passwords(connection, name, passwords)
        for row, cleared in differing:
            if cleared:
                with contextlib.suppress(MagnetarError), self.conductor.client(name) as client:
                    client.event("server", row.id, "clear_password", {},
                                 request_id=f"clear-password-{row.cleared_password}")
                continue
            with database.write() as connection:
                server_passwords.save_password_column(connection, name, row.id, passwords[row.id])

    def recheck(self, name: str, document: Mapping[str, Any]) -> None:
        """Read a server again from the host *name* after an action. *document*: an event from the agent that arrived
        during the action, and differs from the action's result. If the host does not answer, the audit corrects the
        server's row later."""
        try:
            with self.conductor.client(name) as client:
                self._recheck(name, client, document)
        except (MagnetarError, DBAPIError, OSError) as error:
            log.info("host %s: %s", name, error, extra={"host": name})

    def _recheck(self, name: str, client: Client, document: Mapping[str, Any]) -> None:
        for row, _word in self._changed_servers(name, [document]):
            with contextlib.suppress(NotFound):
                self.follow(name, [client.get("server", row.id)])

    def _on_connect(self, name: str, resources: list[Mapping[str, Any]]) -> None:
        """Synchronize the servers on the host *name* with the database after its agent has connected. Then do the work
        that was pending: delete servers, and start guests. *resources*: the servers as the agent reports them."""
        self.follow(name, [resource for resource in resources if not resource.get("held")])
        with contextlib.suppress(MagnetarError), self.conductor.client(name) as client:
            host_groups.compare_security_groups(self.conductor, client, name,
                                                [resource["id"] for resource in resources])
        if not resources:
            return
        if any(resource.get("held") for resource in resources):
            threading.Thread(target=host_return.start_held_servers, args=(self.conductor, name, resources),
                             name=f"release {name}", daemon=True).start()
        self._remove_deleted_servers(name, resources)

    def _remove_deleted_servers(self, name: str, resources: list[Mapping[str, Any]]) -> None:
        """Remove servers from the host *name* that were deleted while its agent was not connected. *resources*: the
        servers as the agent reports them."""
        database = self.conductor.database
        with database.read() as connection:
            deleted_ids = connection.execute(select(servers.c.id).where(
                servers.c.id.in_([resource["id"] for resource in resources]),
                servers.c.deleted_at.is_not(None))).scalars().all()
        for id in deleted_ids:
            log.warning("server %s was deleted while host %s was away; removed there now", id, name)
            try:
                with self.conductor.client(name) as client:
                    remove_server_from_host(client, id)
            except MagnetarError as error:
                log.warning("server %s stays on host %s until its agent connects again: %s", id, name, error.message)

    def follow(self, name: str, resources: list[Mapping[str, Any]]) -> None:
        """Update vm_state and power state of the servers on the host *name* when their guests have changed by
        themselves, such as by a shutdown. Servers with a running action are skipped. *resources*: the servers as the
        agent reports them."""
        database = self.conductor.database
        for row, power_state in self._changed_servers(name, resources):
            power = POWERS[power_state]
            with database.write() as connection:
                changed = connection.execute(update(servers).where(
                    servers.c.id == row.id, servers.c.task_state.is_(None), servers.c.vm_state == row.vm_state,
                    servers.c.host == name).values(vm_state=power.vm_state, power_state=power.number,
                                                   updated_at=utc_now()))
                if changed.rowcount:
                    tell_power(self.conductor.notifications, connection, row.id, row.vm_state, power_state, name)
                end_consoles(connection, row.id, power.vm_state)
                database.notify(connection, SERVERS_CHANGED)
            log.info("server %s is %s by itself", row.id, power_state, extra={"server": row.id, "host": name})

    def _changed_servers(self, name: str, resources: Sequence[Mapping[str, Any]]) -> list[tuple[Any, str]]:
        """Return (row, reported power state) of the servers whose guests have changed by themselves. Servers with a
        running action are skipped. *resources*: servers of the host *name*, as its agent reports them."""
        power = {resource["id"]: str(resource["power_state"]) for resource in resources}
        if not power:
            return []
        with self.conductor.database.read() as connection:
            rows = connection.execute(IDLE, {"ids": list(power), "at": name}).all()
        return [(row, power_state) for row in rows
                if (guest_power := POWERS.get(power_state := power[row.id])) and guest_power.vm_state
                and (guest_power.vm_state, guest_power.number) != (row.vm_state, row.power_state)]
