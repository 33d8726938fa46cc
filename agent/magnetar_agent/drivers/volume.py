# SPDX-License-Identifier: GPL-3.0-or-later
"""volume and volume_snapshot: content in a pool.

``document.state`` holds ``made`` (the content is there in full), ``bytes`` (its size), ``bootable``, and
``source_name`` (what it was made from, since that may go). A snapshot's state has ``pool``, ``format`` and
``volume_name`` too. Until it is made there is ``begun``: without it, content of that name is somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from magnetar_agent.migrations import refuse_while_it_moves
from magnetar_agent.volumes import (
    GIB,
    attaching,
    attachments,
    content,
    copying,
    exports,
    finished,
    gib,
    holders,
    keys,
    pools,
    reimaging,
    status,
)
from magnetar_core.errors import Conflict, Immutable, InUse, InvalidField, MagnetarError
from magnetar_core.fields import SHOW
from magnetar_core.kinds import Volume, VolumeSnapshot
from magnetar_core.plan import Step
from magnetar_core.power import LIVE, SUSPENDED
from magnetar_core.reconcile import missing

from .document import DocumentDriver

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task, Verb
    from magnetar_agent.volumes.pools import Pool

COPIES = {"image": copying.from_image, "source_volume": copying.from_volume, "snapshot": copying.from_snapshot}


class VolumeDriver(DocumentDriver):
    """Volumes are files or libvirt volumes called by their uuid."""

    def __init__(self) -> None:
        super().__init__(Volume)
        self.verbs: Mapping[str, Verb] = {"make": _make, "reimage": _reimage, "grow": _grow, "drop": _drop}

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Resolve the source, and choose format and size."""
        found = dict(want)
        pool = pools.named(host, found["pool"])
        hidden = _origin_is_encrypted(host, found) if document is None else False
        found["format"] = found.get("format") or (
            keys.LUKS if hidden else "raw" if found["multiattach"] else pool.formats[0])
        if found["format"] not in pool.formats:
            raise InvalidField("format", f"must be {' or '.join(pool.formats)} in pool {pool.name!r}", found["format"])
        if found["multiattach"] and found["format"] != "raw":
            raise InvalidField("format", "must be raw for a volume with multiattach: two QEMUs would ruin a qcow2")
        least, anew = source(host, found, document), reimaging.complete(host, found, document)
        _encryption(host, found, document, hidden)
        if document is None or not finished(document) or anew:
            pool.check_usable()
            found["size"] = _size(found.get("size"), anew or least)
        if document is None or found.get("size") != document.want.get("size"):
            _fits(host, pool, found["size"])
        if document is not None and found.get("size") != document.want.get("size"):
            attaching.refuse_while_swapped(host, document.id)
        return found

    def check_replacement(self, host: LocalHost, want: Fields, given: Fields, document: Document) -> None:
        """Its pool and source must be usable, and the source cannot be the volume that is replaced."""
        pools.named(host, want["pool"]).check_usable()
        for field, kind in content.SOURCES.items():
            origin = host.documents.get(kind, want[field]) if want.get(field) else None
            if origin and origin.id == document.id:
                raise InvalidField(field, "must be another volume: this one is gone when it is made anew", origin.name)
            if origin is None and want.get(field) and want[field] == document.want.get(field):
                raise InvalidField(field, "is not here any more, so it cannot be made anew from it; name another "
                                          "source", document.state.get("source_name"))
            if origin:
                _size(want["size"], content.source_bytes(field, origin, origin.name, field))

    def release(self, host: LocalHost, document: Document) -> None:
        """Refused while a server has it."""
        users = sorted(attaching.server_name(host, one) for one in holders(host, document.id))
        if users:
            raise InUse(f"Volume {document.name!r} is attached to {', '.join(users)}. Detach it first.", users=users)

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """All that have volumes, by the uuid of the volume and then of the server."""
        found: dict[str, dict[str, Document]] = {}
        for noun in ("volume_export", "volume_attachment"):
            for one in host.documents.list(noun):
                found.setdefault(one.want["volume"], {})[one.want["server"]] = one
        return found

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """The document, and whether the content is *made*, is *there*, and how many *bytes* it has."""
        return {**document.want, **_content(host, document, document.want["pool"]),
                "reimaged": document.state.get("reimaged")}

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Make, grow or remove the content."""
        return plan(want, have)

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Cinder's names for what it is."""
        used = holders(host, document.id) if snapshot is None else [*snapshot.get(document.id, {}).values()]
        renewed = document.state.get("reimaged")
        known = {**document.want, **document.state, "id": document.id, "name": document.name,
                 **({**dict.fromkeys(content.SOURCES), "image": renewed["image"]} if renewed else {}),
                 "status": status(document, have, bool(used)), "host": host.name,
                 "bootable": bool(document.state.get("bootable", document.want["image"])),
                 "shared": host.settings.pools.get(document.want["pool"], {}).get("type") in ("nfs", "rbd"),
                 "attachments": [{"id": one.id, "server": one.want["server"], "device": one.want.get("device"),
                                  "server_name": attaching.server_name(host, one)} for one in used],
                 "created_at": document.created_at, "updated_at": document.updated_at}
        return {f.name: known.get(f.name) for f in self.kind.fields if SHOW in f.on}

    def left(self, host: LocalHost) -> list[str]:
        """Files in pools."""
        return pools.orphans(host)


class SnapshotDriver(DocumentDriver):
    """Snapshots are full copies in the pool of their volume."""

    def __init__(self) -> None:
        super().__init__(VolumeSnapshot)
        self.verbs: Mapping[str, Verb] = {"make": _take, "drop": _drop}

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Resolve the volume."""
        found, old = dict(want), document.want.get("volume") if document else None
        if old and found["volume"] in (old, document.state.get("volume_name") if document else None):
            return {**found, "volume": old}
        volume = host.documents.standing("volume", found["volume"])
        if volume is None:
            missing(InvalidField("volume", "must name a volume of this host", found["volume"]), "volume",
                    found["volume"])
        elif not finished(volume):
            raise InvalidField("volume", "must be complete, and this one is still being made", found["volume"])
        return {**found, "volume": volume.id if volume else found["volume"]}

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """As of a volume."""
        return {**document.want, **_content(host, document, document.state.get("pool"))}

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Take it, or remove it."""
        return plan(want, have)

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Cinder's names for what it is."""
        state, volume = document.state, host.documents.get("volume", document.want["volume"])
        seen = {"pool": volume.want["pool"], "format": volume.want["format"], "size": volume.want["size"],
                "bootable": bool(volume.state.get("bootable"))} if volume else {}
        if "bytes" in state:
            seen["size"] = gib(state["bytes"])
        known = {**document.want, **seen, **state, "id": document.id, "name": document.name,
                 "status": status(document, have, False) if state or document.want["volume"] else "creating",
                 "host": host.name, "created_at": document.created_at, "updated_at": document.updated_at}
        return {f.name: known.get(f.name) for f in self.kind.fields if SHOW in f.on}


def plan(want: Fields | None, have: Fields | None) -> Iterator[Step]:
    """From *have* (``made``, ``there``, ``bytes``) to *want*. Raises ``Conflict`` or ``Immutable`` where no way loses
    nothing."""
    if want is None:
        yield Step("drop", "remove the content")
    elif not have or not have["made"]:
        yield Step("make", "make the content")
    elif reimaging.is_asked(want, have):
        yield Step("reimage", "make the content anew")
    elif not have["there"]:
        raise Conflict(f"The content of {want['name']!r} is gone from the host{have.get('why') or ''}. Restore it, or "
                       "delete this and make it again.")
    elif "size" in want and want["size"] * GIB < have["bytes"]:
        raise Immutable(f"size: {want['name']!r} has {gib(have['bytes'])} GiB and cannot shrink to {want['size']} GiB. "
                        "Make a smaller one and copy what is needed.", fields=["size"])
    elif "size" in want and want["size"] * GIB > have["bytes"]:
        yield Step("grow", f"grow it to {want['size']} GiB")


def source(host: LocalHost, found: Fields, document: Document | None) -> int:
    """Turn what *found* is to be made from into a uuid; its size in bytes, 0 for an empty volume."""
    given = [name for name in content.SOURCES if found.get(name) is not None]
    if len(given) > 1:
        raise InvalidField(given[1], f"cannot be combined with {given[0]}; a volume is made from one of them")
    if not given:
        return 0
    (field,) = given
    old = document.want.get(field) if document else None
    if document and old and found[field] in (old, document.state.get("source_name")):
        found[field] = old
        kept = host.documents.get(content.SOURCES[field], old)
        return 0 if finished(document) else content.source_bytes(field, kept, old, field)
    standing = host.documents.standing(content.SOURCES[field], found[field])
    least = content.source_bytes(field, standing, found[field], field)
    found[field] = standing.id if standing else found[field]
    return least


def _origin_is_encrypted(host: LocalHost, found: Fields) -> bool:
    field, named = content.source_of(found)
    origin = host.documents.standing(content.SOURCES[field], named) if field else None
    return bool(origin and origin.state.get(keys.SEALED))


def _encryption(host: LocalHost, found: Fields, document: Document | None, hidden: bool) -> None:
    """A copy of what is encrypted (*hidden*) is encrypted, with the same key. A key that is given is sealed at once."""
    if document is not None:
        found["key"] = document.want.get("key")
        return
    if hidden and found["format"] != keys.LUKS:
        raise InvalidField("format", f"must be {keys.LUKS}: what it is made from is encrypted", found["format"])
    if found["key"] and found["format"] != keys.LUKS:
        raise InvalidField("key", f"is for volumes of format {keys.LUKS}")
    found["key"] = keys.seal(host, found["key"]) if found["key"] and not hidden else None


def _fits(host: LocalHost, pool: Pool, size: int) -> None:
    """Raises ``InvalidField`` for *size* GiB that alone are more than the *pool* may promise."""
    there, ratio = pool.capacity(), host.settings.disk_allocation_ratio
    if there is not None and size > (most := int(there * ratio / GIB)):
        raise InvalidField("size", f"must be no more than {most} GiB: pool {pool.name!r} has {there / GIB:.1f} GiB, "
                                   f"and the agent's disk_allocation_ratio is {ratio:g}", size)


def _size(given: int | None, least: int) -> int:
    if given is None and not least:
        raise InvalidField("size", "is required to make an empty volume")
    if given is not None and given * GIB < least:
        raise InvalidField("size", f"must be at least {gib(least)} GiB, which its source has", given)
    return given or gib(least)


def _content(host: LocalHost, document: Document, pool: str | None) -> Fields:
    found: Fields = {"made": finished(document), "bytes": document.state.get("bytes", 0), "there": False}
    if found["made"] and pool:
        try:
            found["there"] = pools.named(host, pool).has(document.id)
        except MagnetarError as error:
            found["why"] = f" ({error.message.rstrip('.')})"
    return found


def _make(task: Task) -> None:
    """Make the content, empty or from its source."""
    host, want, id = task.host, task.document.want, task.document.id
    pool, size = pools.named(host, want["pool"]), want["size"] * GIB
    field, named = content.source_of(want)
    origin = host.documents.get(content.SOURCES[field], named) if field else None
    notes = {"source_name": origin.name, "bootable": field == "image" or bool(
        origin.state.get("bootable"))} if origin else {}
    if want["format"] == keys.LUKS and keys.SEALED not in task.document.state:
        drawn = (origin and origin.state.get(keys.SEALED)) or want.get("key") or keys.seal(host, keys.draw())
        notes[keys.SEALED] = drawn
    _begin(task, pool, size, notes)
    renewed = task.document.state.get("renewed")
    if renewed and not pool.atomic:
        pool.remove(id)  # nothing of before is to shine through
    if renewed or not (pool.atomic and pool.has(id)):
        if field:
            COPIES[field](task, pool, size, want["format"], named)
        else:
            pool.make(id, want["format"], size, keys.of(host, task.document))
    task.document.state.pop("renewed", None)
    if want.get("reimage"):
        task.document.state["reimaged"] = want["reimage"]
    _made(task, pool, size)


def _reimage(task: Task) -> None:
    """Make the content anew, of an image, while no guest runs with it."""
    reimaging.begin(task)
    with exports.not_served(task.host, task.document.id):
        _make(task)


def _take(task: Task) -> None:
    """Copy the volume."""
    host, want = task.host, task.document.want
    volume = host.documents.get("volume", want["volume"])
    if volume is None:
        raise Conflict("The volume was removed before its snapshot was taken.")
    pool, size = pools.named(host, volume.want["pool"]), volume.state["bytes"]
    sealed = {keys.SEALED: volume.state[keys.SEALED]} if keys.SEALED in volume.state else {}
    _begin(task, pool, size, {"pool": volume.want["pool"], "format": volume.want["format"], "volume_name": volume.name,
                              "bootable": bool(volume.state.get("bootable")), **sealed})
    if not (pool.atomic and pool.has(task.document.id)):
        copying.from_volume(task, pool, size, volume.want["format"], volume.id)
    _made(task, pool, size)


def _begin(task: Task, pool: Pool, size: int, notes: Fields) -> None:
    """Note that from now on what is called so is this document's, to be made again or removed after a crash. Raises
    ``Conflict`` for content that is there before."""
    state, id = task.document.state, task.document.id
    if not content.begun(state) and pool.has(id):
        raise pool.taken(id)
    first = not content.begun(state)
    state.update(notes, begun=True)
    task.keep()
    if not first:
        return
    try:
        pool.claim(id, size)
    except Conflict:
        for name in ("begun", *notes):
            del state[name]
        task.keep()
        raise


def _made(task: Task, pool: Pool, size: int) -> None:
    """The content is there in full."""
    task.document.state.pop("begun", None)
    task.document.state.update(made=True, bytes=size)
    task.keep()
    pool.settle(task.document.id)


def _grow(task: Task) -> None:
    """Grow it, by QEMU where a running server has it."""
    host, document, size = task.host, task.document, task.document.want["size"] * GIB
    live = _running(host, document)
    pool = pools.named(host, document.want["pool"])
    with exports.not_served(host, document.id):
        if pool.beneath or not live:
            pool.grow(document.id, document.want["format"], size, keys.of(host, document))
        for uuid, target in _running(host, document) if live else ():  # a rescue may have come in between
            host.hypervisor.resize(uuid, target, size)
    document.state["bytes"] = size
    task.keep()


def _running(host: LocalHost, document: Document) -> list[tuple[str, str]]:
    """Running servers that have the volume, by uuid, and as which device. Raises ``Conflict`` for those with which it
    cannot grow."""
    attaching.refuse_while_swapped(host, document.id)
    for one in holders(host, document.id):
        if one.kind == "volume_export":
            raise Conflict(f"Volume {document.name!r} is attached to server {attaching.server_name(host, one)!r} of "
                           "another host, where it cannot grow. Detach it first, or migrate the server to this host "
                           "and stop it.")
    found = []
    for one in attachments(host, document.id):
        refuse_while_it_moves(host, host.documents.get("server", one.want["server"]))
        domain, name = host.hypervisor.domain(one.want["server"]), attaching.server_name(host, one)
        if domain and domain.state == SUSPENDED:
            raise Conflict(f"Server {name!r} has volume {document.name!r} and is suspended: it would wake up to a disk "
                           "of another size. Start or stop it, then repeat the call.")
        if domain and domain.state in LIVE:
            if host.hypervisor.serving(one.id):
                raise Conflict(f"Server {name!r} came to this host with volume {document.name!r}, which it reaches as "
                               "if the volume were on another host, and so it cannot grow while the server runs. Stop "
                               "the server, then repeat the call.")
            target = attaching.device(host, one)
            found += [(domain.uuid, target)] if target else []
    return found


def _drop(task: Task) -> None:
    """Remove the content."""
    content.remove(task.host, task.document)
