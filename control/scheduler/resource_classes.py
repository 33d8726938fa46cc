# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter of custom resource classes (``resources:CUSTOM_…`` of flavors)."""

from __future__ import annotations

from .host_state import HostState
from .request_spec import RequestSpec


def classes(host: HostState, spec: RequestSpec) -> bool:
    """The host has enough left of the custom resource classes that the flavor asks for."""
    return spec.is_offered(host.name)


def lacking_classes(host: HostState, spec: RequestSpec) -> str:
    """What the host lacks of them."""
    offer = spec.offers.get(host.name, {})
    return " and ".join(f"has {offer.get(name, 0)} of {amount} {name} left for one server"
                        for name, amount in sorted(spec.resources.items()) if offer.get(name, 0) < amount)
