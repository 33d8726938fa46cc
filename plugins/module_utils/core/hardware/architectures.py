# SPDX-License-Identifier: GPL-3.0-or-later
"""Architectures of guests. One that is not its host's is emulated by QEMU, and its machine has other parts. Pure.

Source: Nova's page on CPU emulation (spec rows A23.5, A23.6), libvirt's format of domains, QEMU's page on ``virt``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidField

#: The field of ``hardware``.
FIELD = "architecture"
X86_64, AARCH64 = "x86_64", "aarch64"
#: Architecture to its machine type where nothing is said.
MACHINES: Mapping[str, str] = {X86_64: "q35", AARCH64: "virt"}
#: Architecture to the CPU model of its guests under emulation; "" for QEMU's usual one, which of aarch64 has 32 bits.
CPU_MODELS: Mapping[str, str] = {X86_64: "", AARCH64: "cortex-a57"}
#: Architecture to what its guests have where nothing is said, of fields where that is not what others have.
USUAL: Mapping[str, Mapping[str, Any]] = {
    X86_64: {}, AARCH64: {"firmware": "uefi", "cdrom_bus": "scsi", "video_model": "virtio"}}
#: Architecture to what its guests can have, of fields where that is not all; nothing of what they cannot have.
CHOICES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {X86_64: {}, AARCH64: {
    "firmware": ("uefi",), "secure_boot": ("disabled", "optional"), "video_model": ("virtio", "bochs", "none"),
    "disk_bus": ("virtio", "scsi"), "cdrom_bus": ("scsi",), "scsi_model": ("virtio-scsi",),
    "pointer": ("virtio", "usb"), "serial_ports": (1,), "tpm_version": ("2.0",), "tpm_model": ("tpm-tis",),
    "hpet": (False,), "hide_hypervisor_id": (False,), "mem_encryption": (False,), "cpu_traits": (),
    "maxphysaddr_mode": (), "pci_alias": (), "vgpus": (0,), "pmem": ()}}
#: Buses of disks that no guest of it has.
NO_BUSES: Mapping[str, tuple[str, ...]] = {X86_64: (), AARCH64: ("sata", "ide", "fdc")}


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
    return {**USUAL[architecture], **hardware}


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
