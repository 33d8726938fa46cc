# SPDX-License-Identifier: GPL-3.0-or-later
"""The version of what is installed, and versions as numbers."""

from __future__ import annotations

import functools

#: Number of the protocol ``/v1``; it counts up when something is taken away.
API = 1


@functools.cache
def version() -> str:
    """Version of the distribution ``magnetar``; a bare checkout has none."""
    from importlib import metadata

    try:
        return metadata.version("magnetar")
    except metadata.PackageNotFoundError:
        return "0+checkout"


def version_number(text: str) -> int:
    """Return a version as libvirt and Nova count it: ``7.2.22`` is 7002022; what is no number counts 0."""
    words = [int(word) if word.isdigit() else 0 for word in text.split(".")[:3]] + [0, 0, 0]
    return words[0] * 1000000 + words[1] * 1000 + words[2]
