# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a config drive: what the guest reads of ``guest_data`` (MD-70 to MD-81)."""

from __future__ import annotations

from .guest_data import Guest, tree

LABEL = "config-2"
#: Its file in a server's folder.
FILE = "config.iso"
#: Documents fill whole sectors of the drive, so that drives of other guests have the same layout (see
#: ``virt.disks.iso``).
SECTOR = 2048
#: Versions of the EC2 form on drives; Nova leaves the earlier ones out, too (MD-78).
EC2_VERSIONS = ("2009-04-04", "latest")


def files(guest: Guest) -> dict[str, bytes]:
    """Path to content of every file of the drive. Pure: the same guest gives the same drive."""
    found = tree(guest, EC2_VERSIONS)
    # Most versions have the same documents: each is made whole, and compared by who writes the drive, once.
    whole = {content: content + b"\n" * (-len(content) % SECTOR) for content in set(found.values())}
    return {path: whole[content] if path.endswith(".json") else content for path, content in found.items()}
