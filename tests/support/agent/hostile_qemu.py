# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of hostile qemu."""

from __future__ import annotations

from magnetar_agent.virt.disks import nbd
from magnetar_agent.virt.disks.disks import Disks

NOBODY = 65534


class Hypervisor(Disks, nbd.Exports):
    """A hypervisor whose QEMU runs as the user nobody."""

    def qemu_user(self) -> tuple[int, int]:
        return NOBODY, NOBODY

    def qemu_group(self) -> int:
        return NOBODY
