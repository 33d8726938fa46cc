# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of a migration on the source: find out where the server is, then remove the remains of a server that has
moved, or restore a server that stays. Every step may be repeated."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from magnetar_agent.link import LinkAddress
from magnetar_agent.link.rpc import Rpc
from magnetar_agent.reconcile.documents import HELD, Document
from magnetar_agent.reconcile.task import NotRemovable
from magnetar_agent.servers import verbs
from magnetar_agent.servers.disks import disk_owner, own_disks, rbd_images
from magnetar_agent.servers.hardware import tpm
from magnetar_agent.servers.nics import addresses, function_settings, nics
from magnetar_core.errors import InvalidField, MagnetarError, NotFound, Unreachable
from magnetar_core.operations import utc_timestamp
from magnetar_core.power import LIVE, OFF, PAUSED, RUNNING

from . import AGENT, MARK, migration_of_server, volumes
from .coming_disks import SHARED

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_agent.reconcile.task import Task

log = logging.getLogger(__name__)

#: Note of the migration on the source: an id of the guest's last run. It is changed whenever the guest may have run and
#: written to its disks.
RUN = "run"


def target_address(id: str, want: Fields) -> LinkAddress:
    """Return the address of the target's agent for the link *id*. *want*: the migration's fields. Raises
    ``InvalidField``."""
    host, _colon, port = (want.get("address") or "").rpartition(":")
    if not host or not port.isdigit():
        raise InvalidField("address", "must be host:port", want.get("address"))
    return LinkAddress(id, want["peer"], host.strip("[]"), int(port))


def is_here(host: LocalHost, document: Document) -> bool:
    """Return whether the server of a migration is certainly still on this host: its guest is active here, or the
    migration is cold and this host has not handed the server over to the target."""
    if guest_runs(host, document):
        return True
    return document.want["type"] == "cold" and not document.state.get("decided")


def server_task(task: Task, server: Document) -> Task:
    """Return the ``Task`` (the argument of functions that perform a step of a change) for a step on the server
    *server*. Like *task*, the migration's task, it belongs to the operation of the migration."""
    return type(task)(task.host, server, task.operation)


def clean_up_source(task: Task) -> None:
    """Remove from this host the domain, files and document of a server that has moved to the target."""
    host, id = task.host, task.document.want["server"]
    with host.locks.hold("server", id):
        server = host.documents.get("server", id)
        if server is not None:
            host.hypervisor.destroy(id)
            host.hypervisor.undefine(id, keep_nvram=bool(task.document.state.get(SHARED)))
            addresses.release(server_task(task, server))
            rbd_images.hand_over(server)
            if task.document.state.get(SHARED):
                disk_owner.hand_over_disks(server)
            verbs.erase(server_task(task, server))
            host.documents.remove(server)
    volumes.release_source_volumes(host, id, task.document.want["peer"])
    task.document.state["left"] = utc_timestamp()
    task.keep()


def recover_source(task: Task) -> None:
    """Abort the migration on the source, so that the server stays on this host. Raises ``NotRemovable`` if the server
    has moved, or if it may have moved and the target does not know the migration any more. Raises ``Unreachable`` if
    the target must be asked and does not answer."""
    document = task.document
    if document.state.get("moved"):
        raise NotRemovable("The server has gone already; it cannot be taken back. Run the migration again to settle "
                           "it, or migrate it back.")
    if document.state.get("tried"):
        try:
            _drop(task)
        except Unreachable:
            if not is_here(task.host, document):
                raise
        except NotFound as error:
            if not is_here(task.host, document):
                raise NotRemovable(
                    f"{error} Only the target could say whether the server has arrived. Look for the server there, "
                    "then end the migration on this host with the event discard.") from error
    restore_server(task)


def _drop(task: Task) -> None:
    """Tell the target to remove its copy of the server. Raises ``NotRemovable`` if the server has arrived on the
    target."""
    with Rpc(task.host.links.call(target_address(task.document.id, task.document.want), AGENT)) as talk:
        if talk.call("look")["arrived"] and not guest_runs(task.host, task.document):
            raise NotRemovable("The server has arrived at the target; it cannot be taken back. Run the migration "
                               "again to settle it, or migrate it back.")
        talk.call("drop")


def guest_runs(host: LocalHost, document: Document) -> bool:
    """Return whether the guest of a migration's server is active here."""
    domain = host.hypervisor.domain(document.want["server"])
    return domain is not None and domain.state in LIVE


def _start(host: LocalHost, server: Document) -> None:
    try:
        if not server.state.get(HELD):
            own_disks.check_disk_ownership(host, server)
            function_settings.apply_function_settings(host, server)  # its functions may have had their defaults since
            tpm.start_guest(host, server)
    except MagnetarError as error:
        log.warning("server %s stays here and cannot be started: %s", server.name, error, extra={"server": server.id})
    server.state.pop("unfinished", None)
    host.documents.write(server)


def restore_server(task: Task) -> None:
    """End the migration on the source: remove from the server's document the mark that the server is being migrated,
    and start or resume the guest if the document requests a running server."""
    host, document = task.host, task.document
    with contextlib.suppress(MagnetarError):
        host.hypervisor.abort_stale_job(document.want["server"])
    with host.locks.hold("server", document.want["server"]):
        server = host.documents.get("server", document.want["server"])
        # otherwise it was restored before
        if server is not None and migration_of_server(host, server) in (None, document.id):
            domain = host.hypervisor.domain(server.id)
            if domain and domain.state == PAUSED and server.want["power"] == RUNNING:
                host.hypervisor.resume(server.id)
            starts = domain and domain.state == OFF and server.want["power"] == RUNNING
            server.state.pop(MARK, None)
            if starts:  # after a crash the agent would think that the guest powered itself off
                server.state["unfinished"] = True
                document.state.pop(RUN, None)
                task.keep()
            host.documents.write(server)
            volumes.revoke_sharing(host, server.id)
            tpm.forget_copy(host, server)
            if starts:
                _start(host, server)
            else:
                nics.restore_nics(server_task(task, server))
    for name in ("claimed", "tried", "decided", "unfinished"):
        document.state.pop(name, None)
    document.want["phase"] = "prepared"
    document.state["failed"] = True
    task.keep()
