# SPDX-License-Identifier: GPL-3.0-or-later
"""Watches the agents of a cell's hosts: heartbeats, inventory, power states. Each host has one watcher, by lease. A
host that returns is up when what was evacuated from it is gone there (``host_return``).

A guest that powers off by itself, or whose QEMU dies, changes its server here. A guest whose server was deleted while
the host was away is removed from the host; unknown guests are left alone and logged.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.steps import host_groups
from magnetar_control.conductor.steps.migration_halves import remove
from magnetar_control.conductor.worker.action_notifications import tell_power
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.store.engine.database import INSERT, now
from magnetar_control.store.engine.tables import host_states, servers
from magnetar_control.store.hosts import cell_look, hosts
from magnetar_control.store.scatter_gather import scatter_gather_cells
from magnetar_control.store.servers import migrations, server_passwords
from magnetar_control.store.servers.servers import SERVERS_BELL, end_consoles, text
from magnetar_control.store.store import CELL0
from magnetar_core.errors import MagnetarError, NotFound
from magnetar_core.http.client import Client
from magnetar_core.power import ACTIVE, PAUSED, POWERS, STOPPED, SUSPENDED

from . import host_return

log = logging.getLogger(__name__)
#: Seconds: length of a lease, between two rounds over all hosts, and after a failure.
LEASE, LOOK, PAUSE = 12.0, 3.0, 1.0
#: Properties of a host whose changes are saved.
KEPT = ("vcpus", "memory_mb", "disk_gb", "agent_version", "hypervisor_version", "consoles", "traits", "cpu_info",
        "architecture", "emulated_architectures", "virt_types", "machine_types", "address", "pcpus", "numa_cells",
        "firmware", "secure_boot", "tpm_versions", "disk_encryption", "memory_encryption",
        "ovn", "image_cache_gb", "pci_devices", "pci_pools", "mdevs", "providers", "resources", "bandwidths")
#: What is left out of them: it changes with each heartbeat, and is kept beside the heartbeat (``TOLD``).
TOLD = ("metrics", "images")
#: vm_states that follow the guest.
LIVELY = (ACTIVE, PAUSED, SUSPENDED, STOPPED)
#: Servers of a host without an action. Made once, since each event asks it.
IDLE = select(servers.c.id, servers.c.vm_state, servers.c.power_state).where(
    servers.c.id.in_(bindparam("ids", expanding=True)), servers.c.host == bindparam("at"),
    servers.c.task_state.is_(None), servers.c.deleted_at.is_(None), servers.c.vm_state.in_(LIVELY))


class _Evacuated(Exception):
    """The host may have servers that were evacuated from it."""


class HostWatch:
    """Watches hosts of one cell, shared with the other conductors of the cell."""

    def __init__(self, conductor: Conductor) -> None:
        self.conductor = conductor
        self._threads: dict[str, threading.Thread] = {}
        self._kept: dict[str, tuple[Any, ...]] = {}
        #: Those of all cells that there were in the last round.
        self._hosts: frozenset[str] = frozenset()

    def run(self) -> None:
        """Until the conductor ends: register hosts, take over watches, read which hosts are up."""
        self._register()
        while not self.conductor.over.is_set():
            try:
                self._round()
            except DBAPIError as error:
                log.warning("hosts of cell %s: %s", self.conductor.cell.name, error.orig)
            self.conductor.over.wait(LOOK)

    def _register(self) -> None:
        """Register the hosts of the settings in the cell."""
        conductor = self.conductor
        for name, endpoint in conductor.settings.hosts.items():
            def once(name: str = name, endpoint: str = endpoint) -> None:
                with conductor.store.api.write() as connection:
                    hosts.register(connection, name, conductor.cell.id, endpoint)

            conductor.store.api.retried(once)
        conductor.read_hosts()
        conductor.recheck = self.recheck

    def _round(self) -> None:
        conductor = self.conductor
        conductor.read_hosts()
        names = [name for name, host in conductor.states.hosts.items() if host.profile.cell_id == conductor.cell.id]
        for name in list(self._kept.keys() - conductor.states.hosts.keys()):
            del self._kept[name]
        for name in self._hosts - conductor.states.hosts.keys():
            conductor.delivery.forget(name)  # one that comes under this name again has nothing
        self._hosts = frozenset(conductor.states.hosts)
        self._threads = {name: thread for name, thread in self._threads.items() if thread.is_alive()}
        for name in names:
            thread = self._threads.get(name)
            if thread is None and self._keep_lease(name):
                thread = threading.Thread(target=self._watch, args=(name,), name=f"watch {name}", daemon=True)
                self._threads[name] = thread
                thread.start()
        look = partial(cell_look.look, conductor.settings.host_down_after, conductor.states.rules.looks_at_flavors)
        self._looked(names, look(conductor.database))
        others = [(cell, database) for cell, database in conductor.store.databases()
                  if cell.id not in (conductor.cell.id, CELL0)]
        told = scatter_gather_cells(others, look, LOOK)
        for cell_id, found in told.items():
            self._looked([name for name, host in list(conductor.states.hosts.items())
                          if host.profile.cell_id == cell_id], found or cell_look.NOTHING)

    def _looked(self, names: Sequence[str], found: cell_look.CellLook) -> None:
        for name in names:
            self.conductor.states.seen(name, found)

    def _keep_lease(self, name: str, *, seen: bool = False, problem: str | None = None,
                    settled: Collection[str] = (), told: str | None = None) -> bool:
        """Take or renew the lease of a host's watch; ``False`` when another conductor has it. *seen*: the host is up.
        *told*: the text of what it tells with each heartbeat.
        *settled*: the evacuations from it that are seen to. Raises ``_Evacuated`` when there are more: an evacuation
        begins only at a host that is not up."""
        database, holder = self.conductor.database, self.conductor.holder
        with database.write() as connection:
            connection.execute(INSERT[database.kind](host_states).values(host=name).on_conflict_do_nothing())
            free = (host_states.c.watcher == holder) | host_states.c.lease_until.is_(None) | (
                host_states.c.lease_until < database.clock())
            values: dict[str, Any] = {"watcher": holder, "lease_until": database.clock(LEASE), "problem": problem}
            if seen:
                values |= {"seen_at": database.clock(), "told": told}
            kept = connection.execute(update(host_states).where(host_states.c.host == name, free).values(
                **values)).rowcount == 1
            if kept and seen and any(one.uuid not in settled for one in migrations.evacuated(connection, name)):
                raise _Evacuated
            return kept

    def _heard(self, name: str, client: Client, host: Mapping[str, Any]) -> bool:
        """The host answers. It counts as up when nothing of what was evacuated from it can run there; ``False`` when
        another conductor watches it."""
        settled: set[str] = set()
        told = text({key: host.get(key) for key in TOLD}) if self.conductor.states.rules.looks_at_told else None
        while True:
            with contextlib.suppress(_Evacuated):
                return self._keep_lease(name, seen=True, settled=settled, told=told)
            if not self._keep_lease(name, problem="servers that were evacuated are removed"):
                return False
            settled = host_return.settle(self.conductor, client, name, settled)

    def _watch(self, name: str) -> None:
        """Follow one agent for as long as this conductor holds the lease."""
        conductor, settings = self.conductor, self.conductor.settings
        while not conductor.over.is_set() and name in conductor.states.hosts:
            try:
                with conductor.agents.make(conductor.endpoint(name)) as client:
                    host = client.get("host")
                    self._inventory(name, host)
                    if not self._heard(name, client, host):
                        return
                    conductor.states.up(name, up=True)
                    for event, document in client.watch(min(settings.heartbeat, LEASE / 3), events=["server"]):
                        if conductor.over.is_set():
                            return
                        if event == "heartbeat":
                            seen = document.get("host") or {}  # without libvirt, a part of it is null
                            with conductor.client(name) as other:  # this one reads the events
                                if not self._heard(name, other, seen):
                                    return
                            host = {**host, **{k: v for k, v in seen.items() if v is not None}}
                            self._inventory(name, host)
                        self._on_event(name, client, event, document)
            except (MagnetarError, DBAPIError, OSError) as error:
                log.info("host %s: %s", name, error, extra={"host": name})
                with contextlib.suppress(DBAPIError):
                    if not self._keep_lease(name, problem=str(error)[:500]):
                        return
            conductor.over.wait(PAUSE)

    def _inventory(self, name: str, host: Mapping[str, Any]) -> None:
        """Save what the host has, and the limits that follow from it, from the settings and from its aggregates, when
        one of these has changed."""
        conductor = self.conductor
        ratios = conductor.ratios_of(name)
        totals = (ratios, *(host.get(key) for key in KEPT))
        if self._kept.get(name) == totals:
            return
        with conductor.store.api.write() as connection:
            hosts.inventory(connection, name, {key: value for key, value in host.items() if key not in TOLD},
                            ratios, conductor.reserved)
        self._kept[name] = totals
        conductor.read_host(name)

    def _on_event(self, name: str, client: Client, event: str, document: Mapping[str, Any]) -> None:
        """Handle one event of an agent. Events of a server with an action in hand go to the action. An event may be
        older than what the action has left, so a server that differs from its event is read again from the host."""
        if event in ("servers", "server"):
            self._passwords(name, document.get("servers") or [document])
        if event == "servers":
            self._on_connect(name, document.get("servers") or [])
        elif event == "server" and not document.get("removed") and not self.conductor.tell_action(name, document):
            self._recheck(name, client, document)

    def _passwords(self, name: str, found: Sequence[Mapping[str, Any]]) -> None:
        """Note what guests have left for their users; a host that still has what was cleared is told."""
        told = {one["id"]: str(one["password"]) for one in found if one.get("password")}
        if not told:
            return
        database = self.conductor.database
        with database.read() as connection:
            differing = server_passwords.differing(connection, name, told)
        for row, cleared in differing:
            if cleared:
                with contextlib.suppress(MagnetarError), self.conductor.client(name) as client:
                    client.event("server", row.id, "clear_password", {},
                                 request_id=f"clear-password-{row.cleared_password}")
                continue
            with database.write() as connection:
                server_passwords.keep(connection, name, row.id, told[row.id])

    def recheck(self, name: str, document: Mapping[str, Any]) -> None:
        """Read a server again that was heard during an action, which has left it otherwise. When the host does not
        answer, the audit sees to it."""
        try:
            with self.conductor.client(name) as client:
                self._recheck(name, client, document)
        except (MagnetarError, DBAPIError, OSError) as error:
            log.info("host %s: %s", name, error, extra={"host": name})

    def _recheck(self, name: str, client: Client, document: Mapping[str, Any]) -> None:
        for row, _word in self._changed_servers(name, [document]):
            with contextlib.suppress(NotFound):
                self.follow(name, [client.get("server", row.id)])

    def _on_connect(self, name: str, found: list[Mapping[str, Any]]) -> None:
        """Compare everything on the host with the database, when the agent connects."""
        self.follow(name, [one for one in found if not one.get("held")])
        with contextlib.suppress(MagnetarError), self.conductor.client(name) as client:
            host_groups.compare(self.conductor, client, name, [one["id"] for one in found])
        if not found:
            return
        threading.Thread(target=host_return.release, args=(self.conductor, name, found), name=f"release {name}",
                         daemon=True).start()
        database = self.conductor.database
        with database.read() as connection:
            gone = connection.execute(select(servers.c.id).where(
                servers.c.id.in_([one["id"] for one in found]), servers.c.deleted_at.is_not(None))).scalars().all()
        for id in gone:
            log.warning("server %s was deleted while host %s was away; removed there now", id, name)
            try:
                with self.conductor.client(name) as client:
                    remove(client, id)
            except MagnetarError as error:
                log.warning("server %s stays on host %s until its agent connects again: %s", id, name, error.message)

    def follow(self, name: str, found: list[Mapping[str, Any]]) -> None:
        """Give servers without an action the vm_state and power state of their guests."""
        database = self.conductor.database
        for row, word in self._changed_servers(name, found):
            power = POWERS[word]
            with database.write() as connection:
                changed = connection.execute(update(servers).where(
                    servers.c.id == row.id, servers.c.task_state.is_(None), servers.c.vm_state == row.vm_state,
                    servers.c.host == name).values(vm_state=power.vm_state, power_state=power.number, updated_at=now()))
                if changed.rowcount:
                    tell_power(self.conductor.notifications, connection, row.id, row.vm_state, word, name)
                end_consoles(connection, row.id, power.vm_state)
                database.ring(connection, SERVERS_BELL)
            log.info("server %s is %s by itself", row.id, word, extra={"server": row.id, "host": name})

    def _changed_servers(self, name: str, found: Sequence[Mapping[str, Any]]) -> list[tuple[Any, str]]:
        """Servers without an action whose state differs from what was *found*, with the power state found."""
        power = {one["id"]: str(one["power_state"]) for one in found}
        if not power:
            return []
        with self.conductor.database.read() as connection:
            rows = connection.execute(IDLE, {"ids": list(power), "at": name}).all()
        return [(row, word) for row in rows
                if (seen := POWERS.get(word := power[row.id])) and seen.vm_state
                and (seen.vm_state, seen.number) != (row.vm_state, row.power_state)]
