# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains of the fake hypervisor that other programs have defined."""

from __future__ import annotations

from magnetar_agent.host.foreign_domains import DomainDefinition
from magnetar_agent.virt.domain.domain import adoption_note
from magnetar_agent.virt.tools.templates import NAMESPACE
from magnetar_core.errors import Conflict

from .state import State, parse_domain


class Adoptions(State):
    """A base class of ``FakeHypervisor``, the fake hypervisor for tests. It has the methods of ``LocalHypervisor`` for
    domains that other programs have defined."""

    def autostarts(self, uuid: str, autostart: bool = True) -> None:
        """Simulate ``virsh autostart``: libvirt will start the domain when the host boots, or not if *autostart* is
        false."""
        with self._change(f"domain {uuid}"):
            self._domains[uuid].autostart = autostart

    def snapshot_outside(self, uuid: str, name: str) -> None:
        """Simulate ``virsh snapshot-create``: add an internal snapshot *name* to the domain."""
        with self._change(f"domain {uuid}"):
            self._domains[uuid].snapshots.append(name)

    def rename_outside(self, uuid: str, name: str) -> None:
        """Simulate ``virsh domrename``: rename the domain to *name*."""
        with self._change(f"domain {uuid}"):
            domain = self._domains[uuid]
            domain.xml = domain.xml.replace(f"<name>{parse_domain(domain.xml).name}</name>", f"<name>{name}</name>")

    def definition(self, uuid: str) -> DomainDefinition | None:
        with self._call("definition"):
            domain = self._domains.get(uuid)
            return None if domain is None else DomainDefinition(
                uuid, parse_domain(domain.xml).name, domain.xml, domain.autostart, tuple(domain.snapshots),
                "a backup" if uuid in self._copies else "")

    def mark(self, uuid: str) -> None:
        with self._call("mark", f"domain {uuid}"):
            domain = self._domains.get(uuid)
            if domain is None or not domain.persistent:
                raise Conflict(f"The libvirt domain {uuid} is gone, or has no definition.")
            seen = parse_domain(domain.xml)
            if seen.owned and not seen.adopted:
                raise Conflict(f"The libvirt domain {seen.name} was made by Magnetar, so it is not adopted.")
            domain.xml, domain.live = _marked(domain.xml, uuid), _marked(domain.live, uuid)

    def unmark(self, uuid: str) -> None:
        with self._call("unmark", f"domain {uuid}"):
            domain = self._domains.get(uuid)
            if domain is not None:
                for inserted in (f"<metadata>{_note(uuid)}</metadata>", _note(uuid)):
                    domain.xml, domain.live = domain.xml.replace(inserted, ""), domain.live.replace(inserted, "")


def _note(uuid: str) -> str:
    return adoption_note(uuid).replace("<server ", f'<magnetar:server xmlns:magnetar="{NAMESPACE}" ')


def _marked(xml: str, uuid: str) -> str:
    """Return the domain XML *xml* with Magnetar's metadata element, which marks the domain as a server of Magnetar.
    Return an empty *xml* unchanged."""
    note = _note(uuid)
    if not xml or note in xml:
        return xml
    if "<metadata>" in xml:
        return xml.replace("<metadata>", f"<metadata>{note}", 1)
    return xml.replace("</uuid>", f"</uuid><metadata>{note}</metadata>", 1)
