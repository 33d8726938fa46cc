# SPDX-License-Identifier: GPL-3.0-or-later
"""What Neutron has and nothing here acts on: refused by name with the reason, but for what is so anyway."""

from __future__ import annotations

import pytest

from magnetar_control.api.network import lacking, without
from tests.support.control.serving import ADMIN

#: Word, path and attributes of each resource.
RESOURCES = {"network": ("networks", lacking.NETWORK), "subnet": ("subnets", lacking.SUBNET),
             "port": ("ports", lacking.PORT), "router": ("routers", lacking.ROUTER),
             "floatingip": ("floatingips", lacking.FLOATING_IP)}


@pytest.fixture
def needs(ask, outside, lan) -> dict[str, dict]:
    """What a new one of each must have."""
    network = lan(ask)["id"]
    return {"subnet": {"network_id": network, "cidr": "10.9.0.0/24"}, "port": {"network_id": network},
            "floatingip": {"floating_network_id": outside["id"]}}


@pytest.mark.parametrize("word", RESOURCES)
def test_an_attribute_that_nothing_acts_on_says_why(ask, needs, word):
    path, attributes = RESOURCES[word]
    need, admin = needs.get(word, {}), ask.as_(ADMIN)
    made = admin("POST", f"/v2.0/{path}", {word: {
        **need, **{name: value.usual[-1] for name, value in attributes.items()}}})[word]
    for name, value in attributes.items():
        for wrong in ("blue", 7, 0, 1, ["blue"], not value.usual[-1]):
            if isinstance(wrong, bool) and any(wrong is usual for usual in value.usual):
                continue
            for method, where, besides in (("POST", path, need), ("PUT", f"{path}/{made['id']}", {})):
                refused = admin(method, f"/v2.0/{where}", {word: {**besides, name: wrong}}, status=400)
                assert f"{word}.{name}: {value.why} (got" in refused["NeutronError"]["message"]
        for usual in value.usual:
            admin("PUT", f"/v2.0/{path}/{made['id']}", {word: {name: usual}})


def test_a_gateway_has_no_qos_policy(ask, outside):
    gateway = {"network_id": outside["id"], "qos_policy_id": None}
    router = ask("POST", "/v2.0/routers", {"router": {"external_gateway_info": gateway}})["router"]
    gateway["qos_policy_id"] = "0e5d0f4a-0000-4000-8000-000000000000"
    refused = ask("PUT", f"/v2.0/routers/{router['id']}", {"router": {"external_gateway_info": gateway}}, status=400)
    assert "external_gateway_info.qos_policy_id: must be null: QoS policies" in refused["NeutronError"]["message"]


def test_a_floating_ip_keeps_the_router_of_its_port(ask, outside, lan):
    network = lan(ask)
    gateway = {"network_id": outside["id"]}
    router = ask("POST", "/v2.0/routers", {"router": {"external_gateway_info": gateway}})["router"]
    subnet = ask("GET", f"/v2.0/subnets?network_id={network['id']}")["subnets"][0]["id"]
    ask("PUT", f"/v2.0/routers/{router['id']}/add_router_interface", {"subnet_id": subnet, "advertise_host": False})
    port = ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"]}})["port"]
    floating = ask("POST", "/v2.0/floatingips", {"floatingip": {
        "floating_network_id": outside["id"], "port_id": port["id"], "router_id": None}})["floatingip"]
    path = f"/v2.0/floatingips/{floating['id']}"
    assert floating["router_id"] == router["id"]
    assert ask("PUT", path, {"floatingip": {"router_id": None}})["floatingip"]["router_id"] == router["id"]


@pytest.mark.parametrize(("path", "body", "words"), [
    ("routers/{id}/add_router_interface", {"subnet_id": "0e5d0f4a-0000-4000-8000-000000000000", "advertise_host": True},
     "advertise_host: must be false: routers announce nothing"),
    ("floatingips/{id}/port_forwardings", {"port_forwarding": {
        "internal_port_id": "0e5d0f4a-0000-4000-8000-000000000000", "internal_port_range": "22:30",
        "external_port": 22, "internal_port": 22, "protocol": "tcp"}},
     "internal_port_range: must be left out: a forwarding is of one port, which internal_port says"),
    ("subnets", {"subnet": {"network_id": "0e5d0f4a-0000-4000-8000-000000000000", "ip_version": 6,
                            "subnetpool_id": "prefix_delegation"}},
     "subnetpool_id: must be the uuid of a subnet pool: no router here asks others")])
def test_what_else_nothing_acts_on(ask, outside, path, body, words):
    router = ask("POST", "/v2.0/routers", {"router": {}})["router"]
    floating = ask("POST", "/v2.0/floatingips", {"floatingip": {"floating_network_id": outside["id"]}})["floatingip"]
    id = router["id"] if path.startswith("routers") else floating["id"]
    method = "PUT" if path.startswith("routers") else "POST"
    assert words in ask(method, f"/v2.0/{path.format(id=id)}", body, status=400)["NeutronError"]["message"]


def test_resources_that_there_are_none_of_say_why(ask):
    for place, why in without.PLACES.items():
        method, path = place.split()
        found = ask(method, f"/v2.0/{path.format(id='x', network_id='y', router_id='z')}", {}, status=404)
        assert found["NeutronError"]["message"] == why
    for path, why in without.COLLECTIONS.items():
        assert ask("GET", f"/v2.0/{path}?name=x", status=404)["NeutronError"]["message"] == why
        assert ask("DELETE", f"/v2.0/{path}/x", status=404)["NeutronError"]["message"] == why


def test_lists_have_what_clients_read(ask, lan):
    """OpenStack's client ends with a Python error where a subnet has no list of service types."""
    network = lan(ask)
    assert ask("GET", f"/v2.0/subnets?network_id={network['id']}")["subnets"][0]["service_types"] == []
    assert network["pvlan"] is False
