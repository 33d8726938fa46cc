# SPDX-License-Identifier: GPL-3.0-or-later
"""Port forwardings of floating IPs."""

from __future__ import annotations

import pytest

from magnetar_control.services.network.engine.engine import LogicalForwarding
from tests.support.control.serving import ADMIN, BOB


@pytest.fixture
def place(ask, lan, outside):
    """A router that leads out, a port behind it, and a floating IP: (router, port, path of its port forwardings)."""
    network = lan(ask)
    gateway = {"external_gateway_info": {"network_id": outside["id"]}}
    router = ask("POST", "/v2.0/routers", {"router": gateway})["router"]
    subnet = {"subnet_id": network["subnets"][0]}
    ask("PUT", f"/v2.0/routers/{router['id']}/add_router_interface", subnet)
    port = ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"]}})["port"]
    floating = ask("POST", "/v2.0/floatingips", {"floatingip": {"floating_network_id": outside["id"]}})["floatingip"]
    return router, port, floating


def _path(floating):
    return f"/v2.0/floatingips/{floating['id']}/port_forwardings"


def _forward(ask, place, status=None, **fields):
    _router, port, floating = place
    body = {"internal_port_id": port["id"], "internal_port": 22, "external_port": 2222, "protocol": "tcp", **fields}
    answer = ask("POST", _path(floating), {"port_forwarding": body}, status)
    return answer.get("port_forwarding") or answer["NeutronError"]


def test_ports_of_one_address_lead_to_ports_of_servers(ask, service, engine, place):
    router, port, floating = place
    address = port["fixed_ips"][0]["ip_address"]
    first = _forward(ask, place)
    assert first == {**first, "internal_ip_address": address, "external_port_range": "2222:2222", "description": ""}
    second = _forward(ask, place, internal_port=80, external_port=80)
    _forward(ask, place, internal_port=53, external_port=53, protocol="udp")
    assert len(ask("GET", _path(floating))["port_forwardings"]) == 3
    assert ask("GET", f"/v2.0/floatingips/{floating['id']}")["floatingip"]["router_id"] == router["id"]
    service.worker.round()
    outside = floating["floating_ip_address"]
    assert engine.router(router["id"]).forwardings == (
        LogicalForwarding(floating["id"], "tcp", outside, ((80, address, 80), (2222, address, 22))),
        LogicalForwarding(floating["id"], "udp", outside, ((53, address, 53),)))
    changed = ask("PUT", f"{_path(floating)}/{first['id']}", {"port_forwarding": {"external_port": 2200}})
    assert changed["port_forwarding"] == {**first, "external_port": 2200, "external_port_range": "2200:2200"}
    ask("DELETE", f"{_path(floating)}/{second['id']}")
    service.worker.round()
    assert engine.router(router["id"]).forwardings[0].targets == ((2200, address, 22),)
    ask("DELETE", f"/v2.0/ports/{port['id']}")
    service.worker.round()
    assert engine.router(router["id"]).forwardings == ()
    assert ask("GET", _path(floating))["port_forwardings"] == []
    assert ask("GET", f"/v2.0/floatingips/{floating['id']}")["floatingip"]["router_id"] is None
    assert service.worker.differences() == []


def test_a_floating_ip_leads_to_one_port_or_has_port_forwardings(ask, place):
    router, port, floating = place
    path, body = f"/v2.0/floatingips/{floating['id']}", {"floatingip": {"port_id": port["id"]}}
    made = _forward(ask, place)
    assert ask("PUT", path, body, status=409)["NeutronError"]["type"] == "FipInUseByPortForwarding"
    network = port["fixed_ips"][0]["subnet_id"]
    for change, where in (({"subnet_id": network}, "/remove_router_interface"), (
            {"router": {"external_gateway_info": None}}, "")):
        assert ask("PUT", f"/v2.0/routers/{router['id']}{where}", change, status=409)
    ask("PUT", path, {"floatingip": {"description": "kept"}})
    assert ask("GET", f"{_path(floating)}/{made['id']}")["port_forwarding"] == made
    ask("DELETE", f"{_path(floating)}/{made['id']}")
    ask("PUT", path, body)
    assert _forward(ask, place, 409)["type"] == "FloatingIPInUse"
    ask("PUT", path, {"floatingip": {"port_id": None}})
    _forward(ask, place)
    ask("DELETE", path)
    assert ask("GET", _path(floating), status=404)


def test_an_address_with_port_forwardings_has_no_floating_ip_of_its_own(ask, place, outside):
    """Nor the other way round: its answers would come from that."""
    made, port = _forward(ask, place), place[1]
    own = {"floatingip": {"floating_network_id": outside["id"], "port_id": port["id"]}}
    assert ask("POST", "/v2.0/floatingips", own, status=400)["NeutronError"]["type"] == "PortHasPortForwarding"
    other = ask("POST", "/v2.0/floatingips", {"floatingip": {"floating_network_id": outside["id"]}})["floatingip"]
    path, body = f"/v2.0/floatingips/{other['id']}", {"floatingip": {"port_id": port["id"]}}
    assert ask("PUT", path, body, status=400)["NeutronError"]["type"] == "PortHasPortForwarding"
    ask("DELETE", f"{_path(place[2])}/{made['id']}")
    ask("PUT", path, body)
    assert _forward(ask, place, 409)["type"] == "FloatingIPPortAlreadyAssociated"


@pytest.mark.parametrize(("change", "words"), [
    ({"external_port": 70000}, "external_port"), ({"internal_port": 0}, "internal_port"),
    ({"protocol": "icmp"}, "protocol"), ({"internal_ip_address": "10.1.0.1"}, "10.1.0.1"),
    ({"internal_port": 23}, "duplicate"), ({"external_port": 2223}, "duplicate")])
def test_a_port_forwarding_that_cannot_be_says_why(ask, place, change, words):
    made = _forward(ask, place)
    assert words in _forward(ask, place, 400, **change)["message"]
    assert ask("GET", _path(place[2]))["port_forwardings"] == [made]


def test_whose_it_is(ask, lan, place):
    bob, made = ask.as_(BOB), _forward(ask, place)
    path = f"{_path(place[2])}/{made['id']}"
    assert bob("GET", path, status=404)
    assert bob("DELETE", path, status=404)
    assert _forward(bob, place, 404)["type"] == "FloatingipNotFound"
    theirs = bob("POST", "/v2.0/ports", {"port": {"network_id": lan(bob)["id"]}})["port"]
    assert _forward(ask, place, 404, internal_port_id=theirs["id"])["type"] == "PortNotFound"
    apart = ask("POST", "/v2.0/ports", {"port": {"network_id": lan(ask)["id"]}})["port"]
    refused = _forward(ask, place, 404, internal_port_id=apart["id"], external_port=1, internal_port=1)
    assert refused["type"] == "ExternalGatewayForFloatingIPNotFound"
    assert ask.as_(ADMIN)("GET", path)["port_forwarding"] == made
