# SPDX-License-Identifier: GPL-3.0-or-later
"""The XML of a running domain for the target of a live migration: with the target's names and addresses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from .domain import host_address, is_nic_device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.host.hypervisor import MigrationParams

#: The elements for memory that depend on the host: the target's replace the source's (as in Nova for files).
BACKING = ("hugepages", "source", "access", "allocation", "discard")


def migrated_disks(xml: str, folder: Path) -> list[str]:
    """Return the targets (such as vda) of the disks that a live migration copies: writable disks with paths in
    *folder*. *xml*: the running domain's XML.
    """
    targets = []
    for disk in ET.fromstring(xml).iterfind("devices/disk"):  # noqa: S314 (libvirt wrote it)
        source, target = disk.find("source"), disk.find("target")
        if source is not None and target is not None and disk.find("readonly") is None and \
                (source.get("file") or source.get("dev") or "").startswith(f"{folder}/"):
            targets.append(target.get("dev", ""))
    return targets


def target_domain_xml(xml: str, params: MigrationParams) -> str:
    """Return *xml*, a running domain's XML, adapted to the target host of a live migration: its paths, networks,
    bridges, CPUs and PCI devices, and the sources of volumes."""
    root = ET.fromstring(xml)  # noqa: S314 (libvirt wrote it)
    source_folder, target_folder = (str(path) + "/" for path in params.folder)
    for element in root.iter():
        for key, value in element.attrib.items():
            if value.startswith(source_folder):
                element.set(key, target_folder + value[len(source_folder):])
        if element.text and element.text.startswith(source_folder):
            element.text = target_folder + element.text[len(source_folder):]
    _volumes(root, params)
    _placement(root, ET.fromstring(params.persistent))  # noqa: S314 (our template's)
    _devices(root, ET.fromstring(params.persistent), params.devices)  # noqa: S314 (our template's)
    for card in root.iterfind("devices/interface"):
        mac = card.find("mac")
        network, bridge, tap, port = params.nics.get("" if mac is None else mac.get("address", ""), (None,) * 4)
        source, target = card.find("source"), card.find("target")
        if target is not None and tap:
            target.set("dev", tap)
        elif target is not None:  # from an earlier agent, which lets libvirt choose
            card.remove(target)
        if source is not None and (network or bridge):
            source.attrib.clear()
            card.set("type", "bridge" if bridge else "network")
            source.set("bridge" if bridge else "network", str(bridge or network))
            _virtual_port(card, port)
    return ET.tostring(root, encoding="unicode")


def _placement(root: ET.Element, target_root: ET.Element) -> None:
    """Copy CPU pinning, NUMA tuning and memory backing from *target_root*, the target's XML, to *root*, the XML of the
    domain on the source."""
    vcpu, target_vcpu = root.find("vcpu"), target_root.find("vcpu")
    if vcpu is not None:
        vcpu.attrib.pop("cpuset", None)
        if target_vcpu is not None and target_vcpu.get("cpuset"):
            vcpu.set("cpuset", target_vcpu.get("cpuset", ""))
    for path, names in (("cputune", ("vcpupin", "emulatorpin")), ("memoryBacking", BACKING)):
        part, new = root.find(path), target_root.find(path)
        for old in [child for child in part or () if child.tag in names]:
            part.remove(old)  # type: ignore[union-attr]
        children = [child for child in new or () if child.tag in names]
        if children and part is None:
            part = ET.SubElement(root, path)
        for child in children:
            part.append(child)  # type: ignore[union-attr]
    for old in root.findall("numatune"):
        root.remove(old)
    root.extend(target_root.findall("numatune"))


def _devices(root: ET.Element, target_root: ET.Element, aliases: Mapping[str, str]) -> None:
    """Copy the PCI addresses from *target_root*, the target's XML, to *root*, the XML of the domain on the source.
    *aliases*: ``{PCI address on the source: alias}``; the source's devices, sorted by alias, correspond to those in
    *target_root* in order.

    NICs are skipped, because they are unplugged during a live migration.
    """
    mine, new = ([device for device in each.iterfind("devices/hostdev") if device.get("type") == "pci"
                  and not is_nic_device(device)]
                 for each in (root, target_root))
    mine.sort(key=lambda device: aliases.get(host_address(device), ""))
    for old, target_device in zip(mine, new, strict=True):
        old.set("managed", target_device.get("managed", "yes"))
        source, place = old.find("source"), target_device.find("source/address")
        if source is not None and place is not None:
            for address in source.findall("address"):
                source.remove(address)
            source.append(place)


def _virtual_port(card: ET.Element, port: str | None) -> None:
    """Connect the NIC *card* to the OVN port *port* in Open vSwitch. If *port* is empty, remove the connection. *card*:
    XML element ``interface``."""
    for old in card.findall("virtualport"):
        card.remove(old)
    if port:
        ET.SubElement(ET.SubElement(card, "virtualport", type="openvswitch"), "parameters", interfaceid=port)


def _shared(disk: ET.Element) -> str | None:
    """Return an identifier of *disk* that is equal in the XML of source and target if the disk is on shared storage:
    the serial of a volume, or the name of an RBD image; otherwise ``None``."""
    own_source = disk.find("source[@protocol='rbd']")
    return disk.findtext("serial") or (None if own_source is None else own_source.get("name"))


def _volumes(root: ET.Element, params: MigrationParams) -> None:
    target_disks = {_shared(disk): disk
                    for disk in ET.fromstring(params.persistent).iterfind("devices/disk")}  # noqa: S314 (our template's)
    for disk in root.iterfind("devices/disk"):
        name = _shared(disk)
        other = target_disks.get(name) if name else None
        if other is None:
            continue
        disk.set("type", other.get("type", ""))
        for name in ("driver", "source", "backingStore"):
            for old in disk.findall(name):
                disk.remove(old)
        for at, name in enumerate(("driver", "source", "backingStore")):
            new = other.find(name)
            if new is not None:
                disk.insert(at, new)
