# SPDX-License-Identifier: GPL-3.0-or-later
"""Bandwidth that hosts promise to ports: what a host has of each physical network, or of each of its cards there, and
how Placement calls it.

An inventory of bandwidth is kept with its host as ``CLASS:PLACE`` (``resource``), since a class alone does not say
where it is. A place is a physical network, or ``NETWORK/CARD``. Placement shows those of one place as a provider below
the host. Ports that are virtual functions have it of the cards where the host tells some of their network, all others
of the network. Sources: Neutron's *Quality of Service Guaranteed Minimum Bandwidth*, Placement's standard resource
classes, Nova's ``parent_ifname`` (which virtual function fits the claim).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

#: Placement's resource classes of kbit/s, by the direction of a rule: as the guest sees it.
CLASSES = {"egress": "NET_BW_EGR_KILOBIT_PER_SEC", "ingress": "NET_BW_IGR_KILOBIT_PER_SEC"}
DIRECTIONS = {kind: way for way, kind in CLASSES.items()}
#: Stands for the network between hosts, over which tunnelled networks go (Neutron's tunnelled_network_rp_name).
TUNNELS = "rp_tunnelled"
TUNNEL_TRAIT = "CUSTOM_NETWORK_TUNNEL_PROVIDER"
#: Types of ports whose bandwidth a provider gives, as Neutron's agents tell it by traits: what OVN looks after, and
#: virtual functions that send past it, which cards give.
TYPES, OF_CARDS = ("normal", "vdpa", "remote-managed"), ("direct", "macvtap")
#: The greatest number of Placement.
MOST = 2**31 - 1
_NETWORK, _CARD = r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,62}", r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,14}"
_SETTING = re.compile(r"(%s(?:/(%s))?):([0-9]{0,10}):([0-9]{0,10})" % (_NETWORK, _CARD))


def resource(direction: str, place: str) -> str:
    """The name of an inventory: kbit/s of a *direction* on a physical network, on one of its cards, or on ``TUNNELS``.
    """
    return f"{CLASSES[direction]}:{place}"


def split(name: str) -> tuple[str, str]:
    """Resource class and place of an inventory; the place is empty for what is no bandwidth."""
    kind, _colon, place = name.partition(":")
    return kind, place


def network_of(place: str) -> str:
    """The physical network of a place."""
    return place.partition("/")[0]


def card_of(place: str) -> str:
    """The card of a place, as its host calls the network device; empty for a whole network."""
    return place.partition("/")[2]


def in_words(resources: Mapping[str, int]) -> str:
    """Amounts by ``resource``, to be read."""
    found = [(n, *split(name)) for name, n in sorted(resources.items())]
    return " and ".join(f"{n} kbit/s {DIRECTIONS[kind]} on {place}" for n, kind, place in found)


def traits(place: str, divided: bool = False) -> frozenset[str]:
    """What the provider of a place has: by these ports ask for it. *divided*: its host tells cards of that network."""
    types: tuple[str, ...] = (*TYPES, *OF_CARDS)
    if card_of(place):
        types = OF_CARDS
    elif place == TUNNELS or divided:
        types = TYPES
    return frozenset({own_trait(place), *map(type_trait, types)})


def type_trait(vnic_type: str) -> str:
    """The one that says that a provider gives ports of a type some."""
    return f"CUSTOM_VNIC_TYPE_{vnic_type.upper().replace('-', '_')}"


def own_trait(place: str) -> str:
    """The one that says of which network a provider is."""
    network = network_of(place)
    return TUNNEL_TRAIT if network == TUNNELS else f"CUSTOM_PHYSNET_{re.sub('[^A-Z0-9_]', '_', network.upper())}"


def check_setting(values: Iterable[str]) -> str:
    """What is wrong with the agent's setting ``resource_provider_bandwidths``; empty when nothing is."""
    seen = set()
    for value in values:
        match = _SETTING.fullmatch(value)
        numbers = match.groups()[2:] if match else ()
        if match is None or not any(numbers):
            return (f"{value!r} must be NETWORK:EGRESS:INGRESS or NETWORK/CARD:EGRESS: in kbit/s, such as "
                    "physnet0:10000000:10000000 or physnet0/ens1:25000000:; one of a network's numbers may be left out")
        if match[2] and (match[1].startswith(f"{TUNNELS}/") or match[4]):
            return (f"{value!r} must be NETWORK/CARD:EGRESS: of a physical network: cards promise their virtual "
                    "functions only what guests send")
        if any(number and not 1 <= int(number) <= MOST for number in numbers):
            return f"{value!r} must have numbers from 1 to {MOST}"
        if match[1] in seen:
            return f"{match[1]} is there twice"
        seen.add(match[1])
    return ""


def of_setting(values: Iterable[str]) -> dict[str, dict[str, int]]:
    """What a host has, kbit/s by direction by place, of values that ``check_setting`` has passed."""
    return {place: {way: int(number) for way, number in zip(CLASSES, numbers) if number}
            for place, *numbers in (value.split(":") for value in values)}


def inventories(bandwidths: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Any]]:
    """The inventories of what a host has, by ``resource``."""
    return {resource(way, place): {"total": int(amount)}
            for place, ways in bandwidths.items() for way, amount in ways.items()}
