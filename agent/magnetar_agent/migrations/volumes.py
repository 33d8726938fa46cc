# SPDX-License-Identifier: GPL-3.0-or-later
"""The volumes of a migrating server. They stay where they are; who may reach them changes, and through which socket.

The source shares them (``share``): it exports its own volumes to the target, as stand-ins while the guest still writes
here, and the hosts of other volumes let the target in too. When the guest is off here for good, the disks themselves
are served instead of stand-ins (``serve_disks``), and QEMU at the target, whose guest is still paused, connects again.
In the end only the target is let in (``release``), or only the source as before (``revoke``).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from magnetar_agent.reconcile.documents import Document
from magnetar_agent.volumes import attaching, content, exports, pools, remote
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError, NotFound
from magnetar_core.kinds import VolumeAttachment, VolumeExport

from . import ARRIVING

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields

log = logging.getLogger(__name__)


# The source -------------------------------------------------------------------------------------------------------
def check_attachments(host: LocalHost, server: Document, want: Fields) -> None:
    """Raise ``Conflict`` for volumes that cannot go along."""
    for one in attaching.of_server(host, server.id, leaving=True):
        volume = host.documents.get("volume", one.want["volume"])
        if one.deleting or one.state.get("unfinished"):
            raise Conflict(f"A volume of server {server.name!r} is being attached or detached ({one.name}). Wait until "
                           "that has ended, or repeat it.")
        if not one.want.get("origin") and volume is None:
            raise Conflict(f"The volume {one.want['volume']} of server {server.name!r} is gone. Detach it first.")
        if volume and want["type"] == "live":
            content.refuse_encrypted(volume, f"server {server.name!r} does not leave this host while it runs. Ask for "
                                             "type cold, or detach the volume first")
            if (asked := _post_copy(want)) and not exports.origin(host, volume)["pool"]:
                raise Conflict(f"Server {server.name!r} uses volume {volume.name!r} of this very host, which has to "
                               "change hands while the guest stands still; post-copy does not let it. Do without "
                               "post_copy, and choose on_time_limit pause.", field=asked)


def _post_copy(want: Fields) -> str | None:
    """The field that may have the guest run before all of it has come."""
    return "post_copy" if want.get("post_copy") else "on_time_limit" if want["on_time_limit"] == "post_copy" else None


def describe(host: LocalHost, server: Document) -> list[Fields]:
    """The volumes in the manifest."""
    return [{"volume": one.want["volume"], "origin": _origin(host, one)}
            for one in attaching.of_server(host, server.id)]


def share(host: LocalHost, server: Document, peer: str, live: bool) -> list[Fields]:
    """Let *peer* reach all of them; what it is to keep as its attachments."""
    found = []
    for one in attaching.of_server(host, server.id):
        if one.want.get("origin"):
            one.state[remote.LENT] = peer
            host.documents.write(one)
            remote.request(host, one, "admit", peer=peer)
        else:
            _export(host, one, server.name, peer, live)
        found.append({"id": one.id, "want": {**one.want, "origin": _origin(host, one)},
                      "created_at": one.created_at})
    return found


def _origin(host: LocalHost, attachment: Document) -> Fields:
    volume = host.documents.get("volume", attachment.want["volume"])
    return exports.origin(host, volume) if volume else dict(attachment.want["origin"])


def _export(host: LocalHost, attachment: Document, server: str, peer: str, live: bool) -> None:
    want = {**VolumeExport.defaults(), "name": attachment.name, "server": attachment.want["server"],
            "server_name": server, "volume": attachment.want["volume"], "peers": [peer],
            "readonly": attachment.want["readonly"]}
    document = Document("volume_export", attachment.id, attachment.name, want, {"stand_in": True} if live else {})
    host.documents.write(document)
    exports.start(host, document)


def serve_disks(host: LocalHost, server: str) -> None:
    """The guest is off here: serve the disks themselves instead of stand-ins."""
    for export in host.documents.list("volume_export"):
        if export.want["server"] == server and export.state.pop("stand_in", False):
            host.documents.write(export)
            exports.start(host, export)


def release(host: LocalHost, server: str, peer: str) -> None:
    """The server is on *peer* now: this host gives up its volumes. Raises ``Unreachable``."""
    for one in attaching.of_server(host, server, leaving=True):
        if one.want.get("origin"):
            with suppress(NotFound):  # we have said so before, and are not let in any more
                remote.request(host, one, "keep", peer=peer)
            remote.close(host, one)
        host.documents.remove(one)


def revoke(host: LocalHost, server: str) -> None:
    """The server stays: the target may no longer reach its volumes. A host that does not answer is told later."""
    for one in attaching.of_server(host, server):
        if one.want.get("origin"):
            try:
                remote.end_sharing(host, one)
            except MagnetarError as error:
                log.warning("the host of volume %s is told later that the server stays: %s", one.want["volume"], error)
            continue
        exports.stop(host, one.id)
        left = host.documents.get("volume_export", one.id)
        if left:
            host.documents.remove(left)


# The target -------------------------------------------------------------------------------------------------------
def check_origins(host: LocalHost, told: Fields) -> None:
    """Raise ``Conflict`` or ``InvalidField`` for volumes that this host cannot reach."""
    for one in told.get("volumes", []):
        if one["origin"]["pool"]:
            remote.check_origin(host, one["origin"])
            pools.named(host, one["origin"]["pool"], "origin.pool").check_usable()


def prepare(host: LocalHost, migration: Document, given: list[Fields]) -> None:
    """Write the attachments, and open the sockets to the volumes."""
    drop(host, migration)
    for one in given:
        document = _checked(migration, one)
        host.documents.write(document)
        remote.open(host, document)


def _checked(migration: Document, given: Fields) -> Document:
    """The attachment that a source sends; its fields are checked as those of a wish are."""
    id, server = str(given["id"]), migration.want["server"]
    said = {f.name: given["want"][f.name] for f in VolumeAttachment.settable() if f.name in given["want"]}
    want = {**VolumeAttachment.defaults(), **VolumeAttachment.check(said, partial=True)}
    if want["server"] != server or id != attaching.identity(server, str(want["volume"])) or not want.get("origin"):
        raise InvalidRequest("The source sends the volume of another server.")
    if want["origin"]["peer"] == migration.want["peer"]:
        want["origin"]["address"] = migration.want["address"]
    want["name"] = f"{server}:{want['volume']}"
    return Document("volume_attachment", id, want["name"], want, {ARRIVING: migration.id},
                    created_at=str(given["created_at"]))


def drop(host: LocalHost, migration: Document) -> None:
    """The migration is aborted: remove the attachments."""
    for one in host.documents.list("volume_attachment"):
        if one.state.get(ARRIVING) == migration.id:
            remote.close(host, one)
            host.documents.remove(one)


def forget(host: LocalHost, server: str) -> None:
    """The server is not this host's any more, or never was, and is deleted: remove attachments that are left of it."""
    for one in attaching.of_server(host, server, leaving=True):
        if one.want.get("origin"):
            remote.close(host, one)
        host.documents.remove(one)


def keep(host: LocalHost, migration: Document) -> None:
    """The server has arrived: its attachments are this host's now."""
    for one in host.documents.list("volume_attachment"):
        if one.state.get(ARRIVING) == migration.id:
            del one.state[ARRIVING]
            host.documents.write(one)


def connect(host: LocalHost, server: str) -> None:
    """Before the guest runs on here: have QEMU connect to disks that are no stand-ins any more."""
    runs = host.hypervisor.running(server)
    used: set[Any] = {disk.remote.socket for disk in runs.disks if disk.remote} if runs else set()
    for one in attaching.of_server(host, server):
        if one.want.get("origin") and exports.path(host, one.id) in used:
            try:
                remote.reconnect(host, one)
            except MagnetarError as error:
                # The guest finds out by itself, and waits for its disk: see ``ways.RemoteVolumes``.
                log.warning("the volume %s cannot be reached now: %s", one.want["volume"], error)
