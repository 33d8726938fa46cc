# SPDX-License-Identifier: GPL-3.0-or-later
"""The volumes of a migrating server. Their content stays where it is; the hosts that may access them change, and so do
the sockets.

The source gives the target access (``share_volumes``): it exports its own volumes to the target, as stand-ins while the
guest still writes on the source, and the hosts of other volumes admit the target too. When the guest is off on the
source for good, the source serves the disks themselves instead of stand-ins (``serve_disks``), and QEMU on the target,
whose guest is still paused, connects again. In the end only the target has access (``release_source_volumes``), or only
the source as before (``revoke_sharing``).

A stand-in (an overlay that is thrown away) is needed because QEMU on the target opens all disks when it starts, while
QEMU on the source still writes to them and holds their locks. After a switch to post-copy the guest would run before
the disks are served, so post-copy is refused.
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
    """Raise ``Conflict`` if an attached volume prevents the migration of the server. *want*: the migration's fields."""
    for attachment in attaching.server_attachments(host, server.id, include_detaching=True):
        volume = host.documents.get("volume", attachment.want["volume"])
        if attachment.deleting or attachment.state.get("unfinished"):
            raise Conflict(
                f"A volume of server {server.name!r} is being attached or detached ({attachment.name}). Wait until "
                           "that has ended, or repeat it.")
        if not attachment.want.get("origin") and volume is None:
            raise Conflict(
                f"The volume {attachment.want['volume']} of server {server.name!r} is gone. Detach it first.")
        if volume:
            content.refuse_while_moving(volume)
        if volume and want["type"] == "live":
            content.refuse_encrypted(volume, f"server {server.name!r} does not leave this host while it runs. Ask for "
                                             "type cold, or detach the volume first")
            if (post_copy_field := _post_copy(want)) and not exports.export_origin(host, volume)["pool"]:
                raise Conflict(f"Server {server.name!r} uses volume {volume.name!r} of this very host, which has to "
                               "change hands while the guest stands still; post-copy does not let it. Do without "
                               "post_copy, and choose on_time_limit pause.", field=post_copy_field)


def _post_copy(want: Fields) -> str | None:
    """Return the name of the field in *want* (a migration's fields) that allows post-copy; ``None`` if none does."""
    return "post_copy" if want.get("post_copy") else "on_time_limit" if want["on_time_limit"] == "post_copy" else None


def describe_volumes(host: LocalHost, server: Document) -> list[Fields]:
    """Return the uuid and origin (host and pool) of each volume of the server, for the manifest that the target checks.
    """
    return [{"volume": attachment.want["volume"], "origin": _origin(host, attachment)}
            for attachment in attaching.server_attachments(host, server.id)]


def share_volumes(host: LocalHost, server: Document, peer: str, live: bool) -> list[Fields]:
    """Let the target's agent *peer* access all volumes of the server. In a *live* migration, the target gets a
    temporary overlay (stand-in) of each volume that this host stores, as long as the guest writes to the volumes here.
    Return the attachments for the target to store."""
    shared = []
    for attachment in attaching.server_attachments(host, server.id):
        if attachment.want.get("origin") and not remote.is_taken_over(host, attachment):
            attachment.state[remote.LENT] = peer
            host.documents.write(attachment)
            remote.request_export(host, attachment, "admit", peer=peer)
        else:
            _export(host, attachment, server.name, peer, live)
        shared.append({"id": attachment.id, "want": {**attachment.want, "origin": _origin(host, attachment)},
                       "created_at": attachment.created_at})
    return shared


def _origin(host: LocalHost, attachment: Document) -> Fields:
    volume = host.documents.get("volume", attachment.want["volume"])
    return exports.export_origin(host, volume) if volume else dict(attachment.want["origin"])


def _export(host: LocalHost, attachment: Document, server: str, peer: str, live: bool) -> None:
    want = {**VolumeExport.defaults(), "name": attachment.name, "server": attachment.want["server"],
            "server_name": server, "volume": attachment.want["volume"], "peers": [peer],
            "readonly": attachment.want["readonly"]}
    document = Document("volume_export", attachment.id, attachment.name, want, {"stand_in": True} if live else {})
    host.documents.write(document)
    exports.start_export(host, document)


def serve_disks(host: LocalHost, server: str) -> None:
    """Let the target access the volumes of *server* (uuid) themselves instead of temporary overlays (stand-ins). The
    guest must be off on this host."""
    for export in host.documents.list("volume_export"):
        if export.want["server"] == server and export.state.pop("stand_in", False):
            host.documents.write(export)
            exports.start_export(host, export)


def release_source_volumes(host: LocalHost, server: str, peer: str) -> None:
    """End this host's access to the volumes of *server* (uuid), and remove the server's attachments here: the server is
    on the host of the agent *peer* now. Raises ``Unreachable`` if the host of a volume does not answer."""
    for attachment in attaching.server_attachments(host, server, include_detaching=True):
        if attachment.want.get("origin"):
            with suppress(NotFound):  # we have said so before, and are not let in any more
                remote.request_export(host, attachment, "keep", peer=peer)
            remote.close_volume_socket(host, attachment)
        host.documents.remove(attachment)


def revoke_sharing(host: LocalHost, server: str) -> None:
    """End the target's access to the volumes of *server* (uuid), which stays on this host. Errors of other hosts are
    logged; ``RemoteVolumes`` repeats the failed requests later."""
    for attachment in attaching.server_attachments(host, server):
        if attachment.want.get("origin") and not remote.is_taken_over(host, attachment):
            try:
                remote.end_sharing(host, attachment)
            except MagnetarError as error:
                log.warning("the host of volume %s is told later that the server stays: %s", attachment.want["volume"],
                            error)
            continue
        exports.stop_export(host, attachment.id)
        export = host.documents.get("volume_export", attachment.id)
        if export:
            host.documents.remove(export)


# The target -------------------------------------------------------------------------------------------------------
def check_origins(host: LocalHost, manifest: Fields) -> None:
    """Raise ``Conflict`` or ``InvalidField`` if this host cannot access a volume of the incoming server. *manifest*:
    the source's description of the server."""
    for volume in manifest.get("volumes", []):
        if volume["origin"]["pool"]:
            remote.check_origin(host, volume["origin"])
            pools.find_pool(host, volume["origin"]["pool"], "origin.pool").check_usable()


def prepare_attachments(host: LocalHost, migration: Document, sent_attachments: list[Fields]) -> None:
    """Store *sent_attachments*, which the source sent for *migration*, and connect to their volumes."""
    drop_attachments(host, migration)
    for sent_attachment in sent_attachments:
        document = _checked(migration, sent_attachment)
        host.documents.write(document)
        remote.open_volume_socket(host, document)


def _checked(migration: Document, sent_attachment: Fields) -> Document:
    """Return the document of the volume attachment *sent_attachment*, which the source sent for *migration*. The
    attachment's fields are checked like those of an API request."""
    id, server = str(sent_attachment["id"]), migration.want["server"]
    settable = {f.name: sent_attachment["want"][f.name] for f in VolumeAttachment.settable()
                if f.name in sent_attachment["want"]}
    want = {**VolumeAttachment.defaults(), **VolumeAttachment.check(settable, partial=True)}
    if want["server"] != server or id != attaching.attachment_id(server, str(want["volume"])) or not want.get("origin"):
        raise InvalidRequest("The source sends the volume of another server.")
    if want["origin"]["peer"] == migration.want["peer"]:
        want["origin"]["address"] = migration.want["address"]
    want["name"] = f"{server}:{want['volume']}"
    return Document("volume_attachment", id, want["name"], want, {ARRIVING: migration.id},
                    created_at=str(sent_attachment["created_at"]))


def drop_attachments(host: LocalHost, migration: Document) -> None:
    """Remove the attachments that the source sent for *migration*, after an abort."""
    for attachment in host.documents.list("volume_attachment"):
        if attachment.state.get(ARRIVING) == migration.id:
            remote.close_volume_socket(host, attachment)
            host.documents.remove(attachment)


def forget_attachments(host: LocalHost, server: str) -> None:
    """Remove the remaining attachments of *server* (uuid), which has no document on this host."""
    for attachment in attaching.server_attachments(host, server, include_detaching=True):
        if attachment.want.get("origin"):
            remote.close_volume_socket(host, attachment)
        host.documents.remove(attachment)


def adopt_attachments(host: LocalHost, migration: Document) -> None:
    """Mark the attachments that the source sent for *migration* as arrived, by removing their state field ``ARRIVING``:
    they belong to this host from now on."""
    for attachment in host.documents.list("volume_attachment"):
        if attachment.state.get(ARRIVING) == migration.id:
            del attachment.state[ARRIVING]
            host.documents.write(attachment)


def reconnect_volumes(host: LocalHost, server: str) -> None:
    """Make QEMU on this host reconnect to the server's volumes on other hosts, because the source now serves the
    volumes themselves instead of stand-ins. Must be called before the guest is resumed."""
    runs = host.hypervisor.running(server)
    used: set[Any] = {disk.remote.socket for disk in runs.disks if disk.remote} if runs else set()
    for attachment in attaching.server_attachments(host, server):
        if attachment.want.get("origin") and exports.export_socket(host, attachment.id) in used:
            try:
                remote.reconnect_disk(host, attachment)
            except MagnetarError as error:
                # The guest finds out by itself, and waits for its disk (``remote.RemoteVolumes``).
                log.warning("the volume %s cannot be reached now: %s", attachment.want["volume"], error)
