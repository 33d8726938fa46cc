# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs that are virtual functions: who gets which, plugged and unplugged, moved, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.host import inventory
from magnetar_agent.reconcile import reconcile
from magnetar_agent.servers.hardware import pci, placement
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, MagnetarError
from magnetar_core.kinds import Server
from tests.support.agent.pair import WAY, Pair
from tests.support.agent.pci import CELLS, remove
from tests.unit.agent.conftest import SMALL, Host

from .made_up import MAC, NAME, SETTINGS, card, free, nic, plugged


def test_what_a_host_tells(big: Host) -> None:
    told = inventory.host_usage(big.agent.host)
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
    looks, look = [], pci.assignable_devices
    monkeypatch.setattr(pci, "assignable_devices", lambda host: looks.append(1)
                        or look(host))  # type: ignore[func-returns-value]
    shown = reconcile.list_resources(big.agent.drivers, Server, {})
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
])
def test_what_is_refused(big: Host, fields: dict[str, Any], error: type[MagnetarError], says: str) -> None:
    with pytest.raises(error, match=says):
        big.ensure("server", "web1", {"flavor": SMALL, **fields})
    assert free(big)[NAME]["free"] == 2


def test_a_cold_move_gives_it_one_of_the_other_host(equipped: Pair) -> None:
    equipped.make(flavor=SMALL, networks=[nic(1)])
    assert plugged(equipped.one) == {MAC(1): "0x31 0x0"}
    assert equipped.migrate(type="cold") == WAY
    assert plugged(equipped.two) == {MAC(1): "0xb1 0x0"} and pci.held_pci_addresses(equipped.one.agent.host) == set()


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
