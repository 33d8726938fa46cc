# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes of other hosts in servers of this host. QEMU connects to a unix socket, which a link connects to the export.

``RemoteVolumes`` repeats operations that failed while the other host did not answer: it resumes guests that were paused
for a disk, and tells the other host which attachments have ended.

QEMU's NBD client connects again at its next request, and fails that request; libvirt 9.0 cannot set QEMU's
reconnect-delay. So these disks have ``error_policy="stop"``: the guest pauses instead of seeing an error. The thread
makes QEMU read (``qemu-io`` in its monitor) until QEMU's client is connected, and then resumes the guest.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.storage import Disk
from magnetar_agent.link import LinkAddress
from magnetar_agent.link.rpc import Rpc
from magnetar_agent.migrations import migration_of_server
from magnetar_core.errors import Conflict, InvalidField, MagnetarError, NotFound, Unreachable
from magnetar_core.kinds import Server, VolumeAttachment
from magnetar_core.operations import Operation
from magnetar_core.power import PAUSED

from . import exports, pools

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields

log = logging.getLogger(__name__)

#: Seconds between two rounds of ``RemoteVolumes``.
POLL_INTERVAL = 2.0
#: Seconds that QEMU may take to connect again.
CONNECT = 5.0
#: Note of an attachment: the peer that the volume's host also admits, during a migration.
LENT = "lent"
#: Note of a server that must be started when its volumes can be reached.
AWAITED = "awaits_volumes"


def remote_disk(host: LocalHost, attachment: Document) -> Disk:
    """Return the disk that QEMU uses for *attachment*, whose volume belongs to another host."""
    origin, volume = attachment.want["origin"], attachment.want["volume"]
    if origin["pool"]:
        return pools.find_pool(host, origin["pool"], "origin.pool").disk(volume, origin["format"])
    return exports.disk_at_socket(host, attachment.id, volume)


def check_origin(host: LocalHost, origin: Fields) -> None:
    """Raise ``InvalidField`` or ``Conflict`` if this host cannot reach the volume that *origin* describes. If *origin*
    names a ``pool``, the pool must be shared; otherwise *origin* must name the agent (``peer``) that exports the
    volume."""
    if origin["pool"]:
        if not pools.find_pool(host, origin["pool"], "origin.pool").shared:
            raise InvalidField("origin.pool", "must be a pool that both hosts reach, of type nfs or rbd here too",
                               origin["pool"])
        return
    if not origin["peer"]:
        raise InvalidField("origin.peer", "is required: the common name in the certificate of the volume's agent")
    host.links.required()
    link_address("", origin)


def open_volume_socket(host: LocalHost, attachment: Document) -> None:
    """Create the unix socket that connects QEMU to the attachment's volume on another host. Do nothing if the pool is
    shared or the volume is on this host."""
    origin = attachment.want["origin"]
    if origin["pool"] or _is_local(host, attachment) or host.links.forwards(attachment.id):
        return
    place = exports.make_export_folder(host, attachment.id)
    host.links.forward(link_address(attachment.id, origin), exports.NBD, place / exports.NBD, place.stat().st_gid)


def close_volume_socket(host: LocalHost, attachment: Document) -> None:
    """Remove the unix socket of the attachment's volume, and close the socket's connections. Do nothing if the
    attachment has no such socket (see ``open_volume_socket``)."""
    if attachment.want["origin"]["pool"] or _is_local(host, attachment):
        return
    host.links.cut(attachment.id)
    shutil.rmtree(exports.export_folder(host, attachment.id), ignore_errors=True)


def request_export(host: LocalHost, attachment: Document, op: str, **more: Any) -> Fields:
    """Send a request about the export of *attachment*, the permission to use the volume from this host. Return the
    answer of the agent on the volume's host; if this is the volume's host, execute the request here. *op*: the request,
    a key of ``exports.OPS``. *more*: its arguments. Return ``{}`` if there is no agent to ask: the agent of the
    volume's host has no TLS, or this host owns the volume now."""
    if _is_local(host, attachment):
        return exports.OPS[op](host, attachment.id, more) or {}
    if is_taken_over(host, attachment):
        return {}  # no other host has a part in it
    if not attachment.want["origin"]["peer"]:
        return {}  # both hosts reach the pool, and the agent there has no TLS: it cannot be told
    remote = link_address(attachment.id, attachment.want["origin"])
    with Rpc(host.links.call(remote, exports.REQUESTS)) as talk:
        return talk.call(op, **more)


def reconnect_disk(host: LocalHost, attachment: Document) -> None:
    """Make QEMU reconnect to the disk of *attachment* immediately, so that the guest's next I/O request does not fail.
    Only log a warning if QEMU does not reconnect in time. Raises ``Unreachable`` if the agent on the volume's host does
    not answer."""
    want = attachment.want
    if want["origin"]["pool"]:
        return
    request_export(host, attachment, "look")
    deadline = time.monotonic() + CONNECT
    while time.monotonic() < deadline:
        host.hypervisor.reconnect_disk(want["server"], exports.export_socket(host, attachment.id))
        if _is_local(host, attachment) or host.links.connected(attachment.id, exports.NBD):
            return
        time.sleep(0.02)
    log.warning("QEMU of server %s does not connect to its volume %s again", want["server"], want["volume"])


def check_reachable(host: LocalHost, server: Document) -> None:
    """Raise ``Unreachable`` if another host that stores a volume of *server* does not answer, because the server cannot
    start without its volumes."""
    for attachment in host.documents.list("volume_attachment"):
        origin = attachment.want.get("origin")
        if attachment.want["server"] != server.id or attachment.deleting or not origin or origin["pool"]:
            continue
        rescued = server.want.get("rescue")
        if rescued and not rescued.get("device"):  # it is without its volumes
            continue
        open_volume_socket(host, attachment)
        try:
            request_export(host, attachment, "look")
        except Unreachable as error:
            raise Unreachable(f"Server {server.name!r} cannot start without its volume {origin['volume_name']!r} of "
                              f"{origin['host'] or 'another host'}; it is started as soon as that answers. "
                              f"{error}") from error


def release_remote_volume(host: LocalHost, attachment: Document) -> None:
    """Tell the volume's host that the attachment has ended, and remove the local socket. Raises ``Unreachable`` if the
    host does not answer; the socket stays open in this case."""
    try:
        request_export(host, attachment, "release", delete=bool(attachment.state.get("delete")))
    except NotFound:
        log.info("the volume %s is not kept for us any more", attachment.want["volume"])
    close_volume_socket(host, attachment)


def end_sharing(host: LocalHost, attachment: Document) -> None:
    """After the server's migration has ended, make the volume's host refuse connections from the other host of the
    migration. Do nothing while the migration is running."""
    server = host.documents.get("server", attachment.want["server"])
    if attachment.state.get(LENT) and server and not migration_of_server(host, server):
        request_export(host, attachment, "keep", peer=host.links.required())
        del attachment.state[LENT]
        host.documents.write(attachment)


def reopen_sockets(host: LocalHost) -> None:
    """When the agent starts, create the unix socket for each attached volume on another host, so that the guests of
    this host reach these disks again."""
    for attachment in host.documents.list("volume_attachment"):
        if attachment.want.get("origin"):
            try:
                open_volume_socket(host, attachment)
            except (MagnetarError, OSError) as error:
                log.warning("the socket for the volume of %s cannot be opened: %s", attachment.name, error)


def _is_local(host: LocalHost, attachment: Document) -> bool:
    """Return whether the attachment's volume is on this host although *attachment* describes it as remote: the server
    used the volume over the network, and has then migrated to the volume's host."""
    return host.documents.get("volume_export", attachment.id) is not None


def is_taken_over(host: LocalHost, attachment: Document) -> bool:
    """Return whether this host owns the attachment's volume now, although another host owned the volume when it was
    attached. This is possible for a volume in a shared pool, which another host can take over."""
    origin = attachment.want.get("origin") or {}
    return bool(origin.get("pool") and origin["host"] != host.name
                and host.documents.get("volume", attachment.want["volume"]))


def link_address(id: str, origin: Fields, field: str = "origin.address") -> LinkAddress:
    """Return the address of the volume export *id* at the agent that *origin* describes, for connections from this
    host. *origin*: a mapping with ``peer`` (the agent's name) and ``address`` (HOST:PORT). Raises ``InvalidField`` for
    *field* if ``address`` is not HOST:PORT."""
    host, _colon, port = (origin.get("address") or "").rpartition(":")
    if not host or not port.isdigit():
        raise InvalidField(field, "must be host:port", origin.get("address"))
    return LinkAddress(id, origin["peer"], host.strip("[]"), int(port))


class RemoteVolumes:
    """A thread that retries, every ``POLL_INTERVAL`` seconds, the volume operations that failed because another host
    did not answer."""

    def __init__(self, host: LocalHost) -> None:
        self.host = host
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remote volumes", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        while not self._ending.wait(POLL_INTERVAL):
            try:
                self.retry_pending()
            except MagnetarError as error:
                log.info("looking after volumes of other hosts: %s", error)
            except Exception:
                log.exception("looking after volumes of other hosts")

    def retry_pending(self) -> None:
        """Retry once each operation that is still pending."""
        host = self.host
        for export in host.documents.list("volume_export"):
            if not export.deleting and not exports.is_open(host, export) and \
                    not host.locks.held("volume", export.want["volume"]):  # a grow may have stopped it
                self._try(lambda export=export: exports.reopen_export(host, export.id), export)
        waiting: dict[str, list[Document]] = {}
        for attachment in host.documents.list("volume_attachment"):
            if attachment.want.get("origin") and attachment.deleting:
                self._try(lambda attachment=attachment: self._end(attachment), attachment)
            elif attachment.want.get("origin"):
                self._try(lambda attachment=attachment: end_sharing(host, attachment), attachment)
                waiting.setdefault(attachment.want["server"], []).append(attachment)
        for server, attachments in waiting.items():
            domain = host.hypervisor.domain(server)
            if domain and domain.state == PAUSED and domain.reason == "io-error":
                self._try(lambda server=server, waiting_attachments=attachments: self._wake(
                    server, waiting_attachments), attachments[0])
            document = host.documents.get("server", server)
            if document and document.state.get(AWAITED):
                self._try(lambda document=document: self._start(document), document)

    def _start(self, server: Document) -> None:
        """Start a server whose start failed because the host of a volume did not answer. Raises ``Unreachable`` if a
        host still does not answer."""
        check_reachable(self.host, server)
        operation = Operation("settle", "server", server.id, caller="agent")
        self.host.revise(Server, server.id, lambda _document: {}, False, operation)

    def _end(self, attachment: Document) -> None:
        operation = Operation("settle", "volume_attachment", attachment.id, caller="agent")
        self.host.ensure(VolumeAttachment, attachment.id, None, operation)

    def _wake(self, server: str, attachments: list[Document]) -> None:
        """Resume a guest that QEMU has paused because of an I/O error of a disk. *attachments*: the server's
        attachments of volumes on other hosts. Raises ``Unreachable`` if one of these hosts still does not answer."""
        for attachment in attachments:
            reconnect_disk(self.host, attachment)
        with self.host.locks.hold_if_free("server", server) as is_free:  # otherwise the next round does it
            document, domain = self.host.documents.get("server", server), self.host.hypervisor.domain(server)
            if is_free and document and domain and domain.state == PAUSED and domain.reason == "io-error":
                log.info("server %s waited for its disks, and runs on", document.name, extra={"server": server})
                self.host.hypervisor.resume(server)

    @staticmethod
    def _try(act: Any, document: Document) -> None:
        try:
            act()
        except Conflict as error:
            log.warning("%s %s: %s", document.kind, document.name, error)
        except MagnetarError as error:
            log.debug("%s %s has to wait: %s", document.kind, document.name, error)
        except OSError as error:  # the others do not wait for it
            log.warning("%s %s has to wait: %s", document.kind, document.name, error)
