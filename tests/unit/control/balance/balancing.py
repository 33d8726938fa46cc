# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts whose load tests set, and an administrator who balances them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from magnetar_agent.host.load_meter import GuestUsage, LoadMeter
from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import utc_now
from tests.unit.control.drains.draining import Draining
from tests.unit.control.moves.inside import Inside

#: The size of each host.
CPUS, MEMORY_MB = 10, 10000


class SetLoad(LoadMeter):
    """The load of a host by its guests. *cpus*: CPUs in use by server, 0 for others; each guest uses 100 MiB."""

    def __init__(self, guests: Callable[[], Mapping[str, GuestUsage]], cpus: dict[str, float]) -> None:
        super().__init__()
        self._guests_of_host, self.cpus = guests, cpus
        self.seconds = 600.0

    def measure(self, read_usage: Callable[[], Mapping[str, GuestUsage]]) -> None:
        """Measure nothing."""

    def report(self) -> dict[str, Any]:
        """Return the load that is set."""
        ids = list(self._guests_of_host())
        used = sum(self.cpus.get(id, 0.0) for id in ids)
        return {"seconds": self.seconds, "cpus": CPUS, "cpus_used": used, "memory_mb": MEMORY_MB,
                "memory_mb_used": 100 * len(ids),
                "servers": [{"id": id, "cpus_used": self.cpus.get(id, 0.0), "memory_mb_used": 100} for id in ids]}


class Balancing(Draining):
    """An administrator of *cloud* whose hosts have the load that is set in ``cpus``, by server."""

    def __init__(self, cloud: Inside) -> None:
        super().__init__(cloud)
        self.cpus: dict[str, float] = {}
        self.loads = {name: SetLoad(kvm.fake.guest_usages, self.cpus) for name, kvm in cloud.kvm.items()}
        for name, kvm in cloud.kvm.items():
            kvm.agent.host.load = self.loads[name]

    def loaded(self, host: str, cpus: float, **more: Any) -> str:
        """Create a server on the host that uses *cpus*; its uuid."""
        id = self.boot(host, **more)
        self.cpus[id] = cpus
        return id

    def rested(self) -> None:
        """Let all migrations be older than an hour."""
        with self.cloud.parts.working.database.write() as connection:
            connection.execute(tables.migrations.update().values(created_at=utc_now(-4000)))
