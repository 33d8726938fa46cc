# SPDX-License-Identifier: GPL-3.0-or-later
"""The definition of a server for another host: what the guest sees stays, what belongs to this host goes.

The definition is that of libvirt, with all addresses of devices, so the guest finds its hardware as it was. Each part
that is left out, or that the other host must have, becomes a note for the reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from magnetar_core.errors import Conflict

#: Devices that only this host has, by element and the attribute that says which, with their name in notes.
HOST_PARTS = {"filesystem": "The share {0}", "hostdev": "The host's device {0}", "memory": "The persistent memory {0}"}
#: Elements that place the guest on CPUs and memory of this host.
PLACEMENT = ("numatune", "cputune/vcpupin", "cputune/emulatorpin", "cputune/vcpusched", "memoryBacking/hugepages",
             "memoryBacking/locked", "memoryBacking/nosharepages", "memoryBacking/source", "memoryBacking/access",
             "memoryBacking/allocation", "memoryBacking/discard")
#: Parts of a disk that describe its place or its users on this host.
OF_PLACE = ("source", "auth", "encryption", "backingStore", "mirror", "shareable", "transient")


@dataclass(frozen=True)
class PortableFiles:
    """The exported files of a server that are named in the exported domain XML. *disks*: ``{device name, such as vda:
    (path, format)}``. *others*: ``{element of os in the XML (nvram, kernel or initrd): path}``."""

    disks: Mapping[str, tuple[Path, str]]
    others: Mapping[str, Path]


def make_portable(xml: str, name: str, files: PortableFiles) -> tuple[str, list[str]]:
    """Return the domain XML *xml*, changed so that libvirt on another host can define it, and notes (sentences for the
    user) about the differences. *name*: the new name of the domain. *files*: the exported files, whose paths are set in
    the XML. Raises ``Conflict`` if *xml* lacks a disk of *files*."""
    root = ET.fromstring(xml)  # noqa: S314  (libvirt has written it)
    notes: list[str] = []
    for element in root.findall("name"):
        element.text = name
    _drop(root, "metadata")
    notes += [*_use_files(root, files), *_leave_placement(root)]
    devices = root.find("devices")
    if devices is not None:
        notes += [*_use_disks(devices, files), *_leave_devices(devices), *_note_networks(devices)]
    if root.find("launchSecurity") is not None:
        notes.append("The guest's memory is encrypted: the other host needs the same technique (launchSecurity).")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n", notes


def networks_of_domain(xml: str) -> list[str]:
    """Return the places that the NICs in the domain XML *xml* are plugged into, such as ``network default``, each once.
    """
    root = ET.fromstring(xml)  # noqa: S314  (``make_portable`` has written it)
    return list(dict.fromkeys(_plug(interface) for interface in root.iterfind("devices/interface")))


def _plug(interface: ET.Element) -> str:
    kind, source = interface.get("type", ""), interface.find("source")
    place = {} if source is None else source.attrib
    return f"{kind} {place.get(kind) or place.get('dev') or ''}".strip()


def _drop(parent: ET.Element, path: str) -> bool:
    """Remove the elements at *path* (names separated by slashes) below *parent*. Return whether there were any."""
    above, _slash, name = path.rpartition("/")
    removed = False
    for holder in parent.findall(above) if above else [parent]:
        for element in holder.findall(name):
            holder.remove(element)
            removed = True
    return removed


def _use_files(root: ET.Element, files: PortableFiles) -> Iterator[str]:
    """Set the paths of UEFI variables, kernel and ramdisk in *root*, a domain's XML, to those in *files*. The path of
    the UEFI program is removed, because libvirt on the other host chooses it. Yield notes for the user."""
    os = root.find("os")
    if os is None:
        return
    for name in ("nvram", "kernel", "initrd"):
        element = os.find(name)
        if element is None:
            continue
        if name in files.others:
            element.text = str(files.others[name])
            for attribute in ("template", "templateFormat"):
                element.attrib.pop(attribute, None)
        else:
            os.remove(element)
    loader = os.find("loader")
    if os.get("firmware") and loader is not None:
        os.remove(loader)
    if os.get("firmware"):
        yield ("The guest boots with UEFI. Install the firmware of QEMU (OVMF) on the other host; its variables are in "
               "the export.")


def _leave_placement(root: ET.Element) -> Iterator[str]:
    """Remove the settings that refer to this host's CPUs and memory (CPU pinning, NUMA tuning, huge pages) from *root*,
    a domain's XML. Yield a note for the user if there were any."""
    removed_paths = [path for path in PLACEMENT if _drop(root, path)]
    vcpu = root.find("vcpu")
    if vcpu is not None and vcpu.attrib.pop("cpuset", None) is not None:
        removed_paths.append("cpuset")
    for name in ("cputune", "memoryBacking"):
        element = root.find(name)
        if element is not None and not len(element):
            root.remove(element)
    if removed_paths:
        yield "The placement on CPUs and memory of the old host is left out, such as pinned CPUs and large pages."


def _use_disks(devices: ET.Element, files: PortableFiles) -> Iterator[str]:
    """Set the sources of the disks in *devices*, the element of a domain's XML, to the exported copies in *files*;
    disks that are not in *files* are removed. Yield notes for the user. Raises ``Conflict`` if *devices* lacks a disk
    of *files*."""
    devices_in_use = set()
    for disk in devices.findall("disk"):
        target = disk.find("target")
        device = "" if target is None else target.get("dev", "")
        if device not in files.disks:
            devices.remove(disk)
            yield f"The disk {device} of the definition is left out: the server has no such disk."
            continue
        devices_in_use.add(device)
        if disk.find("shareable") is not None:
            yield f"The disk {device} was shared with other servers. The export has a copy for this guest alone."
        _place_disk(disk, *files.disks[device])
    if missing := sorted(files.disks.keys() - devices_in_use):
        raise Conflict(f"The definition of the server lacks its disk {missing[0]}. Start and stop the server once, "
                       "then repeat the call.")


def _place_disk(disk: ET.Element, path: Path, format: str) -> None:
    for name in OF_PLACE:
        _drop(disk, name)
    disk.set("type", "file")
    driver = disk.find("driver")
    if driver is None:
        driver = ET.SubElement(disk, "driver", name="qemu")
    driver.set("type", format)
    if driver.get("io") == "native" and driver.get("cache") not in ("none", "directsync"):
        del driver.attrib["io"]
    disk.insert(list(disk).index(driver) + 1, ET.Element("source", file=str(path)))


def _leave_devices(devices: ET.Element) -> Iterator[str]:
    """Remove the parts that belong to this host from *devices*, the element of a domain's XML: host devices, shares,
    persistent memory, QEMU's path and log files. Yield notes for the user."""
    _drop(devices, "emulator")
    for log in ("serial/log", "console/log", "interface/target", "channel/source"):
        _drop(devices, log)
    for name, words in HOST_PARTS.items():
        for element in devices.findall(name):
            devices.remove(element)
            yield f"{words.format(_element_name(element))} is left out."
    for tpm in devices.findall("tpm"):
        _drop(tpm, "backend/encryption")
        yield ("The guest has a TPM. Its content is not in the export: the guest finds an empty one. Have the recovery "
               "key of disks that the TPM unlocks, such as those of BitLocker, before you start it.")


def _element_name(element: ET.Element) -> str:
    """Return the name of *element* (a share, host device or memory device in a domain's XML) for a note to the user."""
    target, address = element.find("target"), element.find("source/address")
    if target is not None and target.get("dir"):
        return target.get("dir", "")
    if address is not None and address.get("bus"):
        domain, bus, slot, function = (int(address.get(part, "0"), 0) for part in ("domain", "bus", "slot", "function"))
        return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"
    if address is not None:
        return address.get("uuid", "")
    return element.findtext("source/path", "")


def _note_networks(devices: ET.Element) -> Iterator[str]:
    kinds = {interface.get("type") for interface in devices.findall("interface")}
    if kinds & {"hostdev", "direct", "vdpa"}:
        yield ("A NIC uses a network device of the old host. Change its source in the definition to one of the other "
               "host.")
    if any(interface.find("virtualport") is not None for interface in devices.findall("interface")):
        yield "A NIC is a port of Open vSwitch, whose network exists only where the port is known."
