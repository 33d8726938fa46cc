# SPDX-License-Identifier: GPL-3.0-or-later
"""Groups of requests in a flavor's extra specs: ``resources1:CUSTOM_X``, ``trait1:NAME``, ``group_policy``.

One resource provider serves all requests of a group. Custom resource classes belong to the host itself. So the host
serves every group that requests such a class: the amounts of these groups add up, and the host must have the traits of
all of them. A GPU that is divided into virtual GPUs serves a group with ``VGPU``; the GPU must have the group's trait.
Source: Nova's extra spec reference, Placement's *Granular resource request syntax*.
"""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping, NamedTuple

from .pci import TRAITS
from .standard import GIVEN_CLASSES

#: Suffix of ``resources`` and ``trait`` in the names of a group's specs.
GROUP = "[a-zA-Z0-9_-]{1,64}"
#: The spec that decides whether groups may share a provider.
POLICY = "group_policy"
_RESOURCES = re.compile("resources(?P<group>%s)?:(?P<name>CUSTOM_.+|%s)" % (GROUP, "|".join(GIVEN_CLASSES)))
_VGPU = re.compile("resources(?P<group>%s)?:(?P<name>VGPU)" % GROUP)
_TRAIT = re.compile("trait(?P<group>%s)?:(?P<name>.+)" % GROUP)


def custom_resources(specs: Mapping[str, Any]) -> dict[str, int]:
    """Return the amounts that a flavor's extra *specs* request, by resource class, summed over all request groups.
    Standard classes are left out, except those whose inventories operators set (``GIVEN_CLASSES``).
    """
    amounts: dict[str, int] = {}
    for match, value in _matches(_RESOURCES, specs):
        if int(value):
            amounts[match["name"]] = amounts.get(match["name"], 0) + int(value)
    return amounts


class Vgpus(NamedTuple):
    """The virtual GPUs that a flavor's extra specs request: their *total* number, the *trait* that their physical GPU
    must have ("" for any), and the *groups* that request virtual GPUs, as suffixes (``1`` for ``resources1:VGPU``).
    """

    total: int
    trait: str
    groups: frozenset[str]


def requested_vgpus(specs: Mapping[str, Any]) -> Vgpus:
    """Return the virtual GPUs that a flavor's extra *specs* request, in groups (``resources1:VGPU``) or without a
    group.
    """
    requests = [(match["group"] or "", int(value)) for match, value in _matches(_VGPU, specs)
                if re.fullmatch("[0-9]+", str(value)) and int(value)]
    named = frozenset(group for group, _count in requests if group)
    required_traits = sorted(match["name"] for match, value in _matches(_TRAIT, specs)
                             if match["group"] in named and value == "required")
    return Vgpus(sum(count for _group, count in requests), required_traits[0] if required_traits else "", named)


def requested_traits(specs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the traits that a flavor's extra *specs* request of the host, as (name, value); the value is ``required``
    or ``forbidden``. Traits in groups with virtual GPUs are omitted, because such traits apply to the GPU, not to the
    host.
    """
    devices = requested_vgpus(specs).groups
    return ((match["name"], value) for match, value in _matches(_TRAIT, specs) if match["group"] not in devices)


def check_request_groups(specs: Mapping[str, Any]) -> str:
    """Return an error message for the request groups (such as ``resources1:`` and ``trait1:``) in a flavor's extra
    *specs*; empty if they are valid.
    """
    of_host = {match["group"] for match, value in _matches(_RESOURCES, specs) if match["group"] and int(value)}
    devices = requested_vgpus(specs).groups
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
    """Return an error message for the requests of virtual GPUs in *specs*; empty if they are valid. *of_host*: names of
    the groups that request custom resources. Such a group cannot also request a virtual GPU, because only the host's
    own resource provider has custom resources.
    """
    requested = requested_vgpus(specs)
    if requested.total > 1:
        return "resources:VGPU asks for %d in all, and a server has one virtual GPU" % requested.total
    if both := sorted(requested.groups & of_host):
        return ("group %s asks for a virtual GPU and for custom resources, and no provider has both: these are the "
                "host's, and that is a device's. Use two groups" % both[0])
    device_traits = [(match["name"], value) for match, value in _matches(_TRAIT, specs)
                     if match["group"] in requested.groups]
    if len(device_traits) > 1 or any(value != "required" for _name, value in device_traits):
        return ("the group of a virtual GPU asks for %s of its device, and it can require one trait, no more"
                % ", ".join("%s=%s" % trait for trait in device_traits))
    return ""


def _matches(pattern: re.Pattern[str], specs: Mapping[str, Any]) -> Iterator[tuple[re.Match[str], Any]]:
    for name, value in sorted(specs.items()):
        match = pattern.fullmatch(name)
        if match:
            yield match, value
