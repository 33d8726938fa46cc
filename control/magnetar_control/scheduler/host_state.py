# SPDX-License-Identifier: GPL-3.0-or-later
"""One host in memory, the profile that it shares with others, and the block that it stands in (see ``hosts``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from magnetar_control.store.claims.allocations import Amounts

from .numa import HostNuma
from .pci import HostPci

#: The numbers of a host: what fits (CPUs, MiB, GiB), what is free of each, and those that have a name below. Weighers
#: of one's own add theirs at the end.
Row = tuple[float, ...]
IO_OPS, FAILED_BUILDS, SERVERS, METRICS, PCPUS, DEVICES, MATES = range(6, 13)
#: Where in it what fits of each resource is.
FITS = Amounts(0, 1, 2, PCPUS)


@dataclass(frozen=True, eq=False)
class Profile:
    """What many hosts have in common; equal profiles are the same object."""

    key: bytes
    cell_id: str
    zone: str
    enabled: bool
    up: bool
    capabilities: Mapping[str, Any]
    aggregates: tuple[Mapping[str, str], ...]  # the metadata of each aggregate that the hosts are in
    traits: frozenset[str] = frozenset()
    isolated: bool = False  # for isolated images (the setting isolated_hosts)
    cell_enabled: bool = True


class HostState:
    """One host. ``limits``: what may be claimed; ``used``: what is."""

    __slots__ = ("block", "columns", "failed_builds", "flavors", "host_ip", "id", "images", "io_ops", "limits",
                 "metrics", "metrics_weight", "name", "numa", "numbers", "pci", "profile", "servers", "totals", "used")

    def __init__(self, id: str, name: str) -> None:
        self.id, self.name, self.host_ip = id, name, ""
        self.profile: Profile
        self.columns: Mapping[Any, Any] = {}  # of its row in ``store.hosts.hosts``
        self.totals = self.limits = self.used = Amounts()
        self.servers = self.io_ops = self.failed_builds = 0
        self.metrics: Mapping[str, float] = {}
        self.metrics_weight = 0.0
        self.images: frozenset[str] = frozenset()  # ids of the images whose content is there
        self.flavors: frozenset[str] = frozenset()  # names of the flavors of its servers
        self.block: Block | None = None
        self.numa, self.pci = HostNuma(), HostPci()
        self.numbers = self.counted()

    def counted(self) -> Row:
        """The value of ``numbers``; what is free is negative after ratios were lowered. One server never gets more than
        the host really has, whatever the ratio (Placement's max_unit), so what fits is the lesser of free and total."""
        (v, m, d, p), (a, b, c, e), (x, y, z, _p) = self.limits, self.used, self.totals
        v, m, d = v - a, m - b, d - c
        return (min(v, x), min(m, y), min(d, z), v, m, d, self.io_ops, self.failed_builds, self.servers,
                self.metrics_weight, p - e, self.pci.free, 0)

    def row(self, mates: int = 0) -> Row:
        """The numbers that filters and weighers compare."""
        return (*self.numbers[:-1], mates) if mates else self.numbers


@dataclass(eq=False, slots=True)
class Block:
    """Hosts of one profile, or those of them that pass, with their rows; or further blocks, its *parts*, with such
    hosts. ``low``, ``high``: the bounds of each number of all of them. *whole*: the block that it is a part of."""

    profile: Profile
    hosts: list[HostState] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    low: Row = ()
    high: Row = ()
    parts: list[Block] = field(default_factory=list)
    whole: Block | None = None
    stale: bool = True
    _size: int = 0  # of one with parts

    @property
    def size(self) -> int:
        """How many hosts it has."""
        return self._size if self.parts else len(self.hosts)

    def add(self, part: Block) -> None:
        """Have *part*, which may be new or stale, be a part of it."""
        self.parts.append(part)
        part.whole = self
        self.touch()

    def touch(self) -> None:
        """The numbers of a host have changed: rows and bounds are to be made anew, and bounds of what it is a part of.
        """
        block: Block | None = self
        while block is not None and not block.stale:
            block.stale, block = True, block.whole

    def fresh(self) -> Block:
        """Itself, with current rows and bounds, of its parts too. It must have a host."""
        if self.stale:
            if self.parts:
                parts = [part.fresh() for part in self.parts]
                self.low, self.high = bounds([part.low for part in parts], [part.high for part in parts])
                self._size = sum(part.size for part in parts)
            else:
                self.rows = [host.numbers for host in self.hosts]
                self.low, self.high = bounds(self.rows, self.rows)
            self.stale = False
        return self


def bounds(low: Sequence[Row], high: Sequence[Row]) -> tuple[Row, Row]:
    """The least and the greatest of each number: of blocks, by their bounds, or of hosts, by their rows twice."""
    return tuple(map(min, zip(*low, strict=True))), tuple(map(max, zip(*high, strict=True)))
