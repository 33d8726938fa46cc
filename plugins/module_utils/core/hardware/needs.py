# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks whether a host can provide a server's ``hardware``. Pure: agents refuse servers by these checks, and the
scheduler skips hosts.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Sequence

from . import architectures
from .machines import describe_machines, required_machine
from .merge import MEMORY, memory_model
from .pci import VGPU, describe_devices, device_requests, is_vgpu, network_of_devices, reported_devices

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


def missing_hardware(hardware: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (field, reason) for each field of *hardware*, a server's hardware, that *host* (fields of ``kinds.Host``)
    cannot provide. A feature that the host does not report counts as missing. If the host reports no machine types, all
    of them count as available."""
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
    """Yield (field, reason) if *host* lacks the architecture, machine type or firmware in *hardware*. For an emulated
    architecture, UEFI firmware is not checked, because it comes with the emulator.
    """
    emulated, emulatable = architectures.emulated_architecture(hardware, host), host.get("emulated_architectures") or ()
    if emulated and emulated not in emulatable:
        yield architectures.FIELD, EMULATOR % (
            emulated, ", ".join(emulatable) or "no other", architectures.PACKAGES[emulated])
        return
    machine, offered = hardware.get("machine") or required_machine(hardware), offered_machine_types(hardware, host)
    if machine and offered and machine not in offered:
        yield "machine", MACHINE % (machine, describe_machines(offered))
    if hardware.get("firmware") == "uefi" and not emulated and "uefi" not in (host.get("firmware") or ()):
        yield "firmware", UEFI


def offered_machine_types(hardware: Mapping[str, Any], host: Mapping[str, Any]) -> Sequence[str]:
    """Return the machine types that *host* (fields of ``kinds.Host``) reports for guests with this *hardware*; empty if
    the host's agent is of an older release, which does not report machine types.
    """
    machine_types: Sequence[str] = (host.get("machine_types") or {}).get(architectures.guest_architecture(hardware,
                                                                                                          host)) or ()
    return machine_types


def _devices(hardware: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (field, reason) for each PCI device and virtual GPU in *hardware* that *host* has no free device for."""
    requested = device_requests(hardware)
    yield from missing_devices(requested, reported_devices(host) if requested else {})


def missing_devices(requested: Mapping[str, int], available: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str,
                                                                                                                str]]:
    """Yield (field, reason) for each of the *requested* devices that are not *available*. *requested*: the number of
    devices by name; names are those in ``pci.device_requests``, or results of ``pci.network_devices_name``.
    *available*: by the same names, the numbers of ``total`` and ``free`` devices of a host.
    """
    for name, count in requested.items():
        device = available.get(name)
        if is_vgpu(name):
            if device is None or device["free"] < count:
                trait = name[len(VGPU) + 1:]
                yield "vgpus", MDEV % (" of a device with trait %s" % trait if trait else "", *(
                    (0, 0) if device is None else (device["free"], device["total"])))
        elif network_of_devices(name):
            if device is None or device["free"] < count:
                yield "networks", FUNCTIONS % (describe_devices(name), count, *(
                    (0, 0) if device is None else (device["free"], device["total"])))
        elif device is None:
            yield "pci_alias", NO_PCI % name
        elif device["free"] < count:
            yield "pci_alias", PCI % (name, count, device["free"], device["total"])
