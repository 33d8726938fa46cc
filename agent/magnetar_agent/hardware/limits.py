# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits of disks (QEMU's throttling) and NICs (tc, on their taps)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Names and numbers, as the template writes them.
Pairs = tuple[tuple[str, int], ...]
_DISK = tuple(f"{way}_{unit}{burst}" for way in ("total", "read", "write") for unit in ("bytes_sec", "iops_sec")
              for burst in ("", "_max"))


def disk_limits(hardware: Mapping[str, Any]) -> Pairs:
    """Return the I/O limits of disks in *hardware*, the server's hardware fields (made from extra specs and image
    properties), as pairs of the name and value of an element in libvirt's ``iotune``."""
    return tuple((name, hardware[f"disk_{name}"]) for name in _DISK if f"disk_{name}" in hardware)


def nic_limits(hardware: Mapping[str, Any]) -> tuple[tuple[str, Pairs], ...]:
    """Return the bandwidth limits of NICs in *hardware*, the server's hardware fields (made from extra specs and image
    properties): pairs of ``inbound`` or ``outbound`` (elements of libvirt's ``bandwidth``) and the attributes as (name,
    value) pairs. Inbound is the traffic that the guest receives, as in Nova."""
    directions = ((way, tuple((name, hardware[f"vif_{way}_{name}"]) for name in ("average", "peak", "burst")
                              if f"vif_{way}_{name}" in hardware)) for way in ("inbound", "outbound"))
    return tuple(direction for direction in directions if direction[1])
