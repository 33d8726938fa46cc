# SPDX-License-Identifier: GPL-3.0-or-later
"""Machine types of guests, by QEMU's names: ``q35``, ``pc`` and, of other architectures, ``virt``, ``pseries`` and
``s390-ccw-virtio`` stand for the newest of their versions, such as ``pc-q35-7.2``, which the guest's devices follow.
Pure.

Source: Nova's page on machine types (spec rows A23.1 to A23.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .architectures import FIELD, MACHINES, X86_64

#: What nobody has chosen.
AUTO = "auto"
#: Alias to the beginning of the names of its versions.
VERSIONED: Mapping[str, str] = {
    "q35": "pc-q35-", "pc": "pc-i440fx-", "virt": "virt-", "pseries": "pseries-",
    "s390-ccw-virtio": "s390-ccw-virtio-"}
#: Alias to the architecture of its guests.
ARCHITECTURES: Mapping[str, str] = {"pc": X86_64, **{machine: name for name, machine in MACHINES.items()}}
#: The property of an image that says the machine type of servers that are made of it.
PROPERTY = "hw_machine_type"
NAME = r"%s|(%s)[a-z0-9][a-z0-9.\-]*" % ("|".join(VERSIONED), "|".join(VERSIONED.values()))
RULE = ("must be q35, pc, virt (of aarch64), pseries (of ppc64le), s390-ccw-virtio (of s390x), or a version of these "
        "such as pc-q35-7.2, pc-i440fx-7.2 or virt-7.2")


def family(machine: str) -> str:
    """The alias of a machine type, which is what it is whatever its version; "" for none of them."""
    return next((alias for alias, start in VERSIONED.items() if machine == alias or machine.startswith(start)), "")


def needed(hardware: Mapping[str, Any]) -> str:
    """Return the machine type that alone has what *hardware* asks for: ``pc`` has IDE; "" where others have it too."""
    return "pc" if "ide" in (hardware.get("disk_bus"), hardware.get("cdrom_bus")) else ""


def usual(hardware: Mapping[str, Any]) -> str:
    """The machine type of a server with this *hardware* where neither server nor image nor host says one."""
    found = hardware.get(FIELD) or X86_64
    return (found == X86_64 and needed(hardware)) or MACHINES[found]


def architecture(machine: str) -> str:
    """The architecture of guests of a machine type; "" of one that nobody knows."""
    return ARCHITECTURES.get(family(machine), "")


def is_versioned(machine: str) -> bool:
    """Whether it says a version."""
    return bool(family(machine)) and machine not in VERSIONED


def means(machine: str, recorded: str) -> bool:
    """Whether a server that has *recorded* has the *machine* that is asked for: the same, or the alias of it."""
    return machine in (recorded, AUTO) or (machine in VERSIONED and family(recorded) == machine)


def version(machine: str) -> tuple[int, ...]:
    """The numbers of its version, in order; none of an alias."""
    return tuple(int(one) for one in re.findall(r"[0-9]+", machine[len(VERSIONED[family(machine)]):])) if is_versioned(
        machine) else ()


def upgrades(old: str, new: str) -> bool:
    """Whether *new* is a later version of the machine *old*, or the version of an alias."""
    return bool(family(old)) and family(old) == family(new) and is_versioned(new) and version(new) > version(old)


def of_guests(facts: Mapping[str, Any]) -> dict[str, list[str]]:
    """The machine types that servers of a host can have, by the architectures that its guests can have. *facts*:
    ``architecture``, ``emulated_architectures`` and ``machine_types`` (all of QEMU's) of the host."""
    there = (facts["architecture"], *facts["emulated_architectures"])
    return {one: sorted(filter(family, facts["machine_types"].get(one, ()))) for one in there}


def machine_of(image: Mapping[str, Any], said: str = "") -> str:
    """The machine type that a server's *image* keeps as its own (``machine``), else what its properties have *said*."""
    return str(image.get("machine") or said or "")


def inherited(properties: Mapping[str, Any], machine: str) -> dict[str, Any]:
    """The *properties* of a server's image as an image of the server has them: with the *machine* that the server has,
    which its system knows, where they do not mean that already."""
    known = machine not in ("", AUTO) and not (PROPERTY in properties and means(str(properties[PROPERTY]), machine))
    return {**properties, PROPERTY: machine} if known else dict(properties)


def listed(names: Iterable[str]) -> str:
    """Machine types for people: those that this knows, the newest of each first, ten of each at most."""
    known = sorted(filter(family, names))
    found = []
    for alias in VERSIONED:
        own = [one for one in known if family(one) == alias]
        own.sort(key=lambda one: (is_versioned(one), [-number for number in version(one)]))
        found += own[:10] + (["..."] if len(own) > 10 else [])
    return ", ".join(found) or "none"
