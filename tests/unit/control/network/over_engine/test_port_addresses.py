# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses that a port of a server gains and loses."""

from __future__ import annotations

import uuid

import pytest

from magnetar_core.errors import Conflict, InvalidRequest, NotFound
from tests.support.control.serving import ADMIN, ALICE

SERVER = str(uuid.uuid4())


def test_ovn_filters_by_what_a_port_has_now(ask, service, engine, lan, outside):
    network = lan(ask)
    gateway = {"external_gateway_info": {"network_id": outside["id"]}}
    router = ask("POST", "/v2.0/routers", {"router": gateway})["router"]["id"]
    ask("PUT", f"/v2.0/routers/{router}/add_router_interface", {"subnet_id": network["subnets"][0]})
    (nic,) = service.allocate(ALICE, SERVER, service.check_requested(ALICE, [{"uuid": network["id"]}]))
    first = nic["fixed_ips"][0]["ip_address"]
    floating = ask("POST", "/v2.0/floatingips", {"floatingip": {
        "floating_network_id": outside["id"], "port_id": nic["port_id"]}})["floatingip"]["id"]
    service.change_address(SERVER, network_id=network["id"])
    service.worker.round()
    ((subnet, second),) = {*engine.port(nic["port_id"]).addresses} - {(network["subnets"][0], first)}
    assert subnet == network["subnets"][0]
    service.change_address(SERVER, address=first)
    service.worker.round()
    assert engine.port(nic["port_id"]).addresses == ((subnet, second),)
    assert engine.router(router).translations[0].kind == "snat"
    assert ask("GET", f"/v2.0/floatingips/{floating}")["floatingip"]["port_id"] is None
    with pytest.raises(InvalidRequest, match=f"{second} is the last address"):  # it could send from any then
        service.change_address(SERVER, address=second)
    with pytest.raises(NotFound, match="Unable to find IP address"):
        service.change_address(SERVER, address=first)


def test_what_has_no_address_left_says_so(ask, service, lan):
    network = lan(ask, "10.1.0.0/30", name="tiny")
    service.allocate(ALICE, SERVER, service.check_requested(ALICE, [{"uuid": network["id"]}]))
    with pytest.raises(Conflict, match="No more IP addresses"):
        service.change_address(SERVER, network_id=network["id"])


def test_addresses_that_follow_from_the_mac_stay(ask, service, lan):
    network = lan(ask)
    six = {"network_id": network["id"], "cidr": "fd00:1::/64", "ip_version": 6, "ipv6_ra_mode": "slaac",
           "ipv6_address_mode": "slaac"}
    ask("POST", "/v2.0/subnets", {"subnet": six})
    (nic,) = service.allocate(ALICE, SERVER, service.check_requested(ALICE, [{"uuid": network["id"]}]))
    (own,) = (one["ip_address"] for one in nic["fixed_ips"] if ":" in one["ip_address"])
    with pytest.raises(InvalidRequest, match="follows from the MAC address"):
        service.change_address(SERVER, address=own)


def test_networks_of_hosts_keep_theirs(ask, service):
    made = ask.as_(ADMIN)("POST", "/v2.0/networks", {"network": {"provider:network_type": "nat", "project_id": "red"}})
    id = made["network"]["id"]
    ask("POST", "/v2.0/subnets", {"subnet": {"network_id": id, "cidr": "10.7.0.0/24"}})
    service.allocate(ALICE, SERVER, service.check_requested(ALICE, [{"uuid": id}]))
    with pytest.raises(InvalidRequest, match="stay as they are while a server has it, except on networks of OVN"):
        service.change_address(SERVER, network_id=id)
