# SPDX-License-Identifier: GPL-3.0-or-later
"""One host in memory, the profile that it shares with others, and its block (see ``hosts``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from magnetar_control.store.claims.allocations import Amounts
from magnetar_control.store.hosts.host_row import HostRow

from .numa import HostNuma
from .pci import HostPci

#: The numbers of a host: what fits of CPUs, MiB and GiB, what is free of each, and the numbers whose indexes are named
#: below. Custom weighers append theirs.
Row = tuple[float, ...]
IO_OPS, FAILED_BUILDS, SERVERS, METRICS, PCPUS, DEVICES, MATES = range(6, 13)
#: Indexes in a row of the amount that fits of each resource.
FITS = Amounts(0, 1, 2, PCPUS)


@dataclass(frozen=True, eq=False)
class Profile:
    """The properties that many hosts have in common, such as zone, capabilities, traits and aggregates. Hosts with
    equal properties share one ``Profile`` object."""

    key: bytes
    cell_id: str
    zone: str
    enabled: bool
    up: bool
    capabilities: Mapping[str, Any]
    aggregates: tuple[Mapping[str, str], ...]  # the metadata of each aggregate of the hosts
    traits: frozenset[str] = frozenset()
    isolated: bool = False  # reserved for isolated images (the setting isolated_hosts)
    cell_enabled: bool = True


#: The profile of a host whose row is being read.
UNREAD = Profile(b"", "", "", enabled=False, up=False, capabilities={}, aggregates=())
#: The row of a host whose row is not read yet.
NO_ROW = HostRow.of_values({})


class HostState:
    """One host in the scheduler's memory. ``totals``: the amounts of CPUs, memory, disk and dedicated CPUs that the
    host has. ``limits``: the amounts that may be claimed. ``used``: the amounts that are claimed."""

    __slots__ = ("block", "columns", "disk_storage", "failed_builds", "flavors", "host_ip", "id", "images", "io_ops",
                 "limits", "metrics", "metrics_weight", "name", "numa", "numbers", "pci", "profile",
                 "reaches_disk_storage", "servers", "totals", "used")

    def __init__(self, id: str, name: str) -> None:
        self.id, self.name, self.host_ip = id, name, ""
        self.disk_storage = ""  # id of the storage of servers' disks that it shares with others; "" without any
        self.reaches_disk_storage = False  # whether it can use that now
        self.profile = UNREAD
        self.columns = NO_ROW
        self.totals = self.limits = self.used = Amounts()
        self.servers = self.io_ops = self.failed_builds = 0
        self.metrics: Mapping[str, float] = {}
        self.metrics_weight = 0.0
        self.images: frozenset[str] = frozenset()  # ids of the images whose content the host has
        self.flavors: frozenset[str] = frozenset()  # names of the flavors of its servers
        self.block: Block | None = None
        self.numa, self.pci = HostNuma(), HostPci()
        self.numbers = self.counted()

    def counted(self) -> Row:
        """Return the tuple of numbers that describe the host for filters and weighers, such as free memory and number
        of servers, computed from its present state.

        One server can never use more than the host really has, whatever the allocation ratio (Placement's max_unit). So
        the amount that fits for one server is the free amount or the total amount, whichever is less. Free amounts are
        negative if an allocation ratio was lowered below the claims.
        """
        (v, m, d, p), (a, b, c, e), (x, y, z, _p) = self.limits, self.used, self.totals
        v, m, d = v - a, m - b, d - c
        return (min(v, x), min(m, y), min(d, z), v, m, d, self.io_ops, self.failed_builds, self.servers,
                self.metrics_weight, p - e, self.pci.free, 0)

    def row(self, mates: int = 0) -> Row:
        """Return the host's row: the tuple of numbers, such as free memory and number of servers, that filters and
        weighers compare. *mates*: how many servers on the host are in the same server group as the requested server."""
        return (*self.numbers[:-1], mates) if mates else self.numbers


class SavedClaims(NamedTuple):
    """A copy of the fields of a ``HostState`` that change when a server is placed on the host. The copy is used to
    restore these fields later."""

    used: Amounts
    servers: int
    io_ops: int
    flavors: frozenset[str]
    numa: HostNuma
    pci: HostPci


@dataclass(eq=False, slots=True)
class Block:
    """A group of hosts with the same profile and similar numbers, such as free memory. The scheduler compares a request
    with the minimum and maximum of each number, and so often accepts or skips all hosts of the block together. A block
    contains either a few hosts and their ``rows`` (for each host, the tuple of its numbers), or smaller blocks
    (*parts*).

    ``low``, ``high``: the minimum and the maximum of each number over all hosts of the block. *whole*: the block that
    contains this one; ``None`` for a top-level block."""

    profile: Profile
    hosts: list[HostState] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    low: Row = ()
    high: Row = ()
    parts: list[Block] = field(default_factory=list)
    whole: Block | None = None
    stale: bool = True
    _size: int = 0  # of a block with parts

    @property
    def size(self) -> int:
        """The number of hosts in the block."""
        return self._size if self.parts else len(self.hosts)

    def add(self, part: Block) -> None:
        """Add the smaller block *part* to this block, which contains only blocks. The copies of the hosts' numbers in
        *part* may be stale."""
        self.parts.append(part)
        part.whole = self
        self.touch()

    def touch(self) -> None:
        """Mark the copies of the hosts' numbers (such as free memory) in this block, and their minimum and maximum, as
        stale, also in the blocks that contain this block. Call this after a number of a host has changed."""
        block: Block | None = self
        while block is not None and not block.stale:
            block.stale, block = True, block.whole

    def fresh(self) -> Block:
        """Copy the hosts' numbers (such as free memory) again, and recompute their minimum and maximum, wherever they
        are stale in the block and the smaller blocks in it. Return the block itself, which must contain a host."""
        if self.stale:
            if self.parts:
                parts = [part.fresh() for part in self.parts]
                self.low, self.high = bounds_of_rows([part.low for part in parts], [part.high for part in parts])
                self._size = sum(part.size for part in parts)
            else:
                self.rows = [host.numbers for host in self.hosts]
                self.low, self.high = bounds_of_rows(self.rows, self.rows)
            self.stale = False
        return self


def bounds_of_rows(low: Sequence[Row], high: Sequence[Row]) -> tuple[Row, Row]:
    """Return (minimum of each number over the rows *low*, maximum of each number over the rows *high*). A row is the
    tuple of numbers, such as free memory, that describe a host. To get the bounds of hosts, pass their rows twice; to
    get the bounds of blocks, pass their ``low`` and ``high``."""
    return tuple(map(min, zip(*low, strict=True))), tuple(map(max, zip(*high, strict=True)))
