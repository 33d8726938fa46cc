# SPDX-License-Identifier: GPL-3.0-or-later
"""Routers and floating IPs over an engine."""

from __future__ import annotations

import uuid

import pytest

from magnetar_control.api.network.app import network_application
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_core.errors import Forbidden
from tests.support.control.serving import ADMIN, ALICE, BOB, READER, Asker, authenticate, connected, served

SERVER = str(uuid.uuid4())


def _subnet(ask: Asker, cidr: str = "10.1.0.0/24", **fields) -> dict:
    network = ask("POST", "/v2.0/networks", {"network": {"name": "lan"}})["network"]
    return ask("POST", "/v2.0/subnets", {"subnet": {"network_id": network["id"], "cidr": cidr, **fields}})["subnet"]


def _router(ask: Asker, outside: dict | None = None, status: int | None = None, **fields) -> dict:
    gateway = {"external_gateway_info": {"network_id": outside["id"]}} if outside else {}
    answer = ask("POST", "/v2.0/routers", {"router": {"name": "r1", **gateway, **fields}}, status)
    return answer.get("router", answer)


def _add(ask: Asker, router: dict, status: int | None = None, **wish) -> dict:
    return ask("PUT", f"/v2.0/routers/{router['id']}/add_router_interface", wish, status)


def _message(answer: dict) -> str:
    return answer["NeutronError"]["message"]


def _port(ask: Asker, subnet: dict) -> dict:
    return ask("POST", "/v2.0/ports", {"port": {"network_id": subnet["network_id"]}})["port"]


def test_a_router_joins_subnets_and_leads_out(ask, service, engine, outside):
    one, two = _subnet(ask), _subnet(ask, "10.2.0.0/24")
    router = _router(ask, outside)
    interface = _add(ask, router, subnet_id=one["id"])
    _add(ask, router, subnet_id=two["id"])
    service.worker.round()
    unit = engine.router(router["id"])
    (address,) = router["external_gateway_info"]["external_fixed_ips"]
    assert {each.networks for each in unit.interfaces} == {
        ("10.1.0.1/24",), ("10.2.0.1/24",), (f"{address['ip_address']}/24",)}
    assert [each.gateway for each in unit.interfaces].count(True) == 1
    assert {(nat.kind, nat.outside, nat.inside) for nat in unit.translations} == {
        ("snat", address["ip_address"], "10.1.0.0/24"), ("snat", address["ip_address"], "10.2.0.0/24")}
    assert unit.routes == (("0.0.0.0/0", "192.0.2.1"),)
    assert sorted(unit.chassis) == ["h1", "h2"]
    assert engine.port(interface["port_id"]).router == router["id"]
    ask("PUT", f"/v2.0/routers/{router['id']}/remove_router_interface", {"subnet_id": two["id"]})
    ask("PUT", f"/v2.0/routers/{router['id']}", {"router": {"external_gateway_info": {}}})
    service.worker.round()
    unit = engine.router(router["id"])
    assert ([each.networks for each in unit.interfaces], unit.translations, unit.routes, unit.chassis) == (
        [("10.1.0.1/24",)], (), (), ())
    assert service.differences() == []  # and so nothing of them is left
    ask("PUT", f"/v2.0/routers/{router['id']}/remove_router_interface", {"port_id": interface["port_id"]})
    ask("DELETE", f"/v2.0/routers/{router['id']}")
    service.worker.round()
    assert service.differences() == []
    assert engine.router(router["id"]) is None


def test_without_snat_only_floating_ips_lead_out(ask, service, engine, outside):
    router = ask.as_(ADMIN)("POST", "/v2.0/routers", {"router": {"project_id": "red", "external_gateway_info": {
        "network_id": outside["id"], "enable_snat": False}}})["router"]
    _add(ask, router, subnet_id=_subnet(ask)["id"])
    service.worker.round()
    assert engine.router(router["id"]).translations == ()


def test_only_admins_turn_snat_off(ask, outside):
    without = {"network_id": outside["id"], "enable_snat": False}
    assert "enable_snat) is disallowed" in _message(_router(ask, status=403, external_gateway_info=without))
    router, admin = _router(ask, outside), ask.as_(ADMIN)
    path = f"/v2.0/routers/{router['id']}"
    for gateway in (without, {**without, "network_id": _external(ask, "ext2")}):
        refused = ask("PUT", path, {"router": {"external_gateway_info": gateway}}, status=403)
        assert "update_router:external_gateway_info:enable_snat" in _message(refused)
    assert ask("GET", path)["router"]["external_gateway_info"]["enable_snat"] is True
    assert admin("PUT", path, {"router": {"external_gateway_info": without}})["router"]
    shown = ask("GET", path)["router"]["external_gateway_info"]  # clients send back what they have read
    assert ask("PUT", path, {"router": {"external_gateway_info": shown}})["router"]["external_gateway_info"] == shown
    moved = {**without, "network_id": _external(ask, "ext3")}
    ask("PUT", path, {"router": {"external_gateway_info": moved}}, status=403)
    ask("PUT", path, {"router": {"external_gateway_info": {**shown, "enable_snat": True}}})
    ask("PUT", path, {"router": {"external_gateway_info": shown}}, status=403)


def test_only_admins_choose_the_address_of_a_gateway(ask, outside):
    chosen = [{"ip_address": "192.0.2.77"}]
    gateway = {"network_id": outside["id"], "external_fixed_ips": chosen}
    assert "external_fixed_ips) is disallowed" in _message(_router(ask, status=403, external_gateway_info=gateway))
    router = _router(ask, outside)
    path = f"/v2.0/routers/{router['id']}"
    ask("PUT", path, {"router": {"external_gateway_info": gateway}}, status=403)
    made = ask.as_(ADMIN)("PUT", path, {"router": {"external_gateway_info": gateway}})["router"]
    assert made["external_gateway_info"]["external_fixed_ips"][0]["ip_address"] == "192.0.2.77"
    ask("PUT", path, {"router": {"external_gateway_info": gateway}})


def test_nobody_routes_in_the_network_of_another_project(ask, service, engine):
    """Its router would be the IPv6 router of all guests there."""
    admin, network = ask.as_(ADMIN), ask("POST", "/v2.0/networks", {"network": {"name": "office"}})["network"]
    six = {"network_id": network["id"], "cidr": "fd00:1::/64", "ip_version": 6, "gateway_ip": None,
           "ipv6_ra_mode": "dhcpv6-stateful", "ipv6_address_mode": "dhcpv6-stateful"}
    subnet = ask("POST", "/v2.0/subnets", {"subnet": six})["subnet"]
    ask("POST", "/v2.0/rbac-policies", {"rbac_policy": {
        "object_type": "network", "object_id": network["id"], "action": "access_as_shared", "target_tenant": "blue"}})
    bob = ask.as_(BOB)
    port, router = _port(bob, subnet), _router(bob)
    assert "another project. Ask an admin" in _message(_add(bob, router, 403, port_id=port["id"]))
    _add(bob, router, 404, subnet_id=subnet["id"])
    service.worker.round()
    assert engine.router(router["id"]).interfaces == ()
    own = {"network_id": network["id"], "cidr": "10.8.0.0/24", "project_id": "blue"}
    own = admin("POST", "/v2.0/subnets", {"subnet": own})["subnet"]  # also in a subnet of the own project there
    _add(bob, router, 403, subnet_id=own["id"])
    _add(admin, router, port_id=port["id"])


def _external(ask: Asker, name: str) -> str:
    made = ask.as_(ADMIN)("POST", "/v2.0/networks", {"network": {
        "name": name, "provider:network_type": "flat", "provider:physical_network": name, "router:external": True}})
    return made["network"]["id"]


def test_static_routes(ask, service, engine):
    router = _router(ask)
    _add(ask, router, subnet_id=_subnet(ask)["id"])
    path, route = f"/v2.0/routers/{router['id']}", {"destination": "10.9.0.0/16", "nexthop": "10.1.0.9"}
    ask("PUT", path, {"router": {"routes": [route]}})
    service.worker.round()
    assert engine.router(router["id"]).routes == (("10.9.0.0/16", "10.1.0.9"),)
    for hop in ("10.1.0.1", "10.7.0.1"):  # itself, and nowhere
        refused = ask("PUT", path, {"router": {"routes": [{**route, "nexthop": hop}]}}, status=400)
        assert "routes" in _message(refused)
    refused = ask("PUT", path, {"router": {"routes": [route, {**route, "destination": "10.9.7.7/16"}]}}, status=400)
    assert "routes[1]: must not stand in the list twice" in _message(refused)
    refused = ask("PUT", f"{path}/remove_router_interface", {"subnet_id": _subnets_of(ask, router)[0]}, status=409)
    assert refused["NeutronError"]["type"] == "RouterInterfaceInUseByRoute"  # Terraform tries again after a 409
    assert "10.9.0.0/16 by 10.1.0.9" in _message(refused)


def _subnets_of(ask: Asker, router: dict) -> list[str]:
    found = ask("GET", f"/v2.0/ports?device_id={router['id']}")["ports"]
    return [fixed["subnet_id"] for port in found for fixed in port["fixed_ips"]]


def test_single_routes_come_and_go(ask, service, engine):
    router = _router(ask)
    _add(ask, router, subnet_id=_subnet(ask)["id"])
    one, two = ({"destination": f"10.{net}.0.0/16", "nexthop": "10.1.0.9"} for net in (8, 9))

    def said(verb: str, *routes: dict, status: int | None = None, who: Asker = ask) -> dict:
        return who("PUT", f"/v2.0/routers/{router['id']}/{verb}_extraroutes", {"router": {"routes": [*routes]}}, status)

    assert said("add", one)["router"]["routes"] == [one]
    assert said("add", two, one, two)["router"]["routes"] == [one, two]
    service.worker.round()
    assert engine.router(router["id"]).routes == (("10.8.0.0/16", "10.1.0.9"), ("10.9.0.0/16", "10.1.0.9"))
    assert said("remove", one, {**two, "nexthop": "10.1.0.8"})["router"]["routes"] == [two]
    service.worker.round()
    assert engine.router(router["id"]).routes == (("10.9.0.0/16", "10.1.0.9"),)
    assert "nexthop in a subnet" in _message(said("add", {**one, "nexthop": "10.7.0.1"}, status=400))
    many = [{"destination": f"10.9.{number}.0/24", "nexthop": "10.1.0.9"} for number in range(30)]
    assert "30 static routes at most" in _message(said("add", *many, status=400))
    said("add", one, status=404, who=ask.as_(BOB))
    said("add", one, status=403, who=ask.as_(READER))
    assert ask("GET", f"/v2.0/routers/{router['id']}")["router"]["routes"] == [two]


def test_routes_have_an_end(ask):
    routes = [{"destination": f"10.9.{number}.0/24", "nexthop": "10.1.0.9"} for number in range(31)]
    refused = ask("POST", "/v2.0/routers", {"router": {"name": "r", "routes": routes}}, 400)["NeutronError"]
    assert "routes: must have at most 30 items" in refused["message"]


def test_interfaces_that_cannot_be(ask, outside):
    one, router = _subnet(ask), _router(ask, outside)
    _add(ask, router, subnet_id=one["id"])
    overlapping, without = _subnet(ask, "10.1.0.128/25"), _subnet(ask, "10.3.0.0/24", gateway_ip=None)
    outer = _subnet(ask, "192.0.2.0/25")
    for subnet, words in ((one, "overlaps"), (overlapping, "overlaps"), (without, "gateway IP"), (outer, "overlaps")):
        assert words in _message(_add(ask, router, 400, subnet_id=subnet["id"]))
    _add(ask, _router(ask), 409, subnet_id=one["id"])  # another router has the gateway's address
    _add(ask, router, 400)
    _add(ask, router, 404, subnet_id=_subnet(ask.as_(BOB), "10.4.0.0/24")["id"])
    _add(ask.as_(BOB), router, 404, subnet_id=_subnet(ask.as_(BOB), "10.5.0.0/24")["id"])
    _add(ask.as_(READER), router, 403, subnet_id=one["id"])
    ask("DELETE", f"/v2.0/routers/{router['id']}", status=409)


def test_an_interface_of_a_port(ask, service, engine):
    subnet, router = _subnet(ask), _router(ask)
    port = _port(ask, subnet)
    _add(ask, router, port_id=port["id"])
    service.worker.round()
    assert engine.router(router["id"]).interfaces[0].networks == (f"{port['fixed_ips'][0]['ip_address']}/24",)
    refused = ask("DELETE", f"/v2.0/ports/{port['id']}", status=409)
    assert refused["NeutronError"]["type"] == "ServicePortInUse"
    ask("PUT", f"/v2.0/ports/{port['id']}", {"port": {"device_id": ""}}, status=409)


@pytest.mark.parametrize("owner", ["network:router_interface", "network:floatingip"])
def test_nobody_makes_ports_of_the_clouds_own(ask, owner):
    router, subnet = _router(ask), _subnet(ask)
    for who in (ask, ask.as_(ADMIN)):
        body = {"network_id": subnet["network_id"], "device_owner": owner, "device_id": router["id"]}
        assert "device_owner" in _message(who("POST", "/v2.0/ports", {"port": body}, status=400))


def test_a_server_says_that_it_needs_a_host_with_ovn(ask, service):
    """By its networks, and by a port; a network that hosts make themselves needs none."""
    subnet, admin = _subnet(ask), ask.as_(ADMIN)
    for wish in ({"uuid": subnet["network_id"]}, {"port": _port(ask, subnet)["id"]}):
        (found,) = service.check_requested(ALICE, [wish])
        assert found["by_engine"], wish
    made = admin("POST", "/v2.0/networks", {"network": {"provider:network_type": "nat", "project_id": "red"}})
    admin("POST", "/v2.0/subnets", {"subnet": {"network_id": made["network"]["id"], "cidr": "10.7.0.0/24"}})
    assert "by_engine" not in service.check_requested(ALICE, [{"uuid": made["network"]["id"]}])[0]


def test_external_networks_are_seen_and_not_used_by_servers(ask, service, outside):
    assert [one["name"] for one in ask("GET", "/v2.0/networks?router:external=True")["networks"]] == ["ext"]
    ask("POST", "/v2.0/ports", {"port": {"network_id": outside["id"]}}, status=403)
    with pytest.raises(Forbidden, match=f"external network {outside['id']}.*network:attach_external_network"):
        service.check_requested(ALICE, [{"uuid": outside["id"]}])
    (wish,) = service.check_requested(ALICE, [{"uuid": outside["id"]}], external=True)
    (nic,) = service.allocate(ALICE, str(uuid.uuid4()), [wish])
    assert nic["fixed_ips"][0]["ip_address"].startswith("192.0.2.")
    port = ask.as_(ADMIN)("POST", "/v2.0/ports", {"port": {"network_id": outside["id"], "project_id": "red"}})["port"]
    with pytest.raises(Forbidden):
        service.check_requested(ALICE, [{"port": port["id"]}])
    assert service.check_requested(ADMIN, [{"port": port["id"]}], external=True)[0]["by_engine"]
    assert service.check_requested(ALICE, []) == []
    lan = _subnet(ask)
    refused = ask("POST", "/v2.0/routers", {"router": {"external_gateway_info": {"network_id": lan["network_id"]}}},
                  status=400)
    assert "external network" in _message(refused)
    admin = ask.as_(ADMIN)
    refused = admin("POST", "/v2.0/networks", {"network": {"router:external": True}}, status=400)
    assert "router:external" in _message(refused)
    _router(ask, outside)
    admin("PUT", f"/v2.0/networks/{outside['id']}", {"network": {"router:external": False}}, status=409)


@pytest.fixture
def reached(ask, service, outside) -> tuple[dict, dict]:
    """A router that leads out, and a server's port behind it."""
    subnet, router = _subnet(ask), _router(ask, outside)
    _add(ask, router, subnet_id=subnet["id"])
    wish = service.check_requested(ALICE, [{"uuid": subnet["network_id"]}])
    (nic,) = service.allocate(ALICE, SERVER, wish)
    return router, nic


def _floating(ask: Asker, outside: dict, status: int | None = None, **fields) -> dict:
    body = {"floatingip": {"floating_network_id": outside["id"], **fields}}
    answer = ask("POST", "/v2.0/floatingips", body, status)
    return answer.get("floatingip", answer)


def test_a_floating_ip_reaches_a_port_until_it_goes(ask, service, engine, outside, reached):
    router, nic = reached
    fixed = nic["fixed_ips"][0]["ip_address"]
    made = _floating(ask, outside)
    assert (made["status"], made["port_id"], made["router_id"]) == ("DOWN", None, None)
    path = f"/v2.0/floatingips/{made['id']}"
    found = ask("PUT", path, {"floatingip": {"port_id": nic["port_id"]}})["floatingip"]
    assert (found["status"], found["fixed_ip_address"], found["router_id"]) == ("ACTIVE", fixed, router["id"])
    service.worker.round()

    def floating() -> list:
        return [(nat.outside, nat.inside, nat.port_id) for nat in engine.router(router["id"]).translations
                if nat.kind == "floating"]

    assert floating() == [(made["floating_ip_address"], fixed, nic["port_id"])]
    ask("DELETE", f"/v2.0/routers/{router['id']}", status=409)
    ask("PUT", f"/v2.0/routers/{router['id']}", {"router": {"external_gateway_info": None}}, status=409)
    refused = ask("PUT", f"/v2.0/routers/{router['id']}/remove_router_interface",
                  {"subnet_id": nic["fixed_ips"][0]["subnet_id"]}, status=409)
    assert made["floating_ip_address"] in _message(refused)
    ask("PUT", path, {"floatingip": {"port_id": None}})
    service.worker.round()
    assert floating() == []
    ask("PUT", path, {"floatingip": {"port_id": nic["port_id"], "fixed_ip_address": fixed}})
    service.worker.round()
    assert floating()
    service.release(SERVER)  # the server is deleted
    assert ask("GET", path)["floatingip"]["port_id"] is None
    service.worker.round()
    assert floating() == []
    ask("DELETE", path)
    assert service.differences() == []


def test_floating_ips_are_found_by_status_and_router(ask, outside, reached):
    router, nic = reached
    up, down = _floating(ask, outside, port_id=nic["port_id"])["id"], _floating(ask, outside)["id"]
    for query, found in (("status=ACTIVE", [up]), ("status=DOWN", [down]), ("status=ACTIVE&status=DOWN", [up, down]),
                         ("status=ERROR", []), (f"router_id={router['id']}", [up])):
        assert [one["id"] for one in ask("GET", f"/v2.0/floatingips?{query}")["floatingips"]] == found, query


def test_floating_ips_that_cannot_be(ask, outside, reached):
    nic = reached[1]
    first = _floating(ask, outside, port_id=nic["port_id"])
    # Addresses are drawn, also the router's: none is one of these.
    drawn = str(ask.as_(ADMIN)("GET", f"/v2.0/ports?network_id={outside['id']}")["ports"])
    wish = next(f"192.0.2.{last}" for last in (97, 98, 99) if f"192.0.2.{last}" not in drawn)
    other = next(f"10.1.0.{last}" for last in (99, 98) if f"10.1.0.{last}" not in str(nic["fixed_ips"]))
    again = _floating(ask, outside, 409, port_id=nic["port_id"])
    assert first["floating_ip_address"] in _message(again)
    assert again["NeutronError"]["type"] == "FloatingIPPortAlreadyAssociated"
    alone = _port(ask, _subnet(ask, "10.8.0.0/24"))
    assert "not reachable" in _message(_floating(ask, outside, 404, port_id=alone["id"]))
    assert f"fixed IP {other}" in _message(_floating(ask, outside, 400, port_id=nic["port_id"],
                                                      fixed_ip_address=other))
    assert "without a port_id" in _message(_floating(ask, outside, 400, fixed_ip_address=other))
    theirs = _port(ask.as_(BOB), _subnet(ask.as_(BOB)))
    _floating(ask, outside, 404, port_id=theirs["id"])
    _floating(ask, {"id": alone["network_id"]}, 400)
    _floating(ask, outside, 403, floating_ip_address=wish)
    _floating(ask.as_(READER), outside, 403)
    ask.as_(BOB)("GET", f"/v2.0/floatingips/{first['id']}", status=404)
    assert len(ask("GET", "/v2.0/floatingips")["floatingips"]) == 1
    chosen = _floating(ask.as_(ADMIN), outside, floating_ip_address=wish)
    assert chosen["floating_ip_address"] == wish
    _floating(ask.as_(ADMIN), outside, 409, floating_ip_address=wish)


def test_a_floating_ip_without_a_port_has_no_fixed_address(ask, outside):
    path = f"/v2.0/floatingips/{_floating(ask, outside)['id']}"
    for values in ({"fixed_ip_address": "10.1.0.9"}, {"port_id": None, "fixed_ip_address": "10.1.0.9"}):
        assert "without a port_id" in _message(ask("PUT", path, {"floatingip": values}, status=400))
    assert ask("GET", path)["floatingip"]["fixed_ip_address"] is None


def test_a_project_has_so_many(sqlite, engine):
    service = EmbeddedNetworks(sqlite, default_cidr=None, engine=engine, limits={"router": 1, "floatingip": 0})
    ask = Asker(network_application(service, authenticate))
    _router(ask)
    assert ask("POST", "/v2.0/routers", {"router": {}}, status=409)["NeutronError"]["type"] == "OverQuota"
    limits = ask.as_(ADMIN)("PUT", "/v2.0/quotas/red", {"quota": {"router": 2}})["quota"]
    assert (limits["router"], limits["floatingip"]) == (2, 0)
    _router(ask)


def test_the_gateways_address_changes_with_the_subnet(ask, service, engine, outside):
    router = _router(ask, outside)
    service.worker.round()
    admin = ask.as_(ADMIN)
    (subnet,) = admin("GET", f"/v2.0/subnets?network_id={outside['id']}")["subnets"]
    admin("PUT", f"/v2.0/subnets/{subnet['id']}", {"subnet": {"gateway_ip": None}})
    service.worker.round()
    assert engine.router(router["id"]).routes == ()


def test_the_real_client(service, engine, outside):
    with (served(network=network_application(service, authenticate)) as url,
          connected(url, "alice", network_endpoint_override=f"{url}/network") as client):
        network = client.network.create_network(name="lan")
        subnet = client.network.create_subnet(network_id=network.id, ip_version=4, cidr="10.1.0.0/24")
        found = client.network.find_network("ext")
        router = client.network.create_router(name="r1", external_gateway_info={"network_id": found.id})
        client.network.add_interface_to_router(router, subnet_id=subnet.id)
        port = client.network.create_port(network_id=network.id)
        ip = client.network.create_ip(floating_network_id=found.id, port_id=port.id)
        assert (ip.router_id, ip.status) == (router.id, "ACTIVE")
        assert [one.id for one in client.network.routers()] == [router.id]
        client.network.update_ip(ip, port_id=None)
        client.network.delete_ip(ip)
        client.network.remove_interface_from_router(router, subnet_id=subnet.id)
        client.network.delete_router(router)
        service.worker.round()
        assert service.differences() == []
