# SPDX-License-Identifier: GPL-3.0-or-later
"""The installed version, and versions as numbers."""

from __future__ import annotations

import functools

#: Number of the protocol ``/v1``; it increases when something is removed.
API = 1


@functools.cache
def installed_version() -> str:
    """Return the version of the distribution ``magnetar``; ``0+checkout`` for a bare checkout."""
    from importlib import metadata

    try:
        return metadata.version("magnetar")
    except metadata.PackageNotFoundError:
        return "0+checkout"


def version_number(text: str) -> int:
    """Return a version as the number that libvirt and Nova use: ``7.2.22`` is 7002022; a part that is not a number
    counts as 0.
    """
    parts = [int(part) if part.isdigit() else 0 for part in text.split(".")[:3]] + [0, 0, 0]
    return parts[0] * 1000000 + parts[1] * 1000 + parts[2]
