# SPDX-License-Identifier: GPL-3.0-or-later
"""The network service over an engine: what members make there, and what it is told of that."""

from __future__ import annotations

import pytest

from magnetar_control.api.network.app import network_application
from magnetar_control.services.network import EmbeddedNetworks, engine_of
from magnetar_control.settings import Settings
from magnetar_core.errors import Conflict, Forbidden, InvalidSettings
from tests.support.control.serving import ADMIN, ALICE, BOB, Asker, authenticate, connected, served

from .conftest import SERVER, new_network, new_port, new_server


def test_members_make_networks_of_ovn_with_any_addresses(ask, service, engine):
    mine, theirs = new_network(ask), new_network(ask.as_(BOB))  # the same range in two projects
    seen = ask.as_(ADMIN)("GET", f"/v2.0/networks/{mine['id']}")["network"]
    assert (seen["provider:network_type"], seen["mtu"]) == ("ovn", 1442)
    service.worker.round()
    for network in (mine, theirs):
        unit = engine.units[f"network/{network['id']}"]
        assert [(one.cidr, one.gateway, one.dhcp) for one in unit.subnets] == [("10.1.0.0/24", "10.1.0.1", True)]
    assert service.on_host(mine["id"]) is None  # no agent makes it
    ask("DELETE", f"/v2.0/networks/{mine['id']}")
    service.worker.round()
    assert f"network/{mine['id']}" not in engine.units


def test_a_network_of_ovn_has_more_than_one_subnet(ask, service, engine):
    network = new_network(ask)
    body = {"network_id": network["id"], "cidr": "10.2.0.0/24", "ip_version": 4, "dns_nameservers": ["192.0.2.1"],
            "host_routes": [{"destination": "10.9.0.0/16", "nexthop": "10.2.0.9"}], "gateway_ip": "10.2.0.254",
            "allocation_pools": [{"start": "10.2.0.10", "end": "10.2.0.20"}]}
    second = ask("POST", "/v2.0/subnets", {"subnet": body})["subnet"]
    overlapping = {"network_id": network["id"], "cidr": "10.2.0.128/25"}
    refused = ask("POST", "/v2.0/subnets", {"subnet": overlapping}, status=400)
    assert "overlaps with another subnet" in refused["NeutronError"]["message"]
    ask("PUT", f"/v2.0/subnets/{second['id']}", {"subnet": {"gateway_ip": "10.2.0.253"}})
    service.worker.round()
    (unit,) = (one for one in engine.units[f"network/{network['id']}"].subnets if one.id == second["id"])
    assert (unit.gateway, unit.dns, unit.routes) == ("10.2.0.253", ("192.0.2.1",), (("10.9.0.0/16", "10.2.0.9"),))


def test_the_nic_of_a_server_is_its_port(ask, service):
    network = new_network(ask)
    nic = new_server(service, network)
    assert nic["on_host"] == {"port": nic["port_id"], "mac": nic["mac"], "address": nic["fixed_ips"][0]["ip_address"]}
    assert nic["told"]["mtu"] == 1442


def test_the_engine_has_the_default_group_of_each_project(ask, service):
    """However it came: by a list, with another group, or with a server whose NICs are none of the engine's."""
    service.worker.round()
    ask("GET", "/v2.0/security-groups")
    service.worker.round()
    assert service.differences() == []
    ask.as_(BOB)("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})
    service.worker.round()
    assert service.differences() == []
    admin = ask.as_(ADMIN)
    nat = new_network(admin, **{"provider:network_type": "nat"})
    new_server(service, nat, ADMIN, "4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3e")
    service.worker.round()
    assert service.differences() == []


@pytest.mark.parametrize(("network", "words"), [
    ({"mtu": 1443}, "mtu: must be at most 1442"),
    ({"provider:network_type": "vlan", "provider:physical_network": "ext"}, "provider:segmentation_id"),
    ({"provider:network_type": "vlan", "provider:physical_network": "ext", "provider:segmentation_id": 4095}, "4094"),
    ({"provider:network_type": "flat"}, "provider:physical_network"),
    ({"provider:network_type": "flat", "provider:physical_network": "a:b,c"}, "provider:physical_network"),
    ({"provider:network_type": "flat", "provider:physical_network": "ext", "provider:segmentation_id": 5}, "VLAN tag"),
    ({"provider:physical_network": "ext"}, "provider:physical_network")])
def test_a_network_that_cannot_be_names_the_field(ask, network, words):
    refused = ask.as_(ADMIN)("POST", "/v2.0/networks", {"network": network}, status=400)
    assert words in refused["NeutronError"]["message"]


@pytest.mark.parametrize("gateway", ["10.4.0.1", "10.3.0.0", "10.3.0.255"])
def test_a_gateway_is_an_address_of_the_subnet(ask, gateway):
    network = new_network(ask)
    body = {"network_id": network["id"], "cidr": "10.3.0.0/24", "gateway_ip": gateway}
    refused = ask("POST", "/v2.0/subnets", {"subnet": body}, status=400)
    assert "gateway_ip: must be" in refused["NeutronError"]["message"]


def test_there_is_one_network_on_a_vlan(ask, service, engine):
    admin = ask.as_(ADMIN)
    body = {"provider:network_type": "vlan", "provider:physical_network": "ext", "provider:segmentation_id": 7}
    made = admin("POST", "/v2.0/networks", {"network": body})["network"]
    assert made["mtu"] == 1500
    assert admin("POST", "/v2.0/networks", {"network": body}, status=409)["NeutronError"]["type"] == "VlanIdInUse"
    service.worker.round()
    unit = engine.units[f"network/{made['id']}"]
    assert (unit.physical, unit.vlan) == ("ext", 7)


def test_without_an_engine_there_are_no_such_networks(sqlite):
    ask = Asker(network_application(EmbeddedNetworks(sqlite), authenticate), ADMIN)
    for type in ("ovn", "vlan"):
        refused = ask("POST", "/v2.0/networks", {"network": {"provider:network_type": type}}, status=400)
        assert "ovn_northbound" in refused["NeutronError"]["message"]


def test_ports_with_their_addresses_groups_and_pairs(ask, service, engine):
    network = new_network(ask)
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]
    port = new_port(ask, network, security_groups=[group["id"]], allowed_address_pairs=[
        {"ip_address": "10.1.0.200"}, {"ip_address": "10.7.0.9/16", "mac_address": "02:00:00:00:00:09"}])
    assert port["allowed_address_pairs"] == [
        {"ip_address": "10.1.0.200", "mac_address": port["mac_address"]},
        {"ip_address": "10.7.0.0/16", "mac_address": "02:00:00:00:00:09"}]
    service.worker.round()
    unit = engine.port(port["id"])
    assert [address for _subnet, address in unit.addresses] == [port["fixed_ips"][0]["ip_address"]]
    assert (unit.groups, unit.secure) == ((group["id"],), True)
    assert unit.pairs == ((port["mac_address"], "10.1.0.200"), ("02:00:00:00:00:09", "10.7.0.0/16"))
    ask("PUT", f"/v2.0/ports/{port['id']}", {"port": {"port_security_enabled": False, "security_groups": [],
                                                      "allowed_address_pairs": []}})
    service.worker.round()
    assert (engine.port(port["id"]).secure, engine.port(port["id"]).pairs) == (False, ())


def test_what_stands_twice_is_refused(ask):
    """As Neutron has it, also of what is the same in other words; and nothing changes."""
    network = new_network(ask)
    (subnet,) = ask("GET", f"/v2.0/subnets?network_id={network['id']}")["subnets"]
    port = new_port(ask, network)
    own, other = {"ip_address": "10.1.0.200"}, {"ip_address": "10.1.0.201"}
    route = {"destination": "10.9.0.0/16", "nexthop": "10.1.0.9"}
    cases = [
        ("port", port, "allowed_address_pairs", [own, {**own, "mac_address": port["mac_address"].upper()}],
         [own, other]),
        ("port", port, "allowed_address_pairs", [other, own, {"ip_address": "10.1.0.200/32"}], [own, other]),
        ("subnet", subnet, "dns_nameservers", ["192.0.2.1", "192.0.2.2", "192.0.2.1"], ["192.0.2.2", "192.0.2.1"]),
        ("subnet", subnet, "host_routes", [route, {**route, "destination": "10.9.7.0/16"}],
         [route, {**route, "nexthop": "10.1.0.8"}])]
    for noun, made, field, wrong, right in cases:
        path = f"/v2.0/{noun}s/{made['id']}"
        said = ask("PUT", path, {noun: {field: wrong}}, status=400)["NeutronError"]["message"]
        assert f"{field}[{len(wrong) - 1}]: must not stand in the list twice" in said
        assert ask("GET", path)[noun][field] == made[field]
        made[field] = ask("PUT", path, {noun: {field: right}})[noun][field]
        assert len(made[field]) == 2
    said = ask("POST", "/v2.0/ports", {"port": {
        "network_id": network["id"], "mac_address": "02:00:00:00:00:09", "allowed_address_pairs": [
            own, {**own, "mac_address": "02:00:00:00:00:09"}]}}, status=400)["NeutronError"]["message"]
    assert "allowed_address_pairs[1]" in said


def test_address_pairs_need_port_security_and_a_network_of_ovn(ask):
    admin = ask.as_(ADMIN)
    pairs = [{"ip_address": "10.1.0.200"}]
    off = {"port_security_enabled": False, "allowed_address_pairs": pairs}
    network, nat = new_network(admin), new_network(admin, "10.66.0.0/24", **{"provider:network_type": "nat"})
    assert admin("POST", "/v2.0/ports", {"port": {"network_id": network["id"], **off}}, status=409)["NeutronError"][
        "type"] == "AddressPairAndPortSecurityRequired"
    on_nat = {"network_id": nat["id"], "allowed_address_pairs": pairs}
    refused = admin("POST", "/v2.0/ports", {"port": on_nat}, status=400)
    assert "allowed_address_pairs" in refused["NeutronError"]["message"]
    port = new_port(admin, network, allowed_address_pairs=pairs)
    admin("PUT", f"/v2.0/ports/{port['id']}", {"port": {"port_security_enabled": False, "security_groups": []}},
          status=409)


def test_address_pairs_are_for_the_networks_own_project(ask):
    """As with Neutron: by them a guest of a shared network would send as its neighbour, or as the gateway."""
    admin, pair = ask.as_(ADMIN), {"ip_address": "10.1.0.1"}
    network = new_network(admin, shared=True)
    wish = {"network_id": network["id"], "allowed_address_pairs": [pair]}
    refused = ask("POST", "/v2.0/ports", {"port": wish}, status=403)["NeutronError"]
    assert (refused["type"], "create_port:allowed_address_pairs" in refused["message"]) == ("PolicyNotAuthorized", True)
    port = new_port(ask, network, allowed_address_pairs=[])
    path = f"/v2.0/ports/{port['id']}"
    ask("PUT", path, {"port": {"allowed_address_pairs": [pair]}}, status=403)
    assert ask("GET", path)["port"]["allowed_address_pairs"] == []
    other = {"ip_address": "10.1.0.9"}
    given = admin("PUT", path, {"port": {"allowed_address_pairs": [pair, other]}})["port"]["allowed_address_pairs"]
    ask("PUT", path, {"port": {"allowed_address_pairs": given, "name": "as it was"}})  # which clients send back
    ask("PUT", path, {"port": {"allowed_address_pairs": [pair]}})
    ask("PUT", path, {"port": {"allowed_address_pairs": [pair, other]}}, status=403)
    ask("PUT", path, {"port": {"allowed_address_pairs": []}})


def test_addresses_are_for_the_networks_own_project_to_choose(ask, service):
    """As with Neutron: whoever chooses has the address that its neighbour had a moment ago. A subnet may be chosen."""
    admin = ask.as_(ADMIN)
    network = new_network(admin, shared=True)
    (subnet,) = network["subnets"]
    chosen = [{"ip_address": "10.1.0.77"}]
    said = ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"], "fixed_ips": chosen}}, status=403)
    assert "create_port:fixed_ips:ip_address" in said["NeutronError"]["message"]
    port = new_port(ask, network, fixed_ips=[{"subnet_id": subnet}])
    path, have = f"/v2.0/ports/{port['id']}", port["fixed_ips"]
    said = ask("PUT", path, {"port": {"fixed_ips": [*have, {"subnet_id": subnet, **chosen[0]}]}}, status=403)
    assert "update_port:fixed_ips:ip_address" in said["NeutronError"]["message"]
    ask("PUT", path, {"port": {"fixed_ips": have, "name": "as it was"}})  # which clients send back
    ask("PUT", path, {"port": {"fixed_ips": [{"subnet_id": subnet}, {"subnet_id": subnet}]}})
    wish = [{"uuid": network["id"], "fixed_ip": "10.1.0.78"}]
    with pytest.raises(Forbidden, match="create_port:fixed_ips:ip_address"):
        service.check_requested(ALICE, wish)
    assert service.check_requested(ADMIN, wish)[0]["fixed_ip"] == "10.1.0.78"
    admin("PUT", path, {"port": {"fixed_ips": chosen}})
    assert ask("GET", path)["port"]["fixed_ips"] == [{"subnet_id": subnet, **chosen[0]}]


def test_the_real_client(service, engine):
    """openstacksdk, unmodified."""
    with (served(network=network_application(service, authenticate)) as url,
          connected(url, "alice", network_endpoint_override=f"{url}/network") as client):
        assert "allowed-address-pairs" in {one.alias for one in client.network.extensions()}
        network = client.network.create_network(name="lan")
        subnet = client.network.create_subnet(network_id=network.id, ip_version=4, cidr="10.1.0.0/24",
                                              dns_nameservers=["192.0.2.1"])
        group = client.network.create_security_group(name="web")
        client.network.create_security_group_rule(security_group_id=group.id, direction="ingress", protocol="tcp",
                                                  port_range_min=80, port_range_max=80, remote_ip_prefix="0.0.0.0/0")
        port = client.network.create_port(network_id=network.id, security_groups=[group.id],
                                          fixed_ips=[{"subnet_id": subnet.id, "ip_address": "10.1.0.7"}],
                                          allowed_address_pairs=[{"ip_address": "10.1.0.8"}])
        assert port.allowed_address_pairs == [{"ip_address": "10.1.0.8", "mac_address": port.mac_address}]
        service.worker.round()
        assert engine.port(port.id).groups == (group.id,)
        client.network.update_port(port, allowed_address_pairs=[])
        service.worker.round()
        assert engine.port(port.id).pairs == ()
        client.network.delete_port(port.id)
        client.network.delete_security_group(group.id)
        client.network.delete_network(network.id)
        service.worker.round()
        assert {f"network/{network.id}", f"port/{port.id}", f"group/{group.id}"}.isdisjoint(engine.units)


def test_rules_of_groups_are_written_and_taken_away(ask, service, engine):
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]
    body = {"security_group_id": group["id"], "direction": "ingress", "protocol": "tcp", "port_range_min": 22,
            "port_range_max": 22}
    rule = ask("POST", "/v2.0/security-group-rules", {"security_group_rule": body})["security_group_rule"]
    service.worker.round()
    assert {(one.direction, one.protocol, one.least) for one in engine.group(group["id"]).rules} == {
        ("egress", None, None), ("ingress", "tcp", 22)}
    ask("DELETE", f"/v2.0/security-group-rules/{rule['id']}")
    service.worker.round()
    assert rule["id"] not in {one.id for one in engine.group(group["id"]).rules}
    ask("PUT", f"/v2.0/security-groups/{group['id']}", {"security_group": {"stateful": False}})
    service.worker.round()
    assert engine.group(group["id"]).stateful is False


@pytest.mark.parametrize(("rule", "words"), [
    ({"port_range_min": 1, "port_range_max": 70000}, "port_range_max"),
    ({"port_range_min": 22, "port_range_max": 21}, "port_range_min must be <= port_range_max"),
    ({"protocol": "udplite", "port_range_min": 1, "port_range_max": 1}, "tcp, udp or sctp"),
    ({"port_range_min": 0, "port_range_max": 0}, "port 0"), ({"port_range_min": 0, "port_range_max": 90}, "port 0"),
    ({"protocol": "icmp", "port_range_min": 256}, "from 0 to 255"), ({"protocol": "icmp", "port_range_max": 0}, "type"),
    ({"protocol": "icmpv6"}, "ethertype IPv4"), ({"protocol": "58", "port_range_min": 128}, "ethertype IPv4"),
    ({"protocol": "ipv6-route"}, "ethertype IPv4"), ({"protocol": "60", "ethertype": "IPv4"}, "ethertype IPv4"),
    ({"protocol": "256"}, "from 0 to 255"), ({"protocol": None, "port_range_min": 1}, "protocol"),
    ({"protocol": "gre", "port_range_min": 1, "port_range_max": 1}, "no ports"),
    ({"protocol": "nonsense"}, "protocol"), ({"remote_ip_prefix": "10.0.0.0/40"}, "remote_ip_prefix"),
    ({"remote_ip_prefix": "2001:db8::/32"}, "ethertype")])
def test_a_rule_that_cannot_be_names_the_field(ask, rule, words):
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]
    body = {"security_group_id": group["id"], "direction": "ingress", "protocol": "tcp", **rule}
    refused = ask("POST", "/v2.0/security-group-rules", {"security_group_rule": body}, status=400)
    assert words in refused["NeutronError"]["message"]


@pytest.mark.parametrize(("given", "ethertype", "shown"), [
    ("10.1.2.3/8", "IPv4", "10.0.0.0/8"), ("10.1.2.3", "IPv4", "10.1.2.3/32"),
    ("10.1.2.3/255.255.0.0", "IPv4", "10.1.0.0/16"), ("2001:db8::1/32", "IPv6", "2001:db8::/32")])
def test_bits_of_hosts_in_a_prefix_say_nothing(ask, given, ethertype, shown):
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]
    body = {"security_group_id": group["id"], "direction": "ingress", "ethertype": ethertype, "remote_ip_prefix": given}
    made = ask("POST", "/v2.0/security-group-rules", {"security_group_rule": body}, status=201)
    assert made["security_group_rule"]["remote_ip_prefix"] == shown


def test_a_group_of_another_project_is_no_remote_group(ask):
    group, theirs = (one("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]
                     for one in (ask, ask.as_(BOB)))
    body = {"security_group_id": group["id"], "direction": "ingress", "remote_group_id": theirs["id"]}
    refused = ask("POST", "/v2.0/security-group-rules", {"security_group_rule": body}, status=404)
    assert theirs["id"] in refused["NeutronError"]["message"]


def test_a_remote_group_that_goes_takes_the_rules_that_name_it(ask, service, engine):
    group, remote = (ask("POST", "/v2.0/security-groups", {"security_group": {"name": name}})["security_group"]
                     for name in ("web", "lb"))
    body = {"security_group_id": group["id"], "direction": "ingress", "remote_group_id": remote["id"]}
    rule = ask("POST", "/v2.0/security-group-rules", {"security_group_rule": body})["security_group_rule"]
    service.worker.round()
    ask("DELETE", f"/v2.0/security-groups/{remote['id']}")
    ask("GET", f"/v2.0/security-group-rules/{rule['id']}", status=404)
    service.worker.round()
    assert engine.group(remote["id"]) is None
    assert rule["id"] not in {one.id for one in engine.group(group["id"]).rules}


def test_groups_of_a_running_server_change_at_once(ask, service, engine):
    nic = new_server(service, new_network(ask))
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]
    service.worker.round()
    (default,) = engine.port(nic["port_id"]).groups
    assert {one.remote_group for one in engine.group(default).rules if one.direction == "ingress"} == {default}
    service.change_groups("red", SERVER, "web", add=True)
    service.change_groups("red", SERVER, "default", add=False)
    service.worker.round()
    assert engine.port(nic["port_id"]).groups == (group["id"],)
    ask("DELETE", f"/v2.0/security-groups/{group['id']}", status=409)  # in use


@pytest.mark.parametrize(("settings", "words"), [
    ({"ovn_northbound": "10.0.0.1:6641"}, "ovn_northbound must be"),
    ({"ovn_northbound": "ssl:10.0.0.1:6641"}, "ovn_key, ovn_cert, ovn_ca_cert"),
    ({"ovn_northbound": "unix:/nb", "ovn_southbound": "10.0.0.1:6642"}, "ovn_southbound must be"),
    ({"ovn_northbound": "unix:/nb", "ovn_southbound": "ssl:10.0.0.1:6642"}, "ovn_southbound is by ssl, which needs"),
    ({"ovn_northbound": "unix:/nb", "ovn_southbound": ""}, "ovn_southbound must be"),
    ({"ovn_northbound": ""}, "ovn_northbound must be"),
    ({"ovn_southbound": "unix:/sb"}, "ovn_southbound needs ovn_northbound")])
def test_settings_that_lead_nowhere(settings, words):
    with pytest.raises(InvalidSettings, match=words):
        engine_of(Settings(**settings))


def test_the_first_network_of_a_project_is_of_ovn(service):
    (wanted,) = service.check_requested(ALICE, "auto")
    (network,) = service.resources["networks"].list(ALICE)
    assert (network["id"], network["type"], network["mtu"], network["by_engine"]) == (
        wanted["network_id"], "ovn", 1442, True)


def test_a_subnet_has_no_more_ports_than_addresses(ask, service):
    """The last one is given, and then none; nothing is left of the attempts."""
    network = new_network(ask)
    (subnet,) = network["subnets"]
    ask("PUT", f"/v2.0/subnets/{subnet}", {"subnet": {"allocation_pools": [{"start": "10.1.0.9", "end": "10.1.0.9"}]}})
    assert new_port(ask, network)["fixed_ips"] == [{"subnet_id": subnet, "ip_address": "10.1.0.9"}]
    refused = ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"]}}, status=409)["NeutronError"]
    assert (refused["type"], network["id"] in refused["message"]) == ("IpAddressGenerationFailure", True)
    with pytest.raises(Conflict, match=f"No more IP addresses available on network {network['id']}"):
        new_server(service, network)
    outside = {"network_id": network["id"], "fixed_ips": [{"ip_address": "10.2.0.9"}]}
    refused = ask("POST", "/v2.0/ports", {"port": outside}, status=400)["NeutronError"]
    assert (refused["type"], "10.2.0.9" in refused["message"]) == ("InvalidIpForNetwork", True)
    assert len(ask("GET", "/v2.0/ports")["ports"]) == 1
