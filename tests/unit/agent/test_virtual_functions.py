# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs that are virtual functions: who gets which, plugged and unplugged, moved, and what is refused. The sysfs of the
hosts is made up, and libvirt a fake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from jsonschema import validate

from magnetar_agent import inventory, reconcile
from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.locks import CHOICES
from magnetar_agent.networks import RepresentorPort
from magnetar_agent.servers import function_settings, guest_data, pci, placement
from magnetar_agent.settings import AgentSettings
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, InvalidSettings, MagnetarError
from magnetar_core.kinds import Server

from .conftest import SMALL, Host
from .pair import WAY, Kvm, Pair
from .test_cloud_init import SCHEMA
from .test_pci import CELLS, device, remove

CARD, FUNCTION = ("8086", "1572"), ("8086", "154c")
SETTINGS: dict[str, Any] = {"pci_device_spec": [{"vendor_id": "8086", "physical_network": "Physnet-0"}]}
MAC = "52:54:00:00:00:{:02x}".format
NAME = "type-VF:Physnet-0"


def nic(at: int, **more: Any) -> dict[str, Any]:
    """The wish of a virtual function."""
    return {"physical_network": "Physnet-0", "mac": MAC(at), "port_security": False, **more}


def card(sysfs: Path, bus: str, functions: int, node: int = -1) -> list[str]:
    """A made-up card with virtual functions; their addresses."""
    parent = device(sysfs, f"0000:{bus}:00.0", CARD, node, "0x020000")
    (parent / "sriov_totalvfs").write_text("8\n")
    found = [f"0000:{bus}:02.{at}" for at in range(functions)]
    for at, address in enumerate(found):
        (parent / f"virtfn{at}").symlink_to(f"../{address}")
        (device(sysfs, address, FUNCTION, node, "0x020000") / "physfn").symlink_to(f"../0000:{bus}:00.0")
    return found


@pytest.fixture
def big(tmp_path: Path) -> Iterator[Host]:
    """A host with two virtual functions."""
    card(tmp_path / "sys", "31", 2)
    host = Host(tmp_path, sysfs=tmp_path / "sys", **SETTINGS)
    host.start()
    yield host
    host.agent.close()


def plugged(host: Host | Kvm, name: str = "web1", live: bool = False) -> dict[str, str]:
    """MAC to the function of the device that a NIC is, and its VLAN, in a server's domain."""
    document = host.agent.host.documents.find("server", name)
    assert document is not None
    xml = host.fake._domains[document.id].live if live else host.fake.xml(document.id)
    found = {}
    for one in ET.fromstring(str(xml)).iterfind("devices/interface[@type='hostdev']"):
        tag, place = one.find("vlan/tag"), one.find("source/address")
        assert place is not None and one.get("managed") == "yes"
        found[one.find("mac").get("address", "")] = (  # type: ignore[union-attr]
            f"{place.get('bus')} {place.get('function')}" + (f" vlan {tag.get('id')}" if tag is not None else ""))
    return found


def free(host: Host) -> dict[str, Any]:
    return inventory.usage(host.agent.host)["pci_devices"]


def test_what_a_host_tells(big: Host) -> None:
    told = inventory.usage(big.agent.host)
    assert told["pci_devices"] == {NAME: {"total": 2, "free": 2}}
    assert told["pci_pools"] == [{"aliases": [NAME], "numa_node": -1, "total": 2, "free": 2,
                                  "provider": "0000:31:00.0", "resource_class": "CUSTOM_PCI_8086_154C"}]


def test_a_nic_is_a_virtual_function(big: Host) -> None:
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, vlan=7)]})
    assert plugged(big) == {MAC(1): "0x31 0x0 vlan 7"} == plugged(big, live=True)
    shown = big.show()
    assert shown["pci_devices"] == {"0000:31:02.0": MAC(1)}
    assert shown["nic_devices"] == {MAC(1): {
        "pci_slot": "0000:31:02.0", "pci_vendor_info": "8086:154c", "physical_network": "Physnet-0"}}
    assert free(big) == {NAME: {"total": 2, "free": 1}}
    assert not big.ensure("server", "web1", {"networks": [nic(1, vlan=7)]}).changed
    big.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(2)]})
    with pytest.raises(Conflict, match=r"networks: the server needs 1 virtual functions of physical network "
                                       r"Physnet-0, and host .* has 0 free"):
        big.ensure("server", "web3", {"flavor": SMALL, "networks": [nic(3)]})
    big.ensure("server", "web1", None)
    assert free(big) == {NAME: {"total": 2, "free": 1}}


def test_its_address_is_shown_at_its_physical_network(big: Host) -> None:
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, address="10.0.0.5/24")]})
    assert big.show()["addresses"] == {"Physnet-0": [
        {"addr": "10.0.0.5", "version": 4, "mac": MAC(1), "source": "fixed"}]}


def test_a_list_looks_at_devices_once(big: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, at in (("web1", 1), ("web2", 2)):
        big.ensure("server", name, {"flavor": SMALL, "networks": [nic(at)]})
    looks, look = [], pci.devices
    monkeypatch.setattr(pci, "devices", lambda host: looks.append(1) or look(host))  # type: ignore[func-returns-value]
    shown = reconcile.collection(big.agent.drivers, Server, {})
    assert [one["nic_devices"][MAC(at)]["pci_slot"] for at, one in enumerate(shown, 1)] == [
        "0000:31:02.0", "0000:31:02.1"]
    assert len(looks) == 1


def test_nics_come_and_go_while_the_guest_runs(big: Host) -> None:
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)]})
    big.ensure("server", "web1", {"networks": [nic(1), nic(2, vlan=9)]})
    both = {MAC(1): "0x31 0x0", MAC(2): "0x31 0x1 vlan 9"}
    assert plugged(big, live=True) == both == plugged(big) and free(big)[NAME]["free"] == 0
    big.ensure("server", "web1", {"networks": [nic(2, vlan=9)]})
    assert plugged(big, live=True) == {MAC(2): "0x31 0x1 vlan 9"} == plugged(big)
    assert free(big)[NAME]["free"] == 1  # at once, not when the guest stops
    big.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(3)]})
    assert plugged(big, "web2") == {MAC(3): "0x31 0x0"}


def test_a_nic_that_cannot_be_plugged_holds_nothing(big: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)]})

    def broken(*_args: Any) -> None:
        raise HypervisorError("libvirt could not attach it.")

    with monkeypatch.context() as patched:
        patched.setattr(big.fake, "attach", broken)
        with pytest.raises(HypervisorError):
            big.ensure("server", "web1", {"networks": [nic(1), nic(2)]})
    assert plugged(big, live=True) == {MAC(1): "0x31 0x0"}
    assert big.show()["pci_devices"] == {"0000:31:02.0": MAC(1)} and free(big)[NAME]["free"] == 1
    big.ensure("server", "web1", {"networks": [nic(1), nic(2)]})
    assert plugged(big, live=True) == {MAC(1): "0x31 0x0", MAC(2): "0x31 0x1"}


def test_what_the_guest_has_got_of_nics_that_failed_goes_to_nobody_else(tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two new NICs cannot be plugged; the guest has the first until it stops, or lets go of it."""
    card(tmp_path / "sys", "31", 3)
    host = Host(tmp_path, sysfs=tmp_path / "sys", **SETTINGS)
    host.start()
    try:
        host.ensure("server", "web1", {"flavor": SMALL})
        attach, left = host.fake.attach, [None]

        def broken(*args: Any) -> None:
            if not left:
                raise HypervisorError("libvirt could not attach it.")
            left.pop()
            attach(*args)

        with monkeypatch.context() as patched:
            patched.setattr(host.fake, "attach", broken)
            with pytest.raises(HypervisorError):
                host.ensure("server", "web1", {"networks": [nic(1), nic(2)]})
        got = plugged(host, live=True)
        assert list(got) == [MAC(1)] and plugged(host) == {} and free(host)[NAME]["free"] == 2
        for name, at in (("web2", 3), ("web3", 4)):
            host.ensure("server", name, {"flavor": SMALL, "networks": [nic(at)]})
            assert plugged(host, name)[MAC(at)] != got[MAC(1)]
        host.ensure("server", "web1", {"networks": [nic(1)]})
        assert plugged(host, live=True) == got == plugged(host) and free(host)[NAME]["free"] == 0
        host.ensure("server", "web1", {"networks": []})
        assert free(host)[NAME]["free"] == 1
    finally:
        host.agent.close()


def test_one_that_is_gone_is_replaced_at_the_next_start(big: Host, tmp_path: Path) -> None:
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)], "power": "off"})
    remove(tmp_path / "sys", "0000:31:02.0")
    big.ensure("server", "web1", {"power": "running"})
    assert plugged(big) == {MAC(1): "0x31 0x1"}


def test_beside_devices_of_an_alias(tmp_path: Path) -> None:
    """A device is given once, to whichever of the two asks for it."""
    card(tmp_path / "sys", "31", 2)
    host = Host(tmp_path, sysfs=tmp_path / "sys", **SETTINGS, pci_alias=[
        {"name": "any", "vendor_id": "8086", "device_type": "type-VF"}])
    host.start()
    try:
        host.ensure("server", "web1", {"flavor": SMALL, "hardware": {"pci_alias": "any:1"}, "networks": [nic(1)]})
        assert sorted(host.show()["pci_devices"].values()) == [MAC(1), "any"]
        root = ET.fromstring(host.fake.xml(host.show()["id"]))
        assert len(root.findall("devices/hostdev")) == 1 == len(root.findall("devices/interface"))
        assert free(host) == {name: {"total": 2, "free": 0} for name in ("any", NAME)}
    finally:
        host.agent.close()


def test_near_the_cells_of_the_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card(tmp_path / "sys", "31", 1, 0)
    card(tmp_path / "sys", "b1", 1, 1)
    host = Host(tmp_path, sysfs=tmp_path / "sys", **SETTINGS)
    host.start()
    monkeypatch.setattr(FakeHypervisor, "cells", CELLS[:2])
    try:
        cells = {"flavor": SMALL, "hardware": {"numa_nodes": 1, "pci_numa_affinity": "required"}}
        for name, at in (("web1", 1), ("web2", 2)):
            host.ensure("server", name, {**cells, "networks": [nic(at)]})
        for name, at in (("web1", 1), ("web2", 2)):
            [cell] = placement.on_cells(host.show(name))
            bus = {0: "0x31", 1: "0xb1"}[cell]
            assert plugged(host, name) == {MAC(at): f"{bus} 0x0"}
    finally:
        host.agent.close()


@pytest.mark.parametrize(("fields", "error", "says"), [
    ({"networks": [nic(1, port_security=True)]}, InvalidField, r"networks\[0\].port_security: must be false"),
    ({"networks": [nic(1, allowed_addresses=["10.0.0.1"])]}, InvalidField, "allowed_addresses: must be left out"),
    ({"networks": [nic(1, bridge="br0")]}, InvalidField, "must name either a network, a bridge, a port or a physical"),
    ({"networks": [{"bridge": "br0", "vlan": 7}]}, InvalidField, r"networks\[0\].vlan: is for NICs of a physical_net"),
    ({"networks": [nic(1, physical_network="other")]}, Conflict,
     "has no virtual functions of physical network other; of such devices it has virtual functions of physical netw"),
    ({"networks": [nic(1)], "hardware": {"vif_inbound_average": 1000}}, InvalidField,
     "hardware.vif_inbound_average: limits NICs of the host"),
    ({"networks": [nic(1)], "power": "suspended"}, InvalidField, "cannot be suspended while the server has PCI dev"),
])
def test_what_is_refused(big: Host, fields: dict[str, Any], error: type[MagnetarError], says: str) -> None:
    with pytest.raises(error, match=says):
        big.ensure("server", "web1", {"flavor": SMALL, **fields})
    assert free(big)[NAME]["free"] == 2


@pytest.mark.parametrize("word", ["remote_managed"])
def test_words_of_nova_that_nothing_acts_on(word: str) -> None:
    with pytest.raises(InvalidSettings, match=r"pci_device_spec\[0\]: must have some of .*, trusted, and nothing else"):
        AgentSettings(pci_device_spec=[{"vendor_id": "8086", word: True}])


@pytest.fixture
def equipped(pair: Pair, tmp_path: Path) -> Pair:
    """Two hosts with a virtual function each, at other addresses."""
    for kvm, bus in ((pair.one, "31"), (pair.two, "b1")):
        sysfs = tmp_path / bus
        card(sysfs, bus, 1)
        for name, value in (("sysfs", sysfs), ("pci_device_spec", AgentSettings(**SETTINGS).pci_device_spec)):
            object.__setattr__(kvm.agent.host.settings, name, value)
    return pair


def test_a_cold_move_gives_it_one_of_the_other_host(equipped: Pair) -> None:
    equipped.make(flavor=SMALL, networks=[nic(1)])
    assert plugged(equipped.one) == {MAC(1): "0x31 0x0"}
    assert equipped.migrate(type="cold") == WAY
    assert plugged(equipped.two) == {MAC(1): "0xb1 0x0"} and pci.held(equipped.one.agent.host) == set()


def test_it_does_not_move_while_its_guest_runs(equipped: Pair) -> None:
    id = equipped.make(flavor=SMALL, networks=[nic(1)])
    with pytest.raises(MagnetarError, match=rf"devices of its host \({MAC(1)}\), which cannot move while"):
        equipped.migrate(type="live")
    equipped.check(id, equipped.one)


def test_the_target_must_have_one(equipped: Pair, tmp_path: Path) -> None:
    id = equipped.make(flavor=SMALL, networks=[nic(1)])
    remove(tmp_path / "b1", "0000:b1:02.0")
    with pytest.raises(MagnetarError, match="has no virtual functions of physical network Physnet-0; .* has none"):
        equipped.migrate(type="cold")
    equipped.check(id, equipped.one)


def test_the_memory_of_its_server_is_not_encrypted(big: Host) -> None:
    """A device of the host could not read it (row A14.7)."""
    place = {"guests": 2, "cbitpos": 47, "reduced_phys_bits": 1}
    big.fake.memory_encryption, big.fake._kvm = {"amd-sev": place}, True
    hidden = {"flavor": SMALL, "hardware": {"mem_encryption": True, "firmware": "uefi"}, "virt_type": "kvm"}
    with pytest.raises(InvalidField, match="hardware.mem_encryption: .* virtual function"):
        big.ensure("server", "web1", {**hidden, "networks": [nic(1)]})
    big.ensure("server", "web1", hidden)
    with pytest.raises(InvalidField, match="hardware.mem_encryption: .* virtual function"):
        big.ensure("server", "web1", {"networks": [nic(1)]})


# By macvtap, and whole cards -----------------------------------------------------------------------------------------
def netdev(sysfs: Path, address: str, name: str, mac: str = "") -> Path:
    """The network device that the host's driver makes of a device."""
    folder = sysfs / "bus/pci/devices" / address / "net" / name
    folder.mkdir(parents=True)
    (folder / "address").write_text(f"{mac}\n")
    return folder


def whole(sysfs: Path, address: str = "0000:41:00.0", name: str = "ens2", mac: str = "3C:FD:FE:00:00:01") -> None:
    """A made-up card without virtual functions."""
    (device(sysfs, address, CARD, -1, "0x020000") / "sriov_totalvfs").write_text("8\n")
    netdev(sysfs, address, name, mac)


def part(host: Host | Kvm, path: str, name: str = "web1", live: bool = False) -> list[ET.Element]:
    """Of a server's domain."""
    document = host.agent.host.documents.find("server", name)
    assert document is not None
    xml = host.fake._domains[document.id].live if live else host.fake.xml(document.id)
    return ET.fromstring(str(xml)).findall(f"devices/{path}")


TAP = "interface[@type='direct']"


@pytest.fixture
def cards(big: Host, tmp_path: Path) -> Host:
    """And a whole card; of the virtual functions the second has a network device."""
    netdev(tmp_path / "sys", "0000:31:02.1", "ens1f0v1")
    whole(tmp_path / "sys")
    return big


def test_a_nic_by_macvtap(cards: Host) -> None:
    wanted = [nic(1, vlan=7, vnic_type="macvtap")]
    cards.ensure("server", "web1", {"flavor": SMALL, "networks": wanted})
    [tap] = part(cards, TAP)
    assert {one.tag: dict(one.attrib) for one in tap} == {
        "mac": {"address": MAC(1)}, "source": {"dev": "ens1f0v1", "mode": "passthrough"}, "vlan": {},
        "model": {"type": "virtio"}, "driver": {"name": "vhost"},
        "alias": {"name": "ua-nic-52-54-00-00-00-01-0000-31-02-1"}}
    assert [one.get("id") for one in tap.iterfind("vlan/tag")] == ["7"]
    assert cards.show()["nic_devices"][MAC(1)]["pci_slot"] == "0000:31:02.1"
    assert free(cards) == {NAME: {"total": 2, "free": 1}, "type-PF:Physnet-0": {"total": 1, "free": 1}}
    assert not cards.ensure("server", "web1", {"networks": wanted}).changed
    with pytest.raises(Conflict, match="needs 1 virtual functions of physical network Physnet-0, and host .* has 0 fr"):
        cards.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(2, vnic_type="macvtap")]})
    cards.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(2)]})
    assert plugged(cards, "web2") == {MAC(2): "0x31 0x0"}


def test_a_macvtap_nic_comes_and_goes_while_the_guest_runs(cards: Host) -> None:
    cards.ensure("server", "web1", {"flavor": SMALL, "networks": []})
    cards.ensure("server", "web1", {"networks": [nic(1, vnic_type="macvtap")]})
    assert len(part(cards, TAP)) == len(part(cards, TAP, live=True)) == 1 and free(cards)[NAME]["free"] == 1
    cards.ensure("server", "web1", {"networks": []})
    assert part(cards, TAP, live=True) == [] and free(cards)[NAME]["free"] == 2


def test_a_function_that_has_lost_its_network_device_is_not_started(cards: Host, tmp_path: Path) -> None:
    cards.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, vnic_type="macvtap")], "power": "off"})
    (tmp_path / "sys/bus/pci/devices/0000:31:02.1/net").rename(tmp_path / "net")
    with pytest.raises(Conflict, match="needs 1 virtual functions of physical network Physnet-0, and host .* has 0 fr"):
        cards.ensure("server", "web1", {"power": "running"})
    (tmp_path / "net").rename(tmp_path / "sys/bus/pci/devices/0000:31:02.0/net")
    cards.ensure("server", "web1", {"power": "running"})
    assert cards.show()["pci_devices"] == {"0000:31:02.0": MAC(1)}
    assert part(cards, f"{TAP}/source", live=True)[0].get("dev") == "ens1f0v1"


def test_a_nic_is_a_whole_card(cards: Host) -> None:
    wanted = [nic(1, vnic_type="direct-physical", address="192.0.2.7/24")]
    cards.ensure("server", "web1", {"flavor": SMALL, "networks": wanted})
    [given] = part(cards, "hostdev")
    assert given.find("source/address").get("bus") == "0x41" and given.get("managed") == "yes"  # type: ignore[union-attr]
    assert part(cards, "interface") == []
    assert cards.show()["nic_devices"] == {MAC(1): {
        "pci_slot": "0000:41:00.0", "pci_vendor_info": "8086:1572", "physical_network": "Physnet-0",
        "device_mac_address": "3c:fd:fe:00:00:01"}}
    assert not cards.ensure("server", "web1", {"networks": wanted}).changed
    with pytest.raises(Conflict, match="needs 1 cards of physical network Physnet-0, and host .* has 0 free"):
        cards.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(2, vnic_type="direct-physical")]})
    cards.ensure("server", "web1", {"networks": []})
    assert part(cards, "hostdev", live=True) == [] == part(cards, "hostdev")
    assert free(cards)["type-PF:Physnet-0"] == {"total": 1, "free": 1}
    cards.ensure("server", "web1", {"networks": wanted})
    assert len(part(cards, "hostdev", live=True)) == 1 == len(part(cards, "hostdev"))


def test_a_guest_is_told_the_mac_of_its_card(cards: Host, tmp_path: Path) -> None:
    """Also when nothing of the host can read it any more, since the guest has the card."""
    cards.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, vnic_type="direct-physical", tag="fast")]})
    (tmp_path / "sys/bus/pci/devices/0000:41:00.0/net").rename(tmp_path / "net")
    cards.ensure("server", "web1", {"power": "off"})
    cards.ensure("server", "web1", {"power": "running"})
    document = cards.agent.host.documents.find("server", "web1")
    assert document is not None
    guest = guest_data.guest(cards.agent.host, document)
    assert [one.mac for one in guest.nics] == ["3c:fd:fe:00:00:01"] == [one.mac for one in guest.devices]
    told = json.loads(guest_data.tree(cards.agent.host, document)["openstack/latest/network_data.json"])
    assert [one["type"] for one in told["links"]] == ["phy"]
    validate(told, SCHEMA)


def test_a_card_is_given_whole_or_by_its_functions(cards: Host, tmp_path: Path) -> None:
    """Whoever makes virtual functions of a card that a server has whole, gives them to nobody."""
    cards.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, vnic_type="direct-physical")]})
    parent = tmp_path / "sys/bus/pci/devices/0000:41:00.0"
    (parent / "virtfn0").symlink_to("../0000:41:02.0")
    (device(tmp_path / "sys", "0000:41:02.0", FUNCTION, -1, "0x020000") / "physfn").symlink_to("../0000:41:00.0")
    assert free(cards) == {NAME: {"total": 3, "free": 2}}
    for name, at in (("web2", 2), ("web3", 3)):
        cards.ensure("server", name, {"flavor": SMALL, "networks": [nic(at)]})
    with pytest.raises(Conflict, match="has 0 free"):
        cards.ensure("server", "web4", {"flavor": SMALL, "networks": [nic(4)]})
    cards.ensure("server", "web1", None)
    cards.ensure("server", "web4", {"flavor": SMALL, "networks": [nic(4)]})
    assert plugged(cards, "web4") == {MAC(4): "0x41 0x0"}
    with pytest.raises(Conflict, match=r"has no cards of physical network Physnet-0; .* A card is there as a whole"):
        cards.ensure("server", "web5", {"flavor": SMALL, "networks": [nic(5, vnic_type="direct-physical")]})


@pytest.mark.parametrize(("fields", "error", "says"), [
    ({"networks": [nic(1, vnic_type="direct-physical", vlan=7)]}, InvalidField,
     r"networks\[0\].vlan: must be left out for vnic_type direct-physical"),
    ({"networks": [{"bridge": "br0", "vnic_type": "macvtap"}]}, InvalidField,
     r"networks\[0\].vnic_type: is for NICs of a physical_network"),
    ({"networks": [nic(1, vnic_type="virtio-forwarder")]}, InvalidField, "must be one of direct, macvtap, direct-ph"),
])
def test_what_is_refused_of_the_ways(cards: Host, fields: dict[str, Any], error: type[MagnetarError],
                                     says: str) -> None:
    with pytest.raises(error, match=says):
        cards.ensure("server", "web1", {"flavor": SMALL, **fields})


def test_the_way_of_a_nic_does_not_change(cards: Host) -> None:
    cards.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)]})
    with pytest.raises(Conflict, match=r"networks\[0\].vnic_type cannot change from direct to macvtap: .* Remove the"):
        cards.ensure("server", "web1", {"networks": [nic(1, vnic_type="macvtap")]})
    assert not cards.ensure("server", "web1", {"networks": [nic(1, vnic_type="direct")]}).changed


def test_an_interface_attachment_says_the_way(cards: Host) -> None:
    cards.ensure("server", "web1", {"flavor": SMALL, "networks": []})
    shown = cards.ensure("interface_attachment", "web1:1", {
        "server": "web1", **nic(1, vnic_type="direct-physical")}).resource
    assert shown is not None and shown["vnic_type"] == "direct-physical"
    assert len(part(cards, "hostdev", live=True)) == 1
    cards.ensure("interface_attachment", "web1:2", {"server": "web1", **nic(2)})
    found = cards.agent.host.documents.find("server", "web1")
    assert found is not None and [one.get("vnic_type") for one in found.want["networks"]] == ["direct-physical", None]


def test_cards_move_cold(pair: Pair, tmp_path: Path) -> None:
    for kvm, bus in ((pair.one, "41"), (pair.two, "b1")):
        whole(tmp_path / bus, f"0000:{bus}:00.0", mac=f"3c:fd:fe:00:00:{bus}")
        for name, value in (("sysfs", tmp_path / bus), ("pci_device_spec", AgentSettings(**SETTINGS).pci_device_spec)):
            object.__setattr__(kvm.agent.host.settings, name, value)
    id = pair.make(flavor=SMALL, networks=[nic(1, vnic_type="direct-physical")])
    with pytest.raises(MagnetarError, match="devices of its host"):
        pair.migrate(type="live")
    assert pair.migrate(type="cold") == WAY
    document = pair.two.agent.host.documents.get("server", id)
    assert document is not None and document.want[pci.MACS] == {"0000:b1:00.0": "3c:fd:fe:00:00:b1"}
    assert [one.find("source/address").get("bus") for one in part(pair.two, "hostdev")] == ["0xb1"]  # type: ignore[union-attr]


# Trust ----------------------------------------------------------------------------------------------------------------
TRUSTING, USUAL = {"trust": "on"}, {"trust": "off"}
TRUSTED_NAME = f"{NAME}:trusted"


@pytest.fixture
def trusting(tmp_path: Path) -> Iterator[Host]:
    """A host with two virtual functions, of which the first may be trusted."""
    sysfs = tmp_path / "sys"
    card(sysfs, "31", 2)
    netdev(sysfs, "0000:31:00.0", "ens1f0")
    host = Host(tmp_path, sysfs=sysfs, pci_device_spec=[
        {"address": "0000:31:02.0", "physical_network": "Physnet-0", "trusted": "true"},
        {"vendor_id": "8086", "physical_network": "Physnet-0"}])
    host.start()
    yield host
    host.agent.close()


def noted(host: Host) -> list[str]:
    """The functions that are noted as set."""
    folder = host.agent.host.settings.state_dir / function_settings.FOLDER
    return sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []


def test_a_guest_is_told_whether_its_card_trusts_it(trusting: Host) -> None:
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [
        nic(1, trusted=True, tag="bond"), nic(2, tag="plain")]})
    document = trusting.agent.host.documents.find("server", "web1")
    assert document is not None
    told = json.loads(guest_data.tree(trusting.agent.host, document)["openstack/latest/meta_data.json"])["devices"]
    assert {one["tags"][0]: one["vf_trusted"] for one in told} == {"bond": True, "plain": False}


def test_a_trusted_nic(trusting: Host) -> None:
    assert free(trusting) == {NAME: {"total": 2, "free": 2}, TRUSTED_NAME: {"total": 1, "free": 1}}
    wanted = [nic(1, trusted=True)]
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": wanted})
    assert plugged(trusting) == {MAC(1): "0x31 0x0"} and trusting.fake.functions == {("ens1f0", 0): TRUSTING}
    assert noted(trusting) == ["0000:31:02.0"]
    assert not trusting.ensure("server", "web1", {"networks": wanted}).changed
    with pytest.raises(Conflict, match="1 trusted virtual functions of physical network Physnet-0, and host .* 0"):
        trusting.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(2, trusted=True)]})
    trusting.ensure("server", "web1", None)
    assert trusting.fake.functions == {("ens1f0", 0): USUAL} and noted(trusting) == []


def test_who_asks_for_no_trust_takes_others_first(trusting: Host) -> None:
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)]})
    assert plugged(trusting) == {MAC(1): "0x31 0x1"}
    trusting.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(2)]})
    assert plugged(trusting, "web2") == {MAC(2): "0x31 0x0"} and trusting.fake.functions == {}


def test_trust_comes_and_goes_with_a_nic(trusting: Host) -> None:
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": []})
    trusting.ensure("server", "web1", {"networks": [nic(1, trusted=True)]})
    assert trusting.fake.functions == {("ens1f0", 0): TRUSTING} and noted(trusting) == ["0000:31:02.0"]
    trusting.ensure("server", "web1", {"networks": []})
    assert trusting.fake.functions == {("ens1f0", 0): USUAL} and noted(trusting) == []


def test_trust_is_set_before_each_start(trusting: Host) -> None:
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, trusted=True)]})
    trusting.ensure("server", "web1", {"power": "off"})
    trusting.fake.functions.clear()  # by a boot of the host
    trusting.ensure("server", "web1", {"power": "running"})
    assert trusting.fake.functions == {("ens1f0", 0): TRUSTING}


def test_a_card_that_does_not_trust(trusting: Host, tmp_path: Path) -> None:
    trusting.fake.fail_next("set_function", HypervisorError("The agent could not set virtual function 0 of ens1f0."))
    with pytest.raises(HypervisorError, match="could not set virtual function 0"):
        trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, trusted=True)]})
    assert noted(trusting) == []  # a server that was not made holds nothing
    (tmp_path / "sys/bus/pci/devices/0000:31:00.0/net").rename(tmp_path / "net")
    with pytest.raises(Conflict, match="its card has no network device there"):
        trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, trusted=True)]})
    (tmp_path / "net").rename(tmp_path / "sys/bus/pci/devices/0000:31:00.0/net")
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, trusted=True)]})
    assert trusting.fake.functions == {("ens1f0", 0): TRUSTING}


def test_what_a_killed_agent_left_set(trusting: Host, tmp_path: Path) -> None:
    """A function that nobody has is as usual after the agent's next start; and so is one for its next server."""
    folder = trusting.agent.host.settings.state_dir / function_settings.FOLDER
    folder.mkdir()
    (folder / "0000:31:02.1").write_text("trust")
    (folder / "0000:31:02.7").touch()  # it has gone since
    trusting.fake.functions["ens1f0", 1] = dict(TRUSTING)
    function_settings.give_back(trusting.agent.host)
    assert trusting.fake.functions == {("ens1f0", 1): USUAL} and noted(trusting) == []
    (folder / "0000:31:02.1").write_text("trust")
    trusting.fake.functions["ens1f0", 1] = dict(TRUSTING)
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)]})
    assert plugged(trusting) == {MAC(1): "0x31 0x1"}
    assert trusting.fake.functions == {("ens1f0", 1): USUAL} and noted(trusting) == []


@pytest.mark.parametrize(("fields", "error", "says"), [
    ({"networks": [nic(1, trusted=True, vnic_type="macvtap")]}, InvalidField, "must be false but for vnic_type direct"),
    ({"networks": [{"bridge": "br0", "trusted": True}]}, InvalidField, "trusted: is for NICs of a physical_network"),
])
def test_what_cannot_be_trusted(trusting: Host, fields: dict[str, Any], error: type[MagnetarError], says: str) -> None:
    with pytest.raises(error, match=says):
        trusting.ensure("server", "web1", {"flavor": SMALL, **fields})


def test_a_nic_that_could_not_be_plugged_is_not_trusted(trusting: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": []})

    def broken(*_args: Any) -> None:
        raise HypervisorError("libvirt could not attach it.")

    with monkeypatch.context() as patched:
        patched.setattr(trusting.fake, "attach", broken)
        with pytest.raises(HypervisorError):
            trusting.ensure("server", "web1", {"networks": [nic(1, trusted=True)]})
    assert trusting.fake.functions == {("ens1f0", 0): USUAL} and noted(trusting) == []


def test_trust_moves_with_its_server(pair: Pair, tmp_path: Path) -> None:
    """The function of the host that it leaves is as usual then."""
    for kvm, bus in ((pair.one, "31"), (pair.two, "b1")):
        card(tmp_path / bus, bus, 1)
        netdev(tmp_path / bus, f"0000:{bus}:00.0", f"ens{bus}")
        spec = AgentSettings(pci_device_spec=[{"vendor_id": "8086", "physical_network": "Physnet-0", "trusted": True}])
        for name, value in (("sysfs", tmp_path / bus), ("pci_device_spec", spec.pci_device_spec)):
            object.__setattr__(kvm.agent.host.settings, name, value)
    pair.make(flavor=SMALL, networks=[nic(1, trusted=True)])
    assert pair.one.fake.functions == {("ens31", 0): TRUSTING}
    assert pair.migrate(type="cold") == WAY
    assert (pair.one.fake.functions, pair.two.fake.functions) == ({("ens31", 0): USUAL}, {("ensb1", 0): TRUSTING})


def test_how_much_a_nic_sends(trusting: Host) -> None:
    """It may change while the guest runs; the function has none of it afterwards."""
    trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, max_tx_rate=100, min_tx_rate=10)]})
    functions, key = trusting.fake.functions, ("ens1f0", 1)
    assert functions == {key: {"max_tx_rate": "100", "min_tx_rate": "10"}}
    assert trusting.ensure("server", "web1", {"networks": [nic(1, max_tx_rate=200)]}).changed
    assert functions == {key: {"max_tx_rate": "200", "min_tx_rate": "0"}} and noted(trusting) == ["0000:31:02.1"]
    assert trusting.ensure("server", "web1", {"networks": [nic(1)]}).changed
    assert functions == {key: {"max_tx_rate": "0", "min_tx_rate": "0"}} and noted(trusting) == []
    assert not trusting.ensure("server", "web1", {"networks": [nic(1, max_tx_rate=0)]}).changed
    functions.clear()
    trusting.ensure("interface_attachment", f"web1:{MAC(1)}", {"server": "web1", "mac": MAC(1), "max_tx_rate": 50})
    assert functions == {key: {"max_tx_rate": "50"}}
    trusting.ensure("server", "web1", None)
    assert functions == {key: {"max_tx_rate": "0"}} and noted(trusting) == []


@pytest.mark.parametrize(("fields", "says"), [
    ({"networks": [{"bridge": "br0", "max_tx_rate": 5}]}, r"networks\[0\].max_tx_rate: is for virtual functions"),
    ({"networks": [{"bridge": "br0", "min_tx_rate": 5}]}, "min_tx_rate: is for virtual functions"),
    ({"networks": [nic(1, min_tx_rate=5, max_tx_rate=4)]}, "must not be less than min_tx_rate, which is 5"),
])
def test_rates_that_nothing_limits(trusting: Host, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidField, match=says):
        trusting.ensure("server", "web1", {"flavor": SMALL, **fields})


# vDPA -----------------------------------------------------------------------------------------------------------------
PORT = "5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d1{}".format
VDPA_NAME = "vdpa:rp_tunnelled"


def switched(sysfs: Path, bus: str = "31", functions: int = 2) -> None:
    """A made-up card that is a switch, whose virtual functions make vDPA devices."""
    for at, address in enumerate(card(sysfs, bus, functions)):
        made = sysfs / "bus/pci/devices" / address / f"vdpa{at}" / f"vhost-vdpa-{at}"
        made.mkdir(parents=True)
        (sysfs / "bus/vdpa/devices").mkdir(parents=True, exist_ok=True)
        (sysfs / f"bus/vdpa/devices/vdpa{at}").symlink_to(made.parent)
    netdev(sysfs, f"0000:{bus}:00.0", "ens1f0")
    for name, port in (("ens1f0", "p0"), ("ens1f0_1", "pf0vf1"), ("ens1f0_0", "pf0vf0"), ("ens2f0_0", "pf1vf0")):
        folder = sysfs / "class/net" / name
        folder.mkdir(parents=True)
        (folder / "phys_switch_id").write_text("b8599f\n")
        (folder / "phys_port_name").write_text(f"{port}\n")


def port_nic(at: int, **more: Any) -> dict[str, Any]:
    """The wish of a vDPA NIC."""
    return {"port": PORT(at), "physical_network": "rp_tunnelled", "vnic_type": "vdpa", "mac": MAC(at), **more}


@pytest.fixture
def vdpa(tmp_path: Path) -> Iterator[Host]:
    """A host with two vDPA devices, for networks between hosts."""
    switched(tmp_path / "sys")
    host = Host(tmp_path, sysfs=tmp_path / "sys", pci_device_spec=[{"vendor_id": "8086", "physical_network": None}],
                pci_alias=[{"name": "any", "vendor_id": "8086", "device_type": "type-VF"}])
    host.start()
    yield host
    host.agent.close()


def representor(host: Host, at: int, name: str = "web1") -> RepresentorPort:
    return RepresentorPort("br-int", PORT(at), MAC(at), host.show(name)["id"])


def test_a_vdpa_nic(vdpa: Host) -> None:
    assert free(vdpa) == {"any": {"total": 0, "free": 0}, VDPA_NAME: {"total": 2, "free": 2}}
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)]})
    [card] = part(vdpa, "interface")
    assert card.get("type") == "vdpa" and {one.tag: dict(one.attrib) for one in card} == {
        "mac": {"address": MAC(1)}, "source": {"dev": "/dev/vhost-vdpa-0"}, "model": {"type": "virtio"},
        "alias": {"name": "ua-nic-52-54-00-00-00-01-0000-31-02-0"}}
    assert vdpa.fake.representors == {"ens1f0_0": representor(vdpa, 1)} and vdpa.fake.functions == {}
    assert not vdpa.ensure("server", "web1", {"networks": [port_nic(1)]}).changed
    assert vdpa.show()["nic_devices"][MAC(1)]["pci_slot"] == "0000:31:02.0"
    vdpa.ensure("server", "web2", {"flavor": SMALL, "networks": [port_nic(2)]})
    with pytest.raises(Conflict, match="needs 1 vDPA devices of networks between hosts, and host .* has 0 free"):
        vdpa.ensure("server", "web3", {"flavor": SMALL, "networks": [port_nic(3)]})
    vdpa.ensure("server", "web1", None)
    assert list(vdpa.fake.representors) == ["ens1f0_1"] and noted(vdpa) == ["0000:31:02.1"]


def test_a_vdpa_nic_comes_and_goes_while_the_guest_runs(vdpa: Host) -> None:
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": []})
    vdpa.ensure("server", "web1", {"networks": [port_nic(1)]})
    assert len(part(vdpa, "interface", live=True)) == 1
    assert vdpa.fake.representors == {"ens1f0_0": representor(vdpa, 1)}
    vdpa.ensure("server", "web1", {"networks": []})
    assert part(vdpa, "interface", live=True) == [] and vdpa.fake.representors == {} and noted(vdpa) == []


def test_devices_that_the_host_calls_otherwise_after_a_boot(vdpa: Host, tmp_path: Path) -> None:
    """The guest gets its own, and not what has its name now."""
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)]})
    vdpa.ensure("server", "web1", {"power": "off"})
    devices = tmp_path / "sys/bus/pci/devices"
    for at in (0, 1):
        made = devices / f"0000:31:02.{at}/vdpa{at}"
        (made / f"vhost-vdpa-{at}").rename(made / f"vhost-vdpa-{1 - at}")
    vdpa.ensure("server", "web1", {"power": "running"})
    assert part(vdpa, "interface/source", live=True)[0].get("dev") == "/dev/vhost-vdpa-1"
    assert vdpa.show()["pci_devices"] == {"0000:31:02.0": MAC(1)}


def test_a_guest_sees_a_port_of_ovn(vdpa: Host) -> None:
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)]})
    document = vdpa.agent.host.documents.find("server", "web1")
    assert document is not None
    assert [(one.mac, one.type) for one in guest_data.guest(vdpa.agent.host, document).nics] == [(MAC(1), "ovs")]


def test_what_a_vdpa_device_needs_of_its_host(vdpa: Host, tmp_path: Path) -> None:
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)], "power": "off"})
    (tmp_path / "sys/class/net/ens1f0_0").rename(tmp_path / "away")
    with pytest.raises(Conflict, match="0000:31:02.0 of host .* has no representor, .* mode switchdev"):
        vdpa.ensure("server", "web1", {"power": "running"})
    (tmp_path / "sys/bus/vdpa/devices/vdpa0").unlink()  # then it is a virtual function like others, and of no network
    vdpa.ensure("server", "web1", {"power": "running"})
    assert vdpa.show()["pci_devices"] == {"0000:31:02.1": MAC(1)}
    assert part(vdpa, "interface/source", live=True)[0].get("dev") == "/dev/vhost-vdpa-1"
    assert list(vdpa.fake.representors) == ["ens1f0_1"]


@pytest.mark.parametrize(("fields", "error", "says"), [
    ({"networks": [{**port_nic(1), "port": None}]}, InvalidField, "port: must be"),
    ({"networks": [nic(1, physical_network="rp_tunnelled", vnic_type="vdpa")]}, InvalidField,
     r"networks\[0\].port: must name a port of OVN for vnic_type vdpa"),
    ({"networks": [{"port": PORT(1), "physical_network": "rp_tunnelled", "port_security": False}]}, InvalidField,
     "must name either a network, a bridge, a port or a physical network"),
    ({"networks": [port_nic(1, vlan=7)]}, InvalidField, "vlan: must be left out for vnic_type vdpa"),
    ({"networks": [port_nic(1, model="e1000")]}, InvalidField, "model: must be virtio for vnic_type vdpa"),
    ({"networks": [port_nic(1, port_security=False)]}, InvalidField, "port_security: is OVN's"),
    ({"networks": [port_nic(1, physical_network="Physnet-0")]}, Conflict,
     "has no vDPA devices of physical network Physnet-0; of such devices it has vDPA devices of networks between"),
    ({"networks": [nic(1, physical_network="rp_tunnelled")]}, Conflict, "has no virtual functions of networks between"),
    ({"networks": [], "hardware": {"pci_alias": "any:1"}}, MagnetarError, "PCI devices of alias any"),
    ({"networks": [port_nic(1)], "power": "suspended"}, InvalidField, "cannot be suspended while the server has PCI"),
])
def test_what_is_refused_of_vdpa(vdpa: Host, fields: dict[str, Any], error: type[MagnetarError], says: str) -> None:
    with pytest.raises(error, match=says):
        vdpa.ensure("server", "web1", {"flavor": SMALL, **fields})
    assert vdpa.fake.representors == {} and free(vdpa)[VDPA_NAME]["free"] == 2


def test_an_interface_attachment_by_vdpa(vdpa: Host) -> None:
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": []})
    shown = vdpa.ensure("interface_attachment", "web1:1", {"server": "web1", **port_nic(1)}).resource
    assert shown is not None and (shown["vnic_type"], shown["port"]) == ("vdpa", PORT(1))
    assert vdpa.fake.representors == {"ens1f0_0": representor(vdpa, 1)}
    vdpa.ensure("interface_attachment", f"web1:{MAC(1)}", None)
    assert vdpa.fake.representors == {}


def test_vdpa_of_a_physical_network(tmp_path: Path) -> None:
    switched(tmp_path / "sys")
    host = Host(tmp_path, sysfs=tmp_path / "sys", **SETTINGS)
    host.start()
    try:
        assert free(host) == {"vdpa:Physnet-0": {"total": 2, "free": 2}}
    finally:
        host.agent.close()


# Given back ----------------------------------------------------------------------------------------------------------
REFUSED = HypervisorError("The agent could not set virtual function 1 of ens1f0.")


def leave_set(host: Host, number: int, *words: str) -> None:
    """A function that an agent which was killed has left set."""
    folder = host.agent.host.settings.state_dir / function_settings.FOLDER
    folder.mkdir(exist_ok=True)
    (folder / f"0000:31:02.{number}").write_text(" ".join(words))
    host.fake.functions["ens1f0", number] = {word: "on" if word == "trust" else "5" for word in words}


def test_a_function_that_cannot_be_given_back_stops_nothing_else(trusting: Host,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither another server's start, nor what the agent has to put right when it starts."""
    leave_set(trusting, 1, "max_tx_rate")
    settle = trusting.fake.set_function

    def refuse(card: str, number: int, settings: dict[str, str]) -> None:
        if number == 1:
            raise REFUSED
        settle(card, number, settings)

    with monkeypatch.context() as patched:
        patched.setattr(trusting.fake, "set_function", refuse)
        trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, trusted=True)]})
        for driver in trusting.agent.drivers:
            driver.sweep(trusting.agent.host)
        trusting.ensure("server", "web1", None)
        assert noted(trusting) == ["0000:31:02.1"]
        with pytest.raises(HypervisorError, match="virtual function 1"):  # nobody starts with what it is not to have
            trusting.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(2)]})
    trusting.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(2)]})
    assert trusting.fake.functions["ens1f0", 1] == {"max_tx_rate": "0"} and noted(trusting) == []


def test_nobody_waits_for_a_card_to_choose(trusting: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_set(trusting, 1, "trust")
    seen = []
    monkeypatch.setattr(trusting.fake, "set_function",
                        lambda *_args: seen.append(trusting.agent.host.locks.held(*CHOICES)))
    function_settings.give_back(trusting.agent.host)
    assert seen == [False]


def test_a_device_of_an_alias_is_as_usual_too(tmp_path: Path) -> None:
    """Also where its former server had it as a trusted NIC, and the agent died before it gave it back."""
    sysfs = tmp_path / "sys"
    card(sysfs, "31", 1)
    netdev(sysfs, "0000:31:00.0", "ens1f0")
    host = Host(tmp_path, sysfs=sysfs, **SETTINGS, pci_alias=[
        {"name": "any", "vendor_id": "8086", "device_type": "type-VF"}])
    host.start()
    try:
        leave_set(host, 0, "trust")
        host.ensure("server", "web1", {"flavor": SMALL, "networks": [], "hardware": {"pci_alias": "any:1"}})
        assert host.show()["pci_devices"] == {"0000:31:02.0": "any"}
        assert host.fake.functions == {("ens1f0", 0): {"trust": "off"}} and noted(host) == []
    finally:
        host.agent.close()


def test_a_trusted_function_of_a_card_that_is_a_switch(vdpa: Host) -> None:
    """Its card does not trust it any more either, and who has put its representor somewhere keeps that."""
    leave_set(vdpa, 0, "trust")
    others = vdpa.fake.representors["ens1f0_0"] = RepresentorPort("br-own", PORT(9), MAC(9), "somebody's")
    function_settings.give_back(vdpa.agent.host)
    assert vdpa.fake.functions == {("ens1f0", 0): {"trust": "off"}} and noted(vdpa) == []
    assert vdpa.fake.representors == {"ens1f0_0": others}
    leave_set(vdpa, 0, "trust")
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)]})
    assert vdpa.fake.functions == {("ens1f0", 0): {"trust": "off"}}
    assert vdpa.fake.representors == {"ens1f0_0": representor(vdpa, 1)}


def test_a_function_that_was_a_port_of_ovn_is_none_any_more(tmp_path: Path) -> None:
    """For a server that has it as a NIC past OVN, and wants it trusted: what it sends is not the former port's."""
    switched(tmp_path / "sys", functions=1)
    (tmp_path / "sys/bus/vdpa/devices/vdpa0").unlink()
    host = Host(tmp_path, sysfs=tmp_path / "sys", pci_device_spec=[
        {"vendor_id": "8086", "physical_network": "Physnet-0", "trusted": "yes"}])
    host.start()
    try:
        leave_set(host, 0, "port")
        host.fake.functions.clear()
        host.fake.representors["ens1f0_0"] = RepresentorPort("br-int", PORT(9), MAC(9), "gone")
        host.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, trusted=True)]})
        assert host.fake.representors == {} and host.fake.functions == {("ens1f0", 0): {"trust": "on"}}
    finally:
        host.agent.close()


def test_a_server_that_is_off_gives_back_at_once(vdpa: Host) -> None:
    """Its port may go to a server of another host, where OVN is to find it."""
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1), port_nic(2)]})
    vdpa.ensure("server", "web1", {"power": "off"})
    vdpa.ensure("server", "web1", {"networks": [port_nic(2)]})
    assert list(vdpa.fake.representors.values()) == [representor(vdpa, 2)] and len(noted(vdpa)) == 1
    vdpa.ensure("server", "web1", {"networks": []})
    assert vdpa.fake.representors == {} and noted(vdpa) == []
