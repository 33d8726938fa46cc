# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type server_export: copies of stopped servers in folders of the host.

``document.state`` holds ``begun``, the names of the files of an export that is being written, and ``made`` once it is
complete, with ``files``, ``stored_bytes``, ``notes`` and ``server_name``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.servers.exporting import export_folder, export_source, export_writing
from magnetar_core.errors import InvalidField
from magnetar_core.fields import SHOW
from magnetar_core.kinds import Server, ServerExport
from magnetar_core.plan import Step
from magnetar_core.reconcile import refuse_missing

from .document import DocumentDriver

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task, Verb


class ServerExportDriver(DocumentDriver):
    """The driver that writes and removes exports: a folder with copies of a stopped server's disks. An export does not
    change when its server does."""

    def __init__(self) -> None:
        super().__init__(ServerExport)
        self.verbs: Mapping[str, Verb] = {"write": _write, "drop": _drop}

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* with the server's uuid and the whole path of the folder. *document*: the
        stored export; ``None`` for a new one. Raises an error if files must be written and cannot be: the server does
        not exist or is not stopped, or the folder is not allowed, not empty, or full."""
        folder = export_folder.resolve_export_folder(host.settings, want["folder"], want["name"])
        completed = {**want, "folder": str(folder)}
        former = document.want if document is not None else {}
        if document is not None and want["server"] in (former["server"], document.state.get("server_name")):
            completed["server"] = former["server"]
        complete = document is not None and _has_files(document)
        if complete and completed["server"] == former["server"]:
            return completed
        server = host.documents.standing(Server.noun, completed["server"])
        if server is None:
            refuse_missing(InvalidField("server", "must name a server of this host", want["server"]), Server.noun,
                           want["server"])
            return completed
        if not complete:
            if document is None or "begun" not in document.state:
                export_folder.check_empty(folder)
            _check_possible(host, server, folder)
        return {**completed, "server": server.id}

    def check_replacement(self, host: LocalHost, want: Fields, requested: Fields, document: Document) -> None:
        """Raise an error if the requested export *want* cannot be written: its server is missing or cannot be exported
        now, or a new folder is not empty. Called before the stored export *document* is removed."""
        server = host.documents.standing(Server.noun, want["server"])
        if server is None:
            raise InvalidField("server", "must name a server of this host", want["server"])
        if want["folder"] != document.want["folder"]:
            export_folder.check_empty(Path(want["folder"]))
        _check_possible(host, server, Path(want["folder"]))

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the export's stored fields, and whether its files are in its folder (``there``)."""
        return {**document.want, "there": _has_files(document)}

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the step that writes a new or missing export, or removes one."""
        if want is None:
            yield Step("drop", "remove the files of the export")
        elif not have or not have["there"]:
            yield Step("write", f"export the server to {want['folder']}")

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the export's fields as API responses show them, with its status."""
        state = document.state
        status = "error" if state.get("fault") else "creating" if not state.get("made") else (
            "available" if have is None or have.get("there", True) else "missing")
        values = {"files": [], "notes": [], "stored_bytes": 0, **document.want, **state, "id": document.id,
                  "name": document.name, "host": host.name, "status": status, "created_at": document.created_at,
                  "updated_at": document.updated_at}
        return {f.name: values.get(f.name) for f in self.kind.fields if SHOW in f.on}


def _check_possible(host: LocalHost, server: Document, folder: Path) -> None:
    """Raise ``Conflict`` or ``NoSpace`` if *server* cannot be exported to *folder* now."""
    export_source.check_exportable(host, server)
    export_folder.check_export_room(folder, export_source.needed_bytes(host, server))


def _has_files(document: Document) -> bool:
    """Return whether the export is complete and its file of checksums is in its folder. This file is written after all
    other files, and removed before them."""
    return bool(document.state.get("made")) and (Path(document.want["folder"]) / export_folder.CHECKSUMS).is_file()


def _write(task: Task) -> None:
    """Write the export's files."""
    export_writing.write_server_export(task)


def _drop(task: Task) -> None:
    """Remove the export's files."""
    export_writing.drop_server_export(task)
