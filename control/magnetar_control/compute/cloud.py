# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts that the handlers share: settings, store, services, policy, and the state of hosts, cached for a second."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import and_, select

from magnetar_control.agents import Agents
from magnetar_control.compute.access.policy import Policy
from magnetar_control.notifications import Notifications
from magnetar_control.services import Services
from magnetar_control.settings import Settings
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import host_states, hosts
from magnetar_control.store.hosts import aggregates
from magnetar_control.store.hosts.host_leases import NOT_REFUSED
from magnetar_control.store.scatter_gather import scatter_gather_cells
from magnetar_control.store.store import Store

from .offered_shares import offered_shares
from .server_watch import ServerWatch
from .waiting import Shares

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds for which the state of hosts is cached; the most seconds that a cell has to report its hosts.
FRESH, PATIENCE = 1.0, 5.0
#: The columns of a ``HostView``, without the agents' reports, which are most of a row.
_HOSTS = select(hosts.c.name, hosts.c.id, hosts.c.cell_id, hosts.c.endpoint, hosts.c.disabled, hosts.c.forced_down)


class HostView(NamedTuple):
    """The data of a compute host that the API shows."""

    name: str
    id: str
    cell_id: str
    endpoint: str
    zone: str
    up: bool
    disabled: bool
    forced_down: bool
    seen_at: str | None

    @property
    def status(self) -> str:
        """The value of Nova's field host_status: UP, DOWN, MAINTENANCE or UNKNOWN."""
        if self.disabled:
            return "MAINTENANCE"
        return "UP" if self.up and not self.forced_down else "DOWN" if self.seen_at or self.forced_down else "UNKNOWN"


class Hosts:
    """A cache of all compute hosts, valid for one second. A refresh sends two queries to the API database and one to
    each cell. During a refresh, other threads get the previous content."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store, self.settings = store, settings
        self._lock = threading.Lock()
        self._found: Mapping[str, HostView] = {}
        self._read_at = float("-inf")

    def all(self, fresh: bool = False) -> Mapping[str, HostView]:
        """Return all hosts by name. *fresh*: query the databases instead of using the cache."""
        if not fresh and time.monotonic() - self._read_at <= FRESH:
            return self._found
        was_read = self._read_at > float("-inf")
        if self._lock.acquire(blocking=fresh or not was_read):
            try:
                if fresh or time.monotonic() - self._read_at > FRESH:
                    self._found, self._read_at = self._read(), time.monotonic()
            finally:
                self._lock.release()
        return self._found

    def get(self, name: str | None) -> HostView | None:
        """Return the host *name*; ``None`` when it does not exist."""
        return self.all().get(name) if name else None

    def zone(self, name: str | None) -> str | None:
        """Return the availability zone of the host *name*; ``None`` when it does not exist."""
        host = self.get(name)
        return host.zone if host else None

    def _read(self) -> Mapping[str, HostView]:
        with self.store.api.read() as connection:
            rows, zones = connection.execute(_HOSTS).all(), aggregates.fetch_host_zones(connection)
        heartbeats: dict[str, tuple[str, bool]] = {}
        used = {row.cell_id for row in rows}
        answers = scatter_gather_cells([cell_database for cell_database in self.store.databases()
                                        if cell_database[0].id in used],
                             partial(_read_heartbeats, silence=self.settings.host_down_after),
                             min(self.settings.cell_timeout, PATIENCE))
        for cell_heartbeats in answers.values():  # the hosts of a cell that does not answer count as down
            heartbeats.update(cell_heartbeats or {})
        default, views = self.settings.default_availability_zone, {}
        for name, id, cell_id, endpoint, disabled, forced_down in rows:
            seen_at, up = heartbeats.get(name, (None, False))
            views[name] = HostView(name, id, cell_id, endpoint, zones.get(name, default), up, disabled, forced_down,
                                   seen_at)
        return views


def _read_heartbeats(database: Database, silence: float) -> dict[str, tuple[str, bool]]:
    """Return (time of the last heartbeat, whether the host is up) by host name, for the hosts of one cell. A host is up
    if its heartbeat is at most *silence* seconds old by the clock of *database*, and its last report was accepted."""
    with database.read() as connection:
        late = and_(host_states.c.seen_at > database.clock(-silence), NOT_REFUSED)
        return {host: (at, bool(up)) for host, at, up in connection.execute(
            select(host_states.c.host, host_states.c.seen_at, late).where(host_states.c.seen_at.is_not(None)))}


class Cloud:
    """The objects that all request handlers share: settings, database store, clients of other services, policy and
    hosts."""

    def __init__(self, settings: Settings, store: Store, services: Services, agents: Agents,
                 hosts: Hosts | None = None) -> None:
        self.settings, self.store, self.services, self.agents = settings, store, services, agents
        self.policy = Policy(settings.policy_file, [Path(folder) for folder in settings.policy_dirs])
        #: The shares that servers may have, by uuid.
        self.shares = offered_shares(settings)
        self.hosts = hosts or Hosts(store, settings)
        self.waiting, self.notifications = Shares(), Notifications(settings)
        #: The requests that wait for guest agents.
        self.guest_waiting = Shares()
        self.watch = ServerWatch(settings.cell_timeout)
