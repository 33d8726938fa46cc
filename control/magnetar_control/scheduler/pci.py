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
    """The PCI devices of one host, counted by name (an alias or a physical network), and its virtual GPUs.

    The devices of a server that was placed on the host count as in use until the agent reports other numbers, at most
    until ``LATE`` seconds after the last placement. After a server has left the host, all devices count as free for
    ``LATE`` seconds, since the agent has not yet reported which devices are free.
    """

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
        """Stop counting all devices as free after ``freed``, because the database has refused a claim. The numbers in
        the agent's last report apply again."""
        self._freed = -LATE

    def placed(self, devices: Mapping[str, int]) -> None:
        """Count *devices* (number by name) as in use, because a server was placed on the host."""
        if devices:
            self._coming, self._placed = self.coming + Counter(devices), monotonic()

    def has_free(self, name: str) -> bool:
        """Return whether a device called *name* is free according to the agent's last report. Servers placed since then
        are not subtracted. For ``LATE`` seconds after a server has left the host, all reported devices count as free.
        """
        device = self.reported.get(name, {"free": 0, "total": 0})
        return bool(device["total"] if monotonic() < self._freed + LATE else device["free"])

    @property
    def coming(self) -> Counter[str]:
        """The number of devices, by name, of servers that were placed on the host and that the agent has not reported
        yet."""
        return self._coming if self._coming and monotonic() < self._placed + LATE else Counter()

    def unplaced(self, devices: Mapping[str, int]) -> None:
        """Undo ``placed`` for a server with these *devices* (number by name), because the claim of the server failed.
        """
        self._coming = +(self._coming - Counter(devices))

    def whole(self) -> dict[str, dict[str, Any]]:
        """Return the host's devices by name as its agent reports them, but with all devices counted as free."""
        return {name: {**device, "free": device["total"]} for name, device in self.reported.items()}

    @property
    def free(self) -> int:
        """The number of free devices, without the devices of servers that the agent has not reported yet (``coming``).
        It is at most ``MOST``, because more free devices do not increase the host's weight."""
        return max(0, min(MOST, sum(pool.free for pool in self.pools) - self.coming.total()))

    def lacks(self, requested: Mapping[str, int], policy: str, numa: HostNuma, needs: Needs | None,
              own_devices: Mapping[str, int] = MappingProxyType({})) -> list[str]:
        """Return texts that say which *requested* devices (number by name) the host lacks; an empty list if none is
        lacking. *needs*: the server's NUMA needs; ``None`` for a server without such needs. With *needs*, the devices
        must be near the cells in *numa* that the agent would choose, as *policy* (PCI NUMA affinity) requires.
        *own_devices*: devices on the host that the server already has, by name. The NUMA affinity is not checked with
        *own_devices*, and not for ``LATE`` seconds after a server has left the host."""
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
        """Return a list with one text if the host lacks *requested* devices near the NUMA cells that the host's agent
        would choose for *needs*; otherwise an empty list. Also return an empty list if the server fits no cells, since
        another filter reports that. *policy*: the PCI NUMA affinity."""
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
