# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's document as a domain's description, and a domain as a server's fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING

from magnetar_agent.hardware import devices
from magnetar_agent.hardware.firmware import Firmware, firmware
from magnetar_agent.hardware.pci import network_device
from magnetar_agent.hardware.sev import LaunchSecurity, launch_security
from magnetar_agent.host.hypervisor import Domain, DomainSpec
from magnetar_agent.host.networks import Nic, tap_name
from magnetar_agent.host.storage import Backing, Disk
from magnetar_agent.metadata.configdrive import FILE
from magnetar_agent.servers.disks import (
    block_devices,
    disk_layout,
    encryption,
    logical_volumes,
    own_disks,
    pmem,
    rbd_images,
)
from magnetar_agent.servers.hardware import cpu_modes, mdevs, pci, placement
from magnetar_agent.volumes import attaching
from magnetar_core import local_disks as core_disks
from magnetar_core.device_names import device_order
from magnetar_core.errors import Conflict
from magnetar_core.hardware import machines
from magnetar_core.hardware.merge import memory_model
from magnetar_core.hardware.pci import DIRECT, MACVTAP, REMOTE, VDPA, WHOLE
from magnetar_core.local_disks import SWAP, LocalDisk
from magnetar_core.server_plan import ROOT as ROOT_FILE
from magnetar_core.server_plan import disk_sizes, hardware, root_volume

from . import GIB, MIB, domain_name, folder, rescue, resize, shares

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_agent.hardware.pci import PciDevice
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.networks import IntegrationBridge
    from magnetar_agent.reconcile.documents import Document, Fields


#: What of a NIC says where it is plugged in.
_PLUG = attrgetter("network", "bridge", "port", "model", "device", "vlan", "vnic_type")
#: Turn of the root disk among those to boot from.
ROOT = 1


def files(want: Fields) -> list[str]:
    """Names of the files that the server cannot do without."""
    names = [] if root_volume(want) else [ROOT_FILE]
    return names + [one.file for one in local_disks(want)] + ([FILE] if want["config_drive"] else [])


def written(want: Fields) -> list[str]:
    """Names of the files that the guest writes to."""
    return [ROOT_FILE, *(one.file for one in local_disks(want))]


def local_disks(want: Fields) -> list[LocalDisk]:
    """The server's ephemeral and swap disks."""
    return core_disks.local_disks(want["flavor"], want.get(block_devices.FIELD, ()))


def nic(host: LocalHost, wanted: Fields, functions: Mapping[str, PciDevice] = MappingProxyType({})) -> Nic:
    """The NIC of a domain; a network that is an existing bridge becomes that bridge, and a port of OVN is plugged in
    at the integration bridge. *functions*: ``pci.of_nics`` of its server."""
    if wanted.get("physical_network"):
        one, way = functions.get(wanted["mac"]), wanted.get("vnic_type") or DIRECT
        way = DIRECT if way == REMOTE else way  # for its guest they are the same
        netdev = None if one is None else one.vdpa if way == VDPA else network_device(
            host.settings.sysfs, one.address) if way == MACVTAP else None
        return Nic(wanted["mac"], wanted["model"] if way in (MACVTAP, VDPA) else "", tag=wanted.get("tag"),
                   vlan=wanted.get("vlan"), device=one.address if one else None, managed=one is None or one.managed,
                   vnic_type=way, netdev=netdev or None)
    network, bridge, port = wanted.get("network"), wanted.get("bridge"), wanted.get("port")
    if port:
        return Nic(wanted["mac"], wanted["model"], None, host.settings.integration_bridge, wanted.get("tag"), port=port,
                   mtu=(wanted.get("told") or {}).get("mtu") or 0)
    known = host.documents.look_for("network", network) if network else None
    if known is not None and known.want["mode"] == "bridge":
        network, bridge = None, known.want["bridge"]
    elif known is not None:
        network = known.name
    return Nic(wanted["mac"], wanted["model"], network, bridge, wanted.get("tag"))


def nics(host: LocalHost, document: Document) -> tuple[Nic, ...]:
    """The NICs of a server, with the names of their taps, as its hardware says and as the host forwards packets."""
    switch = _switch(host, document.want["networks"])
    wanted, vcpus = hardware(document.want), document.want["flavor"]["vcpus"]
    functions = pci.of_nics(host, document.want)
    plain = (nic(host, one, functions) for one in document.want["networks"])
    named = (one if one.device else replace(one, tap=tap_name(host.settings.state_dir, document.id, one.mac))
             for one in plain)
    found = [devices.nic(wanted, one, vcpus) for one in named]
    if lost := next((one for one in found if one.vnic_type in (MACVTAP, VDPA) and not one.netdev), None):
        lacks = "network device" if lost.vnic_type == MACVTAP else "vDPA device with the driver vhost_vdpa"
        raise Conflict(f"NIC {lost.mac} is to be of virtual function {lost.device} ({lost.vnic_type}), which has no "
                       f"{lacks} on host {host.name} now. Bind it to its driver again (drivers_probe in /sys/bus/pci), "
                       "and make its vDPA device (vdpa dev add) where it is to have one.")
    return tuple(replace(one, checksums=switch is None or switch.checksums) if one.port else one for one in found)


def datapath(host: LocalHost, networks: list[Fields]) -> str | None:
    """How Open vSwitch forwards here; ``None`` where none of the NICs is a port of OVN."""
    switch = _switch(host, networks)
    return None if switch is None else switch.datapath


def _switch(host: LocalHost, networks: list[Fields]) -> IntegrationBridge | None:
    ports = any(one.get("port") and one.get("vnic_type") != REMOTE for one in networks)
    return host.hypervisor.integration_bridge(host.settings.integration_bridge) if ports else None


def root_backing(want: Fields, state: Fields, place: Path) -> Backing | None:
    """What the root disk in the server's folder stands on: the image's content; ``None`` for a disk that stands alone.
    """
    held = state.get("base")
    if held is None or held["format"] in ("iso", "aki") or want["root_format"] != "qcow2" or held.get("encrypted"):
        return None
    return Backing(place / "base", held["format"])


def local(host: LocalHost, document: Document, rescued: bool) -> list[Disk]:
    """The disks that live and die with the server; *rescued* says which of its two sets."""
    want, state, place = document.want, document.state, folder(host, document.id)
    tags = block_devices.tags(want)
    parts = hardware(want)
    key = encryption.named(document)
    root = devices.own_disk(parts, replace(_own(host, document, place, ROOT_FILE, "vda"), tag=tags.get("disk"),
                                           backing=root_backing(want, state, place), key=key))
    if root_volume(want):
        root = next((one for one in attaching.disks(host, document.id) if one.boot == ROOT), root)
        root = replace(root, boot=None)
    if rescued and not rescue.keeps_disks(document):
        disks = [devices.own_disk(parts, one) for one in rescue.disks(state, place, root, key)]
    else:
        others = {one.want["device"] for one in attaching.of_server(host, document.id)}
        disks = list(_named(_disks(host, document, place, root), others, tags))
    if want["config_drive"]:
        path = place / (rescue.drive(state, FILE) if rescued else FILE)
        disks.append(disk_layout.config_drive(document, path, disks))
    return disks


def _named(found: list[Disk], others: set[str], tags: Mapping[str, str]) -> Iterator[Disk]:
    """Local disks with their tags; one whose device name a volume took before has the next that is free."""
    taken = others | {one.target for one in found} | {disk_layout.LAST}
    for one in found:
        clash = one.target in others and one.serial is None
        made = replace(one, target=attaching.draw(one.bus, taken)) if clash else one
        taken.add(made.target)
        yield replace(made, tag=tags.get(one.path.name, made.tag))


def targets(host: LocalHost, document: Document) -> set[str]:
    """The device names of the server that are taken."""
    volumes = {one.want["device"] for one in host.documents.list("volume_attachment")
               if one.want["server"] == document.id}
    rescues = {document.state["rescue"].get("target")} if document.state.get("rescue") else set()
    own = {one.target for one in local(host, document, False)} if document.want.get("flavor") else {"vda"}
    return volumes | own | rescues


def disks(host: LocalHost, document: Document) -> tuple[Disk, ...]:
    """The disks that it is to have now: a rescued server is without its volumes, as in Nova's default mode, unless it
    is rescued with stable devices."""
    return arranged(host, document, rescue.holds(document))


def arranged(host: LocalHost, document: Document, rescued: bool) -> tuple[Disk, ...]:
    """The disks, the root disk first. Where a volume is to be booted from after it, each says its turn."""
    found, keeps = local(host, document, rescued), rescued and rescue.keeps_disks(document)
    if not rescued or keeps:
        found += [one for one in attaching.disks(host, document.id) if one.boot != ROOT]
    root = found[0].target
    if any(one.boot for one in found):
        found[0] = replace(found[0], boot=ROOT)
    usual = sorted(found, key=lambda one: (one.target != root, disk_layout.is_drive(one), one.target[:2] != "vd",
                                           device_order(one.target)))
    if not keeps:
        return tuple(usual)
    own = rescue.disk(document.state, folder(host, document.id), encryption.named(document))
    return (*(replace(one, boot=None) for one in usual), own)


def domain(host: LocalHost, document: Document) -> DomainSpec:
    """What libvirt is told of the server."""
    want, state, place = document.want, document.state, folder(host, document.id)
    rescued = rescue.holds(document)
    prefix, boot = rescue.boot(state) if rescued else ("", state.get("boot") or {})
    return DomainSpec(
        uuid=document.id, name=domain_name(document.id), title=want["name"], description=want["description"],
        vcpus=want["flavor"]["vcpus"], ram_mib=want["flavor"]["ram"], virt_type=want["virt_type"],
        machine=want["machine"],
        disks=tuple(devices.disk(hardware(want), one) for one in disks(host, document)), nics=nics(host, document),
        console_log=place / "console.log",
        kernel=place / f"{prefix}kernel" if boot else None,
        ramdisk=place / f"{prefix}ramdisk" if boot.get("ramdisk") else None,
        cmdline=boot.get("cmdline"),
        boot=("cdrom", "hd") if rescued else ("hd", "cdrom"),
        metadata={"name": want["name"], "flavor": want["flavor"].get("name", "")},
        shares=shares.of(host, state), spice=_spice(host), hardware=hardware(want),
        numa=placement.described(host, want),
        firmware=boots_by(host, document), pci=pci.of(host, want),
        mdev=(want.get(mdevs.FIELD) or {}).get("uuid", ""), cpu=cpu_modes.of(host, hardware(want), want["virt_type"]),
        pmem=pmem.of(host, want), security=_security(host, hardware(want)),
        file_backed=bool(host.settings.file_backed_memory),
    )


def _security(host: LocalHost, parts: Fields) -> LaunchSecurity | None:
    return launch_security(parts, host.hypervisor.host()["memory_encryption"]) if memory_model(parts) else None


def boots_by(host: LocalHost, document: Document) -> Firmware | None:
    """The firmware of the server; ``None`` for BIOS."""
    parts = hardware(document.want)
    facts = host.hypervisor.host() if parts.get("secure_boot") == "optional" else {}
    return firmware(parts, document.want["machine"], facts, folder(host, document.id))


def _spice(host: LocalHost) -> bool:
    """Whether guests have SPICE. Raises ``Conflict`` where the settings say so and QEMU cannot."""
    if host.settings.spice and not host.hypervisor.has_spice():
        raise Conflict(f"The agent's setting spice is true, and QEMU of host {host.name} has no SPICE. Install it (on "
                       "Debian 13 the package qemu-system-modules-spice has it) and restart libvirtd, or set spice to "
                       "false.")
    return host.settings.spice


def _own(host: LocalHost, document: Document, place: Path, file: str, target: str) -> Disk:
    """A root, ephemeral or swap disk. One that is an RBD image is called by its file, too."""
    if rbd_images.are_wanted(document.want):
        return Disk(place / file, target, "raw", remote=rbd_images.source(host, document, file))
    block = logical_volumes.are_wanted(document.want) and logical_volumes.is_block(document)
    return Disk(place / file, target, own_disks.format_of(document.want, file), block=block)


def _disks(host: LocalHost, document: Document, place: Path, root: Disk) -> list[Disk]:
    want, key = document.want, encryption.named(document)
    found = [replace(_own(host, document, place, one.file, one.device), key=key)
             for one in disk_layout.named(document, local_disks(want))]
    if document.state.get("iso"):
        found.append(Disk(place / "base", "sda", "raw", "cdrom", "sata", True))
    return [root, *(devices.own_disk(hardware(want), one) for one in found)]


def seen(host: LocalHost, document: Document, found: Domain) -> Fields:
    """The fields of the server as the domain has them."""
    wanted, functions = {n["mac"]: n for n in document.want["networks"]}, pci.seen_of_nics(document.want)
    return {
        "name": found.title,
        "description": found.description,
        "flavor": _flavor_seen(document, found),
        "hardware": dict(found.hardware),
        "machine": document.want["machine"] if machines.means(document.want["machine"], found.machine) else (
            found.machine),
        "networks": [_nic_seen(host, seen_nic, wanted.get(seen_nic.mac), functions)
                     for seen_nic in _in_order(found.nics, list(wanted))],
    }


def _in_order(nics: Sequence[Nic], macs: Sequence[str]) -> Iterator[Nic]:
    """NICs as they are seen, with those that are whole cards, which domains have elsewhere, where *macs* have them."""
    cards = {one.mac: one for one in nics if one.vnic_type == WHOLE}
    others = iter([one for one in nics if one.vnic_type != WHOLE])
    for mac in macs:
        found = cards.pop(mac, None) or next(others, None)
        if found is not None:
            yield found
    yield from others
    yield from cards.values()


def _flavor_seen(document: Document, found: Domain) -> Fields:
    sizes = dict(resize.seen(document)["sizes"])
    seen = {**document.want["flavor"], "vcpus": found.vcpus, "ram": found.ram_mib}
    if sizes != disk_sizes(document.want):  # else they are as the flavor allows, which may be less than it has
        seen["swap"] = sizes.pop(SWAP, 0) // MIB
        seen["ephemeral"] = sum(sizes.values()) // GIB
    return seen


def _nic_seen(host: LocalHost, seen_nic: Nic, wanted: Fields | None, functions: Mapping[str, PciDevice]) -> Fields:
    if wanted is not None:
        asked = nic(host, wanted, functions)
        if _PLUG(asked) == _PLUG(seen_nic):
            return wanted
    if seen_nic.device:
        return {"device": seen_nic.device, "mac": seen_nic.mac}
    plug = {"port": seen_nic.port} if seen_nic.port else (
        {"network": seen_nic.network} if seen_nic.network else {"bridge": seen_nic.bridge})
    return {**plug, "mac": seen_nic.mac, "model": seen_nic.model, **({"tag": seen_nic.tag} if seen_nic.tag else {})}
