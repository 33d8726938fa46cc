# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of pci."""

from __future__ import annotations

from pathlib import Path

from magnetar_core.hardware.numa import HostCell

GPU, NIC = ("10de", "1eb8"), ("8086", "1572")


def device(sysfs: Path, address: str, kind: tuple[str, str], node: int = -1, what: str = "0x030200") -> Path:
    """Add a PCI device to a fake sysfs."""
    folder = sysfs / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, text in (("vendor", f"0x{kind[0]}"), ("device", f"0x{kind[1]}"), ("numa_node", str(node)),
                       ("class", what)):
        (folder / name).write_text(f"{text}\n")
    return folder


def remove(sysfs: Path, address: str) -> None:
    """Remove a PCI device from a fake sysfs."""
    (sysfs / "bus/pci/devices" / address).rename(sysfs / address)


CELLS = tuple(HostCell(at, frozenset(), frozenset(range(4 * at, 4 * at + 4)), 3072, sockets=frozenset([at // 2]))
              for at in range(3))
