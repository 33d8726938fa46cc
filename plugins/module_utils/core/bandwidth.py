# SPDX-License-Identifier: GPL-3.0-or-later
"""Bandwidth that hosts guarantee to ports: the inventories of each physical network, or of each card in it, and their
names in Placement.

A *place* is a physical network, or one card in it: ``NETWORK/CARD``. A host stores an inventory of bandwidth as
``CLASS:PLACE`` (``bandwidth_resource``), since the resource class alone does not name the place. Placement shows the
inventories of one place as a provider below the host. Virtual functions take bandwidth from the cards where the host
reports some for their network; all other ports take it from the network. Sources: Neutron's *Quality of Service
Guaranteed Minimum Bandwidth*, Placement's standard resource classes, Nova's ``parent_ifname`` (a port gets a virtual
function of the card that its claim is on).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

#: Placement's resource classes of kbit/s, by the direction of a rule from the guest's view.
CLASSES = {"egress": "NET_BW_EGR_KILOBIT_PER_SEC", "ingress": "NET_BW_IGR_KILOBIT_PER_SEC"}
DIRECTIONS = {kind: way for way, kind in CLASSES.items()}
#: The network between hosts, which carries tunnelled networks (Neutron's tunnelled_network_rp_name).
TUNNELS = "rp_tunnelled"
TUNNEL_TRAIT = "CUSTOM_NETWORK_TUNNEL_PROVIDER"
#: VNIC types in the traits of providers, as Neutron's agents name them: types whose bandwidth OVN provides, and
#: types of virtual functions, whose bandwidth a card provides.
TYPES, OF_CARDS = ("normal", "vdpa", "remote-managed"), ("direct", "macvtap")
#: Placement's largest number.
MOST = 2**31 - 1
_NETWORK, _CARD = r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,62}", r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,14}"
_SETTING = re.compile(r"(%s(?:/(%s))?):([0-9]{0,10}):([0-9]{0,10})" % (_NETWORK, _CARD))


def bandwidth_resource(direction: str, place: str) -> str:
    """Return the name of an inventory of bandwidth (kbit/s): ``RESOURCE_CLASS:PLACE``. *direction*: egress or ingress.
    *place*: a physical network (``NETWORK``), one of its network cards (``NETWORK/CARD``), or ``TUNNELS`` (the network
    for tunnels between hosts).
    """
    return f"{CLASSES[direction]}:{place}"


def split_resource(name: str) -> tuple[str, str]:
    """Split the *name* of an inventory (``bandwidth_resource``) into its resource class and its place (``NETWORK`` or
    ``NETWORK/CARD``). The place is empty for resources other than bandwidth.
    """
    kind, _colon, place = name.partition(":")
    return kind, place


def network_of_place(place: str) -> str:
    """Return the physical network in *place*, which is ``NETWORK`` or ``NETWORK/CARD``."""
    return place.partition("/")[0]


def card_of_place(place: str) -> str:
    """Return the card in *place*, which is ``NETWORK/CARD`` (CARD is a network device, such as ens1); empty for
    ``NETWORK``.
    """
    return place.partition("/")[2]


def describe_bandwidth(resources: Mapping[str, int]) -> str:
    """Return a text for users about amounts of bandwidth, such as ``1000 kbit/s egress on physnet0``. *resources*:
    kbit/s by the name that ``bandwidth_resource`` returns.
    """
    amounts = [(n, *split_resource(name)) for name, n in sorted(resources.items())]
    return " and ".join(f"{n} kbit/s {DIRECTIONS[kind]} on {place}" for n, kind, place in amounts)


def bandwidth_traits(place: str, divided: bool = False) -> frozenset[str]:
    """Return the traits of the resource provider for *place* (``NETWORK`` or ``NETWORK/CARD``). Ports require these
    traits, so that they get bandwidth of their own physical network and VNIC type. *divided*: the host also reports
    bandwidth for single cards of the network. The cards' providers then have the traits of ``OF_CARDS`` (VNIC types of
    virtual functions), and the network's provider lacks them.
    """
    types: tuple[str, ...] = (*TYPES, *OF_CARDS)
    if card_of_place(place):
        types = OF_CARDS
    elif place == TUNNELS or divided:
        types = TYPES
    return frozenset({place_trait(place), *map(type_trait, types)})


def type_trait(vnic_type: str) -> str:
    """Return the trait of resource providers that have bandwidth for ports with this *vnic_type*."""
    return f"CUSTOM_VNIC_TYPE_{vnic_type.upper().replace('-', '_')}"


def place_trait(place: str) -> str:
    """Return the trait for the physical network in *place* (``NETWORK`` or ``NETWORK/CARD``)."""
    network = network_of_place(place)
    return TUNNEL_TRAIT if network == TUNNELS else f"CUSTOM_PHYSNET_{re.sub('[^A-Z0-9_]', '_', network.upper())}"


def check_bandwidth_setting(values: Iterable[str]) -> str:
    """Return an error message for *values*, the items of the agent's setting ``resource_provider_bandwidths``; empty if
    they are valid.
    """
    places = set()
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
        if match[1] in places:
            return f"{match[1]} is there twice"
        places.add(match[1])
    return ""


def parse_bandwidth_setting(values: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the kbit/s by place (a physical network or a network card) and direction, such as ``{"physnet0":
    {"egress": 1000}}``. *values*: the items of the agent's setting ``resource_provider_bandwidths``, which
    ``check_bandwidth_setting`` has accepted.
    """
    return {place: {way: int(number) for way, number in zip(CLASSES, numbers) if number}
            for place, *numbers in (value.split(":") for value in values)}


def bandwidth_inventories(bandwidths: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Any]]:
    """Return Placement inventories for *bandwidths*, the result of ``parse_bandwidth_setting``, by the name that
    ``bandwidth_resource`` returns: ``{name: {"total": kbit/s}}``.
    """
    return {bandwidth_resource(way, place): {"total": int(amount)}
            for place, ways in bandwidths.items() for way, amount in ways.items()}
