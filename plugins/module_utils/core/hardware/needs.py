# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server's ``hardware`` needs of its host. Pure: agents refuse by it, and the scheduler looks for another host.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Sequence

from . import architectures
from .machines import listed, needed
from .merge import MEMORY, memory_model
from .pci import VGPU, asked, in_words, is_vgpu, network_of, told

UEFI = "a UEFI firmware that libvirt knows; on Debian the package ovmf has it"
SECURE_BOOT = "a UEFI firmware with secure boot and keys that libvirt knows; on Debian the package ovmf has it"

KVM = "KVM, without which a guest has no CPU of the host"
PCI = ("PCI devices of alias %s: the server needs %d, and %d of %d are free (the agent's settings pci_device_spec and "
       "pci_alias say which there are)")
NO_PCI = "PCI devices of alias %s (the agent's settings pci_device_spec and pci_alias say which there are)"
FUNCTIONS = ("%s: the server's ports need %d, and %d of %d are free (the agent's setting pci_device_spec says which "
             "there are)")
MDEV = "a free virtual GPU%s: %d of %d are free (the agent's setting enabled_mdev_types says which there are)"
LUKS = "LUKS in QEMU, which encrypts disks; on Debian the package qemu-utils has it"
SEV = ("memory encryption %s: a CPU of AMD that has it, switched on in the firmware and for the kernel "
       "(mem_encrypt=on, kvm_amd.sev=1; for amd-sev-es kvm_amd.sev_es=1), and a libvirt that knows it")
NO_KVM = "KVM, without which no CPU encrypts the guest's memory"
MACHINE = "machine type %s (its QEMU has %s)"
EMULATOR = "an emulator of %s and its firmware, which libvirt knows (it emulates %s); Debian has that in %s"
TPM = "swtpm for a TPM %s; on Debian the packages swtpm and swtpm-tools have it"


def lacking(hardware: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each field of *hardware* that a *host* (fields of ``kinds.Host``) cannot give, and what the host lacks for it. A
    host that does not tell what it has has nothing."""
    yield from _machine(hardware, host)
    if hardware.get("secure_boot") == "required" and not host.get("secure_boot"):
        yield "secure_boot", SECURE_BOOT
    if hardware.get("maxphysaddr_mode") == "passthrough" and "kvm" not in (host.get("virt_types") or ()):
        yield "maxphysaddr_mode", KVM
    if hardware.get("ephemeral_encryption") and "luks" not in (host.get("disk_encryption") or ()):
        yield "ephemeral_encryption", LUKS
    if model := memory_model(hardware):
        if model not in (host.get("memory_encryption") or ()):
            yield MEMORY, SEV % model
        elif "kvm" not in (host.get("virt_types") or ()):
            yield MEMORY, NO_KVM
    version = hardware.get("tpm_version")
    if version and version not in (host.get("tpm_versions") or ()):
        yield "tpm_version", TPM % version
    yield from _devices(hardware, host)


def _machine(hardware: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The same for architecture, machine type and firmware; that of another architecture is there with its emulator."""
    emulated, others = architectures.emulated(hardware, host), host.get("emulated_architectures") or ()
    if emulated and emulated not in others:
        yield architectures.FIELD, EMULATOR % (
            emulated, ", ".join(others) or "no other", architectures.PACKAGES[emulated])
        return
    machine, there = hardware.get("machine") or needed(hardware), machines_of(hardware, host)
    if machine and there and machine not in there:
        yield "machine", MACHINE % (machine, listed(there))
    if hardware.get("firmware") == "uefi" and not emulated and "uefi" not in (host.get("firmware") or ()):
        yield "firmware", UEFI


def machines_of(hardware: Mapping[str, Any], host: Mapping[str, Any]) -> Sequence[str]:
    """The machine types that guests of a *host* with this *hardware* can have; none where an earlier agent does not
    tell them."""
    found: Sequence[str] = (host.get("machine_types") or {}).get(architectures.of(hardware, host)) or ()
    return found


def _devices(hardware: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The same for PCI devices and virtual GPUs."""
    wanted = asked(hardware)
    yield from lacking_devices(wanted, told(host) if wanted else {})


def lacking_devices(wanted: Mapping[str, int], there: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The same of the devices *wanted*, by the names of ``pci.asked`` and ``pci.of_network``; *there*: ``pci.told`` of
    the host."""
    for name, count in wanted.items():
        known = there.get(name)
        if is_vgpu(name):
            if known is None or known["free"] < count:
                trait = name[len(VGPU) + 1:]
                yield "vgpus", MDEV % (" of a device with trait %s" % trait if trait else "", *(
                    (0, 0) if known is None else (known["free"], known["total"])))
        elif network_of(name):
            if known is None or known["free"] < count:
                yield "networks", FUNCTIONS % (in_words(name), count, *(
                    (0, 0) if known is None else (known["free"], known["total"])))
        elif known is None:
            yield "pci_alias", NO_PCI % name
        elif known["free"] < count:
            yield "pci_alias", PCI % (name, count, known["free"], known["total"])
