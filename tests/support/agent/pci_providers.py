# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of pci providers."""

from __future__ import annotations

from pathlib import Path

from tests.support.agent.pci import NIC, device

PF = "0000:31:00.0"
VIRTUAL = ("8086", "1889")


def physical(sysfs: Path, functions: int, address: str = PF) -> None:
    """Add a NIC with so many virtual *functions* to a fake sysfs."""
    folder = device(sysfs, address, NIC, 0, "0x020000")
    (folder / "sriov_totalvfs").write_text("8\n")
    for at in range(functions):
        one = device(sysfs, f"{address[:-4]}02.{at}", VIRTUAL, 0, "0x020000")
        (one / "physfn").symlink_to(f"../{address}")
        (folder / f"virtfn{at}").symlink_to(f"../{one.name}")
