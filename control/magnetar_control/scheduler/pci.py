# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices of hosts, as their agents report them, and whether enough are free for a server.

The agent chooses devices, and refuses a server when it lacks some. Claims only count devices
(``store.claims.allocations``). This module predicts the agent's answer, so that the scheduler seldom chooses a host
that refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic
from types import MappingProxyType
from typing import Any

from magnetar_core.hardware.needs import missing_devices
from magnetar_core.hardware.numa import Needs
from magnetar_core.hardware.pci import (
    Affinity,
    DevicePool,
    device_pools,
    pools_suffice,
    preferred_cells,
    reported_devices,
)

from .numa import LATE, HostNuma

#: More free devices than this add no weight (Nova's PCIWeigher).
MOST = 100


class HostPci:
    """The devices of one host by alias, and virtual GPUs.

    Devices of a placed server count as taken until the agent reports other numbers, at most until ``LATE`` seconds
    after the last placement: the server may have left before the agent reported it. When a server has left, all devices
    count as free for ``LATE`` seconds."""

    __slots__ = ("_coming", "_freed", "_placed", "pools", "reported")

    def __init__(self) -> None:
        self.reported: Mapping[str, Mapping[str, Any]] = {}
        self.pools: Sequence[DevicePool] = ()
        self._coming: Counter[str] = Counter()
        self._freed = self._placed = -LATE

    def save_report(self, info: Mapping[str, Any]) -> None:
        """Save the PCI devices in the agent's report *info*: the fields ``pci_devices`` and ``pci_pools`` of
        ``kinds.Host``."""
        devices, pci_pools = reported_devices(info), device_pools(info)
        if (devices, pci_pools) != (self.reported, self.pools):
            self.reported, self.pools, self._coming = devices, pci_pools, Counter()

    def freed(self) -> None:
        """Count all devices as free for ``LATE`` seconds, because a server has left the host."""
        self._coming, self._freed = Counter(), monotonic()

    def refused(self) -> None:
        """Stop counting all devices as free after ``freed``, because the database refused a claim: the numbers in the
        agent's last report count again."""
        self._freed = -LATE

    def placed(self, devices: Mapping[str, int]) -> None:
        """Count these *devices* (number by name) as taken, because a server was placed on the host."""
        if devices:
            self._coming, self._placed = self.coming + Counter(devices), monotonic()

    def has_free(self, name: str) -> bool:
        """Return whether a device of this name is free, by the agent's last report. Servers placed since then may not
        be counted."""
        device = self.reported.get(name, {"free": 0, "total": 0})
        return bool(device["total"] if monotonic() < self._freed + LATE else device["free"])

    @property
    def coming(self) -> Counter[str]:
        """The number of devices of each name that were given to placed servers and are not reported as taken yet."""
        return self._coming if self._coming and monotonic() < self._placed + LATE else Counter()

    def unplaced(self, devices: Mapping[str, int]) -> None:
        """Remove one server's devices from ``coming``: its claim failed."""
        self._coming = +(self._coming - Counter(devices))

    def whole(self) -> dict[str, dict[str, Any]]:
        """Return the host's devices by name, with those in use counted as free."""
        return {name: {**device, "free": device["total"]} for name, device in self.reported.items()}

    @property
    def free(self) -> int:
        """The number of free devices, at most ``MOST``."""
        return max(0, min(MOST, sum(pool.free for pool in self.pools) - self.coming.total()))

    def lacks(self, requested: Mapping[str, int], policy: str, numa: HostNuma, needs: Needs | None,
              own_devices: Mapping[str, int] = MappingProxyType({})) -> list[str]:
        """Return texts about what the host lacks of the *requested* devices of a server; empty if nothing. *needs*: the
        server's NUMA needs; devices must be near the cells chosen for them, as *policy* (PCI NUMA affinity) demands.
        *own_devices*: devices on the host that the server has already."""
        late = monotonic() < self._freed + LATE
        coming = self.coming
        available = self.whole() if late else {
            name: {**device, "free": device["free"] - coming[name] + own_devices.get(name, 0)}
            for name, device in self.reported.items()}
        lacks = [lack for _field, lack in missing_devices(requested, available)]
        if lacks or needs is None or late or own_devices:
            return lacks
        return self._lacks_near(requested, policy, numa, needs)

    def _lacks_near(self, requested: Mapping[str, int], policy: str, numa: HostNuma, needs: Needs) -> list[str]:
        """Return a list with a text about the *requested* devices that the host lacks near the NUMA cells (*numa*) that
        its agent would choose for *needs*; empty if it lacks none, or if the server fits no cells. *policy*: the PCI
        NUMA affinity. The agent prefers cells with such devices."""
        cells = numa.chosen(needs, preferred_cells(((pool.aliases, pool.node, pool.free) for pool in self.pools),
                                                   requested))
        if not cells:
            return []  # NUMATopologyFilter reports that
        near = Affinity(policy, cells, numa.sockets())
        policies = {name: device["numa_policy"] for name, device in self.reported.items() if "numa_policy" in device}
        if pools_suffice(self.pools, [pool.free for pool in self.pools], [requested], near, policies):
            return []
        names = ",".join(f"{name}:{count}" for name, count in sorted(requested.items()))
        return [f"free PCI devices ({names}) that suit the NUMA cells of the server (policy "
                f"{near.policy or 'of the alias, or legacy'})"]
