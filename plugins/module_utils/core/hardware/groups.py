# SPDX-License-Identifier: GPL-3.0-or-later
"""Groups of requests in a flavor's extra specs: ``resources1:CUSTOM_X``, ``trait1:NAME``, ``group_policy``.

One provider gives all of a group. Custom resource classes are the host's own, so it is the host that gives each of
these groups: what they ask for adds up, and its traits must be those of every group. Source: Nova's extra spec
reference, Placement's *Granular resource request syntax*.
"""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping

#: What follows ``resources`` and ``trait`` in the names of a group's specs.
GROUP = "[a-zA-Z0-9_-]{1,64}"
#: The spec that says whether groups may have the same provider.
POLICY = "group_policy"
_RESOURCES = re.compile("resources(?P<group>%s)?:(?P<name>CUSTOM_.+)" % GROUP)
_TRAIT = re.compile("trait(?P<group>%s)?:(?P<name>.+)" % GROUP)


def custom_resources(specs: Mapping[str, Any]) -> dict[str, int]:
    """How much of which custom resource class extra specs ask for, in all groups together."""
    found: dict[str, int] = {}
    for match, value in _matches(_RESOURCES, specs):
        if int(value):
            found[match["name"]] = found.get(match["name"], 0) + int(value)
    return found


def traits(specs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each trait that extra specs name, in whatever group, and what they say of it."""
    return ((match["name"], value) for match, value in _matches(_TRAIT, specs))


def problem(specs: Mapping[str, Any]) -> str:
    """What is wrong with the groups of extra specs; empty when nothing is."""
    groups = {match["group"] for match, value in _matches(_RESOURCES, specs) if match["group"] and int(value)}
    alone = sorted({match["group"] for match, _value in _matches(_TRAIT, specs) if match["group"]} - groups)
    if alone:
        return ("trait%s: asks for a trait of what gives the resources of that group, and there are none: say "
                "resources%s:CUSTOM_… too, or trait: for the host" % (alone[0], alone[0]))
    if len(groups) > 1 and POLICY not in specs:
        return "%s, none or isolate, is missing: there is more than one group" % POLICY
    if len(groups) > 1 and specs[POLICY] == "isolate":
        return ("%s=isolate asks for another provider for each group, and the custom resources of a host are all of "
                "one; none lets them be of one" % POLICY)
    return ""


def _matches(pattern: re.Pattern[str], specs: Mapping[str, Any]) -> Iterator[tuple[re.Match[str], Any]]:
    for name, value in sorted(specs.items()):
        match = pattern.fullmatch(name)
        if match:
            yield match, value
