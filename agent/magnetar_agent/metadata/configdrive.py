# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a config drive: a part of ``guest_data``, in Nova's layout."""

from __future__ import annotations

from .guest_data import Guest, metadata_tree

LABEL = "config-2"
#: The drive's file in a server's folder.
FILE = "config.iso"
#: Bytes of a sector. Documents fill whole sectors of the drive, so that drives of other guests have the same layout
#: (see ``virt.disks.iso``).
SECTOR = 2048
#: Versions of the EC2 format on drives; Nova leaves the earlier ones out, too.
EC2_VERSIONS = ("2009-04-04", "latest")


def config_drive_files(guest: Guest) -> dict[str, bytes]:
    """Return the content of each file of the guest's config drive by its path. The result depends only on *guest*."""
    contents = metadata_tree(guest, EC2_VERSIONS)
    # Most versions have the same documents: each is padded once, and the drive's writer compares it once.
    whole = {content: content + b"\n" * (-len(content) % SECTOR) for content in set(contents.values())}
    return {path: whole[content] if path.endswith(".json") else content for path, content in contents.items()}
