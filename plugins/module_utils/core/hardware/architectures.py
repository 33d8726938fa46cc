# SPDX-License-Identifier: GPL-3.0-or-later
"""Architectures of guests. QEMU emulates an architecture that differs from the host's, with machine types of that
architecture. Pure.

Source: Nova's page on CPU emulation, libvirt's domain format, QEMU's pages on ``virt``, ``pseries`` and
``s390-ccw-virtio``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidField

#: Name of the field of ``hardware`` with the guest's architecture.
FIELD = "architecture"
X86_64, AARCH64, PPC64LE, S390X = "x86_64", "aarch64", "ppc64le", "s390x"
I686 = "i686"
#: Other names of architectures that images use (Nova's and Debian's).
ARCHITECTURE_ALIASES: Mapping[str, str] = {
    "amd64": X86_64, "x64": X86_64, "arm64": AARCH64, "ppc64el": PPC64LE, "i386": I686, "i486": I686, "i586": I686}
#: Architecture to its default machine type.
MACHINES: Mapping[str, str] = {X86_64: "q35", AARCH64: "virt", PPC64LE: "pseries", S390X: "s390-ccw-virtio"}
#: Architecture to the CPU model of its emulated guests; "" for QEMU's default, which is a 32-bit model on aarch64.
CPU_MODELS: Mapping[str, str] = {X86_64: "", AARCH64: "cortex-a57", PPC64LE: "", S390X: ""}
#: Architectures that a host emulates only with a UEFI firmware, from its package.
BY_UEFI = frozenset((AARCH64, X86_64))
#: Debian's packages that emulate an architecture.
PACKAGES: Mapping[str, str] = {X86_64: "qemu-system-x86 and ovmf", AARCH64: "qemu-system-arm and qemu-efi-aarch64",
                               PPC64LE: "qemu-system-ppc", S390X: "qemu-system-misc"}
#: Architecture to the defaults of its guests, for fields where these differ.
USUAL: Mapping[str, Mapping[str, Any]] = {
    X86_64: {}, AARCH64: {"firmware": "uefi", "cdrom_bus": "scsi", "video_model": "virtio"},
    PPC64LE: {"cdrom_bus": "scsi", "pointer": "usb"}, S390X: {"cdrom_bus": "scsi", "video_model": "virtio"}}
#: Disk buses that only guests of x86 have, and the missing buses by architecture.
_NO_BUSES = ("sata", "ide", "fdc")
NO_BUSES: Mapping[str, tuple[str, ...]] = {
    X86_64: (), AARCH64: _NO_BUSES, PPC64LE: _NO_BUSES, S390X: (*_NO_BUSES, "usb")}


def _without_x86_buses(*buses: str) -> tuple[str, ...]:
    return tuple(bus for bus in buses if bus not in _NO_BUSES)


#: Values that remain for guests of other architectures than x86, by field; empty where they cannot have the field.
_NOT_HERE: Mapping[str, tuple[Any, ...]] = {
    "secure_boot": ("disabled", "optional"), "disk_bus": _without_x86_buses("virtio", "scsi", "sata", "ide"),
    "cdrom_bus": _without_x86_buses("scsi", "sata", "ide"), "scsi_model": ("virtio-scsi",), "serial_ports": (1,),
    "hpet": (False,),
    "hide_hypervisor_id": (False,), "mem_encryption": (False,), "cpu_traits": (), "maxphysaddr_mode": (),
    "pci_alias": (), "vgpus": (0,), "pmem": ()}
#: Further limits for machines that cannot place guests on NUMA cells of the host, and have no UEFI tables.
_NO_TABLES: Mapping[str, tuple[Any, ...]] = {
    **_NOT_HERE, "firmware": ("bios",), "tpm_version": (), "pmu": (), "viommu": (), "numa_nodes": (),
    "cpu_policy": ("shared",), "cpu_realtime": (False,), "mem_page_size": ()}
#: Architecture to the values that its guests can have, for restricted fields; empty where they cannot have the field.
CHOICES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    X86_64: {},
    AARCH64: {**_NOT_HERE, "firmware": ("uefi",), "video_model": ("virtio", "bochs", "none"),
              "pointer": ("virtio", "usb"), "tpm_version": ("2.0",), "tpm_model": ("tpm-tis",)},
    PPC64LE: {**_NO_TABLES, "video_model": ("vga", "virtio", "none"), "pointer": ("usb",)},
    S390X: {**_NO_TABLES, "video_model": ("virtio", "none"), "pointer": ("virtio",), "nic_model": ("virtio",)}}


def complete_for_architecture(hardware: Mapping[str, Any]) -> dict[str, Any]:
    """Return *hardware*, a field of a server, completed with the defaults of the architecture that it requests. Raises
    ``InvalidField`` if *hardware* has a value that this architecture does not support.
    """
    architecture = hardware.get(FIELD)
    if architecture is None:
        return dict(hardware)
    for name, value in hardware.items():
        choices = CHOICES[architecture].get(name)
        if choices is not None and value not in choices and (choices or value):
            can = "must be %s" % " or ".join(map(_property_text, choices)) if choices else "cannot be had"
            raise InvalidField("hardware.%s" % name, "%s where the architecture is %s (hw_emulation_architecture)"
                               % (can, architecture), value)
    return {**USUAL[architecture], **{
        name: value for name, value in hardware.items() if CHOICES[architecture].get(name) != ()}}


def check_bus(bus: str | None, architecture: str, field: str) -> None:
    """Raise ``InvalidField`` for *field* if guests of this *architecture* cannot have disks on this *bus*. An unknown
    or empty architecture is accepted.
    """
    if bus in NO_BUSES.get(architecture, ()):
        raise InvalidField(field, "cannot be %s, which no machine of %s has; use virtio or scsi" % (bus, architecture),
                           bus)


def _property_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def guest_architecture(hardware: Mapping[str, Any], host: Mapping[str, Any]) -> str:
    """Return the architecture of a guest with this *hardware* on a *host* (fields of ``kinds.Host``); "" if neither
    *hardware* nor *host* names an architecture.
    """
    return str(hardware.get(FIELD) or host.get("architecture") or "")


def emulated_architecture(hardware: Mapping[str, Any], host: Mapping[str, Any]) -> str:
    """Return the architecture of a guest with this *hardware* if the *host* (fields of ``kinds.Host``) must emulate it;
    "" if it is the host's own architecture.
    """
    requested = hardware.get(FIELD)
    return str(requested) if requested and requested != host.get("architecture") else ""
