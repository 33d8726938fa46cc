# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports that are virtual functions (``vnic_type`` direct) in a cloud: what they may be, and servers with them, which
are placed, attached, moved and deleted. The sysfs of the hosts is made up, their libvirt a fake, and so is OVN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from magnetar_control import serve
from magnetar_control.conductor.audit import findings, read_state
from magnetar_control.services.network.fake_engine import FakeEngine
from magnetar_control.store import hosts
from tests.unit.agent.test_virtual_functions import card, netdev, part, plugged, switched

from .attachments.asking import until
from .evacuate.evacuating import Evacuating
from .moves.clouds import at, remove
from .moves.inside import Inside
from .test_encrypted_memory import used
from .test_hardware import act, image

pytestmark = pytest.mark.slow
CASES = yaml.safe_load((Path(__file__).parents[2] / "cases/virtual_functions.yml").read_text(encoding="utf-8"))
NAME = "type-VF:physnet0"


def functions(folder: Path, name: str) -> dict[str, Any]:
    """Settings of a host: kvm1 has two virtual functions, kvm2 one and a vDPA device, kvm3 a card without any."""
    sysfs = folder / f"{name}-sys"
    card(sysfs, f"{name[-1]}1", {"kvm1": 2, "kvm2": 1, "kvm3": 0}[name])
    netdev(sysfs, f"0000:{name[-1]}1:00.0", "ens1", "3c:fd:fe:00:00:01")
    if name == "kvm2":
        switched(sysfs, "91", 1)
    return {"sysfs": sysfs, "resource_provider_bandwidths": ["physnet0:10000:10000"], "pci_device_spec": [
        {"address": "0000:91:*", "physical_network": None},
        {"address": "0000:11:02.1", "physical_network": "physnet0", "trusted": True},
        {"vendor_id": "8086", "physical_network": "physnet0"}]}


class Equipped(Inside):
    """Hosts with virtual functions."""

    def agent_of(self, name: str) -> dict[str, Any]:
        return functions(self.folder, name)


def prepared(cloud: Any) -> dict[str, str]:
    """Networks by name."""
    made = {}
    for name, more in CASES["networks"].items():
        made[name] = cloud.admin.post("/network/v2.0/networks", {"network": {"name": name, **more}}).json["network"][
            "id"]
        subnet = {"network_id": made[name], "cidr": f"10.{len(made)}.0.0/24", "ip_version": 4}
        assert cloud.admin.post("/network/v2.0/subnets", {"subnet": subnet}).status == 201
    return made


@pytest.fixture(scope="module")
def cloud() -> Iterator[Equipped]:
    with patch.object(serve, "engine_of", lambda _settings: FakeEngine()), Equipped(
            hosts=3, host_down_after=600.0, allow_resize_to_same_host=True) as made:
        made.parts.working.settling = lambda: False  # type: ignore[method-assign]
        for name, ram in (("small", 64), ("large", 128)):
            body = {"id": name, "name": name, "ram": ram, "vcpus": 1, "disk": 1}
            assert made.admin.post("/v2.1/flavors", {"flavor": body}).status == 200
        made.admin.image()
        made.networks = prepared(made)  # type: ignore[attr-defined]
        yield made


class Functions:
    """Servers and ports that go with the test."""

    def __init__(self, cloud: Equipped) -> None:
        self.cloud, self.servers, self.made = cloud, list[str](), list[str]()

    def port(self, network: str = "plain", **more: Any) -> str:
        """A port that is a virtual function."""
        body = {"network_id": self.cloud.networks[network], "binding:vnic_type": "direct", **more}  # type: ignore[attr-defined]
        reply = self.cloud.admin.post("/network/v2.0/ports", {"port": body})
        assert reply.status == 201, reply
        self.made.append(reply.json["port"]["id"])
        return self.made[-1]

    def make(self, *ports: str, host: str = "", status: str = "ACTIVE") -> str:
        """A server with these ports."""
        made = self.cloud.admin.boot(
            f"vf{len(self.servers)}", "2.74", flavorRef="small", networks=[{"port": one} for one in ports],
            **({"host": host} if host else {}))
        self.servers.append(made["id"])
        assert made["status"] == status, made.get("fault")
        return str(made["id"])

    def shown(self, port: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cloud.admin.get(f"/network/v2.0/ports/{port}").json["port"]
        return found

    def has(self, id: str) -> tuple[str, dict[str, str]]:
        """Its host, and the NICs of its domain there; what is claimed of hosts is what it has."""
        found = at(self.cloud, id)
        claimed = held(self.cloud)
        (host,) = (name for name, one in found.items() if one["power_state"] != "missing") if len(found) == 1 else (
            claimed[id][0][0],)
        nics = plugged(self.cloud.kvm[host], found[host]["name"])
        assert (host, {NAME: len(nics)} if nics else {}) in claimed[id]
        return host, nics


def held(cloud: Any) -> dict[str, list[tuple[str, dict[str, int]]]]:
    """Server to hosts and what it and its migrations claim of the devices there."""
    found: dict[str, list[tuple[str, dict[str, int]]]] = {}
    with cloud.parts.api_database.read() as connection:
        for row in connection.exec_driver_sql("SELECT server_id, name, devices FROM allocations JOIN hosts ON "
                                              "hosts.id = allocations.host_id"):
            found.setdefault(row.server_id, []).append((row.name, json.loads(row.devices)))
    return found


@pytest.fixture
def some(cloud: Equipped) -> Iterator[Functions]:
    found = Functions(cloud)
    have_told(cloud)
    yield found
    remove(cloud, found.servers)
    for id in found.made:
        assert cloud.admin.delete(f"/network/v2.0/ports/{id}").status == 204
    assert held(cloud) == {}
    until(lambda: findings(read_state(cloud.parts.store, cloud.parts.agents, cloud.services)) == [])
    assert free(cloud) == {"kvm1": 2, "kvm2": 1}
    # The next test begins with what agents have told, and nothing that came and went before they told of it.
    have_told(cloud)
    for host in cloud.parts.working.states.hosts.values():
        host.pci.freed()
        host.pci.refused()


def have_told(cloud: Equipped) -> None:
    """Wait until the conductor knows what is free."""
    hosts = cloud.parts.working.states.hosts
    wanted = [*((name, NAME, count) for name, count in free(cloud).items()), ("kvm3", CARDS, 1)]
    until(lambda: all(name in hosts and hosts[name].pci.told.get(word, {}).get("free") == count
                      for name, word, count in wanted))


def free(cloud: Equipped) -> dict[str, int]:
    """How many virtual functions hosts say that are free."""
    return {name: found[NAME]["free"] for name, kvm in cloud.kvm.items()
            if NAME in (found := kvm.side().host["pci_devices"])}


# Ports --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES["refused"], ids=[case["says"][:60] for case in CASES["refused"]])
def test_what_a_port_cannot_be(cloud: Equipped, case: dict[str, Any]) -> None:
    body = {"binding:vnic_type": "direct", **case["port"],
            "network_id": cloud.networks[case.get("network", "plain")]}  # type: ignore[attr-defined]
    reply = cloud.admin.post("/network/v2.0/ports", {"port": body})
    assert reply.status == case.get("status", 400) and case["says"] in str(reply.json), reply


@pytest.mark.parametrize("case", CASES["changes"], ids=[case["says"][:60] for case in CASES["changes"]])
def test_what_it_cannot_become(some: Functions, case: dict[str, Any]) -> None:
    port = some.port(**case.get("port", {}))
    reply = some.cloud.admin.put(f"/network/v2.0/ports/{port}", {"port": case["to"]})
    assert reply.status == case.get("status", 400) and case["says"] in str(reply.json), reply


def test_who_may_not_switch_security_off_makes_none(cloud: Equipped) -> None:
    reply = cloud.caller("blue", "blue").post("/network/v2.0/ports", {"port": {
        "network_id": cloud.networks["plain"], "binding:vnic_type": "direct"}})  # type: ignore[attr-defined]
    assert reply.status == 403 and "create_port:port_security_enabled" in str(reply.json)


def test_ovn_is_not_told_of_it(some: Functions) -> None:
    port, worker = some.port(), some.cloud.services.network.worker
    seen = {key for key in worker.engine.units if key.startswith("port/")}
    assert f"port/{port}" not in seen
    assert some.cloud.admin.put(f"/network/v2.0/ports/{port}", {"port": {"binding:vnic_type": "normal"}}).status == 200
    until(lambda: f"port/{port}" in worker.engine.units)
    assert some.cloud.admin.put(f"/network/v2.0/ports/{port}", {"port": {"binding:vnic_type": "direct"}}).status == 200
    until(lambda: f"port/{port}" not in worker.engine.units)


# Servers ------------------------------------------------------------------------------------------------------------
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
    until(lambda: some.shown(first)["device_id"] == "" and free(some.cloud)["kvm1"] == 1)
    until(lambda: held(some.cloud)[id] == [("kvm1", {NAME: 1})])
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


@pytest.mark.parametrize(("body", "instead"), [
    ({"os-migrateLive": {"host": "kvm2", "block_migration": "auto"}}, "Migrate it cold (migrate), or detach the ports"),
    ({"suspend": None}, "Stop it, or pause it, or detach the ports first")], ids=["live", "suspend"])
def test_its_state_is_not_carried(some: Functions, body: dict[str, Any], instead: str) -> None:
    """Which is said at once, and not by an action that fails."""
    id = some.make(some.port(), host="kvm1")
    reply = some.cloud.admin.post(f"/v2.1/servers/{id}/action", body, "2.30")
    assert reply.status == 409, reply
    said = reply.json["conflictingRequest"]["message"]
    assert "which has ports that are devices of its host" in said and instead in said
    assert some.cloud.admin.get(f"/v2.1/servers/{id}/os-instance-actions").json["instanceActions"][0][
        "action"] == "create"
    assert some.has(id)[0] == "kvm1"


def test_the_memory_of_its_server_is_not_encrypted(some: Functions) -> None:
    """A device of the host could not read it (row A14.7), which is said at once."""
    cloud, admin, port, fake = some.cloud, some.cloud.admin, some.port(), some.cloud.kvm["kvm2"].fake
    plain, efi = (image(admin, name, hw_firmware_type="uefi", **more) for name, more in (
        ("efi", {}), ("hidden", {"hw_mem_encryption": "true"})))
    assert admin.post("/v2.1/flavors", {"flavor": {
        "id": "hidden", "name": "hidden", "ram": 64, "vcpus": 1, "disk": 1}}).status == 200
    assert admin.post("/v2.1/flavors/hidden/os-extra_specs", {
        "extra_specs": {"hw:mem_encryption": "true"}}).status == 200

    def refused(path: str, body: dict[str, Any]) -> None:
        reply = admin.post(f"/v2.1/servers{path}", body, "2.60")
        assert reply.status == 400 and "cannot be had by a server whose memory is encr" in str(reply.json), reply

    place = {"guests": 1, "cbitpos": 47, "reduced_phys_bits": 1}
    with patch.object(fake, "memory_encryption", {"amd-sev": place}), patch.object(fake, "_kvm", True):
        until(lambda: used(cloud) and cloud.parts.working.states.hosts["kvm2"].profile.capabilities[
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
    assert admin.post("/v2.1/flavors", {"flavor": {
        "id": "slow", "name": "slow", "ram": 64, "vcpus": 1, "disk": 1}}).status == 200
    assert admin.post("/v2.1/flavors/slow/os-extra_specs", {
        "extra_specs": {"quota:vif_outbound_average": "100"}}).status == 200
    reply = admin.post("/v2.1/servers", {"server": {
        "name": "slow", "flavorRef": "slow", "imageRef": admin.image(), "networks": [{"port": port}]}}, "2.60")
    assert reply.status == 400 and "quota:vif_outbound_average" in str(reply.json), reply
    id = some.make(port)
    reply = admin.post(f"/v2.1/servers/{id}/action", {"resize": {"flavorRef": "slow"}}, "2.60")
    assert reply.status == 400 and "quota:vif_outbound_average" in str(reply.json), reply


def test_an_alias_of_that_name_is_none(cloud: Equipped) -> None:
    with cloud.parts.api_database.read() as connection:
        assert hosts.pci_aliases(connection) == set()


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
    until(lambda: free(some.cloud) == {"kvm1": 1, "kvm2": 1} and len(held(some.cloud)[id]) == 1)
    assert some.has(id) == ("kvm1", {mac: "0x11 0x0"})


# By macvtap, and whole cards -----------------------------------------------------------------------------------------
CARDS = "type-PF:physnet0"


@pytest.fixture
def more(cloud: Equipped, some: Functions) -> Functions:
    """The virtual function of kvm2 has a network device, too."""
    sysfs = cloud.kvm["kvm2"].agent.host.settings.sysfs
    if not (sysfs / "bus/pci/devices/0000:21:02.0/net").exists():
        netdev(sysfs, "0000:21:02.0", "ens1f0v0")
    told = cloud.parts.working.states.hosts["kvm2"].pci
    until(lambda: told.told.get("vdpa:rp_tunnelled", {}).get("free") == 1)
    return some


def test_a_port_is_a_whole_card(more: Functions) -> None:
    port = more.port(**{"binding:vnic_type": "direct-physical"})
    id = more.make(port)
    shown = more.shown(port)
    assert shown["binding:profile"] == {
        "pci_slot": "0000:31:00.0", "pci_vendor_info": "8086:1572", "physical_network": "physnet0",
        "device_mac_address": "3c:fd:fe:00:00:01"}
    assert (shown["binding:host_id"], shown["binding:vif_type"]) == ("kvm3", "hostdev_physical")
    assert held(more.cloud)[id] == [("kvm3", {CARDS: 1})]
    another = more.make(more.port(**{"binding:vnic_type": "direct-physical"}), status="ERROR")
    details = more.cloud.admin.server(another)["fault"]["details"]
    assert "lacks cards of physical network physnet0: the server's ports need 1, and" in details, details


def test_a_trusted_port(more: Functions) -> None:
    """Of the virtual functions of kvm1 its settings trust the second."""
    port = more.port(**{"binding:profile": {"trusted": "True"}})
    id = more.make(port)
    mac = more.shown(port)["mac_address"]
    assert plugged(more.cloud.kvm["kvm1"], at(more.cloud, id)["kvm1"]["name"]) == {mac: "0x11 0x1"}
    assert held(more.cloud)[id] == [("kvm1", {f"{NAME}:trusted": 1})]
    assert more.cloud.kvm["kvm1"].fake.functions["ens1", 1] == {"trust": "on"}
    assert more.shown(port)["binding:profile"] == {
        "trusted": "True", "pci_slot": "0000:11:02.1", "pci_vendor_info": "8086:154c", "physical_network": "physnet0"}
    path = f"/network/v2.0/ports/{port}"
    refused = more.cloud.admin.put(path, {"port": {"binding:profile": {"trusted": False}}})
    assert refused.status == 409, refused
    another = more.make(more.port(**{"binding:profile": {"trusted": True}}), status="ERROR")
    details = more.cloud.admin.server(another)["fault"]["details"]
    assert "lacks trusted virtual functions of physical network physnet0: the server's ports need 1, and" in details
    more.cloud.admin.delete(f"/v2.1/servers/{id}")
    assert more.cloud.admin.settled(id) is None
    assert more.cloud.kvm["kvm1"].fake.functions["ens1", 1] == {"trust": "off"}
    assert more.cloud.admin.put(path, {"port": {"binding:profile": {"trusted": False}}}).status == 200


def test_a_port_by_macvtap(more: Functions) -> None:
    port = more.port("tagged", **{"binding:vnic_type": "macvtap"})
    id = more.make(port, host="kvm2")
    assert held(more.cloud)[id] == [("kvm2", {NAME: 1})]
    shown, found = more.shown(port), at(more.cloud, id)["kvm2"]
    [tap] = part(more.cloud.kvm["kvm2"], "interface[@type='direct']", found["name"])
    assert (tap.find("source").get("dev"), tap.find("vlan/tag").get("id")) == ("ens1f0v0", "7")  # type: ignore[union-attr]
    assert (shown["binding:vif_type"], shown["binding:vnic_type"], shown["binding:profile"]["pci_slot"]) == (
        "hw_veb", "macvtap", "0000:21:02.0")
    refused = more.cloud.admin.put(f"/network/v2.0/ports/{port}", {"port": {"binding:vnic_type": "direct"}})
    assert refused.status == 409


# vDPA -----------------------------------------------------------------------------------------------------------------
VDPA = {"binding:vnic_type": "vdpa"}


def test_a_vdpa_port(more: Functions) -> None:
    """It is OVN's, and its host has the virtual function's representor plugged in as a tap would be."""
    port, worker, fake = more.port("tunnelled", **VDPA), more.cloud.services.network.worker, more.cloud.kvm["kvm2"].fake
    until(lambda: f"port/{port}" in worker.engine.units)
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
    for body in ({"os-migrateLive": {"host": "kvm1", "block_migration": "auto"}}, {"suspend": None}):
        reply = more.cloud.admin.post(f"/v2.1/servers/{id}/action", body, "2.30")
        assert reply.status == 409 and "ports that are devices of its host" in str(reply.json), reply
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
    until(lambda: more.shown(port)["device_id"] == "" and not more.cloud.kvm["kvm2"].fake.representors)
    until(lambda: held(more.cloud)[id] == [("kvm2", {})])


def test_a_vdpa_port_moves_cold_only_where_there_is_another(more: Functions) -> None:
    id = more.make(more.port("tunnelled", **VDPA))
    reply = more.cloud.admin.post(f"/v2.1/servers/{id}/action", {"migrate": None}, "2.30")
    assert reply.status in (400, 202), reply
    assert more.cloud.admin.settled(id)["status"] == "ACTIVE"  # type: ignore[index]
    assert held(more.cloud)[id] == [("kvm2", {"vdpa:rp_tunnelled": 1})]


# QoS ------------------------------------------------------------------------------------------------------------------
def policy(admin: Any, *rules: tuple[str, dict[str, Any]]) -> str:
    """A QoS policy with rules."""
    id: str = admin.post("/network/v2.0/qos/policies", {"policy": {"name": "fast"}}).json["policy"]["id"]
    for kind, rule in rules:
        reply = admin.post(f"/network/v2.0/qos/policies/{id}/{kind}_rules", {f"{kind}_rule": rule})
        assert reply.status == 201, reply
    return id


LIMIT, PROMISE = ("bandwidth_limit", {"max_kbps": 4500}), ("minimum_bandwidth", {"min_kbps": 2500})


def bandwidth_of(cloud: Any, id: str) -> list[dict[str, int]]:
    """What a server claims of bandwidth."""
    with cloud.parts.api_database.read() as connection:
        return [json.loads(row.resources) for row in connection.exec_driver_sql(
            f"SELECT resources FROM allocations WHERE server_id = '{id}'")]


def test_a_policy_of_a_virtual_function(more: Functions) -> None:
    """Its card limits what the guest sends, and promises what is claimed of the host."""
    admin = more.cloud.admin
    both = policy(admin, LIMIT, PROMISE)
    port = more.port(qos_policy_id=both)
    more.port(qos_policy_id=both, device_id="zz")  # what users write makes none a server's, and hides none
    id = more.make(port, host="kvm1")
    assert more.cloud.kvm["kvm1"].fake.functions["ens1", 0] == {"max_tx_rate": "4", "min_tx_rate": "3"}
    assert bandwidth_of(more.cloud, id) == [{"NET_BW_EGR_KILOBIT_PER_SEC:physnet0": 2500}]
    [group] = more.shown(port)["resource_request"]["request_groups"]
    assert (group["required"], group["resources"]) == (
        ["CUSTOM_PHYSNET_PHYSNET0"], {"NET_BW_EGR_KILOBIT_PER_SEC": 2500})
    [rule] = [one for one in admin.get(f"/network/v2.0/qos/policies/{both}").json["policy"]["rules"]
              if one["type"] == "bandwidth_limit"]
    path = f"/network/v2.0/qos/policies/{both}/bandwidth_limit_rules"
    for reply in (admin.put(f"{path}/{rule['id']}", {"bandwidth_limit_rule": {"max_kbps": 9000}}),
                  admin.delete(f"{path}/{rule['id']}"),
                  admin.put(f"/network/v2.0/ports/{port}", {"port": {"qos_policy_id": None}})):
        assert reply.status == 409, reply
    admin.delete(f"/v2.1/servers/{id}")
    assert admin.settled(id) is None
    assert more.cloud.kvm["kvm1"].fake.functions["ens1", 0] == {"max_tx_rate": "0", "min_tx_rate": "0"}
    assert admin.put(f"{path}/{rule['id']}", {"bandwidth_limit_rule": {"max_kbps": 9000}}).status == 200
    reply = admin.post(f"/network/v2.0/qos/policies/{both}/dscp_marking_rules", {"dscp_marking_rule": {"dscp_mark": 8}})
    assert reply.status == 409 and "acts on none, as cards limit and promise only" in str(reply.json), reply


def test_a_card_promises_no_more_than_it_lets_through(more: Functions) -> None:
    """Of 1500 and 1600 kbit/s, rounded up and down, the card would take neither."""
    id = more.make(more.port(qos_policy_id=policy(more.cloud.admin, ("bandwidth_limit", {"max_kbps": 1600}), (
        "minimum_bandwidth", {"min_kbps": 1500, "direction": "egress"}))), host="kvm1")
    assert more.cloud.kvm["kvm1"].fake.functions["ens1", 0] == {"max_tx_rate": "1", "min_tx_rate": "1"}
    more.cloud.admin.delete(f"/v2.1/servers/{id}")
    assert more.cloud.admin.settled(id) is None


@pytest.mark.parametrize(("rule", "says"), [
    (("bandwidth_limit", {"max_kbps": 5000, "direction": "ingress"}), "acts on none, as cards limit and promise only"),
    (("bandwidth_limit", {"max_kbps": 5000, "max_burst_kbps": 9}), "max_burst_kbps must be 0, as cards know no bursts"),
    (("dscp_marking", {"dscp_mark": 8}), "acts on none, as cards limit"),
])
def test_policies_that_act_on_no_virtual_function(cloud: Equipped, rule: tuple[str, dict[str, Any]], says: str) -> None:
    body = {"network_id": cloud.networks["plain"], "binding:vnic_type": "macvtap",  # type: ignore[attr-defined]
            "qos_policy_id": policy(cloud.admin, rule)}
    reply = cloud.admin.post("/network/v2.0/ports", {"port": body})
    assert reply.status == 400 and says in str(reply.json), reply


def test_no_policy_acts_on_a_whole_card(cloud: Equipped) -> None:
    body = {"network_id": cloud.networks["plain"], "binding:vnic_type": "direct-physical",  # type: ignore[attr-defined]
            "qos_policy_id": policy(cloud.admin, LIMIT)}
    reply = cloud.admin.post("/network/v2.0/ports", {"port": body})
    assert reply.status == 400 and "must be null: nothing limits or marks" in str(reply.json), reply
