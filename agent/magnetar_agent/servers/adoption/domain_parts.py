# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a domain's XML: those that a server has fields for, those that stay as they are, and those that hinder
an adoption. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The beginning of the namespace of Magnetar's own metadata.
OURS = "https://magnetar.dev/"
QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"
#: Types of NICs that a server has fields for.
EXPRESSED = ("network", "bridge")
#: Devices of the host: another server could be given the same one.
HOST_DEVICES = ("pci", "mdev")
#: Devices without fields, of which only their number is reported.
COUNTED = ("channel", "sound", "input", "redirdev", "filesystem", "watchdog", "rng", "panic", "shmem", "smartcard",
           "vsock", "iommu", "parallel", "memory", "crypto", "audio", "hub", "pstore", "nvram")


@dataclass(frozen=True)
class ForeignDisk:
    """A disk of a domain that another program defined. *device*: the device name, such as vda. *kind*: disk, cdrom, lun
    or floppy. *path*: of a file or block device, "" for an empty drive. *pool*, *volume*: set if the disk is a volume
    of a storage pool. *remote*: set for a network disk, ``PROTOCOL:NAME``."""

    device: str
    bus: str
    kind: str
    format: str
    path: str = ""
    pool: str = ""
    volume: str = ""
    remote: str = ""
    readonly: bool = False
    shareable: bool = False


@dataclass
class DomainParts:
    """The parts of a domain that matter for an adoption. *stays*: what an adoption does not change, as pairs of a
    part's name, such as ``nic``, and a description. *unsupported*: texts about devices that prevent an adoption."""

    name: str
    description: str = ""
    disks: list[ForeignDisk] = field(default_factory=list)
    stays: list[tuple[str, str]] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)


def read_domain_parts(xml: str) -> DomainParts:
    """Return the parts of the domain with the definition *xml*."""
    root = ET.fromstring(xml)  # noqa: S314 (libvirt wrote it)
    found = root.find("devices")
    devices = ET.Element("devices") if found is None else found
    parts = DomainParts(root.findtext("name", ""), root.findtext("description", ""))
    parts.disks = [_disk(disk) for disk in devices.findall("disk")]
    parts.stays += [("name", f"The domain keeps its name {parts.name}."), *_of_machine(root), *_of_firmware(root)]
    for interface in devices.findall("interface"):
        _add_nic(parts, interface)
    parts.stays += [*_of_displays(devices), *_of_rest(root, devices)]
    if root.get("type") not in ("kvm", "qemu"):
        parts.unsupported.append(f"its type is {root.get('type')}, and servers are of type kvm or qemu")
    for hostdev in devices.findall("hostdev"):
        _add_host_device(parts, hostdev)
    return parts


def _disk(disk: ET.Element) -> ForeignDisk:
    source, target, driver = disk.find("source"), disk.find("target"), disk.find("driver")
    place = source.attrib if source is not None else {}
    protocol = place.get("protocol", "")
    return ForeignDisk(
        device="" if target is None else target.get("dev", ""), bus="" if target is None else target.get("bus", ""),
        kind=disk.get("device", "disk"), format="raw" if driver is None else driver.get("type", "raw"),
        path=place.get("file") or place.get("dev") or place.get("dir") or "",
        pool=place.get("pool", ""), volume=place.get("volume", ""),
        remote=f"{protocol}:{place.get('name', '')}" if protocol else "" if disk.get("type") != "nvme" else "nvme",
        readonly=disk.find("readonly") is not None, shareable=disk.find("shareable") is not None)


def _add_nic(parts: DomainParts, interface: ET.Element) -> None:
    source, mac = interface.find("source"), interface.find("mac")
    kind = interface.get("type", "")
    address = "" if mac is None else mac.get("address", "")
    place = "" if source is None else source.get(kind, "")
    if kind in EXPRESSED and place:
        for name in ("virtualport", "vlan", "bandwidth", "filterref"):
            if interface.find(name) is not None:
                parts.stays.append(("nic", f"{address}: {name}"))
    elif kind in ("hostdev", "vdpa"):
        parts.unsupported.append(f"NIC {address} is a device of the host ({kind}), which the agent could give to "
                                 "another server")
    else:
        dev = "" if source is None else source.get("dev", "")
        parts.stays.append(("nic", f"{address}: type {kind}{dev and ' on ' + dev}"))


def _add_host_device(parts: DomainParts, hostdev: ET.Element) -> None:
    kind, address = hostdev.get("type", hostdev.get("mode", "")), hostdev.find("source/address")
    place = "" if address is None else " ".join(f"{name} {value}" for name, value in sorted(address.attrib.items()))
    if kind in HOST_DEVICES:
        parts.unsupported.append(f"it has a device of the host ({kind}: {place}), which the agent could give to "
                                 "another server")
    else:
        parts.stays.append(("hostdev", kind))


def _of_machine(root: ET.Element) -> Iterator[tuple[str, str]]:
    cpu, current, vcpu = root.find("cpu"), root.findtext("currentMemory"), root.find("vcpu")
    if cpu is not None:
        model, topology = cpu.findtext("model"), cpu.find("topology")
        shape = "" if topology is None else ", " + " ".join(
            f"{topology.get(name)} {name}" for name in ("sockets", "cores", "threads") if topology.get(name))
        yield "cpu", f"{cpu.get('mode', 'custom')}{(model and ' ' + model) or ''}{shape}"
    if vcpu is not None and vcpu.get("current"):
        yield "vcpus", f"{vcpu.get('current')} of {vcpu.text} at the start"
    if current is not None and current != root.findtext("memory"):
        yield "memory", f"{current} KiB at the start, by its balloon"
    for name in ("memoryBacking", "numatune", "cputune", "blkiotune", "memtune", "iothreads", "launchSecurity",
                 "resource"):
        if root.find(name) is not None:
            yield name, "as it is"
    if root.find(f"{QEMU}commandline") is not None or root.find(f"{QEMU}override") is not None:
        yield "qemu", "arguments of QEMU"


def _of_firmware(root: ET.Element) -> Iterator[tuple[str, str]]:
    system = root.find("os")
    if system is None:
        return
    loader, nvram = system.findtext("loader", ""), system.findtext("nvram", "")
    if system.get("firmware") == "efi" or (loader and nvram):
        parts = (nvram and f"variables in {nvram}", loader and f"loader {loader}")
        yield "firmware", ", ".join(["UEFI", *filter(None, parts)])
    else:
        yield "firmware", loader or "BIOS"
    if kernel := system.findtext("kernel"):
        yield "kernel", kernel
    if devices := [boot.get("dev", "") for boot in system.findall("boot")]:
        yield "boot", ", ".join(devices)


def _of_displays(devices: ET.Element) -> Iterator[tuple[str, str]]:
    for name in ("graphics", "video", "serial", "console", "tpm"):
        for device in devices.findall(name):
            inner = device.find("backend" if name == "tpm" else "model")
            detail = device.get("type", "") or ("" if inner is None else inner.get("type", ""))
            if name == "tpm":
                version = "" if inner is None else inner.get("version", "")
                detail = f"{device.get('model', '')} {version} ({'' if inner is None else inner.get('type', '')})"
            if port := device.get("port") if name == "graphics" else None:
                detail += " on a free port" if port == "-1" else f" on port {port}"
            yield name, detail


def _of_rest(root: ET.Element, devices: ET.Element) -> Iterator[tuple[str, str]]:
    for name, number in sorted(Counter(device.tag for device in devices if device.tag in COUNTED).items()):
        yield name, str(number)
    if title := root.findtext("title"):
        yield "title", title
    metadata = root.find("metadata")
    for note in () if metadata is None else metadata:
        namespace = note.tag.partition("}")[0].removeprefix("{")
        if not namespace.startswith(OURS):
            yield "metadata", namespace
