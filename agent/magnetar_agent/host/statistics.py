# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of ``LocalHypervisor`` about statistics: what guests have used, and for how long the host is up."""

from __future__ import annotations

from typing import Any, Protocol

#: Counters of a disk and of a NIC, the latter as its guest sees them. One that nobody counts is ``None``.
DISK = ("read_bytes", "read_requests", "write_bytes", "write_requests", "errors")
NIC = ("rx_octets", "rx_packets", "rx_errors", "rx_drop", "tx_octets", "tx_packets", "tx_errors", "tx_drop")


class HypervisorStatistics(Protocol):
    """See the head of this file."""

    def statistics(self, uuid: str) -> dict[str, Any] | None:
        """What an active domain has used since it was started; ``None`` for one that is off. While others wait for an
        answer of its QEMU, what QEMU alone knows is ``None`` or missing. Not ours: ``Conflict``.

        ``virt_type``; ``uptime`` in s; ``cpus`` ``{id, time}`` in ns; ``memory`` in KiB, the words of
        virDomainMemoryStats and ``maximum``; ``disks`` ``{device}`` with ``DISK``; ``nics`` ``{device, mac}`` with
        ``NIC``."""

    def uptime(self) -> dict[str, Any]:
        """``time`` of day (HH:MM:SS), ``uptime`` in s, ``users`` logged in, ``load_average`` of 1, 5 and 15 minutes.
        Works without libvirt."""
