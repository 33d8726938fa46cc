# SPDX-License-Identifier: GPL-3.0-or-later
"""Groups of requests in a flavor's extra specs: ``resources1:CUSTOM_X``, ``trait1:NAME``, ``group_policy``.

One provider gives all of a group. Custom resource classes are the host's own, so it is the host that gives each of
these groups: what they ask for adds up, and its traits must be those of every group. A group with ``VGPU`` is given by
a device that is divided, and its trait must be the device's. Source: Nova's extra spec
reference, Placement's *Granular resource request syntax*.
"""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping, NamedTuple

from .pci import TRAITS
from .standard import GIVEN_CLASSES

#: What follows ``resources`` and ``trait`` in the names of a group's specs.
GROUP = "[a-zA-Z0-9_-]{1,64}"
#: The spec that says whether groups may have the same provider.
POLICY = "group_policy"
_RESOURCES = re.compile("resources(?P<group>%s)?:(?P<name>CUSTOM_.+|%s)" % (GROUP, "|".join(GIVEN_CLASSES)))
_VGPU = re.compile("resources(?P<group>%s)?:(?P<name>VGPU)" % GROUP)
_TRAIT = re.compile("trait(?P<group>%s)?:(?P<name>.+)" % GROUP)


def custom_resources(specs: Mapping[str, Any]) -> dict[str, int]:
    """How much of which custom resource class, or other class that operators give hosts, extra specs ask for, in all
    groups together."""
    found: dict[str, int] = {}
    for match, value in _matches(_RESOURCES, specs):
        if int(value):
            found[match["name"]] = found.get(match["name"], 0) + int(value)
    return found


class Vgpus(NamedTuple):
    """What extra specs ask for in virtual GPUs: how many, the *trait* of their device ("" for any), and the *groups*
    that ask."""

    total: int
    trait: str
    groups: frozenset[str]


def vgpus(specs: Mapping[str, Any]) -> Vgpus:
    """What extra specs ask for, with and without groups."""
    found = [(match["group"] or "", int(value)) for match, value in _matches(_VGPU, specs)
             if re.fullmatch("[0-9]+", str(value)) and int(value)]
    named = frozenset(group for group, _count in found if group)
    wanted = sorted(match["name"] for match, value in _matches(_TRAIT, specs)
                    if match["group"] in named and value == "required")
    return Vgpus(sum(count for _group, count in found), wanted[0] if wanted else "", named)


def traits(specs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each trait of a host that extra specs name, in whatever group, and what they say of it."""
    devices = vgpus(specs).groups
    return ((match["name"], value) for match, value in _matches(_TRAIT, specs) if match["group"] not in devices)


def problem(specs: Mapping[str, Any]) -> str:
    """What is wrong with the groups of extra specs; empty when nothing is."""
    of_host = {match["group"] for match, value in _matches(_RESOURCES, specs) if match["group"] and int(value)}
    devices = vgpus(specs).groups
    if odd := _vgpu_problem(specs, of_host):
        return odd
    groups = of_host | devices
    alone = sorted({match["group"] for match, _value in _matches(_TRAIT, specs) if match["group"]} - groups)
    if alone:
        return ("trait%s: asks for a trait of what gives the resources of that group, and there are none: say "
                "resources%s:CUSTOM_… too, or trait: for the host" % (alone[0], alone[0]))
    if odd := next((match[0] for match, _value in _matches(_TRAIT, specs)
                    if match["group"] in of_host and re.fullmatch(TRAITS, match["name"])), ""):
        return "%s asks for a trait that devices have, of the host that gives custom resources" % odd
    if len(groups) > 1 and POLICY not in specs:
        return "%s, none or isolate, is missing: there is more than one group" % POLICY
    if len(of_host) > 1 and specs[POLICY] == "isolate":
        return ("%s=isolate asks for another provider for each group, and the custom resources of a host are all of "
                "one; none lets them be of one" % POLICY)
    return ""


def _vgpu_problem(specs: Mapping[str, Any], of_host: set[str]) -> str:
    """The same of virtual GPUs. *of_host*: groups with custom resources."""
    asked = vgpus(specs)
    if asked.total > 1:
        return "resources:VGPU asks for %d in all, and a server has one virtual GPU" % asked.total
    if both := sorted(asked.groups & of_host):
        return ("group %s asks for a virtual GPU and for custom resources, and no provider has both: these are the "
                "host's, and that is a device's. Use two groups" % both[0])
    said = [(match["name"], value) for match, value in _matches(_TRAIT, specs) if match["group"] in asked.groups]
    if len(said) > 1 or any(value != "required" for _name, value in said):
        return ("the group of a virtual GPU asks for %s of its device, and it can require one trait, no more"
                % ", ".join("%s=%s" % one for one in said))
    return ""


def _matches(pattern: re.Pattern[str], specs: Mapping[str, Any]) -> Iterator[tuple[re.Match[str], Any]]:
    for name, value in sorted(specs.items()):
        match = pattern.fullmatch(name)
        if match:
            yield match, value
