# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices of hosts, as their agents tell them, and whether there are enough free ones for a server. The agent
chooses, and refuses what it lacks; claims count (``store.claims.allocations``). Here it is foreseen, so that seldom a
host is chosen in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic
from types import MappingProxyType
from typing import Any

from magnetar_core.hardware.needs import lacking_devices
from magnetar_core.hardware.numa import Needs
from magnetar_core.hardware.pci import Affinity, DevicePool, pools, preferred_cells, suffice, told

from .numa import LATE, HostNuma

#: More free devices than these do not weigh more (Nova's PCIWeigher).
MOST = 100


class HostPci:
    """The devices of one host by alias, and virtual GPUs. What was placed there counts as taken until the agent tells
    other numbers, at most until ``LATE`` seconds after the last: it may have gone before the agent told of it. Of a
    host that something has gone from, all count as free for ``LATE`` seconds."""

    __slots__ = ("_coming", "_freed", "_placed", "pools", "told")

    def __init__(self) -> None:
        self.told: Mapping[str, Mapping[str, Any]] = {}
        self.pools: Sequence[DevicePool] = ()
        self._coming: Counter[str] = Counter()
        self._freed = self._placed = -LATE

    def hear(self, info: Mapping[str, Any]) -> None:
        """What the agent tells: the fields ``pci_devices`` and ``pci_pools`` of ``kinds.Host``."""
        found, there = told(info), pools(info)
        if (found, there) != (self.told, self.pools):
            self.told, self.pools, self._coming = found, there, Counter()

    def freed(self) -> None:
        """Something has gone from there."""
        self._coming, self._freed = Counter(), monotonic()

    def refused(self) -> None:
        """A claim there was refused: not all that has gone is free."""
        self._freed = -LATE

    def placed(self, devices: Mapping[str, int]) -> None:
        """A server with so many devices of each name was placed there."""
        if devices:
            self._coming, self._placed = self.coming + Counter(devices), monotonic()

    def gives(self, name: str) -> bool:
        """Whether there is one of a name left, as far as the agent has told; what was placed there since may not count.
        """
        found = self.told.get(name, {"free": 0, "total": 0})
        return bool(found["total"] if monotonic() < self._freed + LATE else found["free"])

    @property
    def coming(self) -> Counter[str]:
        """How many devices of each name were placed there and are not told as taken yet."""
        return self._coming if self._coming and monotonic() < self._placed + LATE else Counter()

    def unplaced(self, devices: Mapping[str, int]) -> None:
        """It was not: nothing was claimed."""
        self._coming = +(self._coming - Counter(devices))

    def whole(self) -> dict[str, dict[str, Any]]:
        """The same as if no server had any."""
        return {name: {**one, "free": one["total"]} for name, one in self.told.items()}

    @property
    def free(self) -> int:
        """How many devices are free, as far as it weighs."""
        return max(0, min(MOST, sum(pool.free for pool in self.pools) - self.coming.total()))

    def lacks(self, wanted: Mapping[str, int], policy: str, numa: HostNuma, needs: Needs | None,
              has: Mapping[str, int] = MappingProxyType({})) -> list[str]:
        """What it lacks of the *wanted* devices of a server, which *needs* NUMA cells of the host and has them near by
        its *policy*. *has*: devices that the server has there already."""
        late = monotonic() < self._freed + LATE
        coming = self.coming
        there = self.whole() if late else {
            name: {**one, "free": one["free"] - coming[name] + has.get(name, 0)}
            for name, one in self.told.items()}
        found = [what for _field, what in lacking_devices(wanted, there)]
        if found or needs is None or late or has:
            return found
        return self._lacks_near(wanted, policy, numa, needs)

    def _lacks_near(self, wanted: Mapping[str, int], policy: str, numa: HostNuma, needs: Needs) -> list[str]:
        """The same by the cells that the agent would choose: those with such devices first (row XPCI-05)."""
        cells = numa.chosen(needs, preferred_cells(((one.aliases, one.node, one.free) for one in self.pools), wanted))
        if not cells:
            return []  # NUMATopologyFilter says so
        near = Affinity(policy, cells, numa.sockets())
        policies = {name: one["numa_policy"] for name, one in self.told.items() if "numa_policy" in one}
        if suffice(self.pools, [pool.free for pool in self.pools], [wanted], near, policies):
            return []
        names = ",".join(f"{name}:{count}" for name, count in sorted(wanted.items()))
        return [f"free PCI devices ({names}) that suit the NUMA cells of the server (policy "
                f"{near.policy or 'of the alias, or legacy'})"]
