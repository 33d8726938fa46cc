# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of ``LocalHypervisor`` for domains that other programs have defined: read their whole definition, and mark
them as servers of Magnetar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class DomainDefinition:
    """The definition of a domain. *xml*: what it starts from next time. *autostart*: whether libvirt starts it when the
    host boots. *snapshots*: the names of its snapshots inside of disks or with memory, as libvirt lists them. *busy*:
    the job that libvirt or QEMU does on it, such as a backup; "" without one."""

    uuid: str
    name: str
    xml: str
    autostart: bool = False
    snapshots: tuple[str, ...] = ()
    busy: str = ""


class HypervisorAdoption(Protocol):
    """The methods of ``LocalHypervisor`` for domains that other programs have defined."""

    def definition(self, uuid: str) -> DomainDefinition | None:
        """Return the definition of a domain of any owner; ``None`` when it does not exist."""

    def mark(self, uuid: str) -> None:
        """Mark a domain as an adopted server: add Magnetar's element to the metadata of its definition and of its guest
        if it runs. Nothing else changes. Raises ``Conflict`` for a domain that is missing, has no definition, or is
        Magnetar's own. A marked domain is no error."""

    def unmark(self, uuid: str) -> None:
        """Remove the element of ``mark``, so that the domain is as it was before. A domain that is missing or not
        marked is no error."""
