# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's PCI devices that guests may be given: those in sysfs that the settings allow, and which alias names them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from magnetar_core import bandwidth
from magnetar_core.bandwidth import TUNNELS
from magnetar_core.errors import InvalidSettings
from magnetar_core.hardware.pci import BY_OVN, DIRECT, PCI, PF, REMOTE, VDPA, VF, WHOLE, class_of, of_card, of_network

from .sysfs import entries, text

if TYPE_CHECKING:
    from pathlib import Path

#: How ``class`` in sysfs begins for bridges, which are never given to guests.
_BRIDGE = "0x06"
#: What libvirt takes for an address: the kernel numbers domains of its own, such as those of VMD, from 0x10000 on (row
#: NET-01).
ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


class RemoteFunction(NamedTuple):
    """What a SmartNIC and its OVN know a virtual function by, in Nova's words of ``binding:profile``: the serial number
    of the card, the MAC of its physical function, and its number among the virtual ones of that."""

    card_serial_number: str
    pf_mac_address: str
    vf_num: int


class PciDevice(NamedTuple):
    """A device. *address* is like ``0000:81:00.0``, both ids are four hexadecimal digits, *numa_node* is -1 where the
    host does not tell. *managed*: libvirt takes it from the host's driver when a guest starts, and gives it back.
    *type*: one of ``core.hardware.pci.TYPES``. *once*: a server that has had it leaves it to nobody. *parent*: the
    address of the physical function of a virtual one. *own_class*, *own_traits*: resource class and traits that the
    settings give it. *live*: its driver can carry its state to another host's. *physical_network*: what its NIC is
    plugged into. *trusted*: its card may trust it. *vdpa*: what the host calls the character device of its vDPA device,
    such as ``vhost-vdpa-0``; *remote*: what a SmartNIC knows it by. No alias names one with either. *card*: the network
    device of the parent of a virtual function that is a NIC past OVN."""

    address: str
    vendor_id: str
    product_id: str
    numa_node: int
    managed: bool = True
    type: str = PCI
    once: bool = False
    parent: str = ""
    own_class: str = ""
    own_traits: frozenset[str] = frozenset()
    live: bool = False
    physical_network: str = ""
    trusted: bool = False
    vdpa: str = ""
    remote: RemoteFunction | None = None
    card: str = ""

    @property
    def provider(self) -> str:
        """The address that it is counted at: its own, and a virtual function its parent's (row XPCI-08)."""
        return self.parent or self.address

    @property
    def resource_class(self) -> str:
        """What it is one of."""
        return self.own_class or class_of(self.vendor_id, self.product_id)

    @property
    def of_network(self) -> tuple[str, ...]:
        """How NICs name it (``core.hardware.pci.of_network``); empty where it can be none."""
        kind = REMOTE if self.remote else VDPA if self.vdpa else {VF: DIRECT, PF: WHOLE}.get(self.type)
        by_ovn = kind in BY_OVN
        if kind is None or not self.physical_network or (self.physical_network == TUNNELS and not by_ovn):
            return ()
        trusts = (False, True) if self.trusted and not by_ovn else (False,)
        return tuple(of_network(self.physical_network, kind, trusted) for trusted in trusts)

    @property
    def of_card(self) -> tuple[str, ...]:
        """How NICs name it that are to be of its card."""
        return tuple(of_card(name, self.card) for name in self.of_network) if self.card else ()

    def place(self) -> dict[str, str]:
        """Attributes of libvirt's ``address``."""
        return place(self.address)


def place(address: str) -> dict[str, str]:
    """An address such as ``0000:81:00.0`` as attributes of libvirt's ``address``."""
    domain, bus, rest = address.split(":")
    slot, _dot, function = rest.partition(".")
    return {"domain": f"0x{domain}", "bus": f"0x{bus}", "slot": f"0x{slot}", "function": f"0x{function}"}


def allowed(sysfs: Path, specs: Sequence[Mapping[str, str]],
            serials: Mapping[str, str] = MappingProxyType({})) -> list[PciDevice]:
    """The devices under *sysfs* that one of *specs* (the setting ``pci_device_spec``) allows, by address; the first
    that does says whether it is managed, and given once. Not bridges, not a physical function while it has virtual
    ones, and none whose address no guest's configuration can say. *serials*: address to the serial number of a card, as
    its vital product data say; a virtual function that is to be remote-managed is left out without (row NET-02)."""
    if not specs:
        return []
    found, vdpa, seen = [], vdpa_devices(sysfs), dict[str, tuple[str, dict[str, int]]]()
    card = cache(partial(network_device, sysfs))
    for folder in entries(sysfs / "bus/pci/devices"):
        if text(folder / "class").startswith(_BRIDGE) or (folder / "virtfn0").is_symlink():
            continue
        if not ADDRESS.fullmatch(folder.name):
            continue
        vendor, product = (text(folder / name).removeprefix("0x").lower() for name in ("vendor", "device"))
        one = PciDevice(folder.name, vendor, product, int(text(folder / "numa_node") or -1), type=_type(folder),
                        parent=_parent(folder))
        spec = next((each for each in specs if vendor and _suits(one, each)), None)
        if spec is None:
            continue
        remote = _remote(sysfs, one, serials, seen) if is_remote(spec) else None
        if remote is None and is_remote(spec):
            continue
        past_ovn = one.type == VF and remote is None and one.address not in vdpa
        found.append(one._replace(managed=spec.get("managed", "yes") == "yes", once=spec.get("one_time_use") == "yes",
                                  own_class=spec.get("resource_class", ""), own_traits=frozenset(traits(spec)),
                                  live=spec.get("live_migratable") == "yes",
                                  physical_network=spec.get("physical_network", ""),
                                  trusted=one.type == VF and spec.get("trusted") == "yes",
                                  vdpa=vdpa.get(one.address, "") if one.type == VF and remote is None else "",
                                  remote=remote, card=card(one.parent) if past_ovn and spec.get(
                                      "physical_network") else ""))
    return found


def is_remote(spec: Mapping[str, str]) -> bool:
    """Whether a setting of devices is about virtual functions of SmartNICs."""
    return spec.get("remote_managed") == "yes"


def _remote(sysfs: Path, one: PciDevice, serials: Mapping[str, str],
            seen: dict[str, tuple[str, dict[str, int]]]) -> RemoteFunction | None:
    """What a SmartNIC knows a device by; ``None`` where something of that is not told. *seen*: physical functions that
    were looked at."""
    if one.parent not in seen:
        seen[one.parent] = mac_address(sysfs, one.parent), _functions_of(sysfs, one.parent)
    mac, numbers = seen[one.parent]
    serial = serials.get(one.address) or serials.get(one.parent)
    return RemoteFunction(serial, mac, numbers[one.address]) if serial and mac and one.address in numbers else None


def named(device: PciDevice, alias: str, aliases: Sequence[Mapping[str, str]]) -> bool:
    """Whether *alias* names the device. One alias may stand several times in *aliases* (the setting ``pci_alias``).
    What has to do with SR-IOV is named by aliases of its type only (row PCI-09). What can be a NIC of a physical
    network has names of that besides."""
    if alias in device.of_network or alias in device.of_card:
        return True
    return not device.vdpa and device.remote is None and any(
        one["name"] == alias and one.get("device_type", PCI) == device.type and _suits(device, one)
        and one.get("resource_class", device.resource_class) == device.resource_class
        and device.own_traits.issuperset(traits(one))
        and one.get("live_migratable", _word(device.live)) == _word(device.live) for one in aliases)


def network_device(sysfs: Path, address: str) -> str:
    """What the host calls the network device of the device; empty while no driver of the host has it."""
    found = sorted(one.name for one in entries(sysfs / "bus/pci/devices" / address / "net"))
    return found[0] if found else ""


def mac_address(sysfs: Path, address: str) -> str:
    """The MAC of that network device; empty without one."""
    name = network_device(sysfs, address)
    return text(sysfs / "bus/pci/devices" / address / "net" / name / "address").lower() if name else ""


def vdpa_devices(sysfs: Path) -> dict[str, str]:
    """Address of a PCI device to the character device of its vDPA device, where that has the driver vhost_vdpa."""
    found = {}
    for one in entries(sysfs / "bus/vdpa/devices"):
        place = one.resolve()
        parent = next((above.name for above in place.parents if ADDRESS.fullmatch(above.name)), "")
        device = next((inside.name for inside in entries(place) if inside.name.startswith("vhost-vdpa-")), "")
        if parent and device:
            found[parent] = device
    return found


def representor_of(sysfs: Path, address: str) -> str:
    """The host's network device that stands for the virtual function at an *address* while its card is a switch
    (switchdev); empty for another."""
    of, net = card_of(sysfs, address), sysfs / "class/net"
    switch = text(net / of.card / "phys_switch_id") if of else ""
    if of is None or not switch:
        return ""
    number = _parent(sysfs / "bus/pci/devices" / address).rpartition(".")[2]
    port = re.compile(rf"(c\d+)?pf{number}vf{of.number}|{of.number}")
    return next((one.name for one in entries(net) if one.name != of.card and text(one / "phys_switch_id") == switch
                 and port.fullmatch(text(one / "phys_port_name"))), "")


class FunctionOf(NamedTuple):
    """Which virtual function of a *card* (its network device) one is."""

    card: str
    number: int


def card_of(sysfs: Path, address: str) -> FunctionOf | None:
    """Whose the virtual function at an *address* is; ``None`` where it has gone, or its card has no network device."""
    devices = sysfs / "bus/pci/devices"
    parent = _parent(devices / address)
    card = network_device(sysfs, parent) if parent else ""
    number = _functions_of(sysfs, parent).get(address) if card else None
    return None if number is None else FunctionOf(card, number)


def _functions_of(sysfs: Path, parent: str) -> dict[str, int]:
    """The addresses of the virtual functions of a physical one, with their numbers."""
    links = {one: one.name.removeprefix("virtfn") for one in entries(sysfs / "bus/pci/devices" / parent)
             if one.name.startswith("virtfn") and one.is_symlink()}
    return {one.readlink().name: int(number) for one, number in links.items() if number.isdecimal()}


def may_be_allowed(sysfs: Path, specs: Sequence[Mapping[str, str]]) -> list[PciDevice]:
    """As ``allowed``, without a word of libvirt's: what has vital product data (VPD) may have a serial number."""
    serials = {one.name: "?" for one in entries(sysfs / "bus/pci/devices")
               if (one / "vpd").exists()} if any(map(is_remote, specs)) else {}
    return allowed(sysfs, specs, serials)


def moves_live(alias: str, aliases: Sequence[Mapping[str, str]]) -> bool:
    """Whether all devices that *alias* names can move while their guest runs."""
    mine = [one for one in aliases if one["name"] == alias]
    return bool(mine) and all(one.get("live_migratable") == "yes" for one in mine)


def check_parents(found: Sequence[PciDevice]) -> None:
    """Raises ``InvalidSettings`` where virtual functions of one parent differ in resource class or traits: they are
    counted as one (row XPCI-10)."""
    first: dict[str, PciDevice] = {}
    for one in found:
        other = first.setdefault(one.provider, one)
        for what, mine, theirs in (("resource class", one.resource_class, other.resource_class),
                                   ("traits", _text(one.own_traits), _text(other.own_traits))):
            if mine != theirs:
                raise InvalidSettings(
                    f"pci_device_spec: virtual functions of {one.provider} cannot differ in {what}, as they are "
                    f"counted together: {other.address} has {theirs} and {one.address} has {mine}. Say the same of "
                    "both, or leave one of them out.")


def names(device: PciDevice, aliases: Sequence[Mapping[str, str]], places: Container[str] = ()) -> tuple[str, ...]:
    """All of *aliases* that name the device, and its physical network, and its card where that is one of the *places*
    (``NETWORK/CARD``)."""
    own = dict.fromkeys([*(one["name"] for one in aliases), *device.of_network,
                         *(device.of_card if f"{device.physical_network}/{device.card}" in places else ())])
    return tuple(alias for alias in own if named(device, alias, aliases))


def warnings(sysfs: Path, specs: Sequence[Mapping[str, str]], types: Sequence[Mapping[str, str]],
             places: Iterable[str] = ()) -> Iterator[str]:
    """What a host lacks to give guests the devices that the settings ``pci_device_spec`` (*specs*) and
    ``enabled_mdev_types`` (*types*) name (row PCI-06), and the bandwidth of cards (*places*, ``NETWORK/CARD``)."""
    if specs and not entries(sysfs / "class/iommu"):
        yield ("pci_device_spec names devices, and the host has no IOMMU that is on, so no guest with one would start. "
               "Switch it on in the firmware, and for the kernel (intel_iommu=on or amd_iommu=on).")
    found = may_be_allowed(sysfs, specs)
    if specs and not found:
        yield "pci_device_spec allows none of the host's devices."
    elif any(map(is_remote, specs)) and not any(one.remote for one in found):
        yield ("pci_device_spec has remote_managed, and no virtual function that it names is one of a card with vital "
               "product data (VPD), which have its serial number, and with a network device of its physical function.")
    cards = {f"{one.physical_network}/{one.card}" for one in found if one.card}
    for place in sorted(place for place in places if bandwidth.card_of(place) and place not in cards):
        yield (f"resource_provider_bandwidths names {place}, and pci_device_spec allows no virtual function of a card "
               f"{bandwidth.card_of(place)} with physical_network {bandwidth.network_of(place)}: no port gets any of "
               f"that bandwidth. There are {', '.join(sorted(cards)) or 'none'}.")
    if types and not entries(sysfs / "class/mdev_bus"):
        yield "enabled_mdev_types names types, and no driver of the host offers mediated devices."
    if types and shutil.which("mdevctl") is None:
        yield "enabled_mdev_types needs mdevctl, by which libvirt makes mediated devices. Install it."


def _suits(device: PciDevice, spec: Mapping[str, str]) -> bool:
    return (spec.get("vendor_id", device.vendor_id) == device.vendor_id
            and spec.get("product_id", device.product_id) == device.product_id
            and fnmatchcase(device.address, spec.get("address", "*")) and (device.type == VF or not is_remote(spec)))


def traits(spec: Mapping[str, str]) -> tuple[str, ...]:
    """Those that a setting of devices names, with commas between."""
    return tuple(filter(None, spec.get("traits", "").split(",")))


def _word(said: bool) -> str:
    return "yes" if said else "no"


def _text(names: frozenset[str]) -> str:
    return ",".join(sorted(names)) or "none"


def _parent(folder: Path) -> str:
    """The address of the physical function of a virtual one."""
    link = folder / "physfn"
    return link.readlink().name if link.is_symlink() else ""


def _type(folder: Path) -> str:
    if (folder / "physfn").is_symlink():
        return VF
    return PF if int(text(folder / "sriov_totalvfs") or 0) else PCI
