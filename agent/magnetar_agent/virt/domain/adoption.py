# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains that other programs have defined: read their definition, and mark them in libvirt's metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.host.foreign_domains import DomainDefinition
from magnetar_agent.virt.connection.limits import Lane
from magnetar_agent.virt.tools.templates import NAMESPACE
from magnetar_core.errors import Conflict

from .domain import adoption_note, parse_domain_xml
from .power import lookup_domain

if TYPE_CHECKING:
    from magnetar_agent.virt.connection.pool import ConnectionPool

_INACTIVE = libvirt.VIR_DOMAIN_XML_INACTIVE
#: The prefix of Magnetar's namespace in the metadata.
PREFIX = "magnetar"
#: Snapshots whose content is inside of the disks, or that have the guest's memory.
_INSIDE = libvirt.VIR_DOMAIN_SNAPSHOT_LIST_INTERNAL
#: The names of jobs; others are "a job".
_JOBS = {
    libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP: "a backup", libvirt.VIR_DOMAIN_JOB_OPERATION_SNAPSHOT: "a snapshot",
    libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT: "a migration", libvirt.VIR_DOMAIN_JOB_OPERATION_SAVE: "a save",
    libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN: "a migration", libvirt.VIR_DOMAIN_JOB_OPERATION_DUMP: "a dump"}


class Adoptions:
    """The methods of ``LocalHypervisor`` for adoption: the management of domains that other programs have defined."""

    connection: ConnectionPool

    def definition(self, uuid: str) -> DomainDefinition | None:
        """Return the definition of the domain *uuid*: XML, autostart, snapshots and running job; ``None`` if there is
        no such domain."""
        def read(conn: Any) -> DomainDefinition | None:
            domain = lookup_domain(conn, uuid)
            if domain is None:
                return None
            try:
                return DomainDefinition(uuid, domain.name(), domain.XMLDesc(_INACTIVE), bool(domain.autostart()),
                                        tuple(snapshot.getName() for snapshot in domain.listAllSnapshots(_INSIDE)),
                                        _job(domain))
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                    raise
                return None  # it has vanished meanwhile
        return self.connection.call(f"read the definition of the domain {uuid}", read)

    def mark(self, uuid: str) -> None:
        """Mark the domain *uuid* as adopted by Magnetar, in the metadata of its XML. Raises ``Conflict`` if the domain
        does not exist, is transient, or was created by Magnetar."""
        def mark(conn: Any) -> None:
            domain = lookup_domain(conn, uuid)
            if domain is None:
                raise Conflict(f"The libvirt domain {uuid} is gone: it was undefined from outside. List the domains "
                               "again.")
            if not domain.isPersistent():
                raise Conflict(f"The libvirt domain {domain.name()} has no definition, so it vanishes when it stops. "
                               "Define it (virsh dumpxml, virsh define), then repeat the call.")
            seen = parse_domain_xml(domain.XMLDesc(_INACTIVE))
            if seen.owned and not seen.adopted:
                raise Conflict(f"The libvirt domain {seen.name} was made by Magnetar, so it is not adopted.")
            _set_metadata(domain, adoption_note(uuid))
        self.connection.ask(f"mark the domain {uuid}", uuid, mark, Lane.END)

    def unmark(self, uuid: str) -> None:
        """Remove the mark that ``mark`` has written from the metadata of the domain *uuid*. Domains that Magnetar
        created are not changed."""
        def unmark(conn: Any) -> None:
            domain = lookup_domain(conn, uuid)
            if domain is None:
                return
            for flags in (_INACTIVE, 0) if domain.isActive() else (_INACTIVE,):
                if parse_domain_xml(domain.XMLDesc(flags)).adopted:
                    _set_metadata(domain, None)
                    return
        self.connection.ask(f"remove the mark of the domain {uuid}", uuid, unmark, Lane.END)


def _set_metadata(domain: Any, note: str | None) -> None:
    """Set Magnetar's metadata element in the persistent and the live XML of *domain*. *note*: the element as XML;
    ``None`` removes it."""
    for active, flag in ((domain.isPersistent(), libvirt.VIR_DOMAIN_AFFECT_CONFIG),
                         (domain.isActive(), libvirt.VIR_DOMAIN_AFFECT_LIVE)):
        if not active:
            continue
        try:
            domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, note, PREFIX if note else None, NAMESPACE, flag)
        except libvirt.libvirtError as error:
            if note or error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN_METADATA:
                raise


def _job(domain: Any) -> str:
    """Return a description of the job that is running on *domain*, such as "a backup"; "" if there is none."""
    if not domain.isActive():
        return ""
    job = domain.jobStats()
    if job.get("type"):
        return _JOBS.get(job.get("operation"), "a job")
    return "a copy of a disk" if "<mirror " in domain.XMLDesc(0) else ""
