# SPDX-License-Identifier: GPL-3.0-or-later
"""Architectures of guests. One that is not its host's is emulated by QEMU, and its machine has other parts. Pure.

Source: Nova's page on CPU emulation (spec rows A23.5, A23.6), libvirt's format of domains, QEMU's pages on ``virt``,
``pseries`` and ``s390-ccw-virtio``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidField

#: The field of ``hardware``.
FIELD = "architecture"
X86_64, AARCH64, PPC64LE, S390X = "x86_64", "aarch64", "ppc64le", "s390x"
I686 = "i686"
#: Other names of architectures, which images give as well (Nova's, and those of Debian).
ARCHITECTURE_ALIASES: Mapping[str, str] = {
    "amd64": X86_64, "x64": X86_64, "arm64": AARCH64, "ppc64el": PPC64LE, "i386": I686, "i486": I686, "i586": I686}
#: Architecture to its machine type where nothing is said.
MACHINES: Mapping[str, str] = {X86_64: "q35", AARCH64: "virt", PPC64LE: "pseries", S390X: "s390-ccw-virtio"}
#: Architecture to the CPU model of its guests under emulation; "" for QEMU's usual one, which of aarch64 has 32 bits.
CPU_MODELS: Mapping[str, str] = {X86_64: "", AARCH64: "cortex-a57", PPC64LE: "", S390X: ""}
#: Those that have no firmware of their own but UEFI, whose package a host needs.
BY_UEFI = frozenset((AARCH64, X86_64))
#: The packages of Debian that emulate it.
PACKAGES: Mapping[str, str] = {X86_64: "qemu-system-x86 and ovmf", AARCH64: "qemu-system-arm and qemu-efi-aarch64",
                               PPC64LE: "qemu-system-ppc", S390X: "qemu-system-misc"}
#: Architecture to what its guests have where nothing is said, of fields where that is not what others have.
USUAL: Mapping[str, Mapping[str, Any]] = {
    X86_64: {}, AARCH64: {"firmware": "uefi", "cdrom_bus": "scsi", "video_model": "virtio"},
    PPC64LE: {"cdrom_bus": "scsi", "pointer": "usb"}, S390X: {"cdrom_bus": "scsi", "video_model": "virtio"}}
#: Buses of disks that no guest of another architecture than x86 has; and those that no guest of an architecture has.
_NO_BUSES = ("sata", "ide", "fdc")
NO_BUSES: Mapping[str, tuple[str, ...]] = {
    X86_64: (), AARCH64: _NO_BUSES, PPC64LE: _NO_BUSES, S390X: (*_NO_BUSES, "usb")}


def _left(*buses: str) -> tuple[str, ...]:
    return tuple(one for one in buses if one not in _NO_BUSES)


#: What no guest of another architecture than x86 can have.
_NOT_HERE: Mapping[str, tuple[Any, ...]] = {
    "secure_boot": ("disabled", "optional"), "disk_bus": _left("virtio", "scsi", "sata", "ide"),
    "cdrom_bus": _left("scsi", "sata", "ide"), "scsi_model": ("virtio-scsi",), "serial_ports": (1,), "hpet": (False,),
    "hide_hypervisor_id": (False,), "mem_encryption": (False,), "cpu_traits": (), "maxphysaddr_mode": (),
    "pci_alias": (), "vgpus": (0,), "pmem": ()}
#: What nor those of machines can have that place guests on no cells of the host, and find no tables of UEFI.
_NO_TABLES: Mapping[str, tuple[Any, ...]] = {
    **_NOT_HERE, "firmware": ("bios",), "tpm_version": (), "pmu": (), "viommu": (), "numa_nodes": (),
    "cpu_policy": ("shared",), "cpu_realtime": (False,), "mem_page_size": ()}
#: Architecture to what its guests can have, of fields where that is not all; nothing of what they cannot have.
CHOICES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    X86_64: {},
    AARCH64: {**_NOT_HERE, "firmware": ("uefi",), "video_model": ("virtio", "bochs", "none"),
              "pointer": ("virtio", "usb"), "tpm_version": ("2.0",), "tpm_model": ("tpm-tis",)},
    PPC64LE: {**_NO_TABLES, "video_model": ("vga", "virtio", "none"), "pointer": ("usb",)},
    S390X: {**_NO_TABLES, "video_model": ("virtio", "none"), "pointer": ("virtio",), "nic_model": ("virtio",)}}


def completed(hardware: Mapping[str, Any]) -> dict[str, Any]:
    """The *hardware* of a server, with what its architecture has where nothing is said. Raises ``InvalidField`` naming
    what its machine has not got."""
    architecture = hardware.get(FIELD)
    if architecture is None:
        return dict(hardware)
    for name, value in hardware.items():
        there = CHOICES[architecture].get(name)
        if there is not None and value not in there and (there or value):
            can = "must be %s" % " or ".join(map(_word, there)) if there else "cannot be had"
            raise InvalidField("hardware.%s" % name, "%s where the architecture is %s (hw_emulation_architecture)"
                               % (can, architecture), value)
    return {**USUAL[architecture], **{
        name: value for name, value in hardware.items() if CHOICES[architecture].get(name) != ()}}


def check_bus(bus: str, architecture: str, field: str) -> None:
    """Raise ``InvalidField`` naming *field* where no guest of this *architecture* has disks behind this *bus*. Nothing
    is known of an architecture that is none of these, such as ""."""
    if bus in NO_BUSES.get(architecture, ()):
        raise InvalidField(field, "cannot be %s, which no machine of %s has; use virtio or scsi" % (bus, architecture),
                           bus)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def of(hardware: Mapping[str, Any], host: Mapping[str, Any]) -> str:
    """The architecture of a guest with this *hardware* on a *host* (fields of ``kinds.Host``); "" where the host does
    not tell its own."""
    return str(hardware.get(FIELD) or host.get("architecture") or "")


def emulated(hardware: Mapping[str, Any], host: Mapping[str, Any]) -> str:
    """The architecture, where it is another than the host's; else ""."""
    asked = hardware.get(FIELD)
    return str(asked) if asked and asked != host.get("architecture") else ""
