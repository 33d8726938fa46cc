# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports that are vDPA devices, which OVN has their card forward, and those that are virtual functions of SmartNICs,
which have an OVN of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from magnetar_agent.host.networks import IntegrationBridge
from magnetar_control.services.network.engine.engine import LogicalFunction
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from tests.support.agent.pci import device
from tests.support.control.hardware import act
from tests.support.waiting import eventually
from tests.unit.agent.cards.made_up import part, plugged
from tests.unit.control.moves.clouds import at

from .equipped import LIVE, Functions, held

pytestmark = pytest.mark.slow
VDPA = {"binding:vnic_type": "vdpa"}


def test_a_vdpa_port(more: Functions) -> None:
    """It is OVN's, and its host has the virtual function's representor plugged in as a tap would be."""
    port, worker, fake = more.port("tunnelled", **VDPA), more.cloud.services.network.worker, more.cloud.kvm["kvm2"].fake
    eventually(lambda: f"port/{port}" in worker.engine.units)
    id = more.make(port)
    shown = more.shown(port)
    assert shown["port_security_enabled"] and shown["security_groups"]
    assert (shown["binding:host_id"], shown["binding:vif_type"], shown["binding:vnic_type"]) == ("kvm2", "ovs", "vdpa")
    assert shown["binding:profile"]["pci_slot"] == "0000:91:02.0"
    assert held(more.cloud)[id] == [("kvm2", {"vdpa:rp_tunnelled": 1})]
    assert fake.representors["ens1f0_0"].port == port and fake.representors["ens1f0_0"].mac == shown["mac_address"]
    assert part(more.cloud.kvm["kvm2"], "interface[@type='vdpa']", at(more.cloud, id)["kvm2"]["name"])
    another = more.make(more.port("tunnelled", **VDPA), status="ERROR")
    details = more.cloud.admin.server(another)["fault"]["details"]
    assert "lacks vDPA devices of networks between hosts: the server's ports need 1, and" in details, details
    act(more.cloud.admin, id, "suspend", None, "SUSPENDED")
    act(more.cloud.admin, id, "resume", None, "ACTIVE")
    assert part(more.cloud.kvm["kvm2"], "interface[@type='vdpa']", at(more.cloud, id)["kvm2"]["name"], live=True)
    refused = more.cloud.admin.put(f"/network/v2.0/ports/{port}", {"port": {"binding:vnic_type": "normal"}})
    assert refused.status == 409
    more.cloud.admin.delete(f"/v2.1/servers/{id}")
    assert more.cloud.admin.settled(id) is None
    assert fake.representors == {}


def test_a_vdpa_port_is_attached_and_detached(more: Functions) -> None:
    port, admin = more.port("tunnelled", **VDPA), more.cloud.admin
    id = admin.boot("plain", "2.74", flavorRef="small", networks="none", host="kvm2")["id"]
    more.servers.append(id)
    path = f"/v2.1/servers/{id}/os-interface"
    assert admin.post(path, {"interfaceAttachment": {"port_id": port}}).status == 200
    assert held(more.cloud)[id] == [("kvm2", {"vdpa:rp_tunnelled": 1})]
    assert list(more.cloud.kvm["kvm2"].fake.representors) == ["ens1f0_0"]
    assert admin.call("DELETE", f"{path}/{port}").status == 202
    eventually(lambda: more.shown(port)["device_id"] == "" and not more.cloud.kvm["kvm2"].fake.representors)
    eventually(lambda: held(more.cloud)[id] == [("kvm2", {})])


def test_a_vdpa_port_moves_cold_only_where_there_is_another(more: Functions) -> None:
    id = more.make(more.port("tunnelled", **VDPA))
    reply = more.cloud.admin.post(f"/v2.1/servers/{id}/action", {"migrate": None}, "2.30")
    assert reply.status in (400, 202), reply
    assert more.cloud.admin.settled(id)["status"] == "ACTIVE"  # type: ignore[index]
    assert held(more.cloud)[id] == [("kvm2", {"vdpa:rp_tunnelled": 1})]


# SmartNICs ------------------------------------------------------------------------------------------------------------
REMOTE = {"binding:vnic_type": "remote-managed"}
FUNCTION = "remote-managed:rp_tunnelled"


@pytest.fixture
def smart(more: Functions) -> Iterator[Functions]:
    """The SmartNIC of kvm1 has a chassis of OVN."""
    engine = engine_of(more.cloud)
    engine.cards = {"CARD-kvm1": "dpu1"}
    hosts = more.cloud.parts.working.states.hosts
    eventually(lambda: all(hosts[name].pci.reported.get(FUNCTION, {}).get("free") == 1 for name in ("kvm1", "kvm3")))
    yield more
    engine.cards = {}


def engine_of(cloud: Any) -> FakeEngine:
    found: FakeEngine = cloud.services.network.worker.engine
    return found


def on_card(cloud: Any, port: str) -> tuple[Any, ...]:
    """Where OVN has a port: hosts, card and function there."""
    found = engine_of(cloud).port(port)
    assert found is not None
    return found.hosts, found.card, found.function


def test_a_remote_managed_port(smart: Functions) -> None:
    """Its guest starts when OVN has been told of which card it is; its host needs no Open vSwitch."""
    cloud, port = smart.cloud, smart.port("tunnelled", **REMOTE)
    eventually(lambda: engine_of(cloud).port(port) is not None)
    assert on_card(cloud, port) == ((), "", None)
    kvm1, network = cloud.kvm["kvm1"].fake, cloud.services.network
    with patch.object(kvm1, "integration_bridge", lambda name: IntegrationBridge(name, reason="no")), \
            patch.object(network, "bind", wraps=network.bind) as bind:
        id = smart.make(port, host="kvm1")
    assert bind.call_count == 1
    shown = smart.shown(port)
    assert shown["port_security_enabled"] and shown["security_groups"] and shown["binding:vif_type"] == "ovs"
    assert shown["binding:profile"] == {
        "pci_slot": "0000:a1:02.0", "pci_vendor_info": "8086:154c", "physical_network": "rp_tunnelled",
        "card_serial_number": "CARD-kvm1", "pf_mac_address": "0c:42:a1:00:00:01", "vf_num": 0}
    function = LogicalFunction("0c:42:a1:00:00:01", 0, 1442)
    assert on_card(cloud, port) == ((), "CARD-kvm1", function)
    assert held(cloud)[id] == [("kvm1", {FUNCTION: 1})]
    name = at(cloud, id)["kvm1"]["name"]
    assert list(plugged(cloud.kvm["kvm1"], name)) == [shown["mac_address"]]
    act(cloud.admin, id, "suspend", None, "SUSPENDED")
    act(cloud.admin, id, "resume", None, "ACTIVE")
    assert on_card(cloud, port) == ((), "CARD-kvm1", function)
    assert cloud.admin.put(f"/network/v2.0/ports/{port}", {"port": {"binding:vnic_type": "vdpa"}}).status == 409
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None
    eventually(lambda: on_card(cloud, port) == ((), "", None))


def test_a_card_without_a_chassis(smart: Functions) -> None:
    """Nobody would plug the port in: the server is not started there, and another host is tried."""
    id = smart.make(smart.port("tunnelled", **REMOTE), host="kvm3", status="ERROR")
    fault = smart.cloud.admin.server(id)["fault"]
    assert "ovn-cms-options=card-serial-number=CARD-kvm3" in str(fault), fault
    assert smart.cloud.kvm["kvm3"].side().host["pci_devices"][FUNCTION]["free"] == 1


def test_nobody_tells_the_chassis_of_cards(smart: Functions) -> None:
    """The southbound database is away: servers with ports on cards fail, and others come as ever."""
    engine_of(smart.cloud).lost_cards = True
    try:
        id = smart.make(smart.port("tunnelled", **REMOTE), host="kvm1", status="ERROR")
        assert "The southbound database does not answer" in str(smart.cloud.admin.server(id)["fault"])
        smart.make(smart.port("tunnelled", **{"binding:vnic_type": "normal"}), host="kvm1")
    finally:
        engine_of(smart.cloud).lost_cards = False


def test_it_follows_its_server(smart: Functions) -> None:
    cloud, port = smart.cloud, smart.port("tunnelled", **REMOTE)
    id = smart.make(port, host="kvm1")
    engine_of(cloud).cards["CARD-kvm3"] = "dpu3"
    act(cloud.admin, id, "migrate", {"host": "kvm3"}, "VERIFY_RESIZE")
    there = ((), "CARD-kvm3", LogicalFunction("0c:42:a1:00:00:03", 0, 1442))
    eventually(lambda: on_card(cloud, port) == there)
    act(cloud.admin, id, "revertResize", None, "ACTIVE")
    eventually(lambda: on_card(cloud, port) == ((), "CARD-kvm1", LogicalFunction("0c:42:a1:00:00:01", 0, 1442)))
    act(cloud.admin, id, "os-migrateLive", {"host": "kvm3", **LIVE}, "ACTIVE")
    eventually(lambda: on_card(cloud, port) == there)


def test_a_remote_managed_port_is_attached_and_detached(smart: Functions) -> None:
    port, cloud = smart.port("tunnelled", **REMOTE), smart.cloud
    for host, status in (("kvm3", 500), ("kvm1", 200)):
        id = cloud.admin.boot("plain", "2.74", flavorRef="small", networks="none", host=host)["id"]
        smart.servers.append(id)
        path = f"/v2.1/servers/{id}/os-interface"
        reply = cloud.admin.post(path, {"interfaceAttachment": {"port_id": port}})
        assert reply.status == status, reply
        if status == 500:
            eventually(lambda: smart.shown(port)["device_id"] == "")
    assert on_card(cloud, port)[1] == "CARD-kvm1" and held(cloud)[id] == [("kvm1", {FUNCTION: 1})]
    assert cloud.admin.call("DELETE", f"{path}/{port}").status == 202
    eventually(lambda: on_card(cloud, port) == ((), "", None))


def test_its_subports_are_where_it_is(smart: Functions) -> None:
    cloud, admin = smart.cloud, smart.cloud.admin
    parent, carried = smart.port("tunnelled", **REMOTE), smart.port("tunnelled", **{"binding:vnic_type": "normal"})
    reply = admin.post("/network/v2.0/trunks", {"trunk": {"port_id": parent, "sub_ports": [
        {"port_id": carried, "segmentation_type": "vlan", "segmentation_id": 7}]}})
    assert reply.status == 201, reply
    id = smart.make(parent, host="kvm1")
    eventually(lambda: on_card(cloud, carried) == ((), "CARD-kvm1", None))
    admin.delete(f"/v2.1/servers/{id}")
    assert admin.settled(id) is None
    assert admin.delete(f"/network/v2.0/trunks/{reply.json['trunk']['id']}").status == 204


def test_a_function_that_is_gone_at_the_next_start(smart: Functions) -> None:
    """OVN is told of the one in its place."""
    cloud, port = smart.cloud, smart.port("tunnelled", **REMOTE)
    sysfs = cloud.kvm["kvm1"].agent.host.settings.sysfs
    id = smart.make(port, host="kvm1")
    act(cloud.admin, id, "os-stop", None, "SHUTOFF")
    devices = sysfs / "bus/pci/devices"
    (devices / "0000:a1:02.0").rename(sysfs / "gone")
    (devices / "0000:a1:00.0/virtfn1").symlink_to("../0000:a1:02.1")
    (device(sysfs, "0000:a1:02.1", ("8086", "154c"), -1, "0x020000") / "physfn").symlink_to("../0000:a1:00.0")
    try:
        act(cloud.admin, id, "os-start", None, "ACTIVE")
        assert smart.shown(port)["binding:profile"]["vf_num"] == 1
        eventually(lambda: on_card(cloud, port)[2].number == 1)
    finally:
        cloud.admin.delete(f"/v2.1/servers/{id}")
        assert cloud.admin.settled(id) is None
        (sysfs / "gone").rename(devices / "0000:a1:02.0")
        (devices / "0000:a1:02.1").rename(sysfs / "gone")
        (devices / "0000:a1:00.0/virtfn1").unlink()
