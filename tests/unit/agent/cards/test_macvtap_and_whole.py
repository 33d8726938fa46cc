# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs by macvtap, and whole cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from magnetar_agent.servers import guest_data
from magnetar_agent.servers.hardware import pci
from magnetar_core.errors import Conflict, InvalidField, MagnetarError
from tests.support.agent.metadata_cloud_init import SCHEMA
from tests.support.agent.pair import WAY, Pair
from tests.support.agent.pci import device
from tests.unit.agent.conftest import SMALL, Host

from .made_up import FUNCTION, MAC, NAME, free, give, nic, part, plugged, whole

TAP = "interface[@type='direct']"


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
    assert given.find("source/address").get("bus") == "0x41" and given.get(
        "managed") == "yes"  # type: ignore[union-attr]
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


def test_a_card_may_come_before_other_nics(cards: Host) -> None:
    """The domain has it elsewhere, which is no difference."""
    wanted = [nic(1, vnic_type="direct-physical"), nic(2, vnic_type="macvtap"), {"bridge": "br0", "mac": MAC(3)}]
    cards.ensure("server", "web1", {"flavor": SMALL, "networks": wanted})
    assert not cards.ensure("server", "web1", {"networks": wanted}).changed
    turned = [wanted[0], wanted[2], wanted[1]]
    assert cards.ensure("server", "web1", {"networks": turned}).changed


def test_a_guest_is_told_the_mac_of_its_card(cards: Host, tmp_path: Path) -> None:
    """Also when nothing of the host can read it any more, since the guest has the card."""
    cards.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, vnic_type="direct-physical", tag="fast")]})
    (tmp_path / "sys/bus/pci/devices/0000:41:00.0/net").rename(tmp_path / "net")
    cards.ensure("server", "web1", {"power": "off"})
    cards.ensure("server", "web1", {"power": "running"})
    document = cards.agent.host.documents.find("server", "web1")
    assert document is not None
    guest = guest_data.build_guest(cards.agent.host, document)
    assert [one.mac for one in guest.nics] == ["3c:fd:fe:00:00:01"] == [one.mac for one in guest.devices]
    told = json.loads(guest_data.guest_metadata_tree(cards.agent.host, document)["openstack/latest/network_data.json"])
    assert [one["type"] for one in told["links"]] == ["phy"]
    validate(told, SCHEMA)


def test_a_card_that_was_given_another_mac_meanwhile(cards: Host, tmp_path: Path) -> None:
    """What it has now counts, and not what was noted, as while its server was off."""
    cards.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, vnic_type="direct-physical")]})
    cards.ensure("server", "web1", {"power": "off"})
    (tmp_path / "sys/bus/pci/devices/0000:41:00.0/net/ens2/address").write_text("3c:fd:fe:00:00:99\n")
    cards.ensure("server", "web1", {"power": "running"})
    assert cards.show()["nic_devices"][MAC(1)]["device_mac_address"] == "3c:fd:fe:00:00:99"


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
        give(kvm, tmp_path / bus, physical_network="Physnet-0")
    id = pair.make(flavor=SMALL, networks=[nic(1, vnic_type="direct-physical")])
    assert pair.migrate(type="cold") == WAY
    document = pair.two.agent.host.documents.get("server", id)
    assert document is not None and document.want[pci.MACS] == {"0000:b1:00.0": "3c:fd:fe:00:00:b1"}
    assert [one.find("source/address").get("bus") for one in part(pair.two,
                                                                  "hostdev")] == ["0xb1"]  # type: ignore[union-attr]
