# SPDX-License-Identifier: GPL-3.0-or-later
"""Types of virtual GPUs (mediated devices) that an agent's settings enable, and the devices for which each type is
enabled.
"""

from __future__ import annotations

from typing import Mapping, Sequence

#: Wildcards in a PCI address: ``?`` stands for one character, ``*`` for any number.
_ANY, _ONE = "*", "?"


def check_mdev_types(types: Sequence[Mapping[str, str]]) -> str:
    """Return an error message if two mediated device types in an agent's settings apply to the same device; empty if no
    two do. *types*: mappings with ``type`` and optionally ``address`` (a pattern of PCI addresses). A type without
    address applies to all remaining devices, so it must be the last.
    """
    for at, first in enumerate(types):
        for second in types[at + 1:]:
            if "address" not in first or first["address"] == _ANY:
                return ("%s has no address, so that it is for all devices, and nothing is left for %s: give it an "
                        "address, or name it last" % (first["type"], second["type"]))
            if "address" in second and second["address"] != _ANY and patterns_overlap(first["address"],
                                                                                      second["address"]):
                return ("both %s and %s are meant for the same devices (addresses %s and %s); each device has one type"
                        % (first["type"], second["type"], first["address"], second["address"]))
    return ""


def patterns_overlap(first: str, second: str) -> bool:
    """Return whether any string matches both patterns, which may contain the wildcards ``*`` and ``?``."""
    row = [True] + [False] * len(second)
    for at, mark in enumerate(second):
        row[at + 1] = row[at] and mark == _ANY
    for mark in first:
        above, row = row, [row[0] and mark == _ANY]
        for at, other in enumerate(second):
            if _ANY in (mark, other):
                row.append(row[at] or above[at + 1])
            else:
                row.append(above[at] and (mark == other or _ONE in (mark, other)))
    return row[-1]
