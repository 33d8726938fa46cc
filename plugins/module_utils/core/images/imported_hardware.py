# SPDX-License-Identifier: GPL-3.0-or-later
"""The hardware of a server that is made of an OVA: what its description names, in the words of images and servers.

The guest finds the devices that it has drivers for, so nothing becomes virtio that was not. A device that QEMU does not
have becomes a similar one, with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ..errors import InvalidField

#: Models of NICs in descriptions to those of servers, and the model in place of any other.
NICS = {"e1000": "e1000", "e1000e": "e1000e", "rtl8139": "rtl8139", "virtio": "virtio", "virtionet": "virtio",
        "virtio-net": "virtio", "virtio-net-pci": "virtio"}
OTHER_NIC = "e1000e"
#: SCSI controllers in descriptions to values of hw_scsi_model, and the one in place of any other.
SCSI = {"lsilogic": "lsilogic", "lsilogicsas": "lsisas1068", "virtualscsi": "vmpvscsi", "pvscsi": "vmpvscsi",
        "virtio-scsi": "virtio-scsi"}
OTHER_SCSI = "lsilogic"
#: Buses of the root disk, and of volumes; the bus in place of any other.
ROOT_BUSES, VOLUME_BUSES, OTHER_BUS = ("virtio", "scsi", "sata", "ide"), ("virtio", "scsi", "sata"), "sata"
#: Properties of an image that decide about devices.
DISK_BUS, SCSI_MODEL, NIC_MODEL, FIRMWARE = "hw_disk_bus", "hw_scsi_model", "hw_vif_model", "hw_firmware_type"
SECURE_BOOT = "os_secure_boot"


class ImportedHardware(NamedTuple):
    """The hardware of a server that is created from an OVA. *properties*: the properties of the root disk's image.
    *nics*: the NICs, in the form of the server's field ``networks``. *buses*: the bus of each further disk. *warnings*:
    texts about devices that differ from those in the OVA."""

    properties: Mapping[str, str]
    nics: Sequence[Mapping[str, str]]
    buses: Sequence[str]
    warnings: Sequence[str]


def imported_hardware(ovf: Mapping[str, Any], networks: Mapping[str, str],
                      given: Mapping[str, str]) -> ImportedHardware:
    """Return the hardware of a server that is created from an OVA. *ovf*: the description of the OVA (a field of the
    image). *networks*: a network of the host by the name of each network of the OVA. An empty value omits the NICs of
    this network. *given*: image properties that the user sets, which take precedence. Raises ``InvalidField`` if
    *networks* does not name exactly the networks of the OVA."""
    warnings: list[str] = []
    disks = ovf["disks"]
    properties = {**_root_properties(ovf, disks[0] if disks else {}, warnings), **given}
    buses = [_bus(disk, VOLUME_BUSES, warnings) or "virtio" for disk in disks[1:]]
    nics = _nics(ovf["nics"], networks, given.get(NIC_MODEL), warnings)
    return ImportedHardware(properties, nics, buses, warnings)


def _root_properties(ovf: Mapping[str, Any], disk: Mapping[str, Any], warnings: list[str]) -> dict[str, str]:
    uefi = ovf["firmware"] == "uefi"
    properties = {FIRMWARE: "uefi"} if uefi else {}
    if uefi and ovf["secure_boot"]:
        properties[SECURE_BOOT] = "required"
    # IDE needs the machine type pc, and UEFI gets q35
    bus = _bus(disk, tuple(bus for bus in ROOT_BUSES if bus != "ide" or not uefi), warnings)
    if bus:
        properties[DISK_BUS] = bus
    if bus == "scsi":
        model = str(disk.get("controller", ""))
        properties[SCSI_MODEL] = SCSI.get(model, OTHER_SCSI)
        if model and model not in SCSI:
            warnings.append(_replaced("SCSI controller", model, OTHER_SCSI, SCSI_MODEL))
    return properties


def _bus(disk: Mapping[str, Any], allowed: Sequence[str], warnings: list[str]) -> Optional[str]:
    """Return the bus of *disk* for a server; ``None`` if the description of the OVA does not state the bus. A bus that
    is not in *allowed* is replaced by ``OTHER_BUS``, and a text about this is added to *warnings*."""
    bus = disk.get("bus")
    if not bus or bus in allowed:
        return bus
    warnings.append(_replaced("bus of the disk %s" % disk["name"], bus, OTHER_BUS, DISK_BUS))
    return OTHER_BUS


def _nics(described: Sequence[Mapping[str, Any]], networks: Mapping[str, str], model: Optional[str],
          warnings: list[str]) -> list[dict[str, str]]:
    names = {nic["network"] for nic in described}
    missing, unknown = sorted(names - networks.keys()), sorted(networks.keys() - names)
    if missing:
        raise InvalidField("networks", "must name a network of the host for each network of the OVA, and has none for "
                           "%s; an empty name leaves the NICs out" % ", ".join(map(repr, missing)))
    if unknown:
        raise InvalidField("networks", "names %s, which no NIC of the OVA has. Its networks: %s" % (
            ", ".join(map(repr, unknown)), ", ".join(map(repr, sorted(names))) or "none"))
    nics = []
    for number, nic in enumerate(described):
        if not networks[nic["network"]]:
            continue
        own = NICS.get(nic["model"], OTHER_NIC)
        if model is None and nic["model"] and nic["model"] not in NICS:
            warnings.append(_replaced("model of NIC %d" % number, nic["model"], own, NIC_MODEL))
        nics.append({"network": networks[nic["network"]], "model": model or own})
    return nics


def _replaced(device: str, old: str, new: str, name: str) -> str:
    return "The %s is %s in the OVA, which servers do not have; it becomes %s. Set %s in properties for another." % (
        device, old, new, name)
