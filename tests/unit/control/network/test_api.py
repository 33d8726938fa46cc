# SPDX-License-Identifier: GPL-3.0-or-later
"""Neutron's API as its clients see it."""

from __future__ import annotations

import uuid

import httpx
import pytest
from sqlalchemy import insert, update

from magnetar_control.api.network.app import network_application
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.security.security_groups import default_id
from magnetar_control.settings import Settings
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import server_mappings
from magnetar_core.addresses import link_local
from magnetar_core.errors import InvalidSettings, MagnetarError
from tests.support.control.counting import counted
from tests.support.control.serving import ADMIN, ALICE, BOB, READER, Asker, authenticate, connected, served


def _network(ask: Asker, cidr: str = "10.1.0.0/24", **fields) -> dict:
    network = ask("POST", "/v2.0/networks", {"network": {"name": "lan", **fields}})["network"]
    ask("POST", "/v2.0/subnets", {"subnet": {"network_id": network["id"], "cidr": cidr, "ip_version": 4}})
    return ask("GET", f"/v2.0/networks/{network['id']}")["network"]


def _port(ask: Asker, network: dict, **fields) -> dict:
    return ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"], **fields}})["port"]


def test_a_network_of_ones_own(ask, service):
    network = _network(ask)
    assert network["project_id"] == "red"
    assert len(network["subnets"]) == 1
    assert "provider:network_type" not in network
    subnet = ask("GET", f"/v2.0/subnets/{network['subnets'][0]}")["subnet"]
    assert subnet["gateway_ip"] == "10.1.0.1"
    assert subnet["allocation_pools"] == [{"start": "10.1.0.2", "end": "10.1.0.254"}]
    assert service.on_host(network["id"]) == {"name": f"mag-{network['id'][:8]}", "mode": "nat", "cidr": "10.1.0.0/24",
                                              "dhcp": True}
    ask("DELETE", f"/v2.0/networks/{network['id']}")
    ask("GET", f"/v2.0/networks/{network['id']}", status=404)


def test_another_projects_network_is_not_there(ask):
    network = _network(ask)
    other = ask.as_(BOB)
    assert [one["name"] for one in other("GET", "/v2.0/networks")["networks"]] == ["default"]
    for method, body in (("GET", None), ("PUT", {"network": {"name": "mine"}}), ("DELETE", None)):
        error = other(method, f"/v2.0/networks/{network['id']}", body, status=404)["NeutronError"]
        assert error == {"type": "NetworkNotFound", "message": f"Network {network['id']} could not be found.",
                         "detail": ""}
    assert ask.as_(ADMIN)("GET", f"/v2.0/networks/{network['id']}")["network"]["provider:network_type"] == "nat"


def test_a_shared_network_is_used_but_not_changed(ask):
    (shared,) = ask("GET", "/v2.0/networks?shared=true")["networks"]
    assert ask("PUT", f"/v2.0/networks/{shared['id']}", {"network": {"name": "x"}}, status=403)
    assert _port(ask, shared)["fixed_ips"]


def test_the_owner_of_a_network_is_not_told_the_ports_of_others(ask):
    network, admin = _network(ask), ask.as_(ADMIN)
    admin("PUT", f"/v2.0/networks/{network['id']}", {"network": {"shared": True}})
    theirs = _port(ask.as_(BOB), network)["id"]
    path, refused = f"/v2.0/networks/{network['id']}", f"Unable to complete operation on network {network['id']}. "
    in_use = f"{refused}There are one or more ports still in use on the network"

    def message(asking):
        return asking("DELETE", path, status=409)["NeutronError"]["message"]

    assert message(ask) == f"{in_use}; some are other projects'."
    assert message(admin) == f"{in_use}, id for these ports is {theirs}."
    own = _port(ask, network)["id"]
    assert message(ask) == f"{in_use}, id for these ports is {own}; some are other projects'."


def test_lists_compare_the_text_of_lists_in_a_row(ask):
    """Few ask so; a page begins where the one before ended."""
    for at in (3, 2):
        subnet = _network(ask, f"10.{at}.0.0/24")["subnets"][0]
        ask("PUT", f"/v2.0/subnets/{subnet}", {"subnet": {"dns_nameservers": [f"10.9.0.{at}"], "name": str(at)}})

    def names(query: str) -> list[str]:
        return [subnet["name"] for subnet in ask("GET", f"/v2.0/subnets?{query}")["subnets"]]

    assert names("dns_nameservers=[]") == ["default"]
    assert names('dns_nameservers=["10.9.0.2"]') == ["2"]
    assert names("sort_key=dns_nameservers") == ["2", "3", "default"]
    (first,) = ask("GET", "/v2.0/subnets?sort_key=dns_nameservers&limit=1")["subnets"]
    assert names(f"sort_key=dns_nameservers&limit=1&marker={first['id']}") == ["3"]


@pytest.mark.parametrize(("body", "word"), [
    ({"name": 5}, "name"), ({"name": "x" * 256}, "255"), ({"nmae": "x"}, "nmae"), ({"mtu": 10}, "mtu"),
    ({"admin_state_up": "perhaps"}, "admin_state_up"), ({"name": "a\0b"}, "name"), ("text", "network")])
def test_bad_input_names_the_field(ask, body, word):
    assert word in ask("POST", "/v2.0/networks", {"network": body}, status=400)["NeutronError"]["message"]
    assert len(ask("GET", "/v2.0/networks")["networks"]) == 1


@pytest.mark.parametrize("body", [{"shared": True}, {"provider:network_type": "flat"}])
def test_what_only_admins_may_set(ask, body):
    assert ask("POST", "/v2.0/networks", {"network": body}, status=403)


def test_what_is_so_anyway_everybody_may_say(ask):
    """Dashboards do, of a new network. A change is another matter, as in Neutron."""
    body = {"shared": False, "is_default": False, "router:external": False, "provider:network_type": "nat"}
    made = ask("POST", "/v2.0/networks", {"network": body}, status=201)["network"]
    assert (made["shared"], made["router:external"]) == (False, False)
    ask("PUT", f"/v2.0/networks/{made['id']}", {"network": {"shared": False}}, status=403)


def test_readers_read(ask):
    reader = ask.as_(READER)
    assert reader("GET", "/v2.0/networks")
    assert reader("POST", "/v2.0/networks", {"network": {}}, status=403)


def test_a_flat_network_is_a_bridge_of_the_hosts(ask, service):
    admin = ask.as_(ADMIN)
    admin("POST", "/v2.0/networks", {"network": {"provider:network_type": "flat"}}, status=400)
    flat = _network(admin, "192.0.2.0/24", shared=True, **{
        "provider:network_type": "flat", "provider:physical_network": "br0"})
    assert service.on_host(flat["id"]) is None
    nic_server = str(uuid.uuid4())
    (nic,) = service.allocate(ALICE, nic_server, service.check_requested(ALICE, [{"uuid": flat["id"]}]))
    address = nic["fixed_ips"][0]["ip_address"]
    assert nic["on_host"] == {"bridge": "br0", "mac": nic["mac"], "address": address,
                              "security_groups": [default_id("red")],
                              "allowed_addresses": [link_local(nic["mac"])]}  # and so no other IPv6 address
    admin("PUT", f"/v2.0/subnets/{flat['subnets'][0]}", {"subnet": {"enable_dhcp": False}})
    assert service.ports(nic_server)[0]["on_host"]["address"] == f"{address}/24"


def test_port_security_is_what_hosts_are_told(ask, service):
    """Off by the network's project or an admin, and not while a server has the port: its host would not hear of it."""
    own = _network(ask, "10.30.0.0/24", port_security_enabled=False)
    (nic,) = service.allocate(ALICE, _server(service), service.check_requested(ALICE, [{"uuid": own["id"]}]))
    assert nic["on_host"]["port_security"] is False
    shown = ask("GET", f"/v2.0/ports/{nic['port_id']}")["port"]
    assert (shown["port_security_enabled"], shown["security_groups"]) == (False, [])
    ask("PUT", f"/v2.0/ports/{nic['port_id']}", {"port": {"port_security_enabled": True}}, status=409)
    shared = _network(ask.as_(ADMIN), "10.31.0.0/24", shared=True)
    ask("POST", "/v2.0/ports", {"port": {"network_id": shared["id"], "port_security_enabled": False}}, status=403)
    port = ask("POST", "/v2.0/ports", {"port": {"network_id": shared["id"]}})["port"]
    ask("PUT", f"/v2.0/ports/{port['id']}", {"port": {"port_security_enabled": False}}, status=403)
    (nic,) = service.allocate(ALICE, _server(service), service.check_requested(ALICE, [{"port": port["id"]}]))
    assert not {"port_security", "allowed_addresses"} & set(nic["on_host"])


@pytest.mark.parametrize(("fields", "status"), [
    ({"cidr": "10.1.0.0/33"}, 400), ({"cidr": "10.2.0.0/24", "gateway_ip": "10.2.0.9"}, 400),
    ({"cidr": "fd00::/64"}, 400),
    ({"cidr": "10.2.0.0/24", "ip_version": 6}, 400), ({"cidr": "10.213.4.0/24"}, 409),
    ({"cidr": "10.2.0.0/24", "allocation_pools": [{"start": "10.2.0.1", "end": "10.2.0.9"}]}, 409),
    ({"cidr": "10.2.0.0/24", "allocation_pools": [{"start": "10.2.0.9", "end": "10.2.1.9"}]}, 400),
    ({"cidr": "10.2.0.0/24", "allocation_pools": [{"start": "10.2.0.9"}]}, 400)])
def test_subnets_that_cannot_be(ask, fields, status):
    network = ask("POST", "/v2.0/networks", {"network": {}})["network"]
    assert ask("POST", "/v2.0/subnets", {"subnet": {"network_id": network["id"], **fields}}, status=status)
    assert ask("GET", f"/v2.0/subnets?network_id={network['id']}")["subnets"] == []


@pytest.mark.parametrize("cidr", ["8.8.8.0/24", "8.0.0.0/8", "192.0.0.0/8", "127.1.0.0/16", "169.254.0.0/24",
                                  "224.0.0.0/8"])
def test_ranges_that_hosts_would_lose(ask, cidr):
    """Users' subnets come from the operator's pools; admins may have others, but never what is special on hosts."""
    network = ask("POST", "/v2.0/networks", {"network": {}})["network"]
    wish = {"subnet": {"network_id": network["id"], "cidr": cidr, "ip_version": 4}}
    error = ask("POST", "/v2.0/subnets", wish, status=400)["NeutronError"]
    special = not cidr.startswith(("8.", "192."))
    assert special or "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 (setting network_pools)" in error["message"]
    ask.as_(ADMIN)("POST", "/v2.0/subnets", wish, status=400 if special else 201)


def test_pools_of_the_operator(database):
    service = EmbeddedNetworks(database, pools=Settings(network_pools=["100.64.0.0/10"]).pools())
    ask = Asker(network_application(service, authenticate))
    assert _network(ask, "100.65.0.0/24")["subnets"]
    network = ask("POST", "/v2.0/networks", {"network": {}})["network"]
    ask("POST", "/v2.0/subnets", {"subnet": {"network_id": network["id"], "cidr": "10.2.0.0/24"}}, status=400)
    with pytest.raises(InvalidSettings, match="network_pools must be IPv4 networks"):
        Settings(network_pools=["all"]).pools()


def test_a_bridge_has_the_addresses_that_it_has(ask):
    """No host routes to those of a flat network."""
    admin = ask.as_(ADMIN)
    flat = {"provider:network_type": "flat", "provider:physical_network": "br0", "project_id": "red"}
    network = admin("POST", "/v2.0/networks", {"network": flat})["network"]
    ask("POST", "/v2.0/subnets", {"subnet": {"network_id": network["id"], "cidr": "203.0.113.0/24"}})


def test_a_port_has_the_address_that_it_asks_for_once(ask):
    network = _network(ask)
    wish = {"fixed_ips": [{"ip_address": "10.1.0.77"}]}
    port = _port(ask, network, mac_address="52:54:00:AA:BB:CC", **wish)
    assert port["mac_address"] == "52:54:00:aa:bb:cc"
    for fields in (wish, {"mac_address": port["mac_address"]}):
        ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"], **fields}}, status=409)
    ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"], "fixed_ips": [{"ip_address": "10.9.9.9"}]}},
        status=400)
    (found,) = ask("GET", "/v2.0/ports?fixed_ips=ip_address=10.1.0.77")["ports"]
    assert found["id"] == port["id"]
    ask("DELETE", f"/v2.0/networks/{network['id']}", status=409)
    ask("DELETE", f"/v2.0/subnets/{network['subnets'][0]}", status=409)
    ask("DELETE", f"/v2.0/ports/{port['id']}")
    ask("DELETE", f"/v2.0/subnets/{network['subnets'][0]}")


def test_a_port_changes_its_address(ask):
    network = _network(ask)
    port = _port(ask, network, fixed_ips=[{"ip_address": "10.1.0.7"}])
    two = [{"ip_address": "10.1.0.7"}, {"ip_address": "10.1.0.8"}]
    port = ask("PUT", f"/v2.0/ports/{port['id']}", {"port": {"fixed_ips": two, "name": "web"}})["port"]
    assert [one["ip_address"] for one in port["fixed_ips"]] == ["10.1.0.7", "10.1.0.8"]
    port = ask("PUT", f"/v2.0/ports/{port['id']}", {"port": {"fixed_ips": two[1:]}})["port"]
    assert [one["ip_address"] for one in port["fixed_ips"]] == ["10.1.0.8"]
    assert port["name"] == "web"


def test_a_server_takes_a_port_and_gives_it_back(ask, service):
    port, server = _port(ask, _network(ask)), str(uuid.uuid4())
    wishes = service.check_requested(ALICE, [{"port": port["id"]}])
    (nic,) = service.allocate(ALICE, server, wishes)
    assert (nic["port_id"], nic["created"]) == (port["id"], False)
    service.bind(server, "kvm1")
    with pytest.raises(Exception, match="still in use"):
        service.check_requested(ALICE, [{"port": port["id"]}])
    (seen,) = ask.as_(ADMIN)("GET", f"/v2.0/ports?device_id={server}&status=ACTIVE")["ports"]
    assert (seen["binding:host_id"], seen["device_owner"]) == ("kvm1", "compute:nova")
    service.release(server)
    assert ask("GET", f"/v2.0/ports/{port['id']}")["port"]["device_id"] == ""
    assert service.check_requested(ALICE, [{"port": port["id"]}])


def _server(service, context=ALICE) -> str:
    """The uuid of a server that there is."""
    id = str(uuid.uuid4())
    with service.database.write() as connection:
        connection.execute(insert(server_mappings).values(
            server_id=id, cell_id="c", project_id=context.project_id, created_at=utc_now()))
    return id


def _forget(service, server) -> None:
    with service.database.write() as connection:
        connection.execute(update(server_mappings).where(server_mappings.c.server_id == server).values(deleted=True))


@pytest.mark.parametrize("beforehand", [True, False])
def test_the_port_of_a_server_keeps_its_address_until_it_is_detached(ask, service, beforehand):
    network, server = _network(ask), _server(service)
    wish = {"port": _port(ask, network)["id"]} if beforehand else {"uuid": network["id"]}
    (nic,) = service.allocate(ALICE, server, service.check_requested(ALICE, [wish]))
    path = f"/v2.0/ports/{nic['port_id']}"
    before = ask("GET", path)["port"]
    own = before["fixed_ips"][0]["ip_address"]
    other = [{"ip_address": next(one for one in ("10.1.0.200", "10.1.0.201") if one != own)}]
    for asker in (ask, ask.as_(ADMIN)):
        for method, change in (("DELETE", None), ("PUT", {"device_id": ""}), ("PUT", {"device_id": _server(service)}),
                               ("PUT", {"device_owner": ""}), ("PUT", {"fixed_ips": other}), ("PUT", {"fixed_ips": []}),
                               ("PUT", {"fixed_ips": [*before["fixed_ips"], *other]})):
            refused = asker(method, path, change and {"port": change}, status=409)["NeutronError"]
            assert refused["type"] == "PortInUse" and server in refused["message"], (method, change, refused)
            assert "etach" in refused["message"]
    assert ask("GET", path)["port"] == before
    same = {name: before[name] for name in ("device_id", "device_owner", "fixed_ips")}
    changed = ask("PUT", path, {"port": {**same, "name": "web"}})["port"]
    assert {**before, "name": "web", "updated_at": changed["updated_at"]} == changed
    _forget(service, server)
    ask("PUT", path, {"port": {"fixed_ips": other}})
    ask("DELETE", path)
    assert service.users() == {}


def test_a_port_is_a_servers_only_when_the_server_took_it(ask, service):
    """Whatever somebody writes into a port, it does not come to a server of another project, and learns nothing."""
    network, server = _network(ask.as_(ADMIN), shared=True), _server(service)
    (nic,) = service.allocate(ALICE, server, service.check_requested(ALICE, [{"uuid": network["id"]}]))
    bob, given = ask.as_(BOB), {"network_id": network["id"]}
    free = _port(bob, network)["id"]
    for fields in ({"device_id": server}, {"device_id": server, "device_owner": "x"},
                   {"device_id": server, "device_owner": "compute:nova"},
                   {"device_id": str(uuid.uuid4()), "device_owner": "compute:nova"}):
        bob("POST", "/v2.0/ports", {"port": {**given, **fields}}, status=403)
        error = bob("PUT", f"/v2.0/ports/{free}", {"port": fields}, status=403)["NeutronError"]
        assert "device_id" in error["message"]
    mine = _port(bob, network, device_id=_server(service, BOB), device_owner="compute:nova")
    assert bob("PUT", f"/v2.0/ports/{mine['id']}", {"port": {"name": "x"}})["port"]["device_id"] == mine["device_id"]
    assert _port(bob, network, device_id="balancer", device_owner="mine")["device_id"] == "balancer"
    for owner in ("", "compute:nova"):
        ask.as_(ADMIN)("PUT", f"/v2.0/ports/{free}", {"port": {"device_id": server, "device_owner": owner}})
        assert bob("GET", f"/v2.0/ports/{free}")["port"]["device_id"] == server
        service.bind(server, "kvm1")
        assert [one["port_id"] for one in service.ports(server)] == [nic["port_id"]]
        assert service.users() == {nic["port_id"]: server}
        assert bob("GET", f"/v2.0/ports/{free}")["port"]["status"] == "DOWN"
    service.release(server)
    assert bob("GET", f"/v2.0/ports/{free}")["port"]["device_id"] == server
    assert service.ports(server) == []


def test_a_port_that_its_owner_marked_is_not_taken(ask, service):
    server = _server(service)
    port = _port(ask, _network(ask), device_id=server, device_owner="compute:nova")
    for wish in ([{"port": port["id"]}], [{"port": port["id"], "tag": "x"}]):
        with pytest.raises(MagnetarError, match="still in use"):
            service.check_requested(ALICE, wish)
    ask("PUT", f"/v2.0/ports/{port['id']}", {"port": {"device_id": ""}})
    (nic,) = service.allocate(ALICE, server, service.check_requested(ALICE, [{"port": port["id"]}]))
    assert nic["port_id"] == port["id"]


def test_two_networks_are_one_too_many_to_choose_from(ask, service):
    _network(ask)
    for wish in ([], "auto"):
        with pytest.raises(Exception, match="Multiple possible networks found, use a Network ID to be more specific."):
            service.check_requested(ALICE, wish)


def test_security_groups(ask):
    (default,) = ask("GET", "/v2.0/security-groups")["security_groups"]
    assert (default["name"], len(default["security_group_rules"])) == ("default", 4)
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]
    rule = {"security_group_id": group["id"], "direction": "ingress", "protocol": "tcp", "port_range_min": 80,
            "port_range_max": 80, "remote_ip_prefix": "0.0.0.0/0"}
    ask("POST", "/v2.0/security-group-rules", {"security_group_rule": rule})
    ask("POST", "/v2.0/security-group-rules", {"security_group_rule": rule}, status=409)
    for wrong in ({"port_range_min": 81}, {"protocol": "moon"}, {"ethertype": "IPv6"}, {"protocol": None},
                  {"ethertype": "IPv6", "remote_ip_prefix": "fe80::%eth0/64"}):
        ask("POST", "/v2.0/security-group-rules", {"security_group_rule": {**rule, **wrong}}, status=400)
    ask.as_(BOB)("POST", "/v2.0/security-group-rules", {"security_group_rule": rule}, status=404)
    assert len(ask("GET", f"/v2.0/security-groups/{group['id']}")["security_group"]["security_group_rules"]) == 3
    port = _port(ask, _network(ask), security_groups=[group["id"]])
    assert ask("GET", f"/v2.0/ports?security_groups={group['id']}")["ports"][0]["id"] == port["id"]
    ask("DELETE", f"/v2.0/security-groups/{group['id']}", status=409)
    ask("DELETE", f"/v2.0/security-groups/{default['id']}", status=409)
    ask("DELETE", f"/v2.0/ports/{port['id']}")
    ask("DELETE", f"/v2.0/security-groups/{group['id']}")


def test_pages_follow_each_other(ask):
    for number in range(5):
        ask("POST", "/v2.0/networks", {"network": {"name": f"n{number}"}})
    path, names = "/v2.0/networks?limit=2&sort_key=name&sort_dir=desc&fields=name", []
    while path:
        page = ask("GET", path)
        names += [one["name"] for one in page["networks"]]
        path = page.get("networks_links", [{"href": ""}])[0]["href"].removeprefix("http://cloud")
    assert names == ["n4", "n3", "n2", "n1", "n0", "default"]


def test_a_marker_tells_nothing_of_another_projects_things(ask):
    mine = ask("POST", "/v2.0/networks", {"network": {"name": "mine"}})["network"]["id"]
    ask("GET", f"/v2.0/networks?limit=2&marker={mine}")
    ask.as_(BOB)("GET", f"/v2.0/networks?limit=2&marker={mine}", status=400)


def test_an_unknown_filter_is_refused_and_what_there_is_not_is_said(ask):
    for query in ("colour=red", "mtu=wide", "shared=perhaps", "limit=-1", f"limit={10**30}", "sort_key=moon",
                  "sort_key=id&sort_key=id", "sort_key=name&" * 500, "provider:network_type=nat", "marker=gone"):
        ask("GET", f"/v2.0/networks?{query}", status=400)
    ask("GET", "/v2.0/ports?binding:host_id=kvm1", status=400)
    ask.as_(ADMIN)("GET", "/v2.0/ports?binding:host_id=kvm1")
    assert ask("GET", "/v2.0/routers") == {"routers": []}
    assert "no routers" in ask("POST", "/v2.0/routers", {"router": {}}, status=400)["NeutronError"]["message"]
    assert ask("GET", "/v2.0/nothing", status=404)["NeutronError"]["type"] == "HTTPNotFound"


@pytest.mark.parametrize("query", ["networks?provider:segmentation_id={}", "security-group-rules?port_range_min={}",
                                   "security-group-rules?port_range_max={}", "networks?mtu={}"])
def test_what_is_no_number_is_refused_in_a_filter_of_numbers(ask, query):
    """Also where there need be none. PostgreSQL compares no text with a number."""
    for value in ("", "a", "1.5", "9" * 30):
        refused = ask.as_(ADMIN)("GET", f"/v2.0/{query.format(value)}", status=400)["NeutronError"]["message"]
        assert query.partition("?")[2].partition("=")[0] in refused
    ask.as_(ADMIN)("GET", f"/v2.0/{query.format(22)}")


@pytest.mark.parametrize("name", ["security_groups={}", "security_group_ids={}", "fixed_ips=ip_address_substr={}"])
def test_a_filter_of_very_many_values_is_refused(ask, name):
    """Databases take no expression of any depth: what they say then is that they are away."""
    same, others = (["a"] * 1100, [str(number) for number in range(1100)])
    assert ask("GET", "/v2.0/ports?" + "&".join(map(name.format, same))) == {"ports": []}
    refused = ask("GET", "/v2.0/ports?" + "&".join(map(name.format, others)), status=400)["NeutronError"]["message"]
    assert "can be given 100 times at most, and is 1100 times" in refused


@pytest.mark.parametrize("name", ["id", "name", "device_id", "ip_address", "network_id"])
def test_a_filter_of_many_values(ask, name):
    """As many as a URL may hold."""
    network = _network(ask)
    port = _port(ask, network, name="mine", device_id="thing")
    mine = {"ip_address": port["fixed_ips"][0]["ip_address"]}.get(name) or port[name]
    query = "&".join(f"{name}={value}" for value in (*range(1000), mine))
    assert [one["id"] for one in ask("GET", f"/v2.0/ports?{query}")["ports"]] == [port["id"]]


@pytest.mark.parametrize("noun, field, most", [
    ("port", {"fixed_ips": {"ip_address": "10.1.0.{}"}}, 64),
    ("port", {"security_groups": "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f{:04x}"}, 100),
    ("port", {"allowed_address_pairs": {"ip_address": "10.1.0.{}"}}, 10),
    ("subnet", {"dns_nameservers": "10.1.0.{}"}, 5),
    ("subnet", {"host_routes": {"destination": "10.9.{}.0/24", "nexthop": "10.1.0.1"}}, 20),
    ("subnet", {"allocation_pools": {"start": "10.1.0.{}", "end": "10.1.0.{}"}}, 64)], ids=str)
def test_lists_have_an_end(ask, noun, field, most):
    """Each item is statements in one transaction, or compared with others."""
    ((name, item),) = field.items()

    def wish(number):
        return {key: text.format(number) for key, text in item.items()} if isinstance(item, dict) else item.format(
            number)

    body = {noun: {"network_id": _network(ask)["id"], "cidr": "10.1.0.0/24",
                   name: [wish(number) for number in range(most + 1)]}}
    if noun == "port":
        del body[noun]["cidr"]
    message = ask("POST", f"/v2.0/{noun}s", body, status=400)["NeutronError"]["message"]
    assert f"{name}: must have at most {most} items, and has {most + 1}" in message


def test_the_real_client(service):
    with (
        served(network=network_application(service, authenticate)) as url,
        connected(url, "alice", network_endpoint_override=f"{url}/network") as cloud,
    ):
        network = cloud.network.create_network(name="lan")
        subnet = cloud.network.create_subnet(network_id=network.id, cidr="10.7.0.0/24", ip_version=4, name="lan-v4")
        port = cloud.network.create_port(network_id=network.id, name="p1")
        assert port.fixed_ips[0]["subnet_id"] == subnet.id
        assert cloud.network.find_port("p1").id == port.id
        assert [one.id for one in cloud.network.ports(network_id=network.id)] == [port.id]
        cloud.network.update_port(port, name="p2")
        group = cloud.network.create_security_group(name="web")
        rule = cloud.network.create_security_group_rule(security_group_id=group.id, direction="ingress",
                                                        protocol="tcp", port_range_min=22, port_range_max=22)
        assert rule.id in [one["id"] for one in cloud.network.find_security_group("web").security_group_rules]
        assert {one.name for one in cloud.network.networks()} == {"default", "lan"}
        assert cloud.network.find_extension("security-group").alias == "security-group"
        assert cloud.network.find_network("nowhere") is None
        cloud.network.delete_port(port)
        cloud.network.delete_network(network)
        assert [one.name for one in cloud.network.networks()] == ["default"]


def test_a_list_asks_the_database_as_often_for_many_as_for_one(sqlite_service):
    asker = Asker(network_application(sqlite_service, authenticate))
    network = _network(asker)
    counts = []
    for _number in range(2):
        for _port_number in range(3):
            _port(asker, network)
        for path in ("networks", "subnets", "ports", "security-groups"):
            with counted(networks=sqlite_service.database) as asked:
                asker("GET", f"/v2.0/{path}")
            counts.append(len(asked))
    assert counts[:4] == counts[4:]
    assert max(counts) <= 5


@pytest.mark.parametrize("type", ["nat", "isolated", "flat"])
def test_what_hosts_make_does_not_go_down(ask, type):
    admin, place = ask.as_(ADMIN), {"provider:network_type": type}
    place |= {"provider:physical_network": "br0"} if type == "flat" else {}
    network = admin("POST", "/v2.0/networks", {"network": place})["network"]
    port = admin("POST", "/v2.0/ports", {"port": {"network_id": network["id"]}})["port"]
    for method, path, body in (
            ("POST", "networks", {"network": {**place, "admin_state_up": False}}),
            ("PUT", f"networks/{network['id']}", {"network": {"admin_state_up": False}}),
            ("POST", "ports", {"port": {"network_id": network["id"], "admin_state_up": False}}),
            ("PUT", f"ports/{port['id']}", {"port": {"admin_state_up": False}})):
        refused = admin(method, f"/v2.0/{path}", body, status=400)["NeutronError"]["message"]
        assert "admin_state_up: must be true" in refused, path
        assert f"type {type}" in refused, path


def test_the_first_network_is_changed_as_horizon_changes_one(ask):
    """It sends what it shows, whatever was edited."""
    admin = ask.as_(ADMIN)
    (first,) = admin("GET", "/v2.0/networks")["networks"]
    assert (first["is_default"], first["router:external"]) == (True, False)
    sent = {name: first[name] for name in ("admin_state_up", "shared", "router:external")}
    changed = admin("PUT", f"/v2.0/networks/{first['id']}", {"network": {**sent, "name": "other"}})["network"]
    assert (changed["name"], changed["is_default"]) == ("other", True)


def test_a_long_list_is_sent_in_pieces(ask, service, monkeypatch):
    monkeypatch.setattr("magnetar_control.services.network.resources.BATCH_SIZE", 2)
    for at in range(6):
        ask("POST", "/v2.0/networks", {"network": {"name": f"n{at}"}})
    names, headers = ["default", *(f"n{at}" for at in range(6))], {"x-auth-token": ALICE.token}
    with served(network=network_application(service, authenticate)) as url, httpx.Client(
            base_url=f"{url}/network/v2.0", headers=headers) as client:
        every = client.get("/networks?fields=name")
        assert [one["name"] for one in every.json()["networks"]] == names and "content-length" not in every.headers
        page = client.get("/networks?limit=5").json()
        assert [one["name"] for one in page["networks"]] == names[:5]
        rest = client.get(page["networks_links"][0]["href"]).json()
        assert [one["name"] for one in rest["networks"]] == names[5:] and "networks_links" not in rest
        backwards = client.get("/networks?sort_key=name&sort_dir=desc").json()["networks"]
        assert [one["name"] for one in backwards] == names[:0:-1] + names[:1]
        assert client.get("/networks?marker=nothing").status_code == 400
        head = client.head("/networks?fields=name")
        assert head.headers["content-length"] == str(len(every.content)) and not head.content
