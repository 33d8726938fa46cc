# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices of hosts, as their agents tell them, and whether there are enough free ones for a server. The agent
chooses, and refuses what it lacks; here it is foreseen, so that seldom a host is chosen in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

from magnetar_core.hardware.needs import lacking
from magnetar_core.hardware.pci import counts

from .numa import LATE


class HostPci:
    """The devices of one host by alias. What was placed there counts as taken until the agent tells other numbers; of
    a host that something has gone from, all count as free for ``LATE`` seconds."""

    __slots__ = ("_coming", "_freed", "told")

    def __init__(self) -> None:
        self.told: Mapping[str, Mapping[str, int]] = {}
        self._coming: Counter[str] = Counter()
        self._freed = -LATE

    def hear(self, info: Mapping[str, Any]) -> None:
        """What the agent tells: the field ``pci_devices`` of ``kinds.Host``."""
        found = info.get("pci_devices") or {}
        if found != self.told:
            self.told, self._coming = found, Counter()

    def freed(self) -> None:
        """Something has gone from there."""
        self._coming, self._freed = Counter(), monotonic()

    def placed(self, hardware: Mapping[str, Any]) -> None:
        """A server was placed there."""
        if text := hardware.get("pci_alias"):
            self._coming.update(counts(text))

    def whole(self) -> dict[str, dict[str, int]]:
        """The same as if no server had any."""
        return {name: {"total": one["total"], "free": one["total"]} for name, one in self.told.items()}

    def lacks(self, hardware: Mapping[str, Any]) -> Iterable[str]:
        """What it lacks for a server."""
        there = self.whole() if monotonic() < self._freed + LATE else {
            name: {**one, "free": one["free"] - self._coming[name]} for name, one in self.told.items()}
        return [what for _field, what in lacking({"pci_alias": hardware.get("pci_alias")}, {"pci_devices": there})]
