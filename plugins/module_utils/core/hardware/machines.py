# SPDX-License-Identifier: GPL-3.0-or-later
"""Machine types of guests, by QEMU's names.

``q35``, ``pc`` and, for other architectures, ``virt``, ``pseries`` and ``s390-ccw-virtio`` are aliases of the newest
version, such as ``pc-q35-7.2``. The version determines the models of the guest's devices. Pure. Source: Nova's page on
machine types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .architectures import FIELD, MACHINES, X86_64

#: The value of a server's machine type when none was chosen.
AUTO = "auto"
#: Alias of a machine type to the prefix of its versions.
VERSIONED: Mapping[str, str] = {
    "q35": "pc-q35-", "pc": "pc-i440fx-", "virt": "virt-", "pseries": "pseries-",
    "s390-ccw-virtio": "s390-ccw-virtio-"}
#: Alias to the architecture of its guests.
ARCHITECTURES: Mapping[str, str] = {"pc": X86_64, **{machine: name for name, machine in MACHINES.items()}}
#: The property of an image that sets the machine type of its servers.
PROPERTY = "hw_machine_type"
NAME = r"%s|(%s)[a-z0-9][a-z0-9.\-]*" % ("|".join(VERSIONED), "|".join(VERSIONED.values()))
RULE = ("must be q35, pc, virt (of aarch64), pseries (of ppc64le), s390-ccw-virtio (of s390x), or a version of these "
        "such as pc-q35-7.2, pc-i440fx-7.2 or virt-7.2")


def machine_family(machine: str) -> str:
    """Return the alias of a machine type, such as ``q35`` for ``pc-q35-7.2``; "" for an unknown machine type."""
    return next((alias for alias, start in VERSIONED.items() if machine == alias or machine.startswith(start)), "")


def required_machine(hardware: Mapping[str, Any]) -> str:
    """Return the only machine type that supports this *hardware* (``pc`` for IDE disks); "" if several machine types
    support it.
    """
    return "pc" if "ide" in (hardware.get("disk_bus"), hardware.get("cdrom_bus")) else ""


def default_machine(hardware: Mapping[str, Any]) -> str:
    """Return the machine type of a server with this *hardware* when no machine type is set for the server, its image or
    its host.
    """
    architecture = hardware.get(FIELD) or X86_64
    return (architecture == X86_64 and required_machine(hardware)) or MACHINES[architecture]


def machine_architecture(machine: str) -> str:
    """Return the architecture of guests with this machine type, such as aarch64 for ``virt``; "" for an unknown machine
    type.
    """
    return ARCHITECTURES.get(machine_family(machine), "")


def is_versioned(machine: str) -> bool:
    """Return whether *machine* is a machine type with a version (``pc-q35-7.2``) and not an alias (``q35``). ``False``
    if it is unknown.
    """
    return bool(machine_family(machine)) and machine not in VERSIONED


def is_same_machine(machine: str, recorded: str) -> bool:
    """Return whether the requested machine type *machine* permits the type *recorded* for the server: they are equal,
    or *machine* is the alias of *recorded*, or ``auto``.
    """
    return machine in (recorded, AUTO) or (machine in VERSIONED and machine_family(recorded) == machine)


def machine_version(machine: str) -> tuple[int, ...]:
    """Return the version of a machine type as a tuple, such as ``(7, 2)`` for ``pc-q35-7.2``; empty for an alias."""
    return tuple(int(number) for number in re.findall(r"[0-9]+", machine[len(
        VERSIONED[machine_family(machine)]):])) if is_versioned(
        machine) else ()


def is_machine_upgrade(old: str, new: str) -> bool:
    """Return whether the machine type *new* is a later version of *old*, or a version of the alias *old*."""
    return bool(machine_family(old)) and machine_family(old) == machine_family(new) and is_versioned(
        new) and machine_version(new) > machine_version(old)


def guest_machines(facts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the machine types that guests of a host can have, by architecture. *facts*: the host's fields
    ``architecture``, ``emulated_architectures`` and ``machine_types`` (all that its QEMU supports, by architecture).
    """
    architectures = (facts["architecture"], *facts["emulated_architectures"])
    return {architecture: sorted(filter(machine_family, facts["machine_types"].get(architecture, ())))
            for architecture in architectures}


def machine_of_image(image: Mapping[str, Any], requested: str = "") -> str:
    """Return the machine type of an image: the value ``machine`` in *image* if it is set, otherwise *requested*.
    *image*: the mapping that a server stores about its image. *requested*: the machine type in the image's properties;
    "" if the properties name no machine type.
    """
    return str(image.get("machine") or requested or "")


def properties_with_machine(properties: Mapping[str, Any], machine: str) -> dict[str, Any]:
    """Return the properties for an image that is created from a server: the *properties* of the server's own image, and
    the server's *machine* type, because the installed system may depend on the machine type. The machine type is
    omitted if *properties* imply it.
    """
    differs = machine not in ("", AUTO) and not (PROPERTY in properties
                                                 and is_same_machine(str(properties[PROPERTY]), machine))
    return {**properties, PROPERTY: machine} if differs else dict(properties)


def describe_machines(names: Iterable[str]) -> str:
    """Return a text for users that lists the known machine types among *names*: at most ten versions of each alias,
    newest first.
    """
    recognized = sorted(filter(machine_family, names))
    shown = []
    for alias in VERSIONED:
        versions = [machine for machine in recognized if machine_family(machine) == alias]
        versions.sort(key=lambda machine: (is_versioned(machine), [-number for number in machine_version(machine)]))
        shown += versions[:10] + (["..."] if len(versions) > 10 else [])
    return ", ".join(shown) or "none"
