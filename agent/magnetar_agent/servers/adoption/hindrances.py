# SPDX-License-Identifier: GPL-3.0-or-later
"""What hinders the adoption of a domain, with what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_agent.reconcile.documents import Fields
from magnetar_agent.servers import resolve
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import Server
from magnetar_core.power import CRASHED

from .adopted import fields_of_foreign_domain

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost

    from .candidates import DomainCandidate, Users

#: The names that the agent gives to domains.
OURS = re.compile(r"magnetar-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
Hindrance = tuple[str, str]


def find_hindrances(host: LocalHost, candidate: DomainCandidate, server_name: str, users: Users) -> list[Fields]:
    """Return the reasons why the domain *candidate* cannot be adopted as a server called *server_name*, as a list of
    ``{reason, message}``. *users*: the domains that use each disk (``candidates.disk_users``)."""
    hindrances = [*_of_names(host, candidate, server_name), *_of_state(candidate), *_of_disks(host, candidate, users),
                  *_of_nics(host, candidate)]
    hindrances += [("unsupported-device", f"{text[0].upper()}{text[1:]}. Detach it (virsh detach-device), or leave the "
                    "domain to libvirt.") for text in candidate.parts.unsupported]
    return [{"reason": reason, "message": message} for reason, message in hindrances]


def _of_names(host: LocalHost, candidate: DomainCandidate, server_name: str) -> Iterator[Hindrance]:
    domain = candidate.domain
    if OURS.fullmatch(domain.name) and not domain.adopted:
        yield "name", (f"The domain is called {domain.name}, as domains that the agent makes. Rename it while it is "
                       "off (virsh domrename).")
    document = host.documents.peek_by_id(Server.noun, domain.uuid)
    if document is not None:
        yield "name", (f"Its uuid belongs to server {document.name!r} of this agent. Define the domain with another "
                       "uuid, or delete that server.")
    try:
        Server.field("name").check(server_name, "server_name")
    except InvalidField as error:
        yield "name", f"No server can be called {server_name!r}: it {error.details['rule']}. Give server_name."
        return
    others = [other for other in host.documents.having(Server.noun, "name", server_name) if other.id != domain.uuid]
    if others:
        yield "name", f"The name {server_name!r} belongs to server {others[0].id} of this host. Give server_name."


def _of_state(candidate: DomainCandidate) -> Iterator[Hindrance]:
    domain, definition = candidate.domain, candidate.definition
    if not domain.persistent:
        yield "transient", ("The domain has no definition, so it vanishes when it stops. Define it: virsh dumpxml "
                            f"{domain.name} >file, virsh define file.")
    if domain.state == CRASHED:
        yield "crashed", f"The domain has crashed. Stop it (virsh destroy {domain.name}), or start it again."
    if definition.busy:
        yield "busy", f"libvirt does {definition.busy} of the domain. Wait until it has ended (virsh domjobinfo)."
    if definition.snapshots:
        names = ", ".join(definition.snapshots)
        yield "internal-snapshots", (f"The domain has snapshots inside of its disks: {names}. Delete them (virsh "
                                     f"snapshot-delete {domain.name} NAME), which keeps the present content.")


def _of_disks(host: LocalHost, candidate: DomainCandidate, users: Users) -> Iterator[Hindrance]:
    for disk in candidate.parts.disks:
        chain = candidate.chains[disk.device]
        if chain.problem:
            yield chain.reason, f"Disk {disk.device}: {chain.problem}"
        if disk.kind == "cdrom":
            continue
        inside = sum(layer.snapshots for layer in chain.layers[:1])
        if inside and not candidate.definition.snapshots:
            yield "internal-snapshots", (f"Disk {disk.device}: {chain.layers[0].path} has {inside} snapshots inside, "
                                         "which libvirt does not list. Delete them while the domain is off (qemu-img "
                                         "snapshot -l and -d).")
        for at, layer in enumerate(chain.layers):
            is_shared = at == 0 and (disk.readonly or disk.shareable)
            if others := _others(users, layer.path, candidate.domain.uuid, is_shared):
                role = "" if at == 0 else "the backing file "
                yield "shared-disk", (f"Disk {disk.device}: {role}{layer.path} is a disk of domain {others[0]} too. "
                                      "Give each domain its own disk, or mark it as shareable or read-only in both.")
        if chain.layers and _is_ours(host, chain.layers[0].path):
            yield "disk-of-ours", (f"Disk {disk.device}: {chain.layers[0].path} belongs to a server or volume of this "
                                   "agent. Detach it from the domain.")


def _others(users: Users, path: str, uuid: str, is_shared: bool) -> list[str]:
    """Return the names of the domains that use the file at *path*, except the domain *uuid*. If the use by the domain
    *uuid* is harmless itself (*is_shared*: read-only or shareable), leave out other harmless uses. *users*: uses by
    path."""
    return [name for name, other, harmless in users.get(path, ()) if other != uuid and not (harmless and is_shared)]


def _is_ours(host: LocalHost, path: str) -> bool:
    if any(Path(path).is_relative_to(folder) for folder in (host.settings.state_dir, host.settings.servers_folder)):
        return True
    return host.documents.peek_by_id("volume", Path(path).name) is not None


def _of_nics(host: LocalHost, candidate: DomainCandidate) -> Iterator[Hindrance]:
    for nic in fields_of_foreign_domain(candidate.domain)["networks"]:
        other = resolve.mac_owner(host, nic["mac"])
        if other is not None and other.id != candidate.domain.uuid:
            yield "mac", f"The MAC address {nic['mac']} belongs to server {other.name!r}. Change one of the two."
