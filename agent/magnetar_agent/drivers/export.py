# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type volume_export: lets one server of another host use a volume of this host; see
``volumes.exports``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from magnetar_agent.volumes import attaching, attachments_of_volume, exports, holders_of_volume, is_content_complete
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.fields import SHOW
from magnetar_core.kinds import VolumeExport
from magnetar_core.plan import Step
from magnetar_core.reconcile import refuse_missing

from .document import DocumentDriver

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task, Verb


class ExportDriver(DocumentDriver):
    """The resource driver of volume exports. An export permits one server on another host to use one volume of this
    host."""

    unique_names = False

    def __init__(self) -> None:
        super().__init__(VolumeExport)
        self.verbs: Mapping[str, Verb] = {"open": _open, "close": _close}

    def locate(self, host: LocalHost, key: str) -> str:
        """Return the export's uuid for the key SERVER:VOLUME: the server's uuid, and the volume's name or uuid."""
        server, colon, volume = key.partition(":")
        volume_document = host.documents.find("volume", volume)
        return attaching.attachment_id(server, volume_document.id if volume_document else volume) if colon else key

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* with the volume's uuid. *document*: the stored export; ``None`` for a new
        one. Raises ``InvalidField``, or ``Conflict`` if the volume is still being created, or another server uses it.
        """
        current_volume = document.want["volume"] if document else None
        volume = host.documents.find("volume", want["volume"]) if current_volume else \
            host.documents.standing("volume", want["volume"])
        if volume is None:
            refuse_missing(InvalidField("volume", "must name a volume of this host", want["volume"]), "volume",
                           want["volume"])
            return {**want, "name": f"{want['server']}:{want['volume']}"}
        if not want["peers"]:
            raise InvalidField("peers", "must name one agent at least")
        completed = {**want, "volume": volume.id, "name": f"{want['server']}:{volume.id}"}
        if document is None:
            if completed.pop("id", None) not in (None, attaching.attachment_id(want["server"], volume.id)):
                raise InvalidField("id", "follows from server and volume; use SERVER:VOLUME as the key")
            _check_new(host, completed, volume)
        return completed

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """Return ``None``, because ``observe`` needs no shared data about the host."""
        return None

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the export's stored fields, and whether the volume is served to the other host now (``open``)."""
        return {**document.want, "open": exports.is_open(host, document)}

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps that start or stop serving the volume (``plan_export``)."""
        return plan_export(want, have)

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the export's fields as API responses show them, with data about the volume (``origin``) that the
        server's host needs to attach it."""
        volume = host.documents.get("volume", document.want["volume"])
        values = {**document.want, "id": document.id, "name": document.name, "fault": document.state.get("fault"),
                  "volume_name": volume.name if volume else "",
                  "origin": exports.export_origin(host, volume) if volume else None,
                  "status": "open" if (have or {}).get("open") else "closed",
                  "created_at": document.created_at, "updated_at": document.updated_at}
        return {f.name: values.get(f.name) for f in self.kind.fields if SHOW in f.on}


def plan_export(want: Fields | None, have: Fields | None) -> Iterator[Step]:
    """Yield the steps that start or stop serving a volume to another host. *want*: the requested fields; ``None``:
    stop. *have*: the current fields ``open`` (whether the volume is served) and ``peers`` (the agents that may
    connect)."""
    if want is None:
        yield Step("close", "let nobody use the volume")
    elif not have or not have.get("open") or have["peers"] != want["peers"]:
        yield Step("open", "let the other host use the volume")


def _check_new(host: LocalHost, completed: Fields, volume: Document) -> None:
    if not is_content_complete(volume):
        raise Conflict(f"Volume {volume.name!r} is still being made. Wait until it is available.")
    if not exports.export_origin(host, volume)["pool"]:
        host.links.required()
    if any(attachment.want["server"] == completed["server"] for attachment in attachments_of_volume(host, volume.id)):
        raise Conflict(f"Volume {volume.name!r} is attached to that server, on this very host.")
    other_holders = [holder for holder in holders_of_volume(host, volume.id)
                     if holder.want["server"] != completed["server"]]
    if other_holders and not volume.want["multiattach"]:
        raise Conflict(
            f"Volume {volume.name!r} is attached to server {attaching.server_name(host, other_holders[0])!r} and "
                       "can be in one server only. Detach it there first, or use a volume made with multiattach.",
                       uuids=[other_holders[0].want["server"]])


def _open(task: Task) -> None:
    """Start to serve the volume to the other host."""
    with task.host.locks.hold("volume", task.document.want["volume"]):
        exports.start_export(task.host, task.document)


def _close(task: Task) -> None:
    """Stop serving the volume to the other host."""
    exports.stop_export(task.host, task.document.id)
