# SPDX-License-Identifier: GPL-3.0-or-later
"""What the actions of one conductor use: settings, databases, services, agents, hosts as the scheduler sees them."""

from __future__ import annotations

import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from sqlalchemy import Connection

from magnetar_control.agents import PATIENCE, AgentClient, Agents
from magnetar_control.delivery import Delivery
from magnetar_control.notifications import Notifications
from magnetar_control.scheduler import place
from magnetar_control.scheduler.aggregate_filters import ratios
from magnetar_control.scheduler.choose import would_pass
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.request_spec import RequestSpec
from magnetar_control.scheduler.rules import rules_of
from magnetar_control.services import Services
from magnetar_control.services.identity import service_user
from magnetar_control.services.image.signatures import Signatures
from magnetar_control.settings import Settings
from magnetar_control.store.actions import actions
from magnetar_control.store.claims.allocations import Ratios
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts import cell_look
from magnetar_control.store.scatter_gather import scatter_gather_cells
from magnetar_control.store.store import CELL0, Store
from magnetar_core.errors import NotFound

from .host_shares import HostShares, Key
from .vendordata import Vendordata

#: Seconds after which new servers go to the queue, rather than wait for who chooses from it.
BRIEFLY = 1.0


class Environment:
    """The surroundings of an action. *cell*: name of the conductor's cell."""

    def __init__(self, settings: Settings, store: Store, services: Services, agents: Agents, cell: str,
                 delivery: Delivery) -> None:
        self.settings, self.store, self.services, self.agents = settings, store, services, agents
        self.delivery, self.notifications = delivery, Notifications(settings)
        self.signatures = Signatures(
            services.key_manager, services.image, settings.verify_image_signatures,
            settings.enable_certificate_validation, settings.trusted_certificates)
        self.vendordata = Vendordata(settings, service_user.of_vendordata(services.identity))
        self.cell = store.named(cell)
        self.name = settings.conductor_name or socket.gethostname()
        #: Holder of leases: unique, also among conductors of one name.
        self.holder = f"{self.name}:{uuid.uuid4().hex[:12]}"
        self.states = HostStates(settings.default_availability_zone, rules_of(settings))
        self.ratios = Ratios(settings.cpu_allocation_ratio, settings.ram_allocation_ratio,
                             settings.disk_allocation_ratio)
        self.reserved = {"vcpus_reserved": settings.reserved_host_cpus, "memory_mb_reserved":
                         settings.reserved_host_memory_mb, "disk_gb_reserved": settings.reserved_host_disk_gb}
        self.shares = HostShares(settings.workers_of_host(), self.is_up)
        #: Called with the name of each action that has ended, and done or failed.
        self.ended: Callable[[str, str], None] = lambda _action, _result: None
        self._began = time.monotonic()
        #: Cells that were disabled when the scheduler's hosts were read.
        self._disabled_cells: set[str] = set()

    @property
    def database(self) -> Database:
        """The cell's."""
        return self.store.cell(self.cell.id)

    def ratios_of(self, name: str) -> Ratios:
        """The allocation ratios of a host: those of its aggregates, as they were read last, else of the settings."""
        host = self.states.hosts.get(name)
        return ratios(host.profile.aggregates, self.ratios) if host else self.ratios

    def host(self, name: str | None) -> Mapping[Any, Any]:
        """The row of a host, as it was read last. Raises ``NotFound``."""
        if not name:
            raise NotFound("The server is on no host.", kind="host", key="")
        if name not in self.states.rows:
            self.read_hosts()
        row = self.states.rows.get(name)
        if row is None:
            raise NotFound(f"There is no host {name!r} in the cloud.", kind="host", key=name)
        return row

    def zone(self, name: str) -> str:
        """The availability zone of a host, as its aggregates were read last."""
        host = self.states.hosts.get(name)
        return host.profile.zone if host else self.settings.default_availability_zone

    def endpoint(self, host: str | None) -> str:
        """The endpoint of a host's agent. Raises ``NotFound``."""
        return str(self.host(host)["endpoint"])

    def client(self, host: str | None, patience: float | None = None) -> AbstractContextManager[AgentClient]:
        """A client of a host's agent; *patience*: see ``Agents.client``. Raises ``NotFound``."""
        return self.agents.client(self.endpoint(host), patience if self.is_up(str(host)) else PATIENCE)

    def read_hosts(self) -> None:
        """Read all hosts again, for the scheduler and for endpoints."""
        place.read_hosts(self.store.api, self.states)

    def read_host(self, name: str) -> None:
        """Read one host again for the scheduler: its claims or its inventory have changed."""
        place.read_host(self.store.api, self.states, name)

    def current_states(self) -> HostStates:
        """Return the scheduler's hosts. All are read again after a cell was disabled or enabled: the hosts of other
        conductors' cells send no news here."""
        disabled = {cell.id for cell in self.store.cells() if cell.disabled}
        if disabled != self._disabled_cells:
            self.read_hosts()
            self._disabled_cells = disabled
        return self.states

    def is_up(self, name: str) -> bool:
        """Whether the agent of a host sent a heartbeat lately."""
        host = self.states.hosts.get(name)
        return bool(host and host.profile.up)

    def choosing(self, database: Database) -> AbstractContextManager[bool]:
        """Within, nobody else chooses which actions of *database* begin; ``False`` where none may without the queue."""
        return self.shares.choosing(BRIEFLY) if database is self.database else nullcontext(False)

    def room(self, database: Database, connection: Connection, places: Collection[str], kind: str) -> Counter[str]:
        """How many actions of *kind* may begin at each of these hosts without the queue, in a transaction within
        ``choosing``."""
        found, share = actions.room(database, connection, places, kind, self.settings.limits()), self.shares.now()
        return Counter({host: min(many, share.left(host)) for host, many in found.items()})

    def resting(self, key: Key) -> AbstractContextManager[None]:
        """Within, an action in hand waits for a guest, and keeps no others from beginning."""
        return self.shares.resting(key)

    def others_wait(self) -> bool:
        """Whether actions wait for a worker, as far as this conductor knows."""
        return False

    def settling(self) -> bool:
        """Whether hosts may look down only because this conductor was started a moment ago and has not read their
        heartbeats yet. "No valid host" means nothing then."""
        young = time.monotonic() - self._began < self.settings.host_down_after
        return young and not all(host.profile.up for host in list(self.states.hosts.values()))

    def awaits_host(self, spec: RequestSpec) -> bool:
        """Return whether a server for which no valid host was found must wait: a host that could have the server is
        silent, and was heard within the last ``host_return_wait`` seconds. A busy host misses some heartbeats."""
        if self.hosts_up() == len(self.states.hosts):
            return False  # the cells are not asked for each server of a full cloud
        heard = partial(cell_look.heard_hosts, self.settings.host_return_wait)
        cells = [(cell, database) for cell, database in self.store.databases()
                 if cell.id != CELL0 and spec.may_enter(cell.id, disabled=cell.disabled)]
        told = scatter_gather_cells(cells, heard, BRIEFLY)
        return would_pass(self.states, spec, frozenset[str]().union(*filter(None, told.values())))

    def hosts_up(self) -> int:
        """How many hosts of the cloud are up, as far as this conductor knows."""
        return sum(host.profile.up for host in list(self.states.hosts.values()))
