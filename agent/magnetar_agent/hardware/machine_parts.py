# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of a machine that differ between architectures. Source: libvirt's format of domains, QEMU's pages on ``virt``,
``pseries`` and ``s390-ccw-virtio``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from magnetar_core.hardware.architectures import AARCH64, PPC64LE, S390X, X86_64


class MachineParts(NamedTuple):
    """The basic devices of a guest, which depend on its CPU architecture.

    *serial*: type and model of the console's serial port; the model is empty if the type has only one model. *panic*:
    the device that reports a crash of the guest's operating system, empty for none. *pc*: whether the guest has a PC's
    interrupt controller and timers; *gic*: whether the guest has ARM's interrupt controller. *tables*: whether the
    guest gets ACPI and SMBIOS tables. *express*: whether devices need PCI Express ports with every machine type.
    """

    serial: tuple[str, str]
    panic: str = ""
    watchdog: str = "i6300esb"
    pc: bool = False
    gic: bool = False
    tables: bool = False
    express: bool = False


PC = MachineParts(("isa-serial", ""), "isa", pc=True, tables=True)
_OF: Mapping[str, MachineParts] = {
    X86_64: PC,
    AARCH64: MachineParts(("system-serial", "pl011"), gic=True, tables=True, express=True),
    PPC64LE: MachineParts(("spapr-vio-serial", "spapr-vty"), "pseries"),
    S390X: MachineParts(("sclp-serial", "sclpconsole"), "s390", "diag288")}


def architecture_parts(architecture: str) -> MachineParts:
    """Return the basic devices of guests with the CPU *architecture*, such as aarch64; for an unknown architecture
    those of a PC."""
    return _OF.get(architecture, PC)
