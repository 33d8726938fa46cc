# SPDX-License-Identifier: GPL-3.0-or-later
"""Trunks: ports that a server has as VLANs of another one."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from magnetar_control.services.network import tables
from magnetar_control.services.network.engine.engine import LogicalPort
from magnetar_control.services.network.ports import trunks
from magnetar_control.services.network.ports.trunks import trunk_documents
from magnetar_core.errors import Conflict
from tests.support.control.counting import counted
from tests.support.control.serving import ADMIN, ALICE, BOB

TOP = "/v2.0/trunks"
SERVER = "6a1f1a52-6a8e-4b0e-8a0e-000000000001"


@pytest.fixture
def ports(ask, lan):
    """Four ports on a network, by name."""
    network = lan(ask)["id"]
    return {name: ask("POST", "/v2.0/ports", {"port": {"name": name, "network_id": network}})["port"]
            for name in ("parent", "a", "b", "c")}


def sub(port, tag, **more):
    return {"port_id": port["id"], "segmentation_type": "vlan", "segmentation_id": tag, **more}


@pytest.fixture
def trunk(ask, ports):
    body = {"name": "t", "port_id": ports["parent"]["id"], "sub_ports": [sub(ports["a"], 101)]}
    return ask("POST", TOP, {"trunk": body})["trunk"]


@pytest.fixture
def running(service):
    """The worker writes by itself."""
    service.worker.start()
    yield service
    service.worker.stop()


def show(ask, port):
    return ask("GET", f"/v2.0/ports/{port['id']}")["port"]


def test_what_a_trunk_is_and_what_its_ports_say(ask, ports, trunk):
    assert (trunk["status"], trunk["admin_state_up"], trunk["sub_ports"]) == ("DOWN", True, [sub(ports["a"], 101)])
    details = show(ask, ports["parent"])["trunk_details"]
    assert details == {"trunk_id": trunk["id"], "sub_ports": [
        sub(ports["a"], 101, mac_address=ports["a"]["mac_address"])]}
    inside = show(ask, ports["a"])
    assert (inside["device_owner"], inside["device_id"], "trunk_details" in inside) == ("trunk:subport", "", False)
    path = f"{TOP}/{trunk['id']}"
    more = ask("PUT", f"{path}/add_subports", {"sub_ports": [sub(ports["b"], 102)]})
    assert [one["segmentation_id"] for one in more["sub_ports"]] == [101, 102]
    less = ask("PUT", f"{path}/remove_subports", {"sub_ports": [{"port_id": ports["a"]["id"]}]})
    assert less["sub_ports"] == ask("GET", f"{path}/get_subports")["sub_ports"] == [sub(ports["b"], 102)]
    assert show(ask, ports["a"])["device_owner"] == ""
    changed = ask("PUT", path, {"trunk": {"name": "new", "description": "x"}})["trunk"]
    assert (changed["name"], changed["description"], changed["sub_ports"]) == ("new", "x", less["sub_ports"])
    assert [one["id"] for one in ask("GET", f"{TOP}?name=new&status=DOWN&port_id={ports['parent']['id']}")[
        "trunks"]] == [trunk["id"]]
    assert ask("GET", f"{TOP}?status=ACTIVE")["trunks"] == []
    ask("DELETE", path)
    assert show(ask, ports["b"])["device_owner"] == ""
    assert "trunk_details" not in show(ask, ports["parent"])


def test_a_subport_is_where_its_parent_is(ask, running, engine, ports, trunk):
    service = running
    service.allocate(ALICE, SERVER, service.check_requested(ALICE, [{"port": ports["parent"]["id"]}]))
    service.prepare(SERVER, "kvm1")
    service.bind(SERVER, "kvm1")
    unit = engine.port(ports["a"]["id"])
    assert isinstance(unit, LogicalPort)
    assert (unit.parent, unit.vlan, unit.hosts, unit.groups) == (
        ports["parent"]["id"], 101, ("kvm1",), tuple(ports["a"]["security_groups"]))
    assert ask("GET", f"{TOP}/{trunk['id']}")["trunk"]["status"] == "ACTIVE"
    admin = ask.as_(ADMIN)
    inside = show(admin, ports["a"])
    assert (inside["status"], inside["binding:host_id"]) == ("ACTIVE", "kvm1")
    found = admin("GET", "/v2.0/ports?binding:host_id=kvm1&status=ACTIVE&name=a&name=b&name=parent")["ports"]
    assert {one["name"] for one in found} == {"a", "parent"}
    assert ask("GET", "/v2.0/ports?binding:host_id=kvm1", status=400)
    service.prepare(SERVER, "kvm2", running=True)
    moving = engine.port(ports["a"]["id"])
    assert (moving.hosts, engine.port(ports["parent"]["id"]).hosts) == (("kvm1",), ("kvm1", "kvm2"))
    service.bind(SERVER, "kvm2")
    service.worker.wait_until_applied([f"port/{ports['parent']['id']}"])
    assert engine.port(ports["a"]["id"]).hosts == ("kvm2",)
    service.prepare(SERVER, "kvm1")
    service.bind(SERVER, "kvm1")
    path = f"{TOP}/{trunk['id']}"
    ask("PUT", f"{path}/add_subports", {"sub_ports": [sub(ports["b"], 102)]})
    ask("PUT", f"{path}/remove_subports", {"sub_ports": [sub(ports["a"], 101)]})
    service.worker.wait_until_applied([f"port/{ports[name]['id']}" for name in "ab"])
    assert (engine.port(ports["a"]["id"]).parent, engine.port(ports["b"]["id"]).hosts) == (None, ("kvm1",))
    assert ask("DELETE", path, status=409)["NeutronError"]["type"] == "TrunkInUse"
    service.release(SERVER)
    service.worker.wait_until_applied([f"port/{ports['parent']['id']}"])
    assert engine.port(ports["b"]["id"]).hosts == ()
    assert service.worker.differences() == []
    ask("DELETE", path)
    service.worker.wait_until_applied([f"port/{ports['b']['id']}"])
    assert engine.port(ports["b"]["id"]).parent is None
    assert service.worker.differences() == []


def test_the_guest_is_told_of_subports(ask, service, database, lan, ports, trunk):
    other = lan(ask, "10.2.0.0/24", mtu=1400)
    ask("PUT", f"/v2.0/subnets/{other['subnets'][0]}", {"subnet": {"enable_dhcp": False}})
    alone = ask("POST", "/v2.0/ports", {"port": {"network_id": other["id"]}})["port"]
    ask("PUT", f"{TOP}/{trunk['id']}/add_subports", {"sub_ports": [sub(alone, 5)]})
    wanted = service.check_requested(ALICE, [{"port": ports["parent"]["id"]}, {"port": ports["b"]["id"]}])
    with counted(api=database, here=True) as asked:
        nics = service.allocate(ALICE, SERVER, wanted)
    (first, second), (plain,) = nics[0]["told"]["vlans"], nics[1:]
    assert first == {
        "segmentation_id": 5, "port_id": alone["id"], "network_id": other["id"], "mac": alone["mac_address"],
        "address": f"{alone['fixed_ips'][0]['ip_address']}/24", "mtu": 1400, "gateway": "10.2.0.1"}
    assert (second["segmentation_id"], second["port_id"], second["address"]) == (
        101, ports["a"]["id"], ports["a"]["fixed_ips"][0]["ip_address"])
    assert "vlans" not in plain["told"]
    assert service.ports(SERVER)[0]["told"] == nics[0]["told"]
    assert sum("trunk_subports" in one for _name, one in asked) == 1
    with counted(api=database, here=True) as asked:
        service.allocate(BOB, "6a1f1a52-6a8e-4b0e-8a0e-000000000002", [])
    assert not any("trunk_subports" in one for _name, one in asked)  # where there is no trunk, nobody asks


def test_a_port_that_was_made_with_a_server_stays_with_its_trunk(ask, service, ports):
    wanted = service.check_requested(ALICE, [{"uuid": ports["a"]["network_id"]}])
    (nic,) = service.allocate(ALICE, SERVER, wanted)
    ask("POST", TOP, {"trunk": {"port_id": nic["port_id"], "sub_ports": [sub(ports["a"], 5)]}})
    service.release(SERVER)
    assert ask("GET", f"/v2.0/ports/{nic['port_id']}")["port"]["device_id"] == ""


@pytest.mark.parametrize(("given", "status", "type"), [
    ([("b", 101)], 409, "DuplicateSubPort"), ([("a", 5)], 409, "TrunkPortInUse"),
    ([("parent", 5)], 409, "ParentPortInUse"), ([("b", 5), ("b", 6)], 400, "InvalidInput"),
    ([("b", 5), ("c", 5)], 409, "DuplicateSubPort"), ([("b", 0)], 400, "HTTPBadRequest"),
    ([("b", 4095)], 400, "HTTPBadRequest")])
def test_subports_that_cannot_be_change_nothing(ask, ports, trunk, given, status, type):
    path = f"{TOP}/{trunk['id']}"
    body = {"sub_ports": [sub(ports[name], tag) for name, tag in given]}
    assert ask("PUT", f"{path}/add_subports", body, status=status)["NeutronError"]["type"] == type
    assert ask("GET", path)["trunk"]["sub_ports"] == trunk["sub_ports"]
    assert show(ask, ports["b"])["device_owner"] == ""


def test_one_that_has_gone_while_a_list_is_read(ask, service, ports, trunk):
    with service.database.read() as connection:
        rows = connection.execute(select(tables.trunks)).mappings().all()
        ask("DELETE", f"{TOP}/{trunk['id']}")
        ask("DELETE", f"/v2.0/ports/{ports['parent']['id']}")
        (found,) = trunk_documents(connection, rows)
    assert (found["id"], found["status"], found["sub_ports"]) == (trunk["id"], "DOWN", [])


@pytest.mark.parametrize("database_kind", ["postgres"])
def test_no_trunk_takes_a_port_that_becomes_a_routers(ask, postgres, service, ports, monkeypatch):
    def locked(_connection, port_id):
        query = select(tables.ports.c.id).where(tables.ports.c.id == port_id).with_for_update(nowait=True)
        with pytest.raises(OperationalError, match="lock"), postgres.write() as other:
            other.execute(query)
        raise Conflict("It is locked.")

    router = ask("POST", "/v2.0/routers", {"router": {"name": "r"}})["router"]
    monkeypatch.setattr(trunks, "check_in_none", locked)
    path = f"/v2.0/routers/{router['id']}/add_router_interface"
    assert "It is locked" in ask("PUT", path, {"port_id": ports["a"]["id"]}, status=409)["NeutronError"]["message"]


def test_what_is_refused_of_a_trunk(ask, service, ports, trunk, lan):
    path = f"{TOP}/{trunk['id']}"

    def refused(method, where, body=None, status=409):
        return ask(method, where, body, status=status)["NeutronError"]["type"]

    for name, type in (("parent", "ParentPortInUse"), ("a", "ParentPortInUse")):
        assert refused("POST", TOP, {"trunk": {"port_id": ports[name]["id"]}}) == type
    assert refused("POST", TOP, {"trunk": {"port_id": SERVER}}, 404) == "PortNotFound"
    twice = {"port_id": ports["b"]["id"], "sub_ports": [sub(ports["c"], 1), sub(ports["c"], 2)]}
    assert refused("POST", TOP, {"trunk": twice}, 400) == "InvalidInput"
    itself = {"port_id": ports["b"]["id"], "sub_ports": [sub(ports["b"], 1)]}
    assert refused("POST", TOP, {"trunk": itself}) == "ParentPortInUse"
    for bad in ({"segmentation_type": "inherit"}, {"segmentation_type": "vxlan"}):
        assert refused("PUT", f"{path}/add_subports", {"sub_ports": [sub(ports["b"], 5) | bad]}, 400)
    assert refused("PUT", f"{path}/add_subports", {"sub_ports": [{"port_id": ports["b"]["id"]}]}, 400)
    assert refused("PUT", f"{path}/remove_subports", {"sub_ports": [{"port_id": ports["b"]["id"]}]},
                   404) == "SubPortNotFound"
    assert refused("DELETE", f"/v2.0/ports/{ports['a']['id']}") == "PortInUseAsSubPort"
    assert refused("DELETE", f"/v2.0/ports/{ports['parent']['id']}") == "PortInUseAsTrunkParent"
    assert refused("PUT", f"/v2.0/ports/{ports['a']['id']}", {"port": {"device_owner": "x"}}) == "PortInUseAsSubPort"
    assert refused("PUT", f"/v2.0/ports/{ports['b']['id']}", {"port": {"device_owner": "trunk:subport"}}, 400)
    large = lan(ask, "10.2.0.0/24", mtu=1400)["id"]
    small = ask("POST", "/v2.0/ports", {"port": {"network_id": large}})["port"]
    over = {"port_id": small["id"], "sub_ports": [sub(ports["b"], 5)]}
    assert refused("POST", TOP, {"trunk": over}) == "SubPortMtuGreaterThanTrunkPortMtu"
    router = ask("POST", "/v2.0/routers", {"router": {"name": "r"}})["router"]
    interface = f"/v2.0/routers/{router['id']}/add_router_interface"
    assert refused("PUT", interface, {"port_id": ports["a"]["id"]}) == "PortInUseAsSubPort"
    with pytest.raises(Exception, match="subport of a trunk"):
        service.check_requested(ALICE, [{"port": ports["a"]["id"]}])
    ask("PUT", path, {"trunk": {"admin_state_up": False}})
    for method, where, body in (("DELETE", path, None),
                                ("PUT", f"{path}/add_subports", {"sub_ports": [sub(ports["b"], 5)]}),
                                ("PUT", f"{path}/remove_subports", {"sub_ports": [sub(ports["a"], 101)]})):
        assert refused(method, where, body) == "TrunkDisabled"


def test_a_trunk_is_of_networks_of_ovn(ask, ports):
    network = ask.as_(ADMIN)("POST", "/v2.0/networks", {"network": {"provider:network_type": "isolated",
                                                                     "shared": True}})["network"]["id"]
    other = ask("POST", "/v2.0/ports", {"port": {"network_id": network}})["port"]
    for body in ({"port_id": other["id"]}, {"port_id": ports["b"]["id"], "sub_ports": [sub(other, 5)]}):
        assert "without OVN" in ask("POST", TOP, {"trunk": body}, status=400)["NeutronError"]["message"]


def test_whose_it_is(ask, ports, trunk):
    bob, path = ask.as_(BOB), f"{TOP}/{trunk['id']}"
    assert bob("GET", TOP)["trunks"] == []
    for method, where, body in (("GET", path, None), ("GET", f"{path}/get_subports", None), ("DELETE", path, None),
                                ("PUT", f"{path}/add_subports", {"sub_ports": []})):
        assert bob(method, where, body, status=404)
    assert bob("POST", TOP, {"trunk": {"port_id": ports["b"]["id"]}}, status=404)


def test_a_project_has_so_many(ask, ports, trunk):
    admin = ask.as_(ADMIN)
    admin("PUT", f"/v2.0/quotas/{trunk['project_id']}", {"quota": {"trunk": 1}})
    refused = ask("POST", TOP, {"trunk": {"port_id": ports["b"]["id"]}}, status=409)["NeutronError"]
    assert refused["type"] == "OverQuota"


def test_clients_find_the_extensions(ask):
    known = {one["alias"] for one in ask("GET", "/v2.0/extensions")["extensions"]}
    assert {"trunk", "trunk-details"} <= known


def test_the_mtu_of_a_network_stays_at_least_that_of_those_inside(ask, service, lan):
    inner, outer = lan(ask, "10.2.0.0/24", mtu=1300)["id"], lan(ask, "10.3.0.0/24", mtu=1400)["id"]
    parent, inside = (ask("POST", "/v2.0/ports", {"port": {"network_id": id}})["port"] for id in (outer, inner))
    ask("POST", TOP, {"trunk": {"port_id": parent["id"], "sub_ports": [sub(inside, 5)]}})

    def changed(id: str, mtu: int, status: int = 409) -> str:
        answer = ask("PUT", f"/v2.0/networks/{id}", {"network": {"mtu": mtu}}, status=status)
        return str(answer.get("NeutronError", {}).get("type"))

    assert changed(inner, 1401) == changed(outer, 1299) == "SubPortMtuGreaterThanTrunkPortMtu"
    changed(inner, 1400, 200)
    assert changed(outer, 1399) == "SubPortMtuGreaterThanTrunkPortMtu"
    changed(inner, 1200, 200)
    changed(outer, 1200, 200)
    service.allocate(ALICE, SERVER, service.check_requested(ALICE, [{"port": parent["id"]}]))
    assert changed(inner, 1100) == changed(outer, 1300) == "NetworkInUse"  # its guest has been told of both
