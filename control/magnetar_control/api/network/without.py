# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of absent resources of Neutron, which another resource replaces or nothing needs: each path has its
reason."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.errors import NotFound

_DHCP = "Networks have no DHCP agents: each host answers DHCP for its own guests."
_ROUTING = "Routers have no L3 agents: each host routes for its own guests, and ovn_gateway_hosts says which lead out."
#: Method and path to the reason.
PLACES = {
    "GET networks/{id}/dhcp-agents": _DHCP,
    "GET agents/{id}/dhcp-networks": _DHCP,
    "POST agents/{id}/dhcp-networks": _DHCP,
    "DELETE agents/{id}/dhcp-networks/{network_id}": _DHCP,
    "GET routers/{id}/l3-agents": _ROUTING,
    "GET agents/{id}/l3-routers": _ROUTING,
    "POST agents/{id}/l3-routers": _ROUTING,
    "PUT agents/{id}/l3-routers/{router_id}": _ROUTING,
    "DELETE agents/{id}/l3-routers/{router_id}": _ROUTING,
    "PUT subnetpools/{id}/onboard_network_subnets":
        "Subnets do not come into a pool later: create them with subnetpool_id."}
#: Path of a collection to the reason.
COLLECTIONS = {
    "flavors": "Routers have no flavors: all are OVN's.",
    "ndp_proxies": "Routers have no NDP proxies: who is outside reaches addresses of IPv6 by a route to the router.",
    "security-groups-default-statefulness":
        "No setting says whether new security groups are stateful: they are, unless made with stateful false.",
    "segments": "Networks have no segments: each is in one place, which provider:network_type, "
                "provider:physical_network and provider:segmentation_id say."}


def absent_network_routes() -> list[Guarded]:
    """Return routes for Neutron resources that this service does not support. The routes answer 404 with the reason."""
    every = {f"{method} {path}{id}": why for path, why in COLLECTIONS.items()
             for method, id in (("GET", ""), ("POST", ""), ("GET", "/{id}"), ("PUT", "/{id}"), ("DELETE", "/{id}"))}
    return [guarded_route(place.replace(" ", " /v2.0/"), partial(_none, why)) for place,
            why in {**PLACES, **every}.items()]


def _none(why: str, _request: Request) -> NoReturn:
    raise NotFound(why)
