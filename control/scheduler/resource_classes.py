# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter of custom resource classes (``resources:CUSTOM_…`` of flavors) and of bandwidth that ports ask for."""

from __future__ import annotations

from .host_state import HostState
from .request_spec import RequestSpec


def classes(host: HostState, spec: RequestSpec) -> bool:
    """The host has enough left of the custom resource classes and bandwidth that flavor and ports ask for."""
    return spec.is_offered(host.name)


def lacking_classes(host: HostState, spec: RequestSpec) -> str:
    """What the host lacks of them."""
    if not spec.apart:
        return ("has one provider for the bandwidth of each physical network, and the flavor (group_policy: isolate) "
                "wants another one for each port")
    offer = spec.offers.get(host.name, {})
    return " and ".join(f"has {offer.get(name, 0)} of {amount} {name} left for one server"
                        for name, amount in sorted(spec.resources.items()) if offer.get(name, 0) < amount)
