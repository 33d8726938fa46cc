# SPDX-License-Identifier: GPL-3.0-or-later
"""What the handlers share: settings, store, services, policy, and what is known of hosts, kept for a second."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from magnetar_control.agents import Agents
from magnetar_control.compute.access.policy import Policy
from magnetar_control.notifications import Notifications
from magnetar_control.services import Services
from magnetar_control.settings import Settings
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import host_states, hosts
from magnetar_control.store.hosts import aggregates
from magnetar_control.store.scatter_gather import scatter_gather_cells
from magnetar_control.store.store import Store

from .offered_shares import offered_shares
from .server_watch import ServerWatch
from .waiting import Shares

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds for which what is known of hosts is believed, and that a cell has to tell of its hosts, at most.
FRESH, PATIENCE = 1.0, 5.0


@dataclass(frozen=True)
class HostView:
    """A compute host as answers show it."""

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
        """Nova's host_status word."""
        if self.disabled:
            return "MAINTENANCE"
        return "UP" if self.up and not self.forced_down else "DOWN" if self.seen_at or self.forced_down else "UNKNOWN"


class Hosts:
    """All hosts, looked up again after a second: two queries and one for each cell, whoever asks how often. While one
    looks, the others are told what was known before."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store, self.settings = store, settings
        self._lock = threading.Lock()
        self._found: Mapping[str, HostView] = {}
        self._read_at = float("-inf")

    def all(self, fresh: bool = False) -> Mapping[str, HostView]:
        """By name."""
        if not fresh and time.monotonic() - self._read_at <= FRESH:
            return self._found
        known = self._read_at > float("-inf")
        if self._lock.acquire(blocking=fresh or not known):
            try:
                if fresh or time.monotonic() - self._read_at > FRESH:
                    self._found, self._read_at = self._read(), time.monotonic()
            finally:
                self._lock.release()
        return self._found

    def get(self, name: str | None) -> HostView | None:
        """One host."""
        return self.all().get(name) if name else None

    def zone(self, name: str | None) -> str | None:
        """The availability zone of a host."""
        found = self.get(name)
        return found.zone if found else None

    def _read(self) -> Mapping[str, HostView]:
        with self.store.api.read() as connection:
            rows, zones = connection.execute(select(hosts)).all(), aggregates.zones(connection)
        seen: dict[str, tuple[str, bool]] = {}
        used = {row.cell_id for row in rows}
        told = scatter_gather_cells([one for one in self.store.databases() if one[0].id in used],
                             partial(_seen, silence=self.settings.host_down_after),
                             min(self.settings.cell_timeout, PATIENCE))
        for found in told.values():  # when a cell is down, so are its hosts, as far as anybody can tell
            seen.update(found or {})
        never = (None, False)
        return {row.name: HostView(
            row.name, row.id, row.cell_id, row.endpoint, zones.get(row.name, self.settings.default_availability_zone),
            seen.get(row.name, never)[1], row.disabled, row.forced_down, seen.get(row.name, never)[0]) for row in rows}


def _seen(database: Database, silence: float) -> dict[str, tuple[str, bool]]:
    """When each host of a cell was heard, and whether that is lately: by the clock that it was noted with."""
    with database.read() as connection:
        late = host_states.c.seen_at > database.clock(-silence)
        return {host: (at, bool(up)) for host, at, up in connection.execute(
            select(host_states.c.host, host_states.c.seen_at, late).where(host_states.c.seen_at.is_not(None)))}


class Cloud:
    """The parts."""

    def __init__(self, settings: Settings, store: Store, services: Services, agents: Agents,
                 hosts: Hosts | None = None) -> None:
        self.settings, self.store, self.services, self.agents = settings, store, services, agents
        self.policy = Policy(settings.policy_file, [Path(one) for one in settings.policy_dirs])
        #: The shares that servers may be given, by uuid.
        self.shares = offered_shares(settings)
        self.hosts = hosts or Hosts(store, settings)
        self.waiting, self.notifications = Shares(), Notifications(settings)
        self.watch = ServerWatch(settings.cell_timeout)
