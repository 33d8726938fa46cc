# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices of the host that guests may have: the devices in sysfs that the settings allow, and their aliases."""

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
from magnetar_core.hardware.pci import (
    BY_OVN,
    DIRECT,
    PCI,
    PF,
    REMOTE,
    VDPA,
    VF,
    WHOLE,
    card_devices_name,
    network_devices_name,
    pci_resource_class,
)

from .sysfs import sysfs_entries, sysfs_text

if TYPE_CHECKING:
    from pathlib import Path

#: The prefix of ``class`` in sysfs for bridges, which are never given to guests.
_BRIDGE = "0x06"
#: The PCI addresses that libvirt accepts: the kernel numbers domains of its own, such as those of VMD, from 0x10000 on.
ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


class RemoteFunction(NamedTuple):
    """The identity of a virtual function of a SmartNIC, as OVN and Neutron's ``binding:profile`` use it: serial number
    of the card, MAC of the physical function, and number of the virtual function."""

    card_serial_number: str
    pf_mac_address: str
    vf_num: int


class PciDevice(NamedTuple):
    """A PCI device of the host that servers may get.

    *address*: such as ``0000:81:00.0``. *vendor_id*, *product_id*: four hexadecimal digits. *numa_node*: -1 if unknown.
    *managed*: whether libvirt detaches the device from the host's driver when a guest starts. *type*: an item of
    ``core.hardware.pci.TYPES``. *once*: only one server may ever get the device. *parent*: the address of a virtual
    function's physical function. *own_class*, *own_traits*: resource class and traits from the settings. *live*: the
    device supports live migration.

    *physical_network*: the network that the device is connected to, if it is a NIC. *trusted*: servers may request
    trusted mode. *vdpa*: the character device of its vDPA device, such as ``vhost-vdpa-0``. *remote*: its identity on a
    SmartNIC. Aliases never match a device with *vdpa* or *remote*. *card*: the network device of the physical function,
    for a virtual function that is a NIC without OVN.
    """

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
        """Return the PCI address of the device's resource provider: for a virtual function the address of its physical
        function, otherwise the device's own address."""
        return self.parent or self.address

    @property
    def resource_class(self) -> str:
        """Return the resource class under which Placement counts the device."""
        return self.own_class or pci_resource_class(self.vendor_id, self.product_id)

    @property
    def nic_names(self) -> tuple[str, ...]:
        """Return the names under which the NIC of a server can request this device: one made of the device's physical
        network and VNIC type (``core.hardware.pci.network_devices_name``), and for a trusted virtual function also one
        for NICs that request trusted mode. Empty if the device cannot be a NIC."""
        kind = REMOTE if self.remote else VDPA if self.vdpa else {VF: DIRECT, PF: WHOLE}.get(self.type)
        by_ovn = kind in BY_OVN
        if kind is None or not self.physical_network or (self.physical_network == TUNNELS and not by_ovn):
            return ()
        trusts = (False, True) if self.trusted and not by_ovn else (False,)
        return tuple(network_devices_name(self.physical_network, kind, trusted) for trusted in trusts)

    @property
    def card_nic_names(self) -> tuple[str, ...]:
        """Return the names that the NIC of a server uses to request a virtual function of exactly this network card:
        the names of ``nic_names``, with the name of the card (the attribute ``card``) appended to each. Empty for a
        device without *card*."""
        return tuple(card_devices_name(name, self.card) for name in self.nic_names) if self.card else ()

    def address_attributes(self) -> dict[str, str]:
        """Return the PCI address as attributes of libvirt's ``address`` element."""
        return pci_address_attributes(self.address)


def pci_address_attributes(address: str) -> dict[str, str]:
    """Return a PCI address such as ``0000:81:00.0`` as attributes of libvirt's ``address`` element."""
    domain, bus, slot_function = address.split(":")
    slot, _dot, function = slot_function.partition(".")
    return {"domain": f"0x{domain}", "bus": f"0x{bus}", "slot": f"0x{slot}", "function": f"0x{function}"}


def allowed_devices(sysfs: Path, specs: Sequence[Mapping[str, str]],
                    serials: Mapping[str, str] = MappingProxyType({})) -> list[PciDevice]:
    """Return the host's PCI devices that an entry of *specs*, the setting ``pci_device_spec``, matches, sorted by
    address. The first matching entry determines the device's properties, such as ``managed``.

    *sysfs*: the path of /sys. *serials*: serial number of the card by PCI address, from its vital product data. The
    result leaves out bridges, physical functions that have virtual functions, devices whose address is invalid in
    libvirt's XML, and remote-managed virtual functions without a serial number.
    """
    if not specs:
        return []
    devices, vdpa, physical_functions = [], vdpa_devices(sysfs), dict[str, tuple[str, dict[str, int]]]()
    card = cache(partial(network_device, sysfs))
    for folder in sysfs_entries(sysfs / "bus/pci/devices"):
        if sysfs_text(folder / "class").startswith(_BRIDGE) or (folder / "virtfn0").is_symlink():
            continue
        if not ADDRESS.fullmatch(folder.name):
            continue
        vendor, product = (sysfs_text(folder / name).removeprefix("0x").lower() for name in ("vendor", "device"))
        device = PciDevice(folder.name, vendor, product, int(sysfs_text(folder / "numa_node") or -1),
                           type=_type(folder), parent=_parent(folder))
        spec = next((each for each in specs if vendor and _suits(device, each)), None)
        if spec is None:
            continue
        remote = _remote(sysfs, device, serials, physical_functions) if is_remote(spec) else None
        if remote is None and is_remote(spec):
            continue
        past_ovn = device.type == VF and remote is None and device.address not in vdpa
        devices.append(device._replace(managed=spec.get("managed", "yes") == "yes",
                                       once=spec.get("one_time_use") == "yes",
                                       own_class=spec.get("resource_class", ""),
                                       own_traits=frozenset(setting_traits(spec)),
                                       live=spec.get("live_migratable") == "yes",
                                       physical_network=spec.get("physical_network", ""),
                                       trusted=device.type == VF and spec.get("trusted") == "yes",
                                       vdpa=vdpa.get(device.address, "") if device.type == VF and remote is None
                                       else "", remote=remote, card=card(device.parent) if past_ovn and spec.get(
                                      "physical_network") else ""))
    return devices


def is_remote(spec: Mapping[str, str]) -> bool:
    """Return whether *spec*, an entry of the setting ``pci_device_spec``, is for remote-managed virtual functions (of
    SmartNICs)."""
    return spec.get("remote_managed") == "yes"


def _remote(sysfs: Path, device: PciDevice, serials: Mapping[str, str],
            physical_functions: dict[str, tuple[str, dict[str, int]]]) -> RemoteFunction | None:
    """Return the identity of *device* as a virtual function of a SmartNIC; ``None`` if serial number, MAC or function
    number is unknown. *serials*: serial number of the card by PCI address. *physical_functions*: a cache that this
    function fills. It maps the PCI address of a physical function to a pair: the MAC, and the numbers of the virtual
    functions by PCI address."""
    if device.parent not in physical_functions:
        physical_functions[device.parent] = mac_address(sysfs, device.parent), _functions_of(sysfs, device.parent)
    mac, numbers = physical_functions[device.parent]
    serial = serials.get(device.address) or serials.get(device.parent)
    return RemoteFunction(serial, mac,
                          numbers[device.address]) if serial and mac and device.address in numbers else None


def alias_names_device(device: PciDevice, alias: str, aliases: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a request for *alias* may get *device*. *aliases*: the setting ``pci_alias``, in which an alias
    may have several entries; an entry matches devices of its ``device_type`` only. The names with which NICs request
    the device (``nic_names``, ``card_nic_names``) count as aliases."""
    if alias in device.nic_names or alias in device.card_nic_names:
        return True
    return not device.vdpa and device.remote is None and any(
        spec["name"] == alias and spec.get("device_type", PCI) == device.type and _suits(device, spec)
        and spec.get("resource_class", device.resource_class) == device.resource_class
        and device.own_traits.issuperset(setting_traits(spec))
        and spec.get("live_migratable", _yes_or_no(device.live)) == _yes_or_no(device.live) for spec in aliases)


def network_device(sysfs: Path, address: str) -> str:
    """Return the name of the host's network device (such as eth0) of the PCI device at *address*; empty if it has none,
    for example because no driver of the host is bound to the PCI device. *sysfs*: the path of /sys."""
    names = sorted(folder.name for folder in sysfs_entries(sysfs / "bus/pci/devices" / address / "net"))
    return names[0] if names else ""


def mac_address(sysfs: Path, address: str) -> str:
    """Return the MAC of the network device of the PCI device at *address*; empty if it has none. *sysfs*: the path of
    /sys."""
    name = network_device(sysfs, address)
    return sysfs_text(sysfs / "bus/pci/devices" / address / "net" / name / "address").lower() if name else ""


def vdpa_devices(sysfs: Path) -> dict[str, str]:
    """Return the vDPA devices with the driver vhost_vdpa: the name of the character device, such as ``vhost-vdpa-0``,
    by PCI address. *sysfs*: the path of /sys."""
    devices = {}
    for link in sysfs_entries(sysfs / "bus/vdpa/devices"):
        place = link.resolve()
        parent = next((above.name for above in place.parents if ADDRESS.fullmatch(above.name)), "")
        device = next((inside.name for inside in sysfs_entries(place) if inside.name.startswith("vhost-vdpa-")), "")
        if parent and device:
            devices[parent] = device
    return devices


def representor_of(sysfs: Path, address: str) -> str:
    """Return the name of the representor of the virtual function at *address*: the network device by which the host
    reaches the function. Empty if there is none, as for a card that is not in switchdev mode. *sysfs*: the path of
    /sys."""
    of, net = card_of_function(sysfs, address), sysfs / "class/net"
    switch = sysfs_text(net / of.card / "phys_switch_id") if of else ""
    if of is None or not switch:
        return ""
    number = _parent(sysfs / "bus/pci/devices" / address).rpartition(".")[2]
    port = re.compile(rf"(c\d+)?pf{number}vf{of.number}|{of.number}")
    return next((netdev.name for netdev in sysfs_entries(net) if netdev.name != of.card
                 and sysfs_text(netdev / "phys_switch_id") == switch
                 and port.fullmatch(sysfs_text(netdev / "phys_port_name"))), "")


class FunctionOf(NamedTuple):
    """A virtual function. *card*: the network device of its physical function. *number*: its number on that card."""

    card: str
    number: int


def card_of_function(sysfs: Path, address: str) -> FunctionOf | None:
    """Return the number of the virtual function at the PCI *address*, and the network device of its physical function.
    Return ``None`` if there is no virtual function at *address*, or if the physical function has no network device.
    *sysfs*: the path of /sys."""
    devices = sysfs / "bus/pci/devices"
    parent = _parent(devices / address)
    card = network_device(sysfs, parent) if parent else ""
    number = _functions_of(sysfs, parent).get(address) if card else None
    return None if number is None else FunctionOf(card, number)


def _functions_of(sysfs: Path, parent: str) -> dict[str, int]:
    """Return the virtual functions of the physical function with the PCI address *parent*: their numbers by PCI
    address. *sysfs*: the path of /sys."""
    links = {link: link.name.removeprefix("virtfn") for link in sysfs_entries(sysfs / "bus/pci/devices" / parent)
             if link.name.startswith("virtfn") and link.is_symlink()}
    return {link.readlink().name: int(number) for link, number in links.items() if number.isdecimal()}


def may_be_allowed(sysfs: Path, specs: Sequence[Mapping[str, str]]) -> list[PciDevice]:
    """Return the devices that ``allowed_devices`` would return, but without asking libvirt for serial numbers: every
    device with vital product data (VPD) counts as having a serial number, so the result may contain too many devices.
    *specs*: the setting ``pci_device_spec``. *sysfs*: the path of /sys."""
    serials = {folder.name: "?" for folder in sysfs_entries(sysfs / "bus/pci/devices")
               if (folder / "vpd").exists()} if any(map(is_remote, specs)) else {}
    return allowed_devices(sysfs, specs, serials)


def moves_live(alias: str, aliases: Sequence[Mapping[str, str]]) -> bool:
    """Return whether all devices of *alias* support live migration. *aliases*: the setting ``pci_alias``."""
    mine = [spec for spec in aliases if spec["name"] == alias]
    return bool(mine) and all(spec.get("live_migratable") == "yes" for spec in mine)


def check_parents(devices: Sequence[PciDevice]) -> None:
    """Raise ``InvalidSettings`` if virtual functions of one physical function differ in resource class or traits: one
    resource provider counts all virtual functions of a physical function."""
    first: dict[str, PciDevice] = {}
    for device in devices:
        other = first.setdefault(device.provider, device)
        for aspect, mine, theirs in (("resource class", device.resource_class, other.resource_class),
                                     ("traits", _text(device.own_traits), _text(other.own_traits))):
            if mine != theirs:
                raise InvalidSettings(
                    f"pci_device_spec: virtual functions of {device.provider} cannot differ in {aspect}, as they are "
                    f"counted together: {other.address} has {theirs} and {device.address} has {mine}. Say the same of "
                    "both, or leave one of them out.")


def device_aliases(device: PciDevice, aliases: Sequence[Mapping[str, str]], places: Container[str] = ()) -> tuple[str,
                                                                                                                  ...]:
    """Return all names with which servers can request the device: its aliases, ``nic_names`` and ``card_nic_names``.
    *aliases*: the setting ``pci_alias``. *places*: the network cards in the setting ``resource_provider_bandwidths``,
    as ``PHYSICAL_NETWORK/CARD``; the result contains ``card_nic_names`` only for these cards."""
    candidates = dict.fromkeys([*(spec["name"] for spec in aliases), *device.nic_names,
                                *(device.card_nic_names if f"{device.physical_network}/{device.card}" in places
                                  else ())])
    return tuple(alias for alias in candidates if alias_names_device(device, alias, aliases))


def pci_warnings(sysfs: Path, specs: Sequence[Mapping[str, str]], types: Sequence[Mapping[str, str]],
                 places: Iterable[str] = ()) -> Iterator[str]:
    """Yield a warning text for each problem of this host with the settings for PCI and mediated devices, such as a
    missing IOMMU. *specs*: ``pci_device_spec``; *types*: ``enabled_mdev_types``; *places*: the network cards in the
    setting ``resource_provider_bandwidths``, as ``PHYSICAL_NETWORK/CARD``. *sysfs*: the path of /sys."""
    if specs and not sysfs_entries(sysfs / "class/iommu"):
        yield ("pci_device_spec names devices, and the host has no IOMMU that is on, so no guest with one would start. "
               "Switch it on in the firmware, and for the kernel (intel_iommu=on or amd_iommu=on).")
    devices = may_be_allowed(sysfs, specs)
    if specs and not devices:
        yield "pci_device_spec allows none of the host's devices."
    elif any(map(is_remote, specs)) and not any(device.remote for device in devices):
        yield ("pci_device_spec has remote_managed, and no virtual function that it names is one of a card with vital "
               "product data (VPD), which have its serial number, and with a network device of its physical function.")
    cards = {f"{device.physical_network}/{device.card}" for device in devices if device.card}
    for place in sorted(place for place in places if bandwidth.card_of_place(place) and place not in cards):
        yield (f"resource_provider_bandwidths names {place}, and pci_device_spec allows no virtual function of a card "
               f"{bandwidth.card_of_place(place)} with physical_network {bandwidth.network_of_place(place)}: no port "
               "gets any of "
               f"that bandwidth. There are {', '.join(sorted(cards)) or 'none'}.")
    if types and not sysfs_entries(sysfs / "class/mdev_bus"):
        yield "enabled_mdev_types names types, and no driver of the host offers mediated devices."
    if types and shutil.which("mdevctl") is None:
        yield "enabled_mdev_types needs mdevctl, by which libvirt makes mediated devices. Install it."


def _suits(device: PciDevice, spec: Mapping[str, str]) -> bool:
    return (spec.get("vendor_id", device.vendor_id) == device.vendor_id
            and spec.get("product_id", device.product_id) == device.product_id
            and fnmatchcase(device.address, spec.get("address", "*")) and (device.type == VF or not is_remote(spec)))


def setting_traits(spec: Mapping[str, str]) -> tuple[str, ...]:
    """Return the traits in *spec*, an entry of ``pci_device_spec`` or ``enabled_mdev_types``, where the traits are
    separated by commas."""
    return tuple(filter(None, spec.get("traits", "").split(",")))


def _yes_or_no(flag: bool) -> str:
    return "yes" if flag else "no"


def _text(names: frozenset[str]) -> str:
    return ",".join(sorted(names)) or "none"


def _parent(folder: Path) -> str:
    """Return the PCI address of the physical function of the virtual function in the sysfs *folder*; empty for other
    devices."""
    link = folder / "physfn"
    return link.readlink().name if link.is_symlink() else ""


def _type(folder: Path) -> str:
    if (folder / "physfn").is_symlink():
        return VF
    return PF if int(sysfs_text(folder / "sriov_totalvfs") or 0) else PCI
