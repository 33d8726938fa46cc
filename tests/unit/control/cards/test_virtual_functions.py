# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports that are virtual functions (``vnic_type`` direct) in a cloud: what they may be, and servers with them, which
are placed, attached, moved and deleted."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from magnetar_control.store.hosts import hosts
from tests.support.control.encrypted_memory import used
from tests.support.control.hardware import act
from tests.support.control.specs import image
from tests.support.waiting import eventually
from tests.unit.agent.cards.made_up import plugged
from tests.unit.control.evacuate.evacuating import Evacuating
from tests.unit.control.moves.clouds import at

from .equipped import CASES, LIVE, NAME, Equipped, Functions, free, held

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", CASES["refused"], ids=[case["says"][:60] for case in CASES["refused"]])
def test_what_a_port_cannot_be(cloud: Equipped, case: dict[str, Any]) -> None:
    body = {"binding:vnic_type": "direct", **case["port"],
            "network_id": cloud.networks[case.get("network", "plain")]}
    reply = cloud.admin.post("/network/v2.0/ports", {"port": body})
    assert reply.status == case.get("status", 400) and case["says"] in str(reply.json), reply


@pytest.mark.parametrize("case", CASES["changes"], ids=[case["says"][:60] for case in CASES["changes"]])
def test_what_it_cannot_become(some: Functions, case: dict[str, Any]) -> None:
    port = some.port(**case.get("port", {}))
    reply = some.cloud.admin.put(f"/network/v2.0/ports/{port}", {"port": case["to"]})
    assert reply.status == case.get("status", 400) and case["says"] in str(reply.json), reply


def test_who_may_not_switch_security_off_makes_none(cloud: Equipped) -> None:
    reply = cloud.caller("blue", "blue").post("/network/v2.0/ports", {"port": {
        "network_id": cloud.networks["plain"], "binding:vnic_type": "direct"}})
    assert reply.status == 403 and "create_port:port_security_enabled" in str(reply.json)


def test_ovn_is_not_told_of_it(some: Functions) -> None:
    port, worker = some.port(), some.cloud.services.network.worker
    seen = {key for key in worker.engine.units if key.startswith("port/")}
    assert f"port/{port}" not in seen
    assert some.cloud.admin.put(f"/network/v2.0/ports/{port}", {"port": {"binding:vnic_type": "normal"}}).status == 200
    eventually(lambda: f"port/{port}" in worker.engine.units)
    assert some.cloud.admin.put(f"/network/v2.0/ports/{port}", {"port": {"binding:vnic_type": "direct"}}).status == 200
    eventually(lambda: f"port/{port}" not in worker.engine.units)


def test_a_server_with_one(some: Functions) -> None:
    port = some.port("tagged")
    id = some.make(port, host="kvm1")
    shown = some.shown(port)
    mac, [address] = shown["mac_address"], shown["fixed_ips"]
    assert some.has(id) == ("kvm1", {mac: "0x11 0x0 vlan 7"})
    assert shown["binding:profile"] == {
        "pci_slot": "0000:11:02.0", "pci_vendor_info": "8086:154c", "physical_network": "physnet0"}
    assert (shown["status"], shown["binding:host_id"], shown["binding:vif_type"], shown["binding:vnic_type"],
            shown["binding:vif_details"]) == ("ACTIVE", "kvm1", "hw_veb", "direct", {"port_filter": False})
    nic = at(some.cloud, id)["kvm1"]["networks"][0]
    assert (nic["address"], nic["port_security"]) == (f"{address['ip_address']}/24", False)
    assert some.cloud.admin.put(f"/network/v2.0/ports/{port}", {"port": {"binding:vnic_type": "normal"}}).status == 409
    some.cloud.admin.delete(f"/v2.1/servers/{id}")
    assert some.cloud.admin.settled(id) is None
    after = some.shown(port)
    assert (after["binding:profile"], after["binding:vif_type"], after["status"]) == ({}, "unbound", "DOWN")


def test_hosts_without_free_ones_get_none(some: Functions) -> None:
    for name in ("kvm1", "kvm2"):
        some.make(some.port(), host=name)
    two = some.make(some.port(), some.port(), status="ERROR")
    details = some.cloud.admin.server(two)["fault"]["details"]
    assert "lacks virtual functions of physical network physnet0: the server's ports need 2, and" in details, details
    assert some.has(some.make(some.port()))[0] == "kvm1"
    some.make(some.port(), status="ERROR")


def test_attached_and_detached(some: Functions) -> None:
    first, second, third = (some.port(one) for one in ("plain", "tagged", "plain"))
    id = some.make(first, host="kvm1")
    admin, path = some.cloud.admin, f"/v2.1/servers/{id}/os-interface"
    assert admin.post(path, {"interfaceAttachment": {"port_id": second}}).status == 200
    macs = [some.shown(one)["mac_address"] for one in (first, second)]
    assert some.has(id) == ("kvm1", {macs[0]: "0x11 0x0", macs[1]: "0x11 0x1 vlan 7"})
    assert some.shown(second)["binding:profile"]["pci_slot"] == "0000:11:02.1"
    refused = admin.post(path, {"interfaceAttachment": {"port_id": third}})
    assert refused.status == 400
    assert "has not a free virtual function of physical network physnet0 left" in refused.json["badRequest"]["message"]
    assert some.shown(third)["device_id"] == ""
    assert admin.call("DELETE", f"{path}/{first}").status == 202
    eventually(lambda: some.shown(first)["device_id"] == "" and free(some.cloud)["kvm1"] == 1)
    eventually(lambda: held(some.cloud)[id] == [("kvm1", {NAME: 1})])
    assert some.has(id) == ("kvm1", {macs[1]: "0x11 0x1 vlan 7"})
    assert admin.post(path, {"interfaceAttachment": {"port_id": third}}).status == 200


@pytest.mark.parametrize("case", CASES["moves"], ids=[case["name"] for case in CASES["moves"]])
def test_it_gets_one_where_its_server_goes(some: Functions, case: dict[str, Any]) -> None:
    port = some.port()
    id, mac = some.make(port, host="kvm1"), some.shown(port)["mac_address"]
    for step in case["steps"]:
        act(some.cloud.admin, id, *step["act"], step["status"])
        if "at" not in step:
            continue
        assert some.has(id) == (step["at"], {mac: f"0x{step['at'][-1]}1 0x0"}), step
        profile = some.shown(port)["binding:profile"]
        assert profile["pci_slot"] == f"0000:{step['at'][-1]}1:02.0", step


def test_it_moves_while_its_guest_runs(some: Functions) -> None:
    """Its guest is without it meanwhile, and has one of the other host then."""
    port = some.port()
    id, mac = some.make(port, host="kvm1"), some.shown(port)["mac_address"]
    act(some.cloud.admin, id, "os-migrateLive", {"host": "kvm2", **LIVE}, "ACTIVE")
    assert some.has(id) == ("kvm2", {mac: "0x21 0x0"})
    assert plugged(some.cloud.kvm["kvm2"], at(some.cloud, id)["kvm2"]["name"], live=True) == {mac: "0x21 0x0"}
    assert some.shown(port)["binding:profile"]["pci_slot"] == "0000:21:02.0"
    another = some.make(some.port(), host="kvm1")
    reply = some.cloud.admin.post(f"/v2.1/servers/{another}/action", {
        "os-migrateLive": {"host": "kvm2", "block_migration": "auto"}}, "2.30")
    assert reply.status in (202, 400), reply
    assert some.cloud.admin.settled(another)["status"] == "ACTIVE" and some.has(
        another)[0] == "kvm1"  # type: ignore[index]


def test_suspended_and_resumed(some: Functions) -> None:
    """Its guest is without it meanwhile, and gets the same again."""
    port, kvm = some.port(), some.cloud.kvm["kvm1"]
    id, mac = some.make(port, host="kvm1"), some.shown(port)["mac_address"]
    name = at(some.cloud, id)["kvm1"]["name"]
    act(some.cloud.admin, id, "suspend", None, "SUSPENDED")
    assert plugged(kvm, name, live=True) == {} and some.has(id) == ("kvm1", {mac: "0x11 0x0"})
    act(some.cloud.admin, id, "resume", None, "ACTIVE")
    assert plugged(kvm, name, live=True) == {mac: "0x11 0x0"}


def test_the_memory_of_its_server_is_not_encrypted(some: Functions) -> None:
    """A device of the host could not read it (row A14.7), which is said at once."""
    cloud, admin, port, fake = some.cloud, some.cloud.admin, some.port(), some.cloud.kvm["kvm2"].fake
    plain, efi = (image(admin, name, hw_firmware_type="uefi", **more) for name, more in (
        ("efi", {}), ("hidden", {"hw_mem_encryption": "true"})))
    admin.flavor("hidden", {"hw:mem_encryption": "true"})

    def refused(path: str, body: dict[str, Any]) -> None:
        reply = admin.post(f"/v2.1/servers{path}", body, "2.60")
        assert reply.status == 400 and "cannot be had by a server whose memory is encr" in str(reply.json), reply

    place = {"guests": 1, "cbitpos": 47, "reduced_phys_bits": 1}
    with patch.object(fake, "memory_encryption", {"amd-sev": place}), patch.object(fake, "_kvm", True):
        eventually(lambda: used(cloud) and cloud.parts.working.states.hosts["kvm2"].profile.capabilities[
            "memory_encryption"])
        body = {"name": "vault", "flavorRef": "small", "imageRef": efi, "networks": [{"port": port}]}
        refused("", {"server": body})
        made = admin.boot("vault", flavorRef="small", imageRef=efi, networks="none")
        some.servers.append(made["id"])
        assert made["status"] == "ACTIVE", made
        refused(f"/{made['id']}/os-interface", {"interfaceAttachment": {"port_id": port}})
        assert some.shown(port)["device_id"] == ""
        id = admin.boot("open", flavorRef="small", imageRef=plain, networks=[{"port": port}])["id"]
        some.servers.append(id)
        refused(f"/{id}/action", {"resize": {"flavorRef": "hidden"}})


def test_the_flavor_of_its_server_limits_no_nics(some: Functions) -> None:
    """The host cannot, and says so; but it is said when the server is asked for."""
    admin, port = some.cloud.admin, some.port()
    admin.flavor("slow", {"quota:vif_outbound_average": "100"})
    reply = admin.post("/v2.1/servers", {"server": {
        "name": "slow", "flavorRef": "slow", "imageRef": admin.image(), "networks": [{"port": port}]}}, "2.60")
    assert reply.status == 400 and "quota:vif_outbound_average" in str(reply.json), reply
    id = some.make(port)
    reply = admin.post(f"/v2.1/servers/{id}/action", {"resize": {"flavorRef": "slow"}}, "2.60")
    assert reply.status == 400 and "quota:vif_outbound_average" in str(reply.json), reply


def test_an_alias_of_that_name_is_none(cloud: Equipped) -> None:
    with cloud.parts.api_database.read() as connection:
        assert hosts.fetch_pci_aliases(connection) == set()


def test_evacuated(some: Functions) -> None:
    """It gets a virtual function of the host where it is built anew."""
    port, admin = some.port(), Evacuating(some.cloud)
    id, mac = some.make(port, host="kvm2"), some.shown(port)["mac_address"]
    admin.down("kvm2")
    try:
        assert admin.evacuate(id, "2.90").status == 200
        found = some.cloud.admin.settled(id)
        assert found and found["status"] == "ACTIVE", found
        assert some.shown(port)["binding:profile"]["pci_slot"] == "0000:11:02.0"
    finally:
        admin.up("kvm2")
    eventually(lambda: free(some.cloud) == {"kvm1": 1, "kvm2": 1} and len(held(some.cloud)[id]) == 1)
    assert some.has(id) == ("kvm1", {mac: "0x11 0x0"})
