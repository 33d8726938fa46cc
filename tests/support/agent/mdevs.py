# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of mdevs."""

from __future__ import annotations

from pathlib import Path

A, B = "0000:81:00.0", "0000:c1:00.0"


def gpu(sysfs: Path, address: str, node: int = -1, **types: int) -> Path:
    """Add a device to a fake sysfs, with the given number of available mediated devices of each type."""
    folder = sysfs / "class/mdev_bus" / address
    for type, left in types.items():
        (folder / "mdev_supported_types" / type / "devices").mkdir(parents=True)
        (folder / "mdev_supported_types" / type / "available_instances").write_text(f"{left}\n")
    (folder / "numa_node").write_text(f"{node}\n")
    return folder
