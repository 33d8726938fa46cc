# SPDX-License-Identifier: GPL-3.0-or-later
"""The XML of a running domain as a live migration has it at the target: what is of this host becomes the target's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from .domain import host_address, is_nic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.host.hypervisor import MigrationParams

#: What a host's own of a guest's memory is: a migration finds it at the target (Nova does so for files).
BACKING = ("hugepages", "source", "access", "allocation", "discard")


def local_disks(xml: str, folder: Path) -> list[str]:
    """Targets of the disks whose content goes along: writable ones with names in *folder*. Volumes stay where they are.
    """
    found = []
    for disk in ET.fromstring(xml).iterfind("devices/disk"):  # noqa: S314 (libvirt wrote it)
        source, target = disk.find("source"), disk.find("target")
        if source is not None and target is not None and disk.find("readonly") is None and \
                (source.get("file") or source.get("dev") or "").startswith(f"{folder}/"):
            found.append(target.get("dev", ""))
    return found


def there(xml: str, passage: MigrationParams) -> str:
    """The XML of a running domain as it will be at the target: its folder, its networks and the way to its volumes,
    which are the disks with serial numbers, there."""
    root = ET.fromstring(xml)  # noqa: S314 (libvirt wrote it)
    here, folder = (str(path) + "/" for path in passage.folder)
    for element in root.iter():
        for key, value in element.attrib.items():
            if value.startswith(here):
                element.set(key, folder + value[len(here):])
        if element.text and element.text.startswith(here):
            element.text = folder + element.text[len(here):]
    _volumes(root, passage)
    _placement(root, ET.fromstring(passage.persistent))  # noqa: S314 (our template's)
    _devices(root, ET.fromstring(passage.persistent), passage.devices)  # noqa: S314 (our template's)
    for card in root.iterfind("devices/interface"):
        mac = card.find("mac")
        network, bridge, tap, port = passage.nics.get("" if mac is None else mac.get("address", ""), (None,) * 4)
        source, target = card.find("source"), card.find("target")
        if target is not None and tap:
            target.set("dev", tap)
        elif target is not None:  # an earlier agent, which lets libvirt choose
            card.remove(target)
        if source is not None and (network or bridge):
            source.attrib.clear()
            card.set("type", "bridge" if bridge else "network")
            source.set("bridge" if bridge else "network", str(bridge or network))
            _virtual_port(card, port)
    return ET.tostring(root, encoding="unicode")


def _placement(root: ET.Element, there: ET.Element) -> None:
    """The CPUs, NUMA cells, pages and files of memory of the target in place of those of the source."""
    vcpu, wanted = root.find("vcpu"), there.find("vcpu")
    if vcpu is not None:
        vcpu.attrib.pop("cpuset", None)
        if wanted is not None and wanted.get("cpuset"):
            vcpu.set("cpuset", wanted.get("cpuset", ""))
    for path, names in (("cputune", ("vcpupin", "emulatorpin")), ("memoryBacking", BACKING)):
        part, new = root.find(path), there.find(path)
        for old in [one for one in part or () if one.tag in names]:
            part.remove(old)  # type: ignore[union-attr]
        found = [one for one in new or () if one.tag in names]
        if found and part is None:
            part = ET.SubElement(root, path)
        for one in found:
            part.append(one)  # type: ignore[union-attr]
    for old in root.findall("numatune"):
        root.remove(old)
    root.extend(there.findall("numatune"))


def _devices(root: ET.Element, there: ET.Element, aliases: Mapping[str, str]) -> None:
    """The PCI devices of the target, which are in the order of their aliases, in place of those of the source; not
    those that are NICs, of which a guest that moves has let go. A guest that an earlier agent has started has its own
    in the order of their addresses."""
    mine, new = ([one for one in each.iterfind("devices/hostdev") if one.get("type") == "pci" and not is_nic(one)]
                 for each in (root, there))
    mine.sort(key=lambda one: aliases.get(host_address(one), ""))
    for old, wanted in zip(mine, new, strict=True):
        old.set("managed", wanted.get("managed", "yes"))
        source, place = old.find("source"), wanted.find("source/address")
        if source is not None and place is not None:
            for address in source.findall("address"):
                source.remove(address)
            source.append(place)


def _virtual_port(card: ET.Element, port: str | None) -> None:
    """The NIC's port of OVN, or none: what libvirt has of the one here (a profile, say) stays here."""
    for old in card.findall("virtualport"):
        card.remove(old)
    if port:
        ET.SubElement(ET.SubElement(card, "virtualport", type="openvswitch"), "parameters", interfaceid=port)


def _shared(disk: ET.Element) -> str | None:
    """What a disk that is not copied is called on both hosts: a volume's serial number, or a server's own RBD image."""
    own = disk.find("source[@protocol='rbd']")
    return disk.findtext("serial") or (None if own is None else own.get("name"))


def _volumes(root: ET.Element, passage: MigrationParams) -> None:
    wanted = {_shared(disk): disk
              for disk in ET.fromstring(passage.persistent).iterfind("devices/disk")}  # noqa: S314 (our template's)
    for disk in root.iterfind("devices/disk"):
        name = _shared(disk)
        other = wanted.get(name) if name else None
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
