# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports that are virtual functions (``vnic_type`` direct): what OVN would do for others is refused."""

from __future__ import annotations

import pytest

from tests.support.control.serving import ADMIN

DIRECT = {"binding:vnic_type": "direct"}


@pytest.fixture
def admin(ask):
    return ask.as_(ADMIN)


@pytest.fixture
def physical(admin):
    """A subnet of a network on a physical one."""
    id = admin("POST", "/v2.0/networks", {"network": {
        "name": "phys", "provider:network_type": "flat", "provider:physical_network": "physnet"}})["network"]["id"]
    return admin("POST", "/v2.0/subnets", {"subnet": {"network_id": id, "cidr": "10.9.0.0/24"}})["subnet"]


def port(admin, physical, **fields):
    return admin("POST", "/v2.0/ports", {"port": {
        "network_id": physical["network_id"], "port_security_enabled": False, **fields}})["port"]


def router(admin, **fields):
    return "/v2.0/routers/" + admin("POST", "/v2.0/routers", {"router": {"name": "r", **fields}})["router"]["id"]


def test_it_is_no_interface_of_a_router(admin, physical):
    wish = {"port_id": port(admin, physical, **DIRECT)["id"]}
    refused = admin("PUT", f"{router(admin)}/add_router_interface", wish, status=409)["NeutronError"]
    assert refused["type"] == "UnsupportedPortVnicType" and "no router's interface" in refused["message"]


def test_a_port_that_a_forwarding_leads_to_becomes_none(admin, physical, outside):
    gateway = router(admin, external_gateway_info={"network_id": outside["id"]})
    admin("PUT", f"{gateway}/add_router_interface", {"subnet_id": physical["id"]})
    floating, inside = admin("POST", "/v2.0/floatingips", {"floatingip": {
        "floating_network_id": outside["id"]}})["floatingip"], port(admin, physical)
    admin("POST", f"/v2.0/floatingips/{floating['id']}/port_forwardings", {"port_forwarding": {
        "protocol": "tcp", "internal_port_id": inside["id"], "internal_port": 22, "external_port": 22,
        "internal_ip_address": inside["fixed_ips"][0]["ip_address"]}})
    refused = admin("PUT", f"/v2.0/ports/{inside['id']}", {"port": DIRECT}, status=409)["NeutronError"]
    assert floating["floating_ip_address"] in refused["message"]
