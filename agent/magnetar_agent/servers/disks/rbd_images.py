# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's own disks as RBD images of Ceph (``root_format`` rbd, Nova's ``images_type``): root, ephemeral, swap disk.

A disk is the image UUID_MARK_FILE of a pool of type rbd, which other hosts reach too. The *mark* is drawn when a
server's first disk is made, and goes with its document, also to another host: whoever has the document has the images,
and an evacuated server, which is made anew elsewhere, has others than the document on the host that was away. In the
server's folder a file FILE, with the image's name as text, says that the disk is complete: what has none is made anew.
``document.state["pool"]`` is {name, mark, base}: *base* is the SHA-256 of the content that the root disk stands on.

A root disk is a clone of a base, which is the content of the server's image as raw, once in the pool: BASE and the
content's SHA-256. Two hosts may write it at once, since both write the same. It goes with the image, or with the last
clone where the image has gone before.
"""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.storage import Disk
from magnetar_agent.reconcile.documents import write_atomically
from magnetar_agent.servers import folder
from magnetar_core.errors import Conflict, MagnetarError

from . import root_pool
from .root_pool import NOTE, RBD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import NetworkSource, Progress, RbdPool
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

BASE = "magnetar-base-"
#: Ends the name of the file of a disk that goes.
GOING = ".link"
#: Files that say that a disk is complete, or goes.
_FILE = re.compile(r"disk(?:\.swap|\.ephemeral[0-9]*)?(?:\.link)?")
#: Images of servers: of which, and of which making.
_IMAGE = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}_[0-9a-f]{8})_disk.*")


def are_wanted(want: Mapping[str, Any]) -> bool:
    """Whether the server's own disks are RBD images."""
    return want.get("root_format") == RBD


def room(host: LocalHost) -> tuple[int, int]:
    """Bytes that the pool of new disks can hold, for all hosts together, and those that are free."""
    return host.hypervisor.rbd_room(root_pool.of_settings(host, RBD).pool)


def of(host: LocalHost, document: Document) -> RbdPool:
    """The pool in which a server's disks lie."""
    return host.hypervisor.rbd_pool(root_pool.of(host, document, RBD).pool)


def source(host: LocalHost, document: Document, file: str) -> NetworkSource | None:
    """How QEMU reaches the disk; ``None`` before the server has any. Raises as ``check_here``."""
    check_here(host, document)
    return of(host, document).source(_name(document, file)) if NOTE in document.state else None


def check_here(host: LocalHost, document: Document) -> None:
    """Raise ``Conflict`` for a server whose disks may be another host's (``hand_over``): two guests on the same disks
    would destroy what is on them."""
    if are_wanted(document.want) and NOTE not in document.state and any(
            _FILE.fullmatch(one.name) for one in folder(host, document.id).glob("disk*")):
        raise Conflict(f"The disks of server {document.name!r} may be another host's: its migration from here was "
                       "ended with the event discard. Look for the server there, and delete it here.")


def size(host: LocalHost, document: Document, file: str) -> int | None:
    """Bytes of the disk; ``None`` where it is gone."""
    return of(host, document).size(_name(document, file)) if NOTE in document.state else None


def _begin(task: Task, base: str | None = None) -> RbdPool:
    """Note where the disks will lie, and on what content the root disk will stand, before either is made."""
    state = task.document.state
    note = dict(state.get(NOTE) or {"name": root_pool.of_settings(task.host, RBD).name, "mark": uuid.uuid4().hex[:8]})
    if base is not None:
        note["base"] = base
    if note != state.get(NOTE):
        state[NOTE] = note
        task.keep()
    return of(task.host, task.document)


def make(task: Task, file: str, bytes: int, label: str | None = None) -> None:
    """An empty disk, or one that holds nothing but what *label* asks for (``HypervisorDisks.make_disk``)."""
    host, document = task.host, task.document
    pool, name = _begin(task), _name(document, file)
    _anew(pool, name, lambda: pool.make(name, bytes))
    if label is not None:
        path = folder(host, document.id) / f"{file}.new"
        host.hypervisor.make_disk(path, "raw", bytes, label=label)
        try:
            _copy(host, pool, Disk(path, "", "raw"), name, lambda _done, _total: None)
        finally:
            path.unlink(missing_ok=True)
    _complete(host, document, file)


def fill(task: Task, file: str, bytes: int, image: Disk, progress: Progress) -> None:
    """A clone of an image's content, grown to so many *bytes*."""
    host, document = task.host, task.document
    digest = document.state["base"]["digest"]
    pool, name, base = _begin(task, digest), _name(document, file), BASE + digest
    with host.locks.hold("rbd", base):
        if not pool.is_base(base):
            _make_base(host, pool, base, image, progress)
    _anew(pool, name, lambda: pool.clone(base, name))
    pool.grow(name, bytes)
    _complete(host, document, file)


def _make_base(host: LocalHost, pool: RbdPool, base: str, image: Disk, progress: Progress) -> None:
    seen = host.hypervisor.disk(image.path, image.format)
    if seen is None:
        raise Conflict("The content of the image went while the server was made: the image is removed, or made anew. "
                       "Repeat the call.")
    with suppress(Conflict):  # begun by an agent that was killed, or by another host just now
        pool.make(base, seen.virtual_size)
    _copy(host, pool, image, base, progress)
    pool.protect(base)


def _copy(host: LocalHost, pool: RbdPool, image: Disk, name: str, progress: Progress) -> None:
    """Copy into what holds nothing but perhaps parts of the same."""
    place = pool.source(name)
    host.hypervisor.copy_into(image.path, image.format, Disk(Path(place.name), "", "raw", remote=place), progress,
                              blank=True)


def _anew(pool: RbdPool, name: str, work: Callable[[], None]) -> None:
    """Make an image; what an attempt left under its name goes."""
    try:
        work()
    except Conflict:
        pool.remove(name)
        work()


def _complete(host: LocalHost, document: Document, file: str) -> None:
    place = folder(host, document.id)
    (place / (file + GOING)).unlink(missing_ok=True)
    write_atomically(place / file, f"{_name(document, file)}\n".encode(), durable=False)


def grow(host: LocalHost, document: Document, file: str, bytes: int) -> None:
    """Grow the disk of a server that is off."""
    of(host, document).grow(_name(document, file), bytes)


def remove(host: LocalHost, document: Document, files: Iterable[str]) -> None:
    """Remove disks; gone is fine. Each is not complete any more before it goes."""
    place = folder(host, document.id)
    for file in files:
        with suppress(FileNotFoundError):
            (place / file).rename(place / (file + GOING))
        if NOTE in document.state:
            of(host, document).remove(_name(document, file))
        (place / (file + GOING)).unlink(missing_ok=True)
    _forget_base(host, document)


def tidy(host: LocalHost, document: Document, wanted: Iterable[str]) -> None:
    """Remove disks that are not *wanted* any more, and of which an agent that was killed has left the files."""
    found = {one.name.removesuffix(GOING) for one in folder(host, document.id).iterdir() if _FILE.fullmatch(one.name)}
    if left := found.difference(wanted):
        remove(host, document, sorted(left))


def remove_all(host: LocalHost, document: Document) -> None:
    """Remove all disks that have the server's name and mark."""
    if NOTE in document.state:
        pool, begins = of(host, document), _name(document, "")
        for name in pool.names():
            if name.startswith(begins):
                pool.remove(name)
        _forget_base(host, document)


def hand_over(document: Document) -> None:
    """The disks are another host's from now on, to which the document has gone: nothing of them is removed here."""
    if are_wanted(document.want):
        document.state.pop(NOTE, None)


def _forget_base(host: LocalHost, document: Document) -> None:
    """Remove the base of an image that is not on this host any more, unless other servers stand on it."""
    digest = document.state.get(NOTE, {}).get("base")
    if digest and digest not in _digests(host):
        of(host, document).remove_base(BASE + digest)


def forget(host: LocalHost, digest: str) -> None:
    """The content of an image goes from this host: so does its base, unless servers stand on it, with the last of which
    it goes. A pool that cannot be had keeps it."""
    if root_pool.type_of(host, host.settings.root_pool) == RBD:
        with suppress(MagnetarError):
            host.hypervisor.rbd_pool(root_pool.of_settings(host, RBD).pool).remove_base(BASE + digest)


def _digests(host: LocalHost) -> set[str]:
    """Of the contents of all images of this host."""
    return {str((one.state.get("digests") or {}).get("sha256")) for one in host.documents.peek("image")}


# Other hosts ------------------------------------------------------------------------------------------------------
def told(host: LocalHost, document: Document, files: Iterable[str]) -> Fields:
    """What another host must know of the disks of a server that is to go there."""
    place = folder(host, document.id)
    note = document.state.get(NOTE) or {}
    return {"pool": note.get("name"), "images": [_name(document, file) for file in files if (place / file).exists()]}


def check_target(host: LocalHost, given: Fields) -> None:
    """Raise ``Conflict`` where this host, which has such disks, does not reach those of a server that is to come (see
    ``told``)."""
    name = given["pool"]
    if not name:  # it has none
        return
    if root_pool.type_of(host, name) != RBD:
        raise Conflict(f"The disks of the server are RBD images of the pool {name!r} (root_format rbd), and are not "
                       f"copied. The target's agent has no pool of type rbd of that name in its setting pools. Set it "
                       "there, or choose another host.")
    pool = host.hypervisor.rbd_pool(root_pool.named(host, name, "the server", RBD).pool)
    if lost := [one for one in given["images"] if pool.size(one) is None]:
        raise Conflict(f"The disks of the server are RBD images, and the target's pool {name!r} has no "
                       f"{', '.join(lost)}: it is another pool of Ceph than the source's. Have the setting pools name "
                       "the same on both, or choose another host.")


def unknown(host: LocalHost, servers: Iterable[tuple[str, Fields, Fields]]) -> list[str]:
    """Images of servers in the pool that are of none of these *servers* (uuid, want, state of each)."""
    known = {f"{id}_{state[NOTE]['mark']}" for id, want, state in servers if are_wanted(want) and NOTE in state}
    with suppress(MagnetarError):  # a pool that does not run has nothing to tell
        names = host.hypervisor.rbd_pool(root_pool.of_settings(host, RBD).pool).names()
        return list(_strange(names, known))
    return []


def _strange(names: Iterable[str], known: set[str]) -> Iterator[str]:
    for name in names:
        found = _IMAGE.fullmatch(name)
        if found and found[1] not in known:
            yield name


def _name(document: Document, file: str) -> str:
    return f"{document.id}_{document.state[NOTE]['mark']}_{file}"
