# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter of custom resource classes (``resources:CUSTOM_…`` of flavors) and of bandwidth that ports ask for."""

from __future__ import annotations

from collections import Counter

from magnetar_control.store.claims import nic_bandwidth
from magnetar_core.bandwidth import card_of, network_of, split
from magnetar_core.hardware.pci import of_card

from .host_state import HostState
from .request_spec import RequestSpec


def classes(host: HostState, spec: RequestSpec) -> bool:
    """The host has enough left of the custom resource classes and bandwidth that flavor and ports ask for."""
    return spec.is_offered(host.name)


def lacking_classes(host: HostState, spec: RequestSpec) -> str:
    """What the host lacks of them."""
    offer = spec.offers.get(host.name, {})
    cards, on_cards = nic_bandwidth.in_words(spec.nics, offer), nic_bandwidth.on_cards(spec.nics, offer)
    networks = Counter(spec.of_no_nic)
    for nic in spec.nics:
        if nic not in on_cards:
            networks.update({f"{kind}:{nic.network}": n for kind, n in nic.amounts.items()})
    found = [f"has {offer.get(name, 0)} of {amount} {name} left for one server"
             for name, amount in sorted(networks.items()) if offer.get(name, 0) < amount]
    return " and ".join(filter(None, [*found, cards])) or (
        "has not one provider of bandwidth (a physical network, or a card) for each port, as the flavor wants "
        "(group_policy: isolate)")


def lacking_functions(host: HostState, spec: RequestSpec) -> str:
    """What the host lacks of free virtual functions of those cards that have bandwidth enough left for them."""
    offer = spec.offers.get(host.name, {})
    mine = nic_bandwidth.on_cards(spec.nics, offer)
    if not mine or host.name in spec.has_devices:
        return ""

    def gives(place: str) -> bool:
        return any(host.pci.gives(of_card(nic.devices, card_of(place))) for nic in mine if nic.network == network_of(
            place))

    left = {name: n if not card_of(place) or gives(place) else 0
            for name, n in offer.items() for _kind, place in [split(name)]}
    if next(nic_bandwidth.shares(mine, left), None) is not None:
        return ""
    return "free virtual functions of the cards that have bandwidth enough left"
