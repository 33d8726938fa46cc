# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter of custom resource classes (``resources:CUSTOM_…`` of flavors) and of the bandwidth of ports."""

from __future__ import annotations

from collections import Counter

from magnetar_control.store.claims import nic_bandwidth
from magnetar_core.bandwidth import card_of_place, network_of_place, split_resource
from magnetar_core.hardware.pci import card_devices_name

from .host_state import HostState
from .request_spec import RequestSpec


def has_resource_classes(host: HostState, spec: RequestSpec) -> bool:
    """The host has enough left of the custom resource classes and bandwidth that flavor and ports request."""
    return spec.is_offered(host.name)


def lacking_classes(host: HostState, spec: RequestSpec) -> str:
    """Return a text about the custom resource classes and bandwidth of which the host has too little left; empty if it
    has enough."""
    offer = spec.offers.get(host.name, {})
    cards, on_cards = nic_bandwidth.bandwidth_shortage_text(spec.nics,
                                                            offer), nic_bandwidth.requests_on_cards(spec.nics, offer)
    networks = Counter(spec.of_no_nic)
    for nic in spec.nics:
        if nic not in on_cards:
            networks.update({f"{kind}:{nic.network}": n for kind, n in nic.amounts.items()})
    lacks = [f"has {offer.get(name, 0)} of {amount} {name} left for one server"
             for name, amount in sorted(networks.items()) if offer.get(name, 0) < amount]
    return " and ".join(filter(None, [*lacks, cards])) or (
        "has not one provider of bandwidth (a physical network, or a card) for each port, as the flavor wants "
        "(group_policy: isolate)")


def lacking_functions(host: HostState, spec: RequestSpec) -> str:
    """Return a text if the host has no free virtual function on a network card with enough bandwidth left for the
    requested ports; otherwise an empty text."""
    offer = spec.offers.get(host.name, {})
    mine = nic_bandwidth.requests_on_cards(spec.nics, offer)
    if not mine or host.name in spec.has_devices:
        return ""

    def has_free_device(place: str) -> bool:
        return any(host.pci.has_free(card_devices_name(nic.devices, card_of_place(place))) for nic in mine
                   if nic.network == network_of_place(place))

    usable_offer = {name: n if not card_of_place(place) or has_free_device(place) else 0
                    for name, n in offer.items() for _kind, place in [split_resource(name)]}
    if next(nic_bandwidth.bandwidth_placements(mine, usable_offer), None) is not None:
        return ""
    return "free virtual functions of the cards that have bandwidth enough left"
