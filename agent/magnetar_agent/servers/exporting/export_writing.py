# SPDX-License-Identifier: GPL-3.0-or-later
"""The writing of an export: disks, definition, a page for its reader, and checksums.

``begun`` with the names of all files is in the document before the first one is written, so that a removal after a
crash finds them all. The server's lock is held meanwhile: the server does not start before its disks are copied.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_agent.host.write_errors import convert_write_error
from magnetar_agent.reconcile.documents import sync_folder, write_atomically
from magnetar_agent.servers import MIB
from magnetar_agent.volumes import remote
from magnetar_core.errors import Conflict
from magnetar_core.operations import utc_timestamp

from .export_folder import (
    CHECKSUMS,
    check_empty,
    check_export_room,
    prepare_export_folder,
    remove_export_files,
)
from .export_source import boot_files, check_exportable, exported_disks, needed_bytes
from .portable_domain import PortableFiles, make_portable, networks_of_domain

if TYPE_CHECKING:
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

    from .export_source import ExportedDisk

#: The files of each export beside the disks.
DEFINITION, MANIFEST, README = "domain.xml", "manifest.json", "README.txt"
#: Version of the manifest.
VERSION = 1


def write_server_export(task: Task) -> None:
    """Write a server export to the folder that the *task*'s document names: copies of the disks of a stopped server,
    and a domain XML that makes libvirt on any host run the server. Files of an interrupted attempt are replaced. After
    a failure the folder is as before. Raises ``Conflict`` or ``NoSpace``, with nothing written, if the export is not
    possible."""
    host, document = task.host, task.document
    folder = Path(document.want["folder"])
    with host.locks.hold("server_export folder", str(folder)), host.locks.hold("server", document.want["server"]):
        server = host.documents.get("server", document.want["server"])
        if server is None or server.deleting:
            raise Conflict(f"The server of export {document.name!r} is gone, and so are the files of the export. "
                           "Remove the export.")
        check_exportable(host, server)
        disks, boot = exported_disks(host, server), boot_files(host, server)
        names = [*(exported.file for exported in disks), *(name for _path, name in boot.values()), DEFINITION, README,
                 MANIFEST]
        if "begun" in document.state:
            remove_export_files(folder, document.state["begun"])
        check_empty(folder)
        check_export_room(folder, needed_bytes(host, server))
        document.state.pop("made", None)
        document.state.update(begun=names, server_name=server.name)
        task.keep()
        try:
            _write_files(task, server, folder, disks, boot)
        except BaseException as error:
            remove_export_files(folder, names)
            if isinstance(error, OSError):
                raise convert_write_error(error, "export", folder, "Free some room", "folder") from error
            raise
    document.state.pop("begun")
    document.state["made"] = True
    task.keep()


def drop_server_export(task: Task) -> None:
    """Remove the files of the *task*'s server export (disk copies, domain XML) from its folder. Files that the agent
    has not written stay, and so do exported files that were moved to another folder."""
    state = task.document.state
    names = state.get("begun") or [file["name"] for file in state.get("files", ())]
    if names:
        remove_export_files(Path(task.document.want["folder"]), names)


def _write_files(task: Task, server: Document, folder: Path, disks: list[ExportedDisk],
                 boot: dict[str, tuple[Path, str]]) -> None:
    host = task.host
    prepare_export_folder(folder)
    if any(exported.disk.remote for exported in disks):
        remote.check_reachable(host, server)
    for exported in disks:
        _copy_disk(task, exported, folder / exported.file)
    for path, name in boot.values():
        shutil.copyfile(path, folder / name)
        (folder / name).chmod(0o600)
    definition = host.hypervisor.definition(server.id)
    if definition is None:
        raise Conflict(f"The libvirt domain of server {server.name!r} is gone. Start and stop the server, then repeat "
                       "the call.")
    files = PortableFiles({exported.disk.target: (folder / exported.file, exported.format) for exported in disks},
                          {element: folder / name for element, (_path, name) in boot.items()})
    xml, notes = make_portable(definition.xml, portable_name(server.name), files)
    write_atomically(folder / DEFINITION, xml.encode())
    task.document.state["notes"] = notes
    _write_lists(task, server, folder, xml, [*(exported.file for exported in disks),
                                             *(name for _path, name in boot.values())])


def portable_name(name: str) -> str:
    """Return the name of the exported domain for a server called *name*. Slashes, which libvirt and file systems do not
    permit in it, become hyphens, and so do control characters. A *name* that has only dots becomes ``server``."""
    return re.sub(r"[/\x00-\x1f\x7f]", "-", name) if name.strip(".") else "server"


def _copy_disk(task: Task, exported: ExportedDisk, path: Path) -> None:
    disk, phase = exported.disk, f"copy disk {exported.disk.target}"

    def advance(done: int, total: int) -> None:
        task.operation.advance(done, total, "bytes", phase)

    task.host.hypervisor.copy_disk(disk.remote or disk.path, disk.format, path, exported.format, advance)


def _write_lists(task: Task, server: Document, folder: Path, xml: str, names: list[str]) -> None:
    """Complete a server export: write README.txt (instructions for the user), the manifest (JSON) and, last, the list
    of checksums to *folder*. *xml*: the exported domain XML. *names*: the exported disks and boot files in *folder*."""
    state, notes, networks = task.document.state, task.document.state["notes"], networks_of_domain(xml)
    write_atomically(folder / README, readme_text(server.name, portable_name(server.name), folder, networks,
                                                  notes).encode())
    described = [_describe_file(task, folder / name) for name in (*names, DEFINITION, README)]
    manifest = {"version": VERSION, "server": {"id": server.id, "name": server.name}, "host": task.host.name,
                "created_at": utc_timestamp(), "folder": str(folder), "networks": networks, "notes": notes,
                "files": described}
    write_atomically(folder / MANIFEST, (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode())
    described.append(_describe_file(task, folder / MANIFEST))
    state.update(files=described, stored_bytes=sum(file["bytes"] for file in described))
    write_atomically(folder / CHECKSUMS, "".join(f"{file['sha256']}  {file['name']}\n" for file in described).encode())
    sync_folder(folder)


def _describe_file(task: Task, path: Path) -> Fields:
    digest, size, done = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file:
        while piece := file.read(MIB):
            digest.update(piece)
            done += len(piece)
            task.operation.advance(done, size, "bytes", f"checksum of {path.name}")
    return {"name": path.name, "bytes": size, "sha256": digest.hexdigest()}


def readme_text(server: str, domain: str, folder: Path, networks: list[str], notes: list[str]) -> str:
    """Return the text of README.txt in a server export: how to run the server on another host. *server*: the server's
    name. *domain*: the name in the exported domain XML. *folder*: the folder of the disks in this XML. *networks*: the
    networks and bridges of its NICs. *notes*: differences from the server on this host."""
    places = [f"* {network}" for network in networks] or ["* none"]
    remarks = [f"* {note}" for note in notes] or ["* none"]
    return "\n".join([
        f"Server {server}, exported by Magnetar", "",
        "These files run on any host with libvirt and QEMU; Magnetar is not needed.", "",
        "1. Copy the folder to the other host, and check it there:", "",
        f"       sha256sum --check {CHECKSUMS}", "",
        f"2. If it is not {folder} there, correct the paths in the definition:", "",
        f"       sed -i \"s|{folder}|$PWD|\" {DEFINITION}", "",
        "3. Let QEMU's user reach the disks, such as in /var/lib/libvirt/images:", "",
        "       chmod 711 .", "",
        "4. Define and start the guest:", "",
        f"       virsh define {DEFINITION} && virsh start '{domain}'", "",
        "The other host must have these networks and bridges, or change them in the definition:", "", *places, "",
        "Notes:", "", *remarks, ""])
