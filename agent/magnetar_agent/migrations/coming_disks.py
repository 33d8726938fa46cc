# SPDX-License-Identifier: GPL-3.0-or-later
"""The disks, on the target, of a server that migrates: files in its folder, logical volumes with links in the folder,
or RBD images. RBD images exist already: only the files that mark them as complete are sent.

An incoming file has the suffix ``.part`` until it is complete. A link to a logical volume has the suffix, too, until
all of its content has come. libvirt fills the disks of a running guest, which have their final names from the start.
Disks in a folder that both hosts share (``disk_owner``) are neither sent nor made.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from magnetar_agent.host.disk_folder import find_disk_folder
from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.servers import GIB, server_folder, spec
from magnetar_agent.servers.disks import disk_owner, logical_volumes, own_disks, rbd_images, root_pool
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, NoSpace

from .transfer import NOTE, PART, bytes_present

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import DiskKey
    from magnetar_agent.reconcile.documents import Document, Fields

#: Note of a migration on both hosts: the server's disks lie in a folder that both share.
SHARED = "shared_disks"
#: Valid names of a server's files.
NAME = re.compile(r"[a-z][a-z0-9.-]{0,63}")


def are_disks_shared(host: LocalHost, manifest: Fields) -> bool:
    """Return whether source and this host share the folder with the server's disks, so that none is copied. *manifest*:
    the source's description of the server. Raises ``Conflict`` if this host's shared folder cannot be used now."""
    folder = find_disk_folder(host)
    return folder is not None and manifest.get("disk_folder") == folder.id


def check_target_folder(host: LocalHost, manifest: Fields) -> None:
    """Raise ``Conflict`` if copying the server would overwrite disks of another host, in a folder that both hosts
    mount. *manifest*: the source's description of the server."""
    id = manifest["server"]
    if not are_disks_shared(host, manifest) and disk_owner.is_folder_of_another_host(host, id):
        raise Conflict(f"The target has the folder {server_folder(host, id)} already, and it is not the target's own: "
                       "both hosts may mount the same storage. Set instances_path on both of them.")


def check_disk_room(host: LocalHost, manifest: Fields, admitted: Sequence[Fields]) -> None:
    """Raise ``Conflict`` if this host cannot provide the logical volumes or RBD images of an incoming server, and
    ``NoSpace`` if its disks do not fit. *manifest*: the source's description of the server. *admitted*: manifests of
    other incoming servers, whose space counts as used."""
    format = manifest.get("root_format", "")
    if format not in root_pool.WHAT:
        return
    try:
        root_pool.check_host(host, "root_format", format)
    except InvalidField as error:
        raise Conflict(f"The disks of the server are {root_pool.WHAT[format]} (root_format {format}), and stay so. "
                       f"{error.message} Set it there, or choose another host.") from None
    if rbd_images.uses_rbd_images(manifest):
        rbd_images.check_rbd_target(host, manifest["rbd"])
        return
    free = logical_volumes.room(host)[1] - sum(_size(other_manifest) for other_manifest in admitted
                                               if logical_volumes.uses_logical_volumes(other_manifest))
    if _size(manifest) > free:
        raise NoSpace(f"The disks of the server have {_size(manifest) / GIB:.1f} GiB, and the target's pool "
                      f"{host.settings.root_pool} has {max(0, free) / GIB:.1f} GiB left. Choose another host, or free "
                      "some.")


def _size(manifest: Fields) -> int:
    return sum(int(disk["virtual_size"]) for disk in manifest["disks"])


def set_disk_location(server: Fields, earlier: Fields | None) -> None:
    """Remove the source's location of the disks (their storage pool) from *server*, the server's document from the
    source. If *earlier*, the server's document from an earlier attempt of the migration, has a location on this host,
    store this location instead, because that attempt may have created disks there. The location of RBD images is the
    same on both hosts, and stays."""
    if rbd_images.uses_rbd_images(server["want"]):
        return
    server["state"].pop(root_pool.NOTE, None)
    if earlier and (note := earlier["state"].get(root_pool.NOTE)):
        server["state"][root_pool.NOTE] = note


def prepare_target_disks(host: LocalHost, document: Document, server: Document, line: Fields) -> Fields:
    """Prepare the folder and logical volumes of an incoming server. *line*: the arguments of the call ``begin`` that
    the source's agent has sent, with the names of the server's files and disks.

    Return how many bytes of each file this host has already from an earlier attempt of the migration, by file name;
    ``None`` for a complete file. Files that have changed on the source since count as 0. Files that are not in *line*
    are removed. Disks that both hosts share are not changed. The migration's *document* records the location of logical
    volumes.
    """
    def keep() -> None:
        document.state["server"]["state"][root_pool.NOTE] = server.state[root_pool.NOTE]
        host.documents.write(document)

    if document.state.get(SHARED):
        return {}
    place = server_folder(host, server.id)
    make_state_folder(place)
    disk_owner.check_disk_owner(host, server)
    present = _bytes_by_file(place, server.want, line["files"], line.get("states") or {})
    if logical_volumes.uses_logical_volumes(server.want):
        logical_volumes.note_lvm_pool(host, server, keep)
        for disk in line["disks"]:
            name = check_file_name(disk["name"])
            if line["live"] or present.get(name) == 0:
                logical_volumes.allot_logical_volume(host, server, name, int(disk["virtual_size"]))
            if present.get(name) == 0:
                logical_volumes.link_logical_volume(host, server, name, name + PART)
        keep()
    return present


def _bytes_by_file(folder: Path, want: Fields, files: Sequence[str], states: Fields) -> Fields:
    names = {check_file_name(name) for name in files}
    for path in folder.iterdir():
        if path.name.removesuffix(NOTE).removesuffix(PART) not in {*names, disk_owner.FILE} and (
                path.is_symlink() or not path.is_dir()):
            path.unlink()
    return {name: bytes_present(folder / name, states.get(name), is_linked(want, name)) for name in sorted(names)}


def make_target_disks(host: LocalHost, server: Document, disks: Sequence[Fields], key: DiskKey | None) -> None:
    """Create the *disks* of an incoming *server*, so that libvirt can copy their content into them. For disks on
    logical volumes, which exist already, only create the symlinks. *key*: encrypts the new disk files; ``None`` for no
    encryption."""
    place = server_folder(host, server.id)
    backing = spec.root_backing(server.want, server.state, place)
    for disk in disks:
        if is_linked(server.want, disk["name"]):
            logical_volumes.link_logical_volume(host, server, disk["name"])
        else:
            host.hypervisor.make_disk(place / disk["name"], disk["format"], disk["virtual_size"],
                                      backing if disk["name"] == "disk" else None, key=key)


def remove_target_disks(host: LocalHost, server: Document) -> None:
    """Remove the logical volumes of an incoming server after an abort of its migration."""
    if logical_volumes.uses_logical_volumes(server.want):
        own_disks.remove_server_folder(host, server)


def is_linked(want: Fields, name: str) -> bool:
    """Return whether the file *name* of a server is a symbolic link to a logical volume. *want*: the server's fields.
    """
    return logical_volumes.uses_logical_volumes(want) and name in spec.guest_written_files(want)


def check_file_name(name: str) -> str:
    """Return *name*, a file name that the source sent. Raises ``InvalidRequest`` unless a server can have a file of
    that name."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name.endswith((PART, ".at", ".link")):
        raise InvalidRequest(f"The source sends a file with the name {name!r}, which no file of a server has.")
    return name
