# SPDX-License-Identifier: GPL-3.0-or-later
"""volume_export: permission for one server of another host to use a volume of this host; see ``volumes.exports``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from magnetar_agent.volumes import attaching, attachments, exports, finished, holders
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.fields import SHOW
from magnetar_core.kinds import VolumeExport
from magnetar_core.plan import Step
from magnetar_core.reconcile import missing

from .document import DocumentDriver

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task, Verb


class ExportDriver(DocumentDriver):
    """One export for each pair of server and volume."""

    unique_names = False

    def __init__(self) -> None:
        super().__init__(VolumeExport)
        self.verbs: Mapping[str, Verb] = {"open": _open, "close": _close}

    def locate(self, host: LocalHost, key: str) -> str:
        """SERVER:VOLUME, the server's uuid and the volume's name or uuid."""
        server, colon, volume = key.partition(":")
        found = host.documents.find("volume", volume)
        return attaching.identity(server, found.id if found else volume) if colon else key

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Resolve the volume, and refuse one that another server has."""
        kept = document.want["volume"] if document else None
        volume = host.documents.find("volume", want["volume"]) if kept else \
            host.documents.standing("volume", want["volume"])
        if volume is None:
            missing(InvalidField("volume", "must name a volume of this host", want["volume"]), "volume", want["volume"])
            return {**want, "name": f"{want['server']}:{want['volume']}"}
        if not want["peers"]:
            raise InvalidField("peers", "must name one agent at least")
        found = {**want, "volume": volume.id, "name": f"{want['server']}:{volume.id}"}
        if document is None:
            if found.pop("id", None) not in (None, attaching.identity(want["server"], volume.id)):
                raise InvalidField("id", "follows from server and volume; use SERVER:VOLUME as the key")
            _check_new(host, found, volume)
        return found

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """Nothing is shared between looks."""
        return None

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """The document, and whether it is served."""
        return {**document.want, "open": exports.is_open(host, document)}

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """See ``plan``."""
        return plan(want, have)

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """The document with what the other host must know of the volume."""
        volume = host.documents.get("volume", document.want["volume"])
        known = {**document.want, "id": document.id, "name": document.name, "fault": document.state.get("fault"),
                 "volume_name": volume.name if volume else "",
                 "origin": exports.origin(host, volume) if volume else None,
                 "status": "open" if (have or {}).get("open") else "closed",
                 "created_at": document.created_at, "updated_at": document.updated_at}
        return {f.name: known.get(f.name) for f in self.kind.fields if SHOW in f.on}


def plan(want: Fields | None, have: Fields | None) -> Iterator[Step]:
    """From *have* (``open``, ``peers``) to *want*."""
    if want is None:
        yield Step("close", "let nobody use the volume")
    elif not have or not have.get("open") or have["peers"] != want["peers"]:
        yield Step("open", "let the other host use the volume")


def _check_new(host: LocalHost, found: Fields, volume: Document) -> None:
    if not finished(volume):
        raise Conflict(f"Volume {volume.name!r} is still being made. Wait until it is available.")
    if not exports.origin(host, volume)["pool"]:
        host.links.required()
    if any(one.want["server"] == found["server"] for one in attachments(host, volume.id)):
        raise Conflict(f"Volume {volume.name!r} is attached to that server, on this very host.")
    others = [one for one in holders(host, volume.id) if one.want["server"] != found["server"]]
    if others and not volume.want["multiattach"]:
        raise Conflict(f"Volume {volume.name!r} is attached to server {attaching.server_name(host, others[0])!r} and "
                       "can be in one server only. Detach it there first, or use a volume made with multiattach.",
                       uuids=[others[0].want["server"]])


def _open(task: Task) -> None:
    """Serve it."""
    with task.host.locks.hold("volume", task.document.want["volume"]):
        exports.start(task.host, task.document)


def _close(task: Task) -> None:
    """Stop serving it."""
    exports.stop(task.host, task.document.id)
