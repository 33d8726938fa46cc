# SPDX-License-Identifier: GPL-3.0-or-later
"""How often a process that serves looks for garbage (``gc`` of Python)."""

from __future__ import annotations

import gc

#: Objects between two looks for garbage, and how many of them until older ones are looked at too. An answer with 1,000
#: servers makes 20,000.
LOOKS = (30_000, 20, 20)


def began() -> None:
    """All parts are there now: they stay, and are not looked through again. Python's own limits (700 objects, 10, 10)
    take a tenth of the time of a server's creation, the more the larger the program is."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*LOOKS)
