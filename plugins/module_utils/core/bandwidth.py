# SPDX-License-Identifier: GPL-3.0-or-later
"""Bandwidth that hosts promise to ports: what a host has of each physical network, and how Placement calls it.

An inventory of bandwidth is kept with its host as ``CLASS:NETWORK`` (``resource``), since a class alone does not say of
which network it is. Placement shows those of one network as a provider below the host. Sources: Neutron's *Quality of
Service Guaranteed Minimum Bandwidth*, Placement's standard resource classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

#: Placement's resource classes of kbit/s, by the direction of a rule: as the guest sees it.
CLASSES = {"egress": "NET_BW_EGR_KILOBIT_PER_SEC", "ingress": "NET_BW_IGR_KILOBIT_PER_SEC"}
#: Stands for the network between hosts, over which tunnelled networks go (Neutron's tunnelled_network_rp_name).
TUNNELS = "rp_tunnelled"
TUNNEL_TRAIT = "CUSTOM_NETWORK_TUNNEL_PROVIDER"
#: Types of ports whose bandwidth a provider gives, as Neutron's agents tell it by traits: of any network, and of
#: physical ones only.
TYPES, PHYSICAL_TYPES = ("normal", "vdpa", "remote-managed"), ("direct", "macvtap")
#: The greatest number of Placement.
MOST = 2**31 - 1
_SETTING = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.\-]{0,62}):([0-9]{0,10}):([0-9]{0,10})")


def resource(direction: str, network: str) -> str:
    """The name of an inventory: kbit/s of a *direction* on a physical network, or on ``TUNNELS``."""
    return f"{CLASSES[direction]}:{network}"


def split(name: str) -> tuple[str, str]:
    """Resource class and physical network of an inventory; the network is empty for what is no bandwidth."""
    kind, _colon, network = name.partition(":")
    return kind, network


def in_words(resources: Mapping[str, int]) -> str:
    """Amounts by ``resource``, to be read."""
    ways = {kind: way for way, kind in CLASSES.items()}
    found = [(n, *split(name)) for name, n in sorted(resources.items())]
    return " and ".join(f"{n} kbit/s {ways[kind]} on {network}" for n, kind, network in found)


def traits(network: str) -> frozenset[str]:
    """What the provider of a physical network has: by these ports ask for it."""
    types = TYPES if network == TUNNELS else (*TYPES, *PHYSICAL_TYPES)
    return frozenset({own_trait(network), *map(type_trait, types)})


def type_trait(vnic_type: str) -> str:
    """The one that says that a provider gives ports of a type some."""
    return f"CUSTOM_VNIC_TYPE_{vnic_type.upper().replace('-', '_')}"


def own_trait(network: str) -> str:
    """The one that says of which network a provider is."""
    return TUNNEL_TRAIT if network == TUNNELS else f"CUSTOM_PHYSNET_{re.sub('[^A-Z0-9_]', '_', network.upper())}"


def check_setting(values: Iterable[str]) -> str:
    """What is wrong with the agent's setting ``resource_provider_bandwidths``; empty when nothing is."""
    seen = set()
    for value in values:
        match = _SETTING.fullmatch(value)
        if match is None or not any(match.groups()[1:]):
            return (f"{value!r} must be NETWORK:EGRESS:INGRESS in kbit/s, such as physnet0:10000000:10000000; one of "
                    "the numbers may be left out")
        if any(number and not 1 <= int(number) <= MOST for number in match.groups()[1:]):
            return f"{value!r} must have numbers from 1 to {MOST}"
        if match[1] in seen:
            return f"{match[1]} is there twice"
        seen.add(match[1])
    return ""


def of_setting(values: Iterable[str]) -> dict[str, dict[str, int]]:
    """What a host has, kbit/s by direction by physical network, of values that ``check_setting`` has passed."""
    return {network: {way: int(number) for way, number in zip(CLASSES, numbers) if number}
            for network, *numbers in (value.split(":") for value in values)}


def inventories(bandwidths: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Any]]:
    """The inventories of what a host has, by ``resource``."""
    return {resource(way, network): {"total": int(amount)}
            for network, ways in bandwidths.items() for way, amount in ways.items()}
