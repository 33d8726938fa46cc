# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that are adopted domains: their fields follow the domain, and what would change its definition is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.servers import server_path
from magnetar_agent.volumes import round_up_gib
from magnetar_core import adoption
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.kinds import Server
from magnetar_core.power import CRASHED, LIVE, MISSING, OFF, SHELVED, SUSPENDED

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import Domain
    from magnetar_agent.reconcile.documents import Document, Fields

    from .candidates import DomainCandidate

#: Fields that follow the domain in answers only, since they are immutable in documents.
SHOWN = ("machine", "virt_type")
#: Key in the note of an adopted server whose domain is not marked yet: the domain's XML.
UNMARKED = "xml"
#: The file in the server's folder with the domain's XML at the adoption.
DEFINITION = "domain.xml"


def is_adopted(document: Document | None) -> bool:
    """Return whether the server is an adopted domain, one that another program defined. ``None``: return ``False``."""
    return document is not None and adoption.ADOPTED in document.state


def refuse_adopted(document: Document | None, what: str) -> None:
    """Raise ``Conflict`` if the server is an adopted domain, because the operation *what* (for the message) would
    change the domain. ``None`` is permitted."""
    if document is not None and is_adopted(document):
        raise adoption.refused_for_adopted(document.name, what)


def check_event(document: Document, name: str) -> None:
    """Raise ``Conflict`` if the server is an adopted domain and the event (action) *name* is not possible for adopted
    domains."""
    if name not in adoption.EVENTS:
        refuse_adopted(document, name)


def check_reboot(host: LocalHost, document: Document) -> None:
    """Raise ``Conflict`` if the domain of an adopted server is missing, would disappear when stopped, or lacks the
    metadata element that marks it as a server of Magnetar. Called before a reboot; nothing is changed."""
    have = observe_adopted(host, document, host.hypervisor.domain(document.id))
    list(adoption.plan_adopted({**document.want, "power": OFF}, have))
    if have.get("unmarked"):
        raise Conflict(f"Another program has defined the domain of server {document.name!r} again, without Magnetar's "
                       "mark. Start or stop the server once (module server), which marks it, then repeat the call.")


def new_server_fields(candidate: DomainCandidate, name: str) -> Fields:
    """Return the requested fields of a new server called *name* that match the existing domain *candidate*."""
    domain, parts = candidate.domain, candidate.parts
    fields: Fields = {field: value for field, value in Server.defaults().items() if field not in Server.passing()}
    disk_formats = [disk.format for disk in parts.disks if disk.kind != "cdrom"]
    power = domain.state if domain.state in (*LIVE, OFF, SUSPENDED) else OFF
    return {**fields, **fields_of_foreign_domain(domain), "name": name, "description": parts.description[:255],
            "flavor": {"vcpus": domain.vcpus, "ram": domain.ram_mib, "disk": round_up_gib(candidate.root_bytes()),
                       "ephemeral": 0, "swap": 0},
            "image": None, "config_drive": False, "root_format": "qcow2" if "qcow2" in disk_formats[:1] else "raw",
            "power": power, "resume_on_host_boot": candidate.definition.autostart}


def fields_of_foreign_domain(domain: Domain) -> Fields:
    """Return the server fields that are determined by an existing domain: NICs, machine type and type of
    virtualisation."""
    networks = [{"network": nic.network, "mac": nic.mac.lower(), "model": nic.model or "rtl8139"} if nic.network else
                {"bridge": nic.bridge, "mac": nic.mac.lower(), "model": nic.model or "rtl8139"}
                for nic in domain.nics if (nic.network or nic.bridge) and not nic.device]
    return {"networks": networks, "machine": domain.machine, "virt_type": domain.virt_type}


def _fixed_fields(document: Document) -> Fields:
    """Return the fields in the document that stay as they were at the adoption. API responses show the domain's current
    values instead."""
    return {name: document.want[name] for name in SHOWN}


def current_fields(document: Document, domain: Domain | None) -> Fields:
    """Return the current fields of an adopted server: CPUs, memory and NICs from the domain, other fields from the
    document. *domain*: ``None`` if it is missing."""
    if domain is None:
        return dict(document.want)
    flavor = {**document.want["flavor"], "vcpus": domain.vcpus, "ram": domain.ram_mib}
    return {**document.want, **fields_of_foreign_domain(domain), "flavor": flavor}


def complete_adopted(host: LocalHost, want: Fields, document: Document) -> Fields:
    """Return the requested fields *want* of an adopted server in the form in which they are stored. Raises ``Conflict``
    if they would change the domain."""
    if want.get("power") == SHELVED:
        raise InvalidField("power", "cannot be shelved on a single host; stop the server")
    current = current_fields(document, host.hypervisor.domain(document.id))
    requested = {name: value for name, value in want.items() if name not in Server.passing()}
    return {**adoption.adopted_server_fields(requested, document.want, current), **_fixed_fields(document)}


def observe_adopted(host: LocalHost, document: Document, domain: Domain | None) -> Fields:
    """Return the current state of an adopted server, as ``adoption.plan_adopted`` needs it. *domain*: its domain,
    ``None`` if it is missing."""
    state = document.state
    current = current_fields(document, domain)
    have: Fields = {**current, **_fixed_fields(document), "adopted": True, "power": MISSING,
                    "recorded_power": document.want["power"],
                    "shown": {name: current[name] for name in ("flavor", "networks", *SHOWN)},
                    "paths": state[adoption.ADOPTED]["disks"],
                    "definition": server_path(host, document.id, DEFINITION)}
    if domain is not None:
        crashed = domain.state == OFF and state.get("crashed")
        begun = UNMARKED in state[adoption.ADOPTED]  # the guest may lack the mark that the definition has
        have.update(power=CRASHED if crashed else domain.state, domain=domain.name, owned=domain.owned,
                    unmarked=begun or not domain.owned, transient=not domain.persistent)
    if state.get(adoption.RELEASING):
        have["releasing"] = True
    return have


def shown_adoption(document: Document, have: Fields | None) -> Fields | None:
    """Return the field ``adopted`` of a server for API responses: ``{domain, disks, adopted_at}``; ``None`` for a
    server that the agent created. *have*: its current state."""
    if not is_adopted(document):
        return None
    note = document.state[adoption.ADOPTED]
    return {"domain": (have or {}).get("domain", note["domain"]), "disks": note["disks"], "adopted_at": note["at"]}
