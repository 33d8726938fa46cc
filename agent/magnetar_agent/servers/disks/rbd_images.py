# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's own disks as RBD images of Ceph (``root_format`` rbd, Nova's ``images_type``): root, ephemeral, swap disk.

A disk is the image UUID_MARK_FILE of a pool of type rbd, which other hosts reach too. The *mark* is a random text,
drawn when the first disk of a server is made and recorded in the server's document. The document moves with the server:
the host that has it owns the images. An evacuated server gets a new document and another mark, under which its images
are made again or renamed (``rbd_owner``), so the host that was down can neither start from them nor remove them. A file
FILE in the server's folder, which contains the image's name, marks the disk as complete; a disk without this file is
made again. ``document.state["pool"]`` is {name, mark, base}: *base* is the SHA-256 of the content under the root disk.

A root disk is a clone of a base: the content of the server's image as raw, once in the pool, with the name BASE and the
content's SHA-256. Two hosts may write a base at the same time, since both write the same. A base is removed with its
image, or with its last clone if the image was removed before.
"""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.storage import Disk
from magnetar_agent.reconcile.documents import write_atomically
from magnetar_agent.servers import server_folder
from magnetar_core.errors import Conflict, MagnetarError

from . import root_pool
from .disk_record import DISK_FILE, RECORDED
from .root_pool import NOTE, RBD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import NetworkSource, Progress, RbdPool
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

BASE = "magnetar-base-"
#: Suffix of the file of a disk that is being removed.
GOING = ".link"
#: Files that mark a disk as complete, or as being removed.
_FILE = re.compile(rf"{DISK_FILE.pattern}(?:{re.escape(GOING)})?")
#: Images of servers; the group is the uuid and the mark.
RBD_IMAGE = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}_[0-9a-f]{8})_disk.*")


def uses_rbd_images(want: Mapping[str, Any]) -> bool:
    """Return whether the root, ephemeral and swap disks of a server with the desired fields *want* are Ceph RBD images.
    """
    return want.get("root_format") == RBD


def room(host: LocalHost) -> tuple[int, int]:
    """Return the total and the free bytes of the Ceph pool for new disks. All hosts share this pool."""
    return host.hypervisor.rbd_room(root_pool.configured_root_pool(host, RBD).pool)


def rbd_pool_of_server(host: LocalHost, document: Document) -> RbdPool:
    """Return the Ceph pool that contains the server's disks."""
    return host.hypervisor.rbd_pool(root_pool.root_pool_of_server(host, document, RBD).pool)


def rbd_disk_source(host: LocalHost, document: Document, file: str) -> NetworkSource | None:
    """Return the network source (Ceph monitors, pool, image) from which QEMU opens the disk *file*; ``None`` if the
    server has no disks yet. Raises ``Conflict`` if another host may be using the disks."""
    check_rbd_ownership(host, document)
    return rbd_pool_of_server(host, document).source(rbd_image_name(document, file)) if NOTE in document.state else None


def check_rbd_ownership(host: LocalHost, document: Document) -> None:
    """Raise ``Conflict`` if the server's RBD images may be in use on another host, because a migration may have moved
    the server there: two guests that write to the same disks would destroy their content."""
    if uses_rbd_images(document.want) and NOTE not in document.state and any(
            _FILE.fullmatch(path.name) for path in server_folder(host, document.id).glob("disk*")):
        raise Conflict(f"The disks of server {document.name!r} may be another host's: its migration from here was "
                       "ended with the event discard. Look for the server there, and delete it here.")


def rbd_disk_size(host: LocalHost, document: Document, file: str) -> int | None:
    """Return the size of the disk *file* in bytes; ``None`` if its RBD image does not exist."""
    return rbd_pool_of_server(host, document).size(rbd_image_name(document, file)) if NOTE in document.state else None


def _begin(task: Task, base: str | None = None) -> RbdPool:
    """Return the Ceph pool for the server's disks, and store it in the server's document before the first disk is
    created. *base*: SHA-256 of the image content that the root disk is cloned from, stored in the document too."""
    state = task.document.state
    note = dict(state.get(NOTE) or {"name": root_pool.configured_root_pool(task.host, RBD).name,
                                    "mark": uuid.uuid4().hex[:8]})
    if base is not None:
        note["base"] = base
    if note != state.get(NOTE) or RECORDED in state:
        state[NOTE] = note
        state.pop(RECORDED, None)  # the image that has the record may be made again, without it
        task.keep()
    return rbd_pool_of_server(task.host, task.document)


def make(task: Task, file: str, bytes: int, label: str | None = None) -> None:
    """Create the RBD image for the disk *file* with a size of *bytes*. *label*: ``swap`` to create a swap area on it,
    otherwise the label of an ext4 file system to create; ``None`` to leave it empty."""
    host, document = task.host, task.document
    pool, name = _begin(task), rbd_image_name(document, file)
    _anew(pool, name, lambda: pool.make(name, bytes))
    if label is not None:
        path = server_folder(host, document.id) / f"{file}.new"
        host.hypervisor.make_disk(path, "raw", bytes, label=label)
        try:
            _copy(host, pool, Disk(path, "", "raw"), name, lambda _done, _total: None)
        finally:
            path.unlink(missing_ok=True)
    complete_rbd_disk(host, document, file)


def fill(task: Task, file: str, bytes: int, image: Disk, progress: Progress) -> None:
    """Create the RBD image for the disk *file* as a clone of the content of *image*, and grow it to *bytes*. If the
    content was never cloned before, it is first uploaded to Ceph. *progress*: called with the uploaded and the total
    bytes."""
    host, document = task.host, task.document
    digest = document.state["base"]["digest"]
    pool, name, base = _begin(task, digest), rbd_image_name(document, file), BASE + digest
    with host.locks.hold("rbd", base):
        if not pool.is_base(base):
            _make_base(host, pool, base, image, progress)
    _anew(pool, name, lambda: pool.clone(base, name))
    pool.grow(name, bytes)
    complete_rbd_disk(host, document, file)


def _make_base(host: LocalHost, pool: RbdPool, base: str, image: Disk, progress: Progress) -> None:
    disk_info = host.hypervisor.disk(image.path, image.format)
    if disk_info is None:
        raise Conflict("The content of the image went while the server was made: the image is removed, or recreated. "
                       "Repeat the call.")
    with suppress(Conflict):  # a killed agent began it, or another host just now
        pool.make(base, disk_info.virtual_size)
    _copy(host, pool, image, base, progress)
    pool.protect(base)


def _copy(host: LocalHost, pool: RbdPool, image: Disk, name: str, progress: Progress) -> None:
    """Copy the disk *image* into the existing RBD image *name*. Zeros are not written: the RBD image must be empty or
    contain an incomplete copy of the same disk."""
    place = pool.source(name)
    host.hypervisor.copy_into(image.path, image.format, Disk(Path(place.name), "", "raw", remote=place), progress,
                              blank=True)


def _anew(pool: RbdPool, name: str, work: Callable[[], None]) -> None:
    """Call *work*, which creates the RBD image *name*. If it raises ``Conflict`` because a failed attempt left such an
    image, remove that image and call *work* again."""
    try:
        work()
    except Conflict:
        pool.remove(name)
        work()


def complete_rbd_disk(host: LocalHost, document: Document, file: str) -> None:
    """Write the file that marks the server's disk *file* as complete."""
    place = server_folder(host, document.id)
    (place / (file + GOING)).unlink(missing_ok=True)
    write_atomically(place / file, f"{rbd_image_name(document, file)}\n".encode(), durable=False)


def grow(host: LocalHost, document: Document, file: str, bytes: int) -> None:
    """Grow the RBD image of the disk *file* to *bytes*. The server must be off."""
    rbd_pool_of_server(host, document).grow(rbd_image_name(document, file), bytes)


def remove(host: LocalHost, document: Document, files: Iterable[str]) -> None:
    """Remove the RBD images of the disks *files* and their marker files in the server's folder. Missing disks are
    ignored. A marker file says that its disk is complete. It is therefore renamed before the RBD image is removed, and
    deleted afterwards."""
    place, files = server_folder(host, document.id), list(files)
    if document.state.get(RECORDED, {}).get("file") in files:  # its absence means that another host has taken over
        del document.state[RECORDED]
        host.documents.write(document)
    for file in files:
        with suppress(FileNotFoundError):
            (place / file).rename(place / (file + GOING))
        if NOTE in document.state:
            rbd_pool_of_server(host, document).remove(rbd_image_name(document, file))
        (place / (file + GOING)).unlink(missing_ok=True)
    _forget_base(host, document)


def tidy(host: LocalHost, document: Document, needed_files: Iterable[str]) -> None:
    """Remove disks of the server that are not in *needed_files*: leftovers of an agent that was killed."""
    present_files = {path.name.removesuffix(GOING) for path in server_folder(host, document.id).iterdir()
                     if _FILE.fullmatch(path.name)}
    if stale_files := present_files.difference(needed_files):
        remove(host, document, sorted(stale_files))


def remove_all(host: LocalHost, document: Document) -> None:
    """Remove all RBD images of the server, which are found by their names, including those of interrupted operations.
    """
    if NOTE in document.state:
        pool, begins = rbd_pool_of_server(host, document), rbd_image_name(document, "")
        for name in sorted(pool.names(), reverse=True):  # the first one, with the owner's record, goes last
            if name.startswith(begins):
                pool.remove(name)
        _forget_base(host, document)


def hand_over(document: Document) -> None:
    """Remove the reference to the RBD images from *document*, because its server has migrated to another host. After
    this, deleting the document on this host does not remove the images."""
    if uses_rbd_images(document.want):
        document.state.pop(NOTE, None)


def _forget_base(host: LocalHost, document: Document) -> None:
    """Remove from Ceph the base image from which the server's root disk was cloned, unless an image on this host has
    the same content or another server still uses the base image."""
    digest = document.state.get(NOTE, {}).get("base")
    if digest and digest not in _digests(host):
        rbd_pool_of_server(host, document).remove_base(BASE + digest)


def forget_rbd_base(host: LocalHost, digest: str) -> None:
    """Remove from Ceph the base image whose content has the SHA-256 *digest*, after an image with this content was
    removed from this host. A base image that servers still use is removed with the last of these servers. If the Ceph
    pool cannot be used, do nothing."""
    if root_pool.type_of(host, host.settings.root_pool) == RBD:
        with suppress(MagnetarError):
            host.hypervisor.rbd_pool(root_pool.configured_root_pool(host, RBD).pool).remove_base(BASE + digest)


def _digests(host: LocalHost) -> set[str]:
    """Return the SHA-256 hashes of the contents of all images on this host."""
    return {str((image.state.get("digests") or {}).get("sha256")) for image in host.documents.peek("image")}


def complete_rbd_disks(host: LocalHost, document: Document) -> list[str]:
    """Return the file names of the server's complete disks, such as ``disk.swap``. The root disk (``disk``) comes
    first."""
    return sorted(path.name for path in server_folder(host, document.id).glob("disk*")
                  if DISK_FILE.fullmatch(path.name))


# Other hosts ------------------------------------------------------------------------------------------------------
def describe_rbd_images(host: LocalHost, document: Document, files: Iterable[str]) -> Fields:
    """Return where the target host of a migration finds the server's disks *files*: ``{"pool": name, "images": [RBD
    image name, …]}``. The pool is ``None`` if the server has no disks."""
    place = server_folder(host, document.id)
    note = document.state.get(NOTE) or {}
    return {"pool": note.get("name"), "images": [rbd_image_name(document, file) for file in files
                                                 if (place / file).exists()]}


def check_rbd_target(host: LocalHost, described: Fields) -> None:
    """Raise ``Conflict`` if this host, the target of a migration, cannot reach the server's RBD images. *described*:
    the result of ``describe_rbd_images`` on the source host."""
    name = described["pool"]
    if not name:  # it has none
        return
    if root_pool.type_of(host, name) != RBD:
        raise Conflict(f"The disks of the server are RBD images of the pool {name!r} (root_format rbd), and are not "
                       f"copied. The target's agent has no pool of type rbd of that name in its setting pools. Set it "
                       "there, or choose another host.")
    pool = host.hypervisor.rbd_pool(root_pool.find_root_pool(host, name, "the server", RBD).pool)
    if lost := [image for image in described["images"] if pool.size(image) is None]:
        raise Conflict(f"The disks of the server are RBD images, and the target's pool {name!r} has no "
                       f"{', '.join(lost)}: it is another pool of Ceph than the source's. Have the setting pools name "
                       "the same on both, or choose another host.")


def unclaimed_rbd_images(host: LocalHost, servers: Iterable[tuple[str, Fields, Fields]]) -> list[str]:
    """Return the names of those server disks in the Ceph pool for new disks that belong to none of *servers*; empty if
    the pool cannot be used. *servers*: for each server its uuid, its desired fields, and its state fields (notes of the
    agent, which contain a part of the RBD image names)."""
    known_marks = {f"{id}_{state[NOTE]['mark']}" for id, want, state in servers if uses_rbd_images(want)
                   and NOTE in state}
    with suppress(MagnetarError):  # a stopped pool lists nothing
        names = host.hypervisor.rbd_pool(root_pool.configured_root_pool(host, RBD).pool).names()
        return list(_strange(names, known_marks))
    return []


def _strange(names: Iterable[str], known_marks: set[str]) -> Iterator[str]:
    for name in names:
        match = RBD_IMAGE.fullmatch(name)
        if match and match[1] not in known_marks:
            yield name


def rbd_image_name(document: Document, file: str) -> str:
    """Return the name of the RBD image of the server's disk *file*: the server's uuid, its mark and *file*. The mark is
    a random text, which must be in the server's document already (see ``_begin``)."""
    return f"{document.id}_{document.state[NOTE]['mark']}_{file}"
