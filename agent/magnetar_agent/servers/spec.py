# SPDX-License-Identifier: GPL-3.0-or-later
"""Conversion of a server's document to a domain's description, and of a domain to a server's fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING

from magnetar_agent.hardware import devices
from magnetar_agent.hardware.firmware import Firmware, guest_firmware
from magnetar_agent.hardware.pci import network_device
from magnetar_agent.hardware.sev import LaunchSecurity, launch_security
from magnetar_agent.host.hypervisor import Domain, DomainSpec
from magnetar_agent.host.networks import Nic, tap_name
from magnetar_agent.host.storage import Backing, Disk
from magnetar_agent.metadata.configdrive import FILE
from magnetar_agent.servers.adoption import adopted
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
from magnetar_core.errors import Conflict
from magnetar_core.hardware import machines
from magnetar_core.hardware.device_names import device_order
from magnetar_core.hardware.merge import memory_model
from magnetar_core.hardware.pci import DIRECT, MACVTAP, REMOTE, VDPA, WHOLE
from magnetar_core.local_disks import SWAP, LocalDisk
from magnetar_core.server_plan import ROOT as ROOT_FILE
from magnetar_core.server_plan import disk_sizes, root_block_device, server_hardware

from . import GIB, MIB, domain_name, rescue, resize, server_folder, shares

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_agent.hardware.pci import PciDevice
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.networks import IntegrationBridge
    from magnetar_agent.reconcile.documents import Document, Fields


#: The attributes of a NIC that say where it is plugged in.
_PLUG = attrgetter("network", "bridge", "port", "model", "device", "vlan", "vnic_type")
#: Boot order of the root disk.
ROOT = 1


def required_files(want: Fields) -> list[str]:
    """Return the names of the disk and config drive files that a server with the desired fields *want* has in its
    folder."""
    names = [] if root_block_device(want) else [ROOT_FILE]
    return names + [disk.file for disk in blank_disks_of_server(want)] + ([FILE] if want["config_drive"] else [])


def guest_written_files(want: Fields) -> list[str]:
    """Return the names of the local disk files that the guest of a server with the desired fields *want* may write to:
    root, ephemeral and swap disks."""
    return [ROOT_FILE, *(disk.file for disk in blank_disks_of_server(want))]


def blank_disks_of_server(want: Fields) -> list[LocalDisk]:
    """Return the ephemeral and swap disks of a server with the desired fields *want*."""
    return core_disks.flavor_local_disks(want["flavor"], want.get(block_devices.FIELD, ()))


def domain_nic(host: LocalHost, nic: Fields, functions: Mapping[str, PciDevice] = MappingProxyType({})) -> Nic:
    """Convert *nic*, a NIC in a server's desired fields, to the NIC of a libvirt domain. OVN ports are connected to the
    integration bridge. *functions*: result of ``pci.devices_of_nics`` for the server."""
    if nic.get("physical_network"):
        device, way = functions.get(nic["mac"]), nic.get("vnic_type") or DIRECT
        way = DIRECT if way == REMOTE else way  # the guest sees no difference
        netdev = None if device is None else device.vdpa if way == VDPA else network_device(
            host.settings.sysfs, device.address) if way == MACVTAP else None
        return Nic(nic["mac"], nic["model"] if way in (MACVTAP, VDPA) else "", tag=nic.get("tag"),
                   vlan=nic.get("vlan"), device=device.address if device else None,
                   managed=device is None or device.managed, vnic_type=way, netdev=netdev or None)
    network, bridge, port = nic.get("network"), nic.get("bridge"), nic.get("port")
    if port:
        return Nic(nic["mac"], nic["model"], None, host.settings.integration_bridge, nic.get("tag"), port=port,
                   mtu=(nic.get("told") or {}).get("mtu") or 0)
    network_document = host.documents.peek_by_key("network", network) if network else None
    if network_document is not None and network_document.want["mode"] == "bridge":
        network, bridge = None, network_document.want["bridge"]
    elif network_document is not None:
        network = network_document.name
    return Nic(nic["mac"], nic["model"], network, bridge, nic.get("tag"))


def domain_nics(host: LocalHost, document: Document) -> tuple[Nic, ...]:
    """Return the NICs of the server for its libvirt domain, with tap names, hardware settings and Open vSwitch
    settings. Raises ``Conflict`` if a virtual function lacks the network or vDPA device that it needs."""
    switch = _switch(host, document.want["networks"])
    parts, vcpus = server_hardware(document.want), document.want["flavor"]["vcpus"]
    functions = pci.devices_of_nics(host, document.want)
    plain = (domain_nic(host, nic, functions) for nic in document.want["networks"])
    named = (nic if nic.device else replace(nic, tap=tap_name(host.settings.state_dir, document.id, nic.mac))
             for nic in plain)
    nics = [devices.apply_nic_hardware(parts, nic, vcpus) for nic in named]
    if lost := next((nic for nic in nics if nic.vnic_type in (MACVTAP, VDPA) and not nic.netdev), None):
        lacks = "network device" if lost.vnic_type == MACVTAP else "vDPA device with the driver vhost_vdpa"
        raise Conflict(f"NIC {lost.mac} is to be of virtual function {lost.device} ({lost.vnic_type}), which has no "
                       f"{lacks} on host {host.name} now. Bind it to its driver again (drivers_probe in /sys/bus/pci), "
                       "and make its vDPA device (vdpa dev add) where it is to have one.")
    return tuple(replace(nic, checksums=switch is None or switch.checksums) if nic.port else nic for nic in nics)


def switch_datapath(host: LocalHost, networks: list[Fields]) -> str | None:
    """Return the datapath type of Open vSwitch on this host, such as system; ``None`` if none of *networks*, a server's
    NICs, is an OVN port."""
    switch = _switch(host, networks)
    return None if switch is None else switch.datapath


def _switch(host: LocalHost, networks: list[Fields]) -> IntegrationBridge | None:
    ports = any(nic.get("port") and nic.get("vnic_type") != REMOTE for nic in networks)
    return host.hypervisor.integration_bridge(host.settings.integration_bridge) if ports else None


def root_backing(want: Fields, state: Fields, folder: Path) -> Backing | None:
    """Return the backing file of the qcow2 root disk, a hard link to the image's content; ``None`` if the root disk has
    no backing file. *want*, *state*: desired fields and state fields of the server. *folder*: the server's folder."""
    base = state.get("base")
    if base is None or base["format"] in ("iso", "aki") or want["root_format"] != "qcow2" or base.get("encrypted"):
        return None
    return Backing(folder / "base", base["format"])


def own_disk_set(host: LocalHost, document: Document, rescued: bool) -> list[Disk]:
    """Return the server's root disk or root volume, then its ephemeral disks, swap disk and config drive. *rescued*:
    whether to return the disks that the server has while it is rescued."""
    want, state, place = document.want, document.state, server_folder(host, document.id)
    tags = block_devices.local_disk_tags(want)
    parts = server_hardware(want)
    key = encryption.named_disk_key(document)
    root = devices.own_disk(parts, replace(_own_disk(host, document, place, ROOT_FILE, "vda"), tag=tags.get("disk"),
                                           backing=root_backing(want, state, place), key=key))
    if root_block_device(want):
        root = next((disk for disk in attaching.attached_disks(host, document.id) if disk.boot == ROOT), root)
        root = replace(root, boot=None)
    if rescued and not rescue.keeps_disks(document):
        disks = [devices.own_disk(parts, disk) for disk in rescue.rescue_disks(state, place, root, key)]
    else:
        volume_devices = {attachment.want["device"] for attachment in attaching.server_attachments(host, document.id)}
        disks = list(_with_tags(_disks(host, document, place, root), volume_devices, tags))
    if want["config_drive"]:
        path = place / (rescue.rescue_drive_name(state, FILE) if rescued else FILE)
        disks.append(disk_layout.config_drive_disk(document, path, disks))
    return disks


def _with_tags(disks: list[Disk], volume_devices: set[str], tags: Mapping[str, str]) -> Iterator[Disk]:
    """Yield *disks* with their *tags* (``{file name: tag}``). A local disk whose device name is in *volume_devices*,
    the device names of attached volumes, gets the next free device name.
    """
    taken = volume_devices | {disk.target for disk in disks} | {disk_layout.LAST}
    for disk in disks:
        clash = disk.target in volume_devices and disk.serial is None
        made = replace(disk, target=attaching.draw_device_name(disk.bus, taken)) if clash else disk
        taken.add(made.target)
        yield replace(made, tag=tags.get(disk.path.name, made.tag))


def taken_targets(host: LocalHost, document: Document) -> set[str]:
    """Return the device names, such as vda, that the server's disks and volumes use."""
    volumes = {attachment.want["device"] for attachment in host.documents.list("volume_attachment")
               if attachment.want["server"] == document.id}
    rescues = {document.state["rescue"].get("target")} if document.state.get("rescue") else set()
    own_targets = {disk.target for disk in own_disk_set(host, document,
                                                        False)} if document.want.get("flavor") else {"vda"}
    return volumes | own_targets | rescues


def current_disks(host: LocalHost, document: Document) -> tuple[Disk, ...]:
    """Return the disks that the server's domain should have now. A server that is rescued in Nova's default mode has no
    volumes except a root volume. In stable device mode, it has all its volumes."""
    return arranged_disks(host, document, rescue.boots_rescue_disk(document))


def arranged_disks(host: LocalHost, document: Document, rescued: bool) -> tuple[Disk, ...]:
    """Return the disks and volumes of the server in the order for libvirt: the root disk is first, and boots before
    other bootable disks. *rescued*: whether to return the disks during a rescue. In default mode, there are no volumes
    except a root volume, and the rescue disk is first unless it is a CD. In stable device mode, the rescue disk is last
    and boots first."""
    disks, keeps = own_disk_set(host, document, rescued), rescued and rescue.keeps_disks(document)
    if not rescued or keeps:
        disks += [disk for disk in attaching.attached_disks(host, document.id) if disk.boot != ROOT]
    root = disks[0].target
    if any(disk.boot for disk in disks):
        disks[0] = replace(disks[0], boot=ROOT)
    usual = sorted(disks, key=lambda disk: (disk.target != root, disk_layout.is_drive(disk), disk.target[:2] != "vd",
                                            device_order(disk.target)))
    if not keeps:
        return tuple(usual)
    rescue_disk = rescue.stable_rescue_disk(document.state, server_folder(host, document.id),
                                            encryption.named_disk_key(document))
    return (*(replace(disk, boot=None) for disk in usual), rescue_disk)


def domain_spec(host: LocalHost, document: Document) -> DomainSpec:
    """Return the complete definition of the server's libvirt domain. Raises ``Conflict`` for an adopted server, whose
    domain Magnetar did not define."""
    adopted.refuse_adopted(document, "definition")
    want, state, place = document.want, document.state, server_folder(host, document.id)
    rescued = rescue.boots_rescue_disk(document)
    prefix, boot = rescue.rescue_boot(state) if rescued else ("", state.get("boot") or {})
    return DomainSpec(
        uuid=document.id, name=domain_name(document.id), title=want["name"], description=want["description"],
        vcpus=want["flavor"]["vcpus"], ram_mib=want["flavor"]["ram"], virt_type=want["virt_type"],
        machine=want["machine"],
        disks=tuple(devices.apply_disk_hardware(server_hardware(want), disk) for disk in current_disks(host, document)),
        nics=domain_nics(host, document),
        console_log=place / "console.log",
        kernel=place / f"{prefix}kernel" if boot else None,
        ramdisk=place / f"{prefix}ramdisk" if boot.get("ramdisk") else None,
        cmdline=boot.get("cmdline"),
        boot=("cdrom", "hd") if rescued else ("hd", "cdrom"),
        metadata={"name": want["name"], "flavor": want["flavor"].get("name", "")},
        shares=shares.shared_folders(host, state), spice=_spice(host), hardware=server_hardware(want),
        numa=placement.domain_numa(host, want),
        firmware=boots_by(host, document), pci=pci.guest_pci_devices(host, want),
        mdev=(want.get(mdevs.FIELD) or {}).get("uuid", ""), cpu=cpu_modes.guest_cpu_mode(host, server_hardware(want),
                                                                                         want["virt_type"]),
        pmem=pmem.guest_pmem(host, want), security=_security(host, server_hardware(want)),
        file_backed=bool(host.settings.file_backed_memory),
    )


def _security(host: LocalHost, parts: Fields) -> LaunchSecurity | None:
    return launch_security(parts, host.hypervisor.host()["memory_encryption"]) if memory_model(parts) else None


def boots_by(host: LocalHost, document: Document) -> Firmware | None:
    """Return the UEFI firmware that the server boots with; ``None`` for BIOS."""
    parts = server_hardware(document.want)
    facts = host.hypervisor.host() if parts.get("secure_boot") == "optional" else {}
    return guest_firmware(parts, document.want["machine"], facts, server_folder(host, document.id))


def _spice(host: LocalHost) -> bool:
    """Return whether guests have a SPICE display. Raises ``Conflict`` if the settings enable SPICE but this host's QEMU
    lacks it."""
    if host.settings.spice and not host.hypervisor.has_spice():
        raise Conflict(f"The agent's setting spice is true, and QEMU of host {host.name} has no SPICE. Install it (on "
                       "Debian 13 the package qemu-system-modules-spice has it) and restart libvirtd, or set spice to "
                       "false.")
    return host.settings.spice


def _own_disk(host: LocalHost, document: Document, folder: Path, file: str, target: str) -> Disk:
    """Return the server's disk *file* (root, ephemeral or swap disk) with the device name *target*. *folder*: the
    server's folder, which is part of the disk's path even for an RBD image."""
    if rbd_images.uses_rbd_images(document.want):
        return Disk(folder / file, target, "raw", remote=rbd_images.rbd_disk_source(host, document, file))
    on_block_device = logical_volumes.uses_logical_volumes(document.want) and logical_volumes.is_block(document)
    return Disk(folder / file, target, own_disks.own_disk_format(document.want, file), block_device=on_block_device)


def _disks(host: LocalHost, document: Document, folder: Path, root: Disk) -> list[Disk]:
    want, key = document.want, encryption.named_disk_key(document)
    disks = [replace(_own_disk(host, document, folder, disk.file, disk.device), key=key)
             for disk in disk_layout.adjust_disk_names(document, blank_disks_of_server(want))]
    if document.state.get("iso"):
        disks.append(Disk(folder / "base", "sda", "raw", "cdrom", "sata", True))
    return [root, *(devices.own_disk(server_hardware(want), disk) for disk in disks)]


def fields_of_domain(host: LocalHost, document: Document, domain: Domain) -> Fields:
    """Return the fields of the server (flavor, hardware, NICs, …) with the values that its libvirt *domain* has."""
    nics_by_mac, functions = {n["mac"]: n for n in document.want["networks"]}, pci.bare_devices_of_nics(document.want)
    return {
        "name": domain.title,
        "description": domain.description,
        "flavor": _flavor_seen(document, domain),
        "hardware": dict(domain.hardware),
        "machine": document.want["machine"] if machines.is_same_machine(document.want["machine"], domain.machine) else (
            domain.machine),
        "networks": [_nic_seen(host, seen_nic, nics_by_mac.get(seen_nic.mac), functions)
                     for seen_nic in _in_order(domain.nics, list(nics_by_mac))],
    }


def _in_order(nics: Sequence[Nic], macs: Sequence[str]) -> Iterator[Nic]:
    """Yield *nics*, a domain's NICs, in the order of *macs*, the MACs in the server's document. Whole network cards are
    matched by MAC; the other NICs are already in order and fill the gaps."""
    cards = {nic.mac: nic for nic in nics if nic.vnic_type == WHOLE}
    other_nics = iter([nic for nic in nics if nic.vnic_type != WHOLE])
    for mac in macs:
        nic = cards.pop(mac, None) or next(other_nics, None)
        if nic is not None:
            yield nic
    yield from other_nics
    yield from cards.values()


def _flavor_seen(document: Document, domain: Domain) -> Fields:
    sizes = dict(resize.recorded_sizes(document)["sizes"])
    flavor = {**document.want["flavor"], "vcpus": domain.vcpus, "ram": domain.ram_mib}
    if sizes != disk_sizes(document.want):  # otherwise they are as the flavor allows, which may be less than it has
        flavor["swap"] = sizes.pop(SWAP, 0) // MIB
        flavor["ephemeral"] = sum(sizes.values()) // GIB
    return flavor


def _nic_seen(host: LocalHost, seen_nic: Nic, desired: Fields | None, functions: Mapping[str, PciDevice]) -> Fields:
    if desired is not None:
        expected = domain_nic(host, desired, functions)
        if _PLUG(expected) == _PLUG(seen_nic):
            return desired
    if seen_nic.device:
        return {"device": seen_nic.device, "mac": seen_nic.mac}
    plug = {"port": seen_nic.port} if seen_nic.port else (
        {"network": seen_nic.network} if seen_nic.network else {"bridge": seen_nic.bridge})
    return {**plug, "mac": seen_nic.mac, "model": seen_nic.model, **({"tag": seen_nic.tag} if seen_nic.tag else {})}
