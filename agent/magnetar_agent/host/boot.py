# SPDX-License-Identifier: GPL-3.0-or-later
"""The identity of the host's current boot."""

from __future__ import annotations

from pathlib import Path

BOOT_ID, FIRST = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/1/stat")


def boot_id() -> str:
    """Return a text that identifies the current boot: the kernel's boot id, and the start time of process 1 (clock
    ticks, proc(5)). A host that is a container has the boot id of its machine, so only the start time distinguishes the
    container's boots."""
    return f"{BOOT_ID.read_text().strip()} {FIRST.read_text().rpartition(')')[2].split()[19]}"
