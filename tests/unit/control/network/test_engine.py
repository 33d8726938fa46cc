# SPDX-License-Identifier: GPL-3.0-or-later
"""The network service over an engine: what it asks for, when, and what becomes of that."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
from sqlalchemy import insert

from magnetar_control.api.network.app import application
from magnetar_control.services.network import EmbeddedNetworks, Wait, changes, engine_of, wanted
from magnetar_control.services.network.engine import Wanted
from magnetar_control.services.network.fake_engine import FakeEngine
from magnetar_control.services.network.tables import changes as changes_table
from magnetar_control.services.network.tables import ports
from magnetar_control.settings import Settings
from magnetar_core.errors import InvalidSettings, Unavailable
from tests.unit.control.counting import counted
from tests.unit.control.serving import ADMIN, ALICE, BOB, Asker, authenticate, connected, served

SERVER = str(uuid.uuid4())


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def service(sqlite, engine):
    """With the engine, whose worker writes only when a test says so."""
    found = EmbeddedNetworks(sqlite, engine=engine, wait=Wait(0.1, 0.0))
    found.bootstrap()
    engine.claim()
    return found


def _network(ask: Asker, cidr: str = "10.1.0.0/24", **fields) -> dict:
    network = ask("POST", "/v2.0/networks", {"network": {"name": "lan", **fields}})["network"]
    subnet = {"network_id": network["id"], "cidr": cidr, "ip_version": 4}
    ask("POST", "/v2.0/subnets", {"subnet": subnet})
    return ask("GET", f"/v2.0/networks/{network['id']}")["network"]


def _port(ask: Asker, network: dict, **fields) -> dict:
    return ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"], **fields}})["port"]


def _server(service: EmbeddedNetworks, network: dict, context=ALICE, id: str = SERVER) -> dict:
    (nic,) = service.allocate(context, id, service.check_requested(context, [{"uuid": network["id"]}]))
    return nic


def test_members_make_networks_of_ovn_with_any_addresses(ask, service, engine):
    mine, theirs = _network(ask), _network(ask.as_(BOB))  # the same range in two projects
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
    network = _network(ask)
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
    network = _network(ask)
    nic = _server(service, network)
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
    nat = _network(admin, **{"provider:network_type": "nat"})
    _server(service, nat, ADMIN, "4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3e")
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
    network = _network(ask)
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
    ask = Asker(application(EmbeddedNetworks(sqlite), authenticate), ADMIN)
    for type in ("ovn", "vlan"):
        refused = ask("POST", "/v2.0/networks", {"network": {"provider:network_type": type}}, status=400)
        assert "ovn_northbound" in refused["NeutronError"]["message"]


def test_ports_with_their_addresses_groups_and_pairs(ask, service, engine):
    network = _network(ask)
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]
    port = _port(ask, network, security_groups=[group["id"]], allowed_address_pairs=[
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


def test_address_pairs_need_port_security_and_a_network_of_ovn(ask):
    admin = ask.as_(ADMIN)
    pairs = [{"ip_address": "10.1.0.200"}]
    off = {"port_security_enabled": False, "allowed_address_pairs": pairs}
    network, nat = _network(admin), _network(admin, "10.66.0.0/24", **{"provider:network_type": "nat"})
    assert admin("POST", "/v2.0/ports", {"port": {"network_id": network["id"], **off}}, status=409)["NeutronError"][
        "type"] == "AddressPairAndPortSecurityRequired"
    on_nat = {"network_id": nat["id"], "allowed_address_pairs": pairs}
    refused = admin("POST", "/v2.0/ports", {"port": on_nat}, status=400)
    assert "allowed_address_pairs" in refused["NeutronError"]["message"]
    port = _port(admin, network, allowed_address_pairs=pairs)
    admin("PUT", f"/v2.0/ports/{port['id']}", {"port": {"port_security_enabled": False, "security_groups": []}},
          status=409)


def test_the_real_client(service, engine):
    """openstacksdk, unmodified."""
    with (served(network=application(service, authenticate)) as url,
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
    ({"protocol": "nonsense"}, "protocol"), ({"remote_ip_prefix": "10.0.0.0/40"}, "remote_ip_prefix"),
    ({"remote_ip_prefix": "2001:db8::/32"}, "ethertype")])
def test_a_rule_that_cannot_be_names_the_field(ask, rule, words):
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]
    body = {"security_group_id": group["id"], "direction": "ingress", "protocol": "tcp", **rule}
    refused = ask("POST", "/v2.0/security-group-rules", {"security_group_rule": body}, status=400)
    assert words in refused["NeutronError"]["message"]


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
    nic = _server(service, _network(ask))
    group = ask("POST", "/v2.0/security-groups", {"security_group": {"name": "web"}})["security_group"]
    service.worker.round()
    (default,) = engine.port(nic["port_id"]).groups
    assert {one.remote_group for one in engine.group(default).rules if one.direction == "ingress"} == {default}
    service.change_groups("red", SERVER, "web", add=True)
    service.change_groups("red", SERVER, "default", add=False)
    service.worker.round()
    assert engine.port(nic["port_id"]).groups == (group["id"],)
    ask("DELETE", f"/v2.0/security-groups/{group['id']}", status=409)  # in use


def test_a_port_is_known_before_its_guest_starts(ask, service, engine):
    nic = _server(service, _network(ask))
    with pytest.raises(Unavailable, match="OVN did not take the server's ports"):
        service.prepare(SERVER, "h1")
    service.worker.start()
    try:
        service.worker.wait = Wait(60.0, 0.0)
        service.prepare(SERVER, "h1")
        assert engine.port(nic["port_id"]).hosts == ("h1",)
        service.bind(SERVER, "h1")
        service.prepare(SERVER, "h2", running=True)
        assert (engine.port(nic["port_id"]).hosts, engine.port(nic["port_id"]).arriving) == (("h1", "h2"), True)
    finally:
        service.worker.stop()


def test_a_port_of_a_new_server_is_written_once_with_its_host(ask, service, engine):
    network = _network(ask)
    service.worker.round()
    number = engine.number
    (nic,) = service.allocate(ALICE, SERVER, service.check_requested(ALICE, [{"uuid": network["id"]}]), host="h1")
    service.worker.round()
    service.prepare(SERVER, "h1")  # has nothing to wait for
    service.bind(SERVER, "h1")
    service.worker.round()
    assert (engine.port(nic["port_id"]).hosts, engine.number) == (("h1",), number + 1)


def test_a_server_that_stays_has_its_ports_where_they_were(ask, service, engine):
    """Also what they are there, which its host, being down, cannot be asked."""
    nic = _server(service, _network(ask))
    devices = {nic["mac"]: {"pci_slot": "0000:c1:00.2"}}
    service.bind(SERVER, "h1", devices=devices)
    with pytest.raises(Unavailable):
        service.prepare(SERVER, "h2", running=True)
    service.worker.round()
    assert engine.port(nic["port_id"]).hosts == ("h1", "h2")
    service.stay(SERVER)
    service.worker.round()
    assert (engine.port(nic["port_id"]).hosts, engine.port(nic["port_id"]).arriving) == (("h1",), False)
    (port,) = ask.as_(ADMIN)("GET", "/v2.0/ports")["ports"]
    assert (port["binding:host_id"], port["status"], port["binding:profile"]) == ("h1", "ACTIVE", devices[nic["mac"]])
    number = engine.number
    service.stay(SERVER)
    service.worker.round()
    assert engine.number == number  # nothing was to be written


def test_a_port_that_is_there_is_looked_at_and_not_written(ask, service, engine, sqlite):
    network = _network(ask)
    service.worker.round()
    service.prepare(SERVER, "h1")  # it has none
    service.allocate(ALICE, SERVER, service.check_requested(ALICE, [{"uuid": network["id"]}]), host="h1")
    with pytest.raises(Unavailable):
        service.prepare(SERVER, "h1")
    service.worker.round()
    with counted(api=sqlite) as count:
        service.prepare(SERVER, "h1")
    assert len(count) == 3 and not service.worker.engine.differences(
        Wanted(scope=frozenset())), "and nothing is written"
    with pytest.raises(Unavailable):
        service.prepare(SERVER, "h2")  # which is written, and noted


def test_nobody_waits_for_hosts_where_the_setting_says_so(ask, service, engine, monkeypatch):
    _server(service, _network(ask))
    with pytest.raises(Unavailable):
        service.prepare(SERVER, "h1")
    service.worker.round()
    asked = []
    monkeypatch.setattr(engine, "reached", lambda number, seconds: asked.append(seconds) or True)
    service.prepare(SERVER, "h1")
    service.worker.wait = Wait(0.1, 2.0)
    service.prepare(SERVER, "h1")
    assert asked == [2.0]


def test_who_waits_asks_the_database_once(ask, service, engine, sqlite):
    """The writer of the same process tells what it has written."""
    nic = _server(service, _network(ask))
    service.worker.round()
    service.worker.wait = Wait(60.0, 0.0)
    service.bind(SERVER, "h1")
    with ThreadPoolExecutor() as pool, counted(api=sqlite) as count:
        waiting = pool.submit(service.worker.settle, [f"port/{nic['port_id']}"])
        time.sleep(0.3)
        assert not waiting.done() and len(count) == 1
        service.worker.round()
        waiting.result(5)
    assert engine.port(nic["port_id"]).hosts == ("h1",)


@pytest.mark.parametrize("end", ["h1", "h2"])
def test_a_move_ends_here_or_there(ask, service, engine, end):
    nic = _server(service, _network(ask))
    service.bind(SERVER, "h1")
    service.worker.round()
    with pytest.raises(Unavailable):
        service.prepare(SERVER, "h2", running=True)
    service.bind(SERVER, end)
    service.worker.round()
    assert (engine.port(nic["port_id"]).hosts, engine.port(nic["port_id"]).arriving) == ((end,), False)
    service.unbind(SERVER)
    service.worker.round()
    assert engine.port(nic["port_id"]).hosts == ()
    service.release(SERVER)
    service.worker.round()
    assert engine.port(nic["port_id"]) is None


def test_what_was_noted_before_a_crash_is_written_after_it(ask, service, engine, sqlite):
    service.worker.round()
    network = _network(ask)
    engine.away = True
    with pytest.raises(Unavailable):
        service.worker.round()
    engine.away = False
    after = EmbeddedNetworks(sqlite, engine=engine)
    after.worker.round()
    assert f"network/{network['id']}" in engine.units
    assert after.differences() == []


def test_a_lost_engine_is_written_anew(ask, service, engine):
    nic = _server(service, _network(ask))
    service.worker.round()
    assert service.differences() == []
    engine.lose()
    assert {one.unit for one in service.differences()} >= {f"port/{nic['port_id']}"}
    service.worker.round()
    assert service.differences() == []


def test_what_is_noted_is_no_difference_yet(ask, service):
    service.worker.round()
    _network(ask)
    assert service.differences() == []


def test_only_who_leads_writes(ask, service, engine):
    engine.close()
    _network(ask)
    service.worker.round()
    assert engine.units == {}


def test_an_engine_that_is_away_is_found_by_the_audit(service, engine):
    engine.away = True
    assert [one.text for one in service.differences()] == ["The northbound database does not answer."]


def _on_a_card(database, *ids):
    """Have these ports be functions of a SmartNIC."""
    device = {"card_serial_number": "AB12", "pf_mac_address": "02:00:00:00:00:0a", "vf_num": 3}
    with database.write() as connection:
        connection.execute(ports.update().where(ports.c.id.in_(ids)).values(
            vnic_type="remote-managed", device=orjson.dumps(device).decode()))


def test_ports_on_cards_wait_for_their_chassis_alone(ask, service, engine, sqlite):
    """All else is written meanwhile; what is noted of them stays until somebody tells where they are."""
    network = _network(ask)
    nic, port = _server(service, network), _port(ask, network)
    _on_a_card(sqlite, nic["port_id"])
    engine.lost_cards = True
    service.worker.round()
    with sqlite.read() as connection:
        assert changes.noted_units(connection) == {f"port/{nic['port_id']}"}
    assert engine.port(port["id"]) and engine.port(nic["port_id"])
    later = _port(ask, network)
    service.worker.round()
    assert engine.port(later["id"])
    with counted(api=sqlite) as asked:
        service.worker.round()
    assert not [one for one in asked if "INSERT" in one[1] or "UPDATE" in one[1]], "it looks, and writes nothing"
    engine.lost_cards = False
    service.worker.round()
    with sqlite.read() as connection:
        assert not changes.noted_units(connection)


def test_many_ports_on_cards_that_wait_are_passed_by(ask, service, engine, sqlite, monkeypatch):
    """However many they are, a statement names none of them, and what comes after them is written."""
    network = _network(ask)
    waiting = [_server(service, network)["port_id"] for _one in range(7)]
    _on_a_card(sqlite, *waiting)
    engine.lost_cards = True
    monkeypatch.setattr(changes, "MANY", 3)
    service.worker.round()
    free = [_port(ask, network)["id"] for _one in range(4)]
    with counted(api=sqlite) as asked:
        service.worker.round()
    assert all(map(engine.port, free))
    assert not [one for one in asked if "unit NOT IN" in one[1]]
    with sqlite.read() as connection:
        assert changes.noted_units(connection) == {f"port/{id}" for id in waiting}


def test_a_round_that_passes_by_ends_however_much_comes(ask, service, engine, sqlite, monkeypatch):
    """What is noted meanwhile before its place is the next round's."""
    service.worker.round()
    monkeypatch.setattr(changes, "MANY", 3)
    with sqlite.write() as connection:
        connection.execute(insert(changes_table), [{"id": f"{at:036}", "unit": f"port/{at}"} for at in range(5)])
    rounds = []

    def repair(wanted: Wanted) -> int:
        rounds.append(wanted)
        with sqlite.write() as connection:
            connection.execute(insert(changes_table), [{"id": f"f{99 - len(rounds):035}", "unit": "port/new"}])
        if len(rounds) == 30:
            service.worker._over.set()
        return 1

    monkeypatch.setattr(engine, "repair", repair)
    monkeypatch.setattr(engine, "unplaced", lambda _wanted: {"port/0"})
    service.worker.round()
    assert len(rounds) < 10


def test_a_port_that_changes_has_no_statement_made(ask, service, engine, monkeypatch):
    """That takes longer than to execute it, and each new server waits for the interpreter meanwhile."""
    network = _network(ask)
    for id in (SERVER, str(uuid.uuid4())):  # at first everything is compared
        _server(service, network, id=id)
        service.worker.round()

    def made(*_words):
        raise AssertionError("a statement is made")

    later = _server(service, network, id=str(uuid.uuid4()))
    for name in ("select", "delete", "update"):
        for module in (changes, wanted):
            monkeypatch.setattr(module, name, made, raising=False)
    service.worker.round()
    assert engine.port(later["port_id"])


def test_what_is_wrong_with_an_engine_is_found_by_the_audit(service, engine, monkeypatch):
    service.worker.round()
    monkeypatch.setattr(engine, "faults", lambda: ["A member of the cluster does not answer."])
    assert [one.text for one in service.differences()] == ["A member of the cluster does not answer."]


def test_many_ports_take_few_statements(ask, service, engine, sqlite):
    network = _network(ask)
    service.worker.round()

    def statements(number: int) -> int:
        ask("POST", "/v2.0/ports", {"ports": [{"network_id": network["id"]} for _one in range(number)]})
        with counted(api=sqlite) as count:
            service.worker.round()
        return len(count)

    assert statements(40) == statements(2)


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
