# SPDX-License-Identifier: GPL-3.0-or-later
"""The target's disks of a server on its way here: files in its folder, logical volumes with links there, or
RBD images, which are there: what comes is the files that say that they are complete.

A file that comes is called ``.part`` until it is whole; so is the link to a logical volume, which is there before. The
disks of a running guest are filled by libvirt, and have their names before that.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from magnetar_agent.host.file_modes import make_folder
from magnetar_agent.servers import GIB, folder, spec
from magnetar_agent.servers.disks import logical_volumes, own_disks, rbd_images, root_pool
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, NoSpace

from .transfer import NOTE, PART, bytes_present

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import DiskKey
    from magnetar_agent.reconcile.documents import Document, Fields

#: What a file of a server may be called.
NAME = re.compile(r"[a-z][a-z0-9.-]{0,63}")


def check(host: LocalHost, told: Fields, before: Sequence[Fields]) -> None:
    """Raise ``Conflict`` for a server (its manifest *told*) whose disks cannot be logical volumes here, or are RBD
    images that this host does not reach, and ``NoSpace`` where they do not fit, besides those of servers that were let
    in *before* and have not begun to come."""
    format = told.get("root_format", "")
    if format not in root_pool.WHAT:
        return
    try:
        root_pool.check_host(host, "root_format", format)
    except InvalidField as error:
        raise Conflict(f"The disks of the server are {root_pool.WHAT[format]} (root_format {format}), and stay so. "
                       f"{error.message} Set it there, or choose another host.") from None
    if rbd_images.are_wanted(told):
        rbd_images.check_target(host, told["rbd"])
        return
    free = logical_volumes.room(host)[1] - sum(_size(one) for one in before if logical_volumes.are_wanted(one))
    if _size(told) > free:
        raise NoSpace(f"The disks of the server have {_size(told) / GIB:.1f} GiB, and the target's pool "
                      f"{host.settings.root_pool} has {max(0, free) / GIB:.1f} GiB left. Choose another host, or free "
                      "some.")


def _size(told: Fields) -> int:
    return sum(int(disk["virtual_size"]) for disk in told["disks"])


def arrive(given: Fields, before: Fields | None) -> None:
    """Have a server's document *given* say where its disks lie here, as an earlier attempt (*before*) left it. RBD
    images stay where they are."""
    if rbd_images.are_wanted(given["want"]):
        return
    given["state"].pop(root_pool.NOTE, None)
    if before and (note := before["state"].get(root_pool.NOTE)):
        given["state"][root_pool.NOTE] = note


def begin(host: LocalHost, document: Document, server: Document, line: Fields) -> Fields:
    """How many bytes of each file are here of the state that the source has now, ``None`` for all; the *line* tells the
    files, and the disks. All else in the folder goes, such as a disk that the server had at an earlier attempt only.
    Logical volumes are made, and the migration's *document* says where."""
    def keep() -> None:
        document.state["server"]["state"][root_pool.NOTE] = server.state[root_pool.NOTE]
        host.documents.write(document)

    place = folder(host, server.id)
    make_folder(place)
    kept = _kept(place, server.want, line["files"], line.get("states") or {})
    if logical_volumes.are_wanted(server.want):
        logical_volumes.begin(host, server, keep)
        for disk in line["disks"]:
            name = checked(disk["name"])
            if line["live"] or kept.get(name) == 0:
                logical_volumes.allot(host, server, name, int(disk["virtual_size"]))
            if kept.get(name) == 0:
                logical_volumes.link(host, server, name, name + PART)
        keep()
    return kept


def _kept(place: Path, want: Fields, files: Sequence[str], states: Fields) -> Fields:
    names = {checked(name) for name in files}
    for path in place.iterdir():
        if path.name.removesuffix(NOTE).removesuffix(PART) not in names and (path.is_symlink() or not path.is_dir()):
            path.unlink()
    return {name: bytes_present(place / name, states.get(name), is_linked(want, name)) for name in sorted(names)}


def make(host: LocalHost, server: Document, disks: Sequence[Fields], key: DiskKey | None) -> None:
    """Make what libvirt will fill, encrypted with the *key*."""
    place = folder(host, server.id)
    backing = spec.root_backing(server.want, server.state, place)
    for disk in disks:
        if is_linked(server.want, disk["name"]):
            logical_volumes.link(host, server, disk["name"])
        else:
            host.hypervisor.make_disk(place / disk["name"], disk["format"], disk["virtual_size"],
                                      backing if disk["name"] == "disk" else None, key=key)


def remove(host: LocalHost, server: Document) -> None:
    """Remove the logical volumes of a server that does not come."""
    if logical_volumes.are_wanted(server.want):
        own_disks.remove_all(host, server)


def is_linked(want: Fields, name: str) -> bool:
    """Whether the name is that of a link to a logical volume."""
    return logical_volumes.are_wanted(want) and name in spec.written(want)


def checked(name: str) -> str:
    """A name that the source sent. Raises ``InvalidRequest``."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name.endswith((PART, ".at", ".link")):
        raise InvalidRequest(f"The source sends a file with the name {name!r}, which no file of a server has.")
    return name
