# SPDX-License-Identifier: GPL-3.0-or-later
"""The adoption of a domain, and its release.

The document is written first, then the domain is marked. An agent that dies in between finds the document unfinished at
its next start, and marks the domain then. A release is written into the document before the mark is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.reconcile.documents import Document, write_atomically
from magnetar_agent.reconcile.locks import CHOICES
from magnetar_agent.servers import server_folder
from magnetar_agent.servers.disks import own_disks
from magnetar_core import adoption
from magnetar_core.errors import Conflict, HypervisorDown, MagnetarError
from magnetar_core.kinds import Server
from magnetar_core.operations import utc_timestamp
from magnetar_core.power import WANTED

from .adopted import DEFINITION, UNMARKED, is_adopted, new_server_fields
from .hindrances import find_hindrances

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.task import Task
    from magnetar_core.operations import Operation

    from .candidates import DomainCandidate, Users


def adopt_domain(host: LocalHost, candidate: DomainCandidate, server_name: str, users: Users) -> Document | None:
    """Adopt the domain *candidate* as a server called *server_name*, and return the server's document; ``None`` if it
    is adopted already. *users*: the domains that use each disk (``candidates.disk_users``). Raises ``Conflict``, with
    nothing changed, if the domain cannot be adopted."""
    id = candidate.domain.uuid
    with host.locks.hold(Server.noun, id):
        if is_adopted(host.documents.get(Server.noun, id)):
            return None
        with host.locks.hold(*CHOICES):
            check_unhindered(host, candidate, server_name, users)
            document = Document(Server.noun, id, server_name, new_server_fields(candidate, server_name))
            document.state = {adoption.ADOPTED: {"domain": candidate.domain.name, "at": utc_timestamp(),
                                                 "disks": candidate.paths(), UNMARKED: candidate.definition.xml},
                              "unfinished": True}
            host.documents.write(document)
        _mark(host, document)
    return document


def check_unhindered(host: LocalHost, candidate: DomainCandidate, server_name: str, users: Users) -> None:
    """Raise ``Conflict``, with all reasons, if the domain *candidate* cannot be adopted as a server called
    *server_name*. *users*: the domains that use each disk (``candidates.disk_users``)."""
    if found := find_hindrances(host, candidate, server_name, users):
        reasons = " ".join(hindrance["message"] for hindrance in found)
        raise Conflict(f"The domain {candidate.domain.name!r} cannot be adopted. {reasons}", hindrances=found)


def _mark(host: LocalHost, document: Document) -> None:
    """Mark the domain of a new document as a server of Magnetar. If libvirt refuses, remove the document. If libvirt
    does not answer, the document stays unfinished, and the agent marks the domain later."""
    try:
        mark_document_domain(host, document)
        document.state.pop("unfinished")
        host.documents.write(document)
    except HypervisorDown:
        raise
    except MagnetarError:
        host.hypervisor.unmark(document.id)
        own_disks.remove_server_folder(host, document)
        host.documents.remove(document)
        raise


def mark_document_domain(host: LocalHost, document: Document) -> None:
    """Store the domain's XML in the server's folder, as it was before the adoption, and mark the domain as a server of
    Magnetar."""
    place = server_folder(host, document.id)
    make_state_folder(place)
    xml = document.state[adoption.ADOPTED].pop(UNMARKED, None)
    if xml is not None:
        write_atomically(place / DEFINITION, xml.encode())
    host.hypervisor.mark(document.id)


def mark_domain(task: Task, follows: bool = False) -> None:
    """Mark the domain of the task's document as a server of Magnetar. *follows*: also set the requested power state to
    the domain's current one, which may have changed since the adoption began."""
    mark_document_domain(task.host, task.document)
    domain = task.host.hypervisor.domain(task.document.id)
    if follows and domain is not None and domain.state in WANTED:
        task.document.want["power"] = domain.state
    task.keep()


def unmark_domain(task: Task) -> None:
    """Remove the metadata element that marks the domain of the task's document as a server of Magnetar."""
    task.host.hypervisor.unmark(task.document.id)


def made_by_agent(name: str) -> Conflict:
    """Return the error for an attempt to release the server *name*, which is not an adopted domain."""
    return Conflict(f"Server {name!r} was made by the agent, so it cannot be released: nothing else has its "
                    "definition. Delete it if it is not needed.")


def release_adopted(host: LocalHost, id: str, operation: Operation) -> None:
    """Remove the adopted server *id* from Magnetar. Its domain and disks are not changed. Does nothing if the server is
    missing. Raises ``Conflict`` if it is not an adopted domain."""
    with host.locks.hold(Server.noun, id):
        document = host.documents.get(Server.noun, id)
        if document is None:
            return
        if not is_adopted(document):
            raise made_by_agent(document.name)
        document.state[adoption.RELEASING] = True
        document.deleting = True
        host.documents.write(document)
    host.ensure(Server, id, None, operation)
