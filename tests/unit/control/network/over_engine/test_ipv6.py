# SPDX-License-Identifier: GPL-3.0-or-later
"""IPv6 over an engine: modes, addresses that follow from the MAC, ports and routers of both, what guests are told."""

from __future__ import annotations

import uuid

import pytest

from tests.support.control.serving import ADMIN, ALICE, Asker

SLAAC = {"ipv6_address_mode": "slaac", "ipv6_ra_mode": "slaac"}
MAC, OF_MAC = "fa:16:3e:12:34:56", "fd00:1::f816:3eff:fe12:3456"


@pytest.fixture
def lan(ask) -> dict:
    """With a subnet of IPv4."""
    network = ask("POST", "/v2.0/networks", {"network": {"name": "lan"}})["network"]
    _subnet(ask, network, "10.1.0.0/24")
    return network


def _subnet(ask: Asker, network: dict, cidr: str = "fd00:1::/64", status: int | None = None, **fields) -> dict:
    answer = ask("POST", "/v2.0/subnets", {"subnet": {"network_id": network["id"], "cidr": cidr, **fields}}, status)
    return answer.get("subnet", answer)


def _port(ask: Asker, network: dict, status: int | None = None, **fields) -> dict:
    answer = ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"], **fields}}, status)
    return answer.get("port", answer)


def _addresses(port: dict) -> list[str]:
    return [one["ip_address"] for one in port["fixed_ips"]]


def test_guests_make_their_addresses_of_their_mac(ask, service, engine, lan):
    early = _port(ask, lan, mac_address=MAC)
    assert len(early["fixed_ips"]) == 1
    subnet = _subnet(ask, lan, ip_version=6, **SLAAC)
    assert (subnet["ip_version"], subnet["gateway_ip"], subnet["ipv6_ra_mode"]) == (6, "fd00:1::1", "slaac")
    assert subnet["allocation_pools"] == [{"start": "fd00:1::2", "end": "fd00:1::ffff:ffff:ffff:ffff"}]
    found = ask("GET", f"/v2.0/ports/{early['id']}")["port"]
    assert _addresses(found) == [*_addresses(early), OF_MAC]  # it was there before the subnet
    service.worker.round()
    assert (subnet["id"], OF_MAC) in engine.port(early["id"]).addresses
    only = _port(ask, lan, fixed_ips=[{"ip_address": "10.1.0.77"}])
    assert len(only["fixed_ips"]) == 2  # it has one whatever is asked, as in Neutron
    said = _port(ask, lan, 400, fixed_ips=[{"ip_address": "fd00:1::5"}])["NeutronError"]["message"]
    assert "automatic addresses" in said
    moved = ask("PUT", f"/v2.0/ports/{early['id']}", {"port": {"mac_address": "fa:16:3e:12:34:57"}})["port"]
    assert _addresses(moved)[1] == "fd00:1::f816:3eff:fe12:3457"
    kept = ask("PUT", f"/v2.0/ports/{early['id']}", {"port": {"fixed_ips": [{"ip_address": "10.1.0.9"}]}})["port"]
    assert _addresses(kept) == ["10.1.0.9", "fd00:1::f816:3eff:fe12:3457"]
    ask("DELETE", f"/v2.0/subnets/{subnet['id']}")
    assert _addresses(ask("GET", f"/v2.0/ports/{early['id']}")["port"]) == ["10.1.0.9"]
    service.worker.round()
    assert service.differences() == []


def test_dhcpv6_gives_addresses_of_the_pools(ask, lan):
    both = {"ipv6_address_mode": "dhcpv6-stateful", "ipv6_ra_mode": "dhcpv6-stateful"}
    subnet = _subnet(ask, lan, allocation_pools=[{"start": "fd00:1::10", "end": "fd00:1::12"}], **both)
    given = {_addresses(_port(ask, lan))[1] for _each in range(3)}
    assert given == {"fd00:1::10", "fd00:1::11", "fd00:1::12"}
    assert _port(ask, lan, 409)["NeutronError"]["type"] == "IpAddressGenerationFailure"
    chosen = _port(ask, lan, fixed_ips=[{"subnet_id": subnet["id"], "ip_address": "fd00:1::ffff:0:0:1"}])
    assert _addresses(chosen) == ["fd00:1::ffff:0:0:1"]
    _port(ask, lan, 409, fixed_ips=[{"ip_address": "fd00:1:0:0:ffff:0:0:1"}])
    assert [one["id"] for one in ask("GET", "/v2.0/subnets?ip_version=6")["subnets"]] == [subnet["id"]]
    assert [one["cidr"] for one in ask("GET", "/v2.0/subnets?ip_version=4")["subnets"]] == ["10.1.0.0/24"]
    ask("DELETE", f"/v2.0/subnets/{subnet['id']}", status=409)


@pytest.mark.parametrize(("fields", "word"), [
    ({"cidr": "fd00:1::/63"}, "64"), ({"cidr": "fd00:1::/127"}, "126"), ({"cidr": "fe80::/64"}, "link-local"),
    ({"cidr": "fd00:1::/80", **SLAAC}, "64"), ({"cidr": "fd00:1::/64", "ip_version": 4}, "ip_version"),
    ({"cidr": "10.7.0.0/24", "ip_version": 6}, "ip_version"), ({"cidr": "10.7.0.0/24", **SLAAC}, "is for IPv6"),
    ({"cidr": "fd00:1::/64", "ipv6_ra_mode": "slaac"}, "ipv6_address_mode"),
    ({"cidr": "fd00:1::/64", "ipv6_address_mode": "slaac", "ipv6_ra_mode": "dhcpv6-stateful"}, "ipv6_ra_mode"),
    ({"cidr": "fd00:1::/64", "ipv6_address_mode": "all"}, "ipv6_address_mode"),
    ({"cidr": "fd00:1::/64", "enable_dhcp": False, **SLAAC}, "enable_dhcp"),
    ({"cidr": "fd00:1::/64", "gateway_ip": "10.1.0.1"}, "gateway_ip"),
    ({"cidr": "fd00:1::/64", "gateway_ip": "fd00:2::1"}, "gateway_ip"),
    ({"cidr": "fd00:1::/64", "dns_nameservers": ["192.0.2.53"]}, "dns_nameservers"),
    ({"cidr": "10.7.0.0/24", "dns_nameservers": ["fd00::53"]}, "dns_nameservers"),
    ({"cidr": "fd00:1::/64", "host_routes": [{"destination": "fd00:9::/64", "nexthop": "fd00:1::9"}]}, "host_routes"),
    ({"cidr": "fd00:1::/64", "allocation_pools": [{"start": "10.1.0.2", "end": "10.1.0.9"}]}, "allocation pool"),
    ({"cidr": "fd00:1::/64", "allocation_pools": [{"start": "fd00:1::2", "end": "fd00:2::2"}]}, "allocation pool")])
def test_subnets_that_cannot_be(ask, lan, fields, word):
    assert word in _subnet(ask, lan, status=400, **fields)["NeutronError"]["message"]
    assert len(ask("GET", f"/v2.0/subnets?network_id={lan['id']}")["subnets"]) == 1


def test_a_link_of_ipv6_carries_1280_bytes(ask):
    small, least = (ask("POST", "/v2.0/networks", {"network": {"mtu": mtu}})["network"] for mtu in (1279, 1280))
    refused = _subnet(ask, small, status=409)["NeutronError"]
    assert (refused["type"], "1280" in refused["message"]) == ("NetworkMTUSubnetConflict", True)
    assert _subnet(ask, least)["ip_version"] == 6


def test_ranges_of_ipv6_overlap_too(ask, lan):
    _subnet(ask, lan)
    assert "overlaps" in _subnet(ask, lan, "fd00:1::/96", 400)["NeutronError"]["message"]
    other = ask("POST", "/v2.0/networks", {"network": {"name": "other"}})["network"]
    assert _subnet(ask, other)["cidr"] == "fd00:1::/64"


def test_ipv6_where_guests_of_several_projects_are(ask, lan):
    """Hosts drop what guests advertise as routers (``contract/network/test_advertisements.py``)."""
    admin = ask.as_(ADMIN)
    shared = admin("POST", "/v2.0/networks", {"network": {"shared": True}})["network"]
    assert _subnet(admin, shared)["ip_version"] == 6
    _subnet(ask, lan)
    assert admin("PUT", f"/v2.0/networks/{lan['id']}", {"network": {"shared": True}})["network"]["shared"] is True


def test_no_ipv6_of_agents_networks(ask, lan):
    admin = ask.as_(ADMIN)
    agents = admin("POST", "/v2.0/networks", {"network": {"provider:network_type": "nat"}})["network"]
    assert "networks of OVN" in _subnet(admin, agents, status=400)["NeutronError"]["message"]


def test_a_router_of_both(ask, service, engine, lan):
    admin = ask.as_(ADMIN)
    ext = admin("POST", "/v2.0/networks", {"network": {"provider:network_type": "flat", "router:external": True,
                                                       "provider:physical_network": "ext"}})["network"]
    for cidr in ("192.0.2.0/24", "2001:db8::/64"):
        _subnet(admin, ext, cidr, enable_dhcp=False)
    six = _subnet(ask, lan, **SLAAC)
    (four,) = [one for one in ask("GET", "/v2.0/subnets?ip_version=4")["subnets"] if one["network_id"] == lan["id"]]
    router = ask("POST", "/v2.0/routers", {"router": {"external_gateway_info": {"network_id": ext["id"]}}})["router"]
    assert len(router["external_gateway_info"]["external_fixed_ips"]) == 2
    for subnet in (four, six):
        ask("PUT", f"/v2.0/routers/{router['id']}/add_router_interface", {"subnet_id": subnet["id"]})
    route = {"destination": "fd00:9::/64", "nexthop": "fd00:1::9"}
    ask("PUT", f"/v2.0/routers/{router['id']}", {"router": {"routes": [route]}})
    for wrong in ({**route, "nexthop": "10.1.0.9"}, {**route, "nexthop": "fd00:1::1"}):
        ask("PUT", f"/v2.0/routers/{router['id']}", {"router": {"routes": [wrong]}}, status=400)
    service.worker.round()
    unit = engine.router(router["id"])
    assert set(unit.routes) == {("fd00:9::/64", "fd00:1::9"), ("0.0.0.0/0", "192.0.2.1"), ("::/0", "2001:db8::1")}
    assert [(nat.kind, nat.inside) for nat in unit.translations] == [("snat", "10.1.0.0/24")]
    assert {one.networks: (one.advertises, one.mtu) for one in unit.interfaces if not one.gateway} == {
        ("10.1.0.1/24",): (None, None), ("fd00:1::1/64",): ("slaac", 1442)}
    (outer,) = [one for one in unit.interfaces if one.gateway]
    assert len(outer.networks) == 2
    port = _port(ask, lan)
    made = ask("POST", "/v2.0/floatingips", {"floatingip": {"floating_network_id": ext["id"], "port_id": port["id"]}})
    assert made["floatingip"]["fixed_ip_address"] == _addresses(port)[0]
    assert ":" not in made["floatingip"]["floating_ip_address"]
    ask("PUT", f"/v2.0/routers/{router['id']}/remove_router_interface", {"subnet_id": six["id"]}, 409)
    ask("PUT", f"/v2.0/routers/{router['id']}", {"router": {"routes": []}})
    ask("PUT", f"/v2.0/routers/{router['id']}/remove_router_interface", {"subnet_id": six["id"]})


def test_what_a_guest_is_told(ask, service, lan):
    _subnet(ask, lan, dns_nameservers=["fd00::53"], **SLAAC)
    (nic,) = service.allocate(ALICE, str(uuid.uuid4()), service.check_requested(ALICE, [{"uuid": lan["id"]}]))
    four, six = [one["ip_address"] for one in nic["fixed_ips"]]
    assert nic["on_host"]["address"] == four
    assert nic["told"]["gateway"] == "10.1.0.1"
    assert nic["told"]["ipv6"] == [{"address": f"{six}/64", "mode": "slaac", "gateway": "fd00:1::1",
                                    "dns_nameservers": ["fd00::53"]}]
    only = ask("POST", "/v2.0/networks", {"network": {"name": "only"}})["network"]
    _subnet(ask, only, "fd00:2::/64")
    (nic,) = service.allocate(ALICE, str(uuid.uuid4()), service.check_requested(ALICE, [
        {"uuid": only["id"], "fixed_ip": "fd00:2::0:7"}]))
    assert "address" not in nic["on_host"]
    assert nic["told"] == {"mtu": 1442, "ipv6": [{"address": "fd00:2::7/64", "mode": None, "gateway": "fd00:2::1",
                                                  "dns_nameservers": []}]}


def test_another_mtu_reaches_dhcp_and_router_advertisements(ask, service, engine, lan):
    """Before servers are there. The network carries what it carries, and IPv6 needs 1280 bytes."""
    subnet = _subnet(ask, lan, **SLAAC)
    router = ask("POST", "/v2.0/routers", {"router": {"name": "r"}})["router"]["id"]
    ask("PUT", f"/v2.0/routers/{router}/add_router_interface", {"subnet_id": subnet["id"]})
    service.worker.round()
    path = f"/v2.0/networks/{lan['id']}"
    assert ask("PUT", path, {"network": {"mtu": 1400}})["network"]["mtu"] == 1400
    service.worker.round()
    assert engine.units[f"network/{lan['id']}"].mtu == 1400
    assert {one.mtu for one in engine.router(router).interfaces} == {1400}
    assert service.differences() == []
    assert "at most 1442" in ask("PUT", path, {"network": {"mtu": 1443}}, 400)["NeutronError"]["message"]
    refused = ask("PUT", path, {"network": {"mtu": 1279}}, 409)["NeutronError"]
    assert (refused["type"], "1280" in refused["message"]) == ("NetworkMTUSubnetConflict", True)
    assert ask("GET", path)["network"]["mtu"] == 1400


def test_the_mtu_stays_while_servers_are_there(ask, service, lan):
    """Their NICs have it. That of a network that hosts make stays whatever there is."""
    port, path = _port(ask, lan), f"/v2.0/networks/{lan['id']}"
    ask("PUT", path, {"network": {"mtu": 1400}})
    server = "4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
    service.allocate(ALICE, server, service.check_requested(ALICE, [{"port": port["id"]}]))
    for mtu in (1300, 1442):
        refused = ask("PUT", path, {"network": {"mtu": mtu}}, 409)["NeutronError"]
        assert (refused["type"], "1400" in refused["message"]) == ("NetworkInUse", True)
    ask("PUT", path, {"network": {"mtu": 1400, "name": "same"}}, 200)
    admin = ask.as_(ADMIN)
    nat = admin("POST", "/v2.0/networks", {"network": {"provider:network_type": "nat"}})["network"]["id"]
    said = admin("PUT", f"/v2.0/networks/{nat}", {"network": {"mtu": 1400}}, 400)["NeutronError"]["message"]
    assert "mtu: cannot change, but of a network of OVN" in said
