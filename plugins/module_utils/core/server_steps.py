# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of an agent that change a server, by their verbs, in words for people. A cloud shows the same steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .plan import Step

TEXT: Mapping[str, str] = {
    "disks": "make the disks", "drive": "write the config drive", "define": "define the domain",
    "grow": "grow the root disk", "start": "start", "start_paused": "start, paused", "stop": "shut down",
    "pause": "pause", "resume": "resume", "save": "suspend to disk", "destroy": "power off",
    "undefine": "forget the domain", "free": "detach its volumes", "volumes": "make and attach volumes",
    "plug": "change the NICs", "reserve": "have DHCP give its addresses", "release": "give its addresses back",
    "erase": "remove the disks", "drop_swap": "remove the swap disk",
    "grow_ephemeral": "grow the ephemeral disk", "discard": "drop the saved memory", "wipe": "remove the disks",
    "rebuilt": "note that it is rebuilt", "rescue": "make the rescue disk", "unrescue": "remove the rescue disk",
    # Of a cloud only.
    "confirm": "keep the new flavor", "migrate": "move it to another host",
}


def step(verb: str, **args: Any) -> Step:
    """A step, with its words."""
    return Step(verb, TEXT[verb], **args)
