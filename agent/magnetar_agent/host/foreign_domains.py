# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of ``LocalHypervisor`` for domains that other programs have defined: read their whole definition, and mark
them as servers of Magnetar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class DomainDefinition:
    """The definition of a domain. *xml*: the persistent (inactive) XML. *autostart*: whether libvirt starts it when the
    host boots. *snapshots*: the names of the snapshots that libvirt lists. *busy*: the job that libvirt or QEMU runs on
    the domain, such as a backup; "" for none."""

    uuid: str
    name: str
    xml: str
    autostart: bool = False
    snapshots: tuple[str, ...] = ()
    busy: str = ""


class HypervisorAdoption(Protocol):
    """The methods of ``LocalHypervisor`` for adopting domains that other programs have defined."""

    def definition(self, uuid: str) -> DomainDefinition | None:
        """Return the definition of the domain, whether Magnetar or another program defined it; ``None`` if it does not
        exist."""

    def mark(self, uuid: str) -> None:
        """Mark a domain of another program as an adopted server: add Magnetar's element to the metadata in its
        definition and, if it runs, in its live XML. Raises ``Conflict`` for a domain that is missing, has no persistent
        definition, or was defined by Magnetar. Does nothing if the domain is already marked."""

    def unmark(self, uuid: str) -> None:
        """Remove the metadata element that ``mark`` added. Does nothing if the domain is missing or not marked."""
