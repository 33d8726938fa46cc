# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of one conductor process that its actions, watches and periodic tasks share: settings, databases,
services, agents, the scheduler's view of hosts, and the running actions."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from sqlalchemy import Connection

from magnetar_control.agents import PATIENCE, AgentClient, Agents
from magnetar_control.announcement import Announcement, process_name
from magnetar_control.delivery import Delivery
from magnetar_control.notifications import Notifications
from magnetar_control.scheduler import place
from magnetar_control.scheduler.aggregate_filters import ratios_of_aggregates
from magnetar_control.scheduler.choose import would_pass
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.request_spec import RequestSpec
from magnetar_control.scheduler.room_report import RoomReport
from magnetar_control.scheduler.rules import scheduler_rules
from magnetar_control.services import Services
from magnetar_control.services.identity import service_user
from magnetar_control.services.image.signatures import Signatures
from magnetar_control.settings import Settings
from magnetar_control.store.actions import actions
from magnetar_control.store.claims.allocations import Ratios
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts import cell_look
from magnetar_control.store.hosts.host_row import HostRow
from magnetar_control.store.scatter_gather import scatter_gather_cells
from magnetar_control.store.store import CELL0, Store
from magnetar_core.errors import NotFound, Unreachable

from .leased_actions import LeasedActions
from .running_works import ActionsInProgress
from .vendordata import Vendordata
from .worker_places import WorkerSlots

#: Seconds to wait for the right to choose which actions begin; after that, new servers go to the queue.
BRIEFLY = 1.0


class Conductor:
    """The state of one conductor process. *cell*: the name of its cell. *schedules*: whether this conductor also finds
    hosts for the new servers in cell0; at least one conductor of the cloud must do so. *announcement*: the process's
    registration in the database; by default a new one."""

    def __init__(self, settings: Settings, store: Store, services: Services, agents: Agents, cell: str,
                 delivery: Delivery, schedules: bool = True, announcement: Announcement | None = None) -> None:
        self.settings, self.store, self.services, self.agents = settings, store, services, agents
        self.delivery, self.notifications = delivery, Notifications(settings)
        self.signatures = Signatures(
            services.key_manager, services.image, settings.verify_image_signatures,
            settings.enable_certificate_validation, settings.trusted_certificates)
        self.cell = store.find_cell(cell)
        self.announcement = announcement or Announcement(
            store, "conductor", process_name(settings.conductor_name), self.database)
        #: Holder of leases: unique, also among conductors with the same name.
        self.name, self.holder = self.announcement.name, self.announcement.holder
        self.states = HostStates(settings.default_availability_zone, scheduler_rules(settings))
        self.vendordata = self.vendordata_of(settings)
        self.leased_actions = LeasedActions(settings.workers_of_host(), self.is_up)
        self.slots, self.running_actions = WorkerSlots(settings.workers, self.leased_actions), ActionsInProgress()
        #: Set when the conductor stops.
        self.over, self.schedules = threading.Event(), schedules
        #: Called with a host and its report on a server, when the report came during an action that left the server
        #: in another state.
        self.recheck: Callable[[str, Mapping[str, Any]], None] = lambda _host, _document: None
        #: Called for each action that ends, with its name and ``done`` or ``failed``.
        self.ended: Callable[[str, str], None] = lambda _action, _result: None
        #: Called with the name of the cell and each check of its room to fail.
        self.room_checked: Callable[[str, Sequence[RoomReport]], None] = lambda _cell, _reports: None
        #: When the conductor began to look for the hosts' agents; ``None`` before.
        self._settling_since: float | None = None
        #: Cells that were disabled when the scheduler's hosts were last read.
        self._disabled_cells: set[str] = set()

    @property
    def ratios(self) -> Ratios:
        """The allocation ratios in the settings. They apply to hosts whose aggregates define no ratios."""
        settings = self.settings
        return Ratios(settings.cpu_allocation_ratio, settings.ram_allocation_ratio, settings.disk_allocation_ratio)

    @property
    def reserved(self) -> dict[str, int]:
        """The amounts of CPUs, memory and disk that the settings reserve for the host itself, by column of ``hosts``. A
        reserved amount that an operator has set for a host has precedence."""
        settings = self.settings
        return {"vcpus_reserved": settings.reserved_host_cpus, "memory_mb_reserved": settings.reserved_host_memory_mb,
                "disk_gb_reserved": settings.reserved_host_disk_gb}

    def vendordata_of(self, settings: Settings) -> Vendordata:
        """Return the source of vendor data that *settings* configure. Raises ``InvalidSettings``."""
        return Vendordata(settings, service_user.vendordata_token_source(self.services.identity))

    def follow_settings(self) -> None:
        """Recompute vendor data and scheduler rules after the settings were reloaded."""
        self.vendordata = self.vendordata_of(self.settings)
        self.states.follow_rules(scheduler_rules(self.settings))

    @property
    def database(self) -> Database:
        """The database of the cell."""
        return self.store.cell(self.cell.id)

    def ratios_of(self, name: str) -> Ratios:
        """Return the allocation ratios of the host *name*: from the metadata of its aggregates as last read, otherwise
        from the settings."""
        host = self.states.hosts.get(name)
        aggregates = host.profile.aggregates if host else ()
        return ratios_of_aggregates(aggregates, self.ratios) if aggregates else self.ratios

    def host(self, name: str | None) -> HostRow:
        """Return the database row of the host *name*, as last read. Raises ``NotFound``, also for ``None``."""
        if not name:
            raise NotFound("The server is on no host.", kind="host", key="")
        if name not in self.states.rows:
            self.read_hosts()
        row = self.states.rows.get(name)
        if row is None:
            raise NotFound(f"There is no host {name!r} in the cloud.", kind="host", key=name)
        return row

    def zone(self, name: str) -> str:
        """Return the availability zone of the host *name*, from its aggregates as last read."""
        host = self.states.hosts.get(name)
        return host.profile.zone if host else self.settings.default_availability_zone

    def endpoint(self, host: str | None) -> str:
        """Return the endpoint (URL or socket) of the agent of *host*. Raises ``NotFound``, also for ``None``."""
        return self.host(host).endpoint

    def client(self, host: str | None, patience: float | None = None) -> AbstractContextManager[AgentClient]:
        """Return a context manager with a client of the agent of *host*. *patience*: the timeout in seconds (see
        ``Agents.client``); it is always short if the host is down. Raises ``NotFound`` for an unknown host, and
        ``Unreachable`` if the agent's reports are refused, since it may be the agent of another host."""
        if host in self.states.refused_hosts:
            raise Unreachable(f"The agent of host {host} is refused; its service (os-services) tells why.")
        return self.agents.client(self.endpoint(host), patience if self.is_up(str(host)) else PATIENCE)

    def read_hosts(self) -> None:
        """Read all hosts again from the database into the scheduler's memory."""
        place.read_hosts(self.store.api, self.states)

    def read_host(self, name: str) -> None:
        """Read the host *name* again from the database into the scheduler's memory, because its claims or its inventory
        have changed."""
        place.read_host(self.store.api, self.states, name)

    def current_states(self) -> HostStates:
        """Return the scheduler's view of all hosts. If a cell was disabled or enabled since the last call, first read
        all hosts again. This conductor gets no reports of hosts in other cells, so its view of these hosts may be
        outdated."""
        disabled = {cell.id for cell in self.store.cells() if cell.disabled}
        if disabled != self._disabled_cells:
            self.read_hosts()
            self._disabled_cells = disabled
        return self.states

    def is_up(self, name: str) -> bool:
        """Return whether the agent of a host sent a heartbeat recently."""
        host = self.states.hosts.get(name)
        return bool(host and host.profile.up)

    def choosing(self, database: Database) -> AbstractContextManager[bool]:
        """Return a context manager that holds the lock under which actions of *database* are chosen to begin. It yields
        ``False`` if no action may begin now: another thread has the lock, or *database* is not the database of this
        conductor's cell."""
        return self.leased_actions.choosing(BRIEFLY) if database is self.database else nullcontext(False)

    def room(self, database: Database, connection: Connection, hosts: Collection[str], kind: str) -> Counter[str]:
        """Return, by host, how many more actions of *kind* may begin now on *hosts* (names) within all
        limits. Call this in the transaction of *connection* to *database*, inside a ``choosing`` context."""
        room_by_host, share = actions.free_action_slots(database, connection, hosts, kind,
                                                        self.settings.limits()), self.leased_actions.now()
        return Counter({host: min(many, share.left(host)) for host, many in room_by_host.items()})

    def begin_settling(self) -> None:
        """Save the time when this conductor first tried to find out which hosts are up. Later calls change nothing. The
        time is used by ``settling``."""
        if self._settling_since is None:
            self._settling_since = time.monotonic()

    def settling(self) -> bool:
        """Return whether this conductor may wrongly count some hosts as down. This is true until ``begin_settling`` is
        called, and for ``host_down_after`` seconds after that call, unless all hosts are up. Meanwhile an action
        without a valid host must wait instead of failing."""
        if self._settling_since is None:
            return True
        young = time.monotonic() - self._settling_since < self.settings.host_down_after
        return young and not all(host.profile.up for host in list(self.states.hosts.values()))

    def awaits_host(self, spec: RequestSpec) -> bool:
        """Return whether the server of *spec*, for which no host was found, should wait for a host to return. The
        answer is ``True`` if a host that counts as down would pass all filters, and has sent a heartbeat within the
        last ``host_return_wait`` seconds. The reason: a busy host misses some heartbeats, but soon returns."""
        if self.hosts_up() == len(self.states.hosts):
            return False  # a full cloud: do not ask the cells for each server
        heard = partial(cell_look.fetch_heard_hosts, self.settings.host_return_wait)
        cells = [(cell, database) for cell, database in self.store.databases()
                 if cell.id != CELL0 and spec.may_enter(cell.id, disabled=cell.disabled)]
        heard_by_cell = scatter_gather_cells(cells, heard, BRIEFLY)
        return would_pass(self.states, spec, frozenset[str]().union(*filter(None, heard_by_cell.values())))

    def hosts_up(self) -> int:
        """Return how many hosts of the cloud are up, as far as this conductor knows."""
        return sum(host.profile.up for host in list(self.states.hosts.values()))
