# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of NICs that are devices of a host have in common: a sysfs that is made up, and looks at what became of
it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from magnetar_agent.host import inventory
from magnetar_agent.host.networks import RepresentorPort
from magnetar_agent.servers.nics import function_settings
from magnetar_agent.settings import AgentSettings
from tests.support.agent.pair import Kvm
from tests.support.agent.pci import device
from tests.unit.agent.conftest import Host

CARD, FUNCTION = ("8086", "1572"), ("8086", "154c")
SETTINGS: dict[str, Any] = {"pci_device_spec": [{"vendor_id": "8086", "physical_network": "Physnet-0"}]}
MAC = "52:54:00:00:00:{:02x}".format
NAME = "type-VF:Physnet-0"
PORT = "5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d1{}".format


def nic(at: int, **more: Any) -> dict[str, Any]:
    """The wish of a virtual function."""
    return {"physical_network": "Physnet-0", "mac": MAC(at), "port_security": False, **more}


def port_nic(at: int, **more: Any) -> dict[str, Any]:
    """The wish of a vDPA NIC."""
    return {"port": PORT(at), "physical_network": "rp_tunnelled", "vnic_type": "vdpa", "mac": MAC(at), **more}


def card(sysfs: Path, bus: str, functions: int, node: int = -1) -> list[str]:
    """A made-up card with virtual functions; their addresses."""
    parent = device(sysfs, f"0000:{bus}:00.0", CARD, node, "0x020000")
    (parent / "sriov_totalvfs").write_text("8\n")
    found = [f"0000:{bus}:02.{at}" for at in range(functions)]
    for at, address in enumerate(found):
        (parent / f"virtfn{at}").symlink_to(f"../{address}")
        (device(sysfs, address, FUNCTION, node, "0x020000") / "physfn").symlink_to(f"../0000:{bus}:00.0")
    return found


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


def give(kvm: Kvm, sysfs: Path, **spec: Any) -> None:
    """A host of a pair has the cards of *sysfs*, and gives them to servers as *spec* says."""
    given = AgentSettings(pci_device_spec=[{"vendor_id": "8086", **spec}]).pci_device_spec
    for name, value in (("sysfs", sysfs), ("pci_device_spec", given)):
        object.__setattr__(kvm.agent.host.settings, name, value)
        kvm.more[name] = value  # of its next agents


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


def part(host: Host | Kvm, path: str, name: str = "web1", live: bool = False) -> list[ET.Element]:
    """Of a server's domain."""
    document = host.agent.host.documents.find("server", name)
    assert document is not None
    xml = host.fake._domains[document.id].live if live else host.fake.xml(document.id)
    return ET.fromstring(str(xml)).findall(f"devices/{path}")


def free(host: Host) -> dict[str, Any]:
    return inventory.host_usage(host.agent.host)["pci_devices"]


def noted(host: Host | Kvm) -> list[str]:
    """The functions that are noted as set."""
    folder = host.agent.host.settings.state_dir / function_settings.FOLDER
    return sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []


def leave_set(host: Host, number: int, *words: str) -> None:
    """A function that an agent which was killed has left set."""
    folder = host.agent.host.settings.state_dir / function_settings.FOLDER
    folder.mkdir(exist_ok=True)
    (folder / f"0000:31:02.{number}").write_text(" ".join(words))
    host.fake.functions["ens1f0", number] = {word: "on" if word == "trust" else "5" for word in words}


def representor(host: Host, at: int, name: str = "web1") -> RepresentorPort:
    return RepresentorPort("br-int", PORT(at), MAC(at), host.show(name)["id"])
