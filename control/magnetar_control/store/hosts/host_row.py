# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of hosts: one class for each selection of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from magnetar_control.store.claims.allocations import RESOURCES, Amounts
from magnetar_control.store.engine.rows import DocumentColumn, SelectedRow
from magnetar_control.store.engine.tables import column_defaults, hosts

_TOTALS, _RESERVED, _USED, _LIMITS = (attrgetter(*(f"{name}{suffix}" for name in RESOURCES))
                                      for suffix in ("", "_reserved", "_used", "_limit"))


class ServiceHost(SelectedRow):
    """A host with the columns that describe its compute service, without the agent's report, which makes up most of a
    row."""

    id: str
    number: int
    name: str
    cell_id: str
    created_at: str
    disabled: bool
    disabled_reason: str | None
    forced_down: bool


class SizedHost(ServiceHost):
    """A host with its agent's endpoint and report (``info``), and the total, claimed and reserved amounts of CPUs,
    memory and disk."""

    endpoint: str
    vcpus: int
    vcpus_used: int
    vcpus_reserved: int
    memory_mb: int
    memory_mb_used: int
    memory_mb_reserved: int
    disk_gb: int
    disk_gb_used: int
    disk_gb_reserved: int

    info = DocumentColumn[Mapping[str, Any]]()


class HealthHost(SelectedRow):
    """A host with the columns that are needed to judge the health of its cell."""

    name: str
    cell_id: str
    disabled: bool
    forced_down: bool
    vcpus_used: int
    memory_mb_used: int
    disk_gb_used: int
    pcpus_used: int
    vcpus_limit: int
    memory_mb_limit: int
    disk_gb_limit: int
    pcpus_limit: int

    @property
    def used(self) -> Amounts:
        """The amounts that are claimed on the host."""
        return Amounts._make(_USED(self.stored))

    @property
    def limits(self) -> Amounts:
        """The amounts that may be claimed on the host."""
        return Amounts._make(_LIMITS(self.stored))


class DiskHost(SelectedRow):
    """The size of a host's disk, and the free space that its agent reports, both in GiB."""

    name: str
    disk_gb: int
    disk_gb_free: int | None


class HostSummary(NamedTuple):
    """The columns of a host that are compared to find out whether its whole row must be read again. A change of any
    other column also changes ``updated_at``."""

    name: str
    id: str
    updated_at: str | None
    cell_disabled: bool
    servers: int
    generation: int
    disabled: bool
    forced_down: bool
    vcpus_used: int
    memory_mb_used: int
    disk_gb_used: int
    pcpus_used: int
    vcpus_limit: int
    memory_mb_limit: int
    disk_gb_limit: int
    pcpus_limit: int


class ResourceSums(NamedTuple):
    """The number of hosts that are not disabled, and the sums of their resources and servers."""

    hosts: int
    vcpus: int
    vcpus_used: int
    vcpus_reserved: int
    memory_mb: int
    memory_mb_used: int
    memory_mb_reserved: int
    disk_gb: int
    disk_gb_used: int
    disk_gb_reserved: int
    disk_gb_free: int
    servers: int


class HostRow(HealthHost):
    """A row of the table ``hosts``, and whether its cell is disabled. The scheduler keeps the rows of all hosts in
    memory; to save memory, decoded JSON columns are not cached."""

    defaults = {**column_defaults(hosts), "cell_disabled": False}

    id: str
    number: int
    endpoint: str
    disabled_reason: str | None
    vcpus: int
    memory_mb: int
    disk_gb: int
    pcpus: int
    vcpus_reserved: int
    memory_mb_reserved: int
    disk_gb_reserved: int
    pcpus_reserved: int
    vcpus_ratio: float | None
    memory_mb_ratio: float | None
    disk_gb_ratio: float | None
    vcpus_own_reserved: int | None
    memory_mb_own_reserved: int | None
    disk_gb_own_reserved: int | None
    pcpus_own_reserved: int | None
    servers: int
    disk_gb_free: int | None
    pci_aliases: str
    generation: int
    created_at: str
    updated_at: str | None
    cell_disabled: bool

    #: The resource ``host`` of its agent.
    info = DocumentColumn[Mapping[str, Any]](cached=False)
    #: The traits that an operator has set.
    own_traits = DocumentColumn[Sequence[str]](cached=False)

    @property
    def totals(self) -> Amounts:
        """The total amounts of the host's resources, before reservations and allocation ratios."""
        return Amounts._make(_TOTALS(self.stored))

    @property
    def reserved(self) -> Amounts:
        """The amounts that are reserved for the host itself, so that servers cannot claim them."""
        return Amounts._make(_RESERVED(self.stored))

    def own_ratio(self, name: str) -> float | None:
        """Return the allocation ratio that an operator has set for this host; ``None`` if unset. *name*: the resource,
        such as ``vcpus``."""
        ratio: float | None = getattr(self.stored, f"{name}_ratio", None)  # dedicated CPUs have none
        return ratio

    def own_reserved(self, name: str) -> int | None:
        """Return the reserved amount that an operator has set for this host; ``None`` if unset. *name*: the resource,
        such as ``vcpus``."""
        reserved: int | None = getattr(self.stored, f"{name}_own_reserved")
        return reserved
