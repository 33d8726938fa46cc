# SPDX-License-Identifier: GPL-3.0-or-later
"""The version of what is installed."""

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
