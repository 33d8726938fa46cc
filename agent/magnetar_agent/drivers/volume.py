# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource drivers of volume and volume_snapshot: make, grow, copy and remove content in pools.

``document.state`` holds ``made`` (the content is complete), ``bytes`` (its size), ``bootable``, and ``source_name``
(its source, which may be removed later). A snapshot's state also has ``pool``, ``format`` and ``volume_name``.
``begun`` is set before the content is created: without it, content of that name belongs to another owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from magnetar_agent.migrations import refuse_while_it_moves
from magnetar_agent.volumes import (
    GIB,
    adoption,
    attaching,
    attachments_of_volume,
    backups,
    cinder_status,
    content,
    copying,
    existing,
    exports,
    holders_of_volume,
    is_content_complete,
    keys,
    moving,
    pools,
    reimaging,
    round_up_gib,
)
from magnetar_core.errors import Conflict, Immutable, InvalidField, MagnetarError
from magnetar_core.fields import SHOW
from magnetar_core.kinds import Volume, VolumeSnapshot
from magnetar_core.plan import Step
from magnetar_core.power import LIVE, SUSPENDED
from magnetar_core.reconcile import refuse_missing

from .document import DocumentDriver

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task, Verb
    from magnetar_agent.volumes.pools import Pool

COPIES = {"image": copying.from_image, "source_volume": copying.from_volume, "snapshot": copying.from_snapshot,
          "backup": backups.from_backup}


class VolumeDriver(DocumentDriver):
    """The driver that creates, changes and removes this host's volumes. The content of a volume is a file or a volume
    in a storage pool, and has the uuid of Magnetar's volume as its name."""

    def __init__(self) -> None:
        super().__init__(Volume)
        self.verbs: Mapping[str, Verb] = {"make": _make, "reimage": _reimage, "grow": _grow, "drop": _drop,
                                             "move": moving.move_content}

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* in the form in which they are stored: with a format, a size, the uuid of
        the source, and the sealed encryption key (encrypted with the host's key). *document*: the stored volume,
        ``None`` for a new one."""
        completed = dict(want)
        pool = pools.find_pool(host, completed["pool"])
        hidden = _origin_is_encrypted(host, completed) if document is None else False
        completed["format"] = completed.get("format") or (
            keys.LUKS if hidden else "raw" if completed["multiattach"] else pool.formats[0])
        if completed["format"] not in pool.formats:
            raise InvalidField("format", f"must be {' or '.join(pool.formats)} in pool {pool.name!r}",
                               completed["format"])
        if completed["multiattach"] and completed["format"] != "raw":
            raise InvalidField("format", "must be raw for a volume with multiattach: two QEMUs would ruin a qcow2")
        if document is None and completed["adopt"]:
            adoption.check_adoptable(completed, pool)
        least = resolve_volume_source(host, completed, document)
        new_size = reimaging.complete_reimage(host, completed, document)
        _encryption(host, completed, document, hidden)
        moving.complete_move(host, completed, document)
        if document is None or not is_content_complete(document) or new_size:
            pool.check_usable()
            completed["size"] = _size(completed.get("size"), new_size or least)
        if document is None or completed.get("size") != document.want.get("size"):
            _fits(host, pool, completed["size"])
        if document is not None and completed.get("size") != document.want.get("size"):
            attaching.refuse_while_swapped(host, document.id)
        return completed

    def check_replacement(self, host: LocalHost, want: Fields, requested: Fields, document: Document) -> None:
        """Raise an error if a volume with the fields *want* could not be created after the removal of the old volume
        *document*: its pool is not usable, or its source is missing or is the old volume."""
        pools.find_pool(host, want["pool"]).check_usable()
        for field, kind in content.SOURCES.items():
            origin = host.documents.get(kind, want[field]) if want.get(field) else None
            if origin and origin.id == document.id:
                raise InvalidField(field, "must be another volume: this one is gone when it is recreated", origin.name)
            if origin is None and want.get(field) and want[field] == document.want.get(field):
                raise InvalidField(field, "is not here any more, so it cannot be recreated from it; name another "
                                          "source", document.state.get("source_name"))
            if origin:
                _size(want["size"], content.source_bytes(field, origin, origin.name, field))

    def release(self, host: LocalHost, document: Document) -> None:
        """Raise ``InUse`` while the volume is attached to a server."""
        adoption.check_unused(host, document)

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """Return the documents of the attachments of all volumes, to servers of this and of other hosts, as a dict
        ``{volume: {server: document}}`` with uuids as keys. *document*: not used."""
        holders_by_volume: dict[str, dict[str, Document]] = {}
        for noun in ("volume_export", "volume_attachment"):
            for holder in host.documents.list(noun):
                holders_by_volume.setdefault(holder.want["volume"], {})[holder.want["server"]] = holder
        return holders_by_volume

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the document's fields and the state of the content: ``made`` (it is complete), ``there`` (it exists),
        ``bytes`` (its size), and ``reimaged`` (the value of ``reimage`` that was last carried out). While the content
        moves between two pools, also return ``moving``: a dict with the pool that the field ``pool`` does not name, and
        the content's format in that pool. *snapshot*: not used."""
        return {**document.want, **_content(host, document, document.want["pool"]),
                **({content.MOVING: document.state[content.MOVING]} if content.MOVING in document.state else {}),
                "reimaged": document.state.get("reimaged")}

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps that create, replace, grow, move or remove the content of the volume, from the current state
        *have* (the result of ``observe``) to the requested fields *want* (``None``: remove it)."""
        return plan_volume(want, have)

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the volume as API responses show it, with Cinder's status, and the servers that it is attached to.
        *have*: the result of ``observe``. *snapshot*: a result of the method ``snapshot``; ``None``: read the
        attachments now."""
        used = holders_of_volume(host, document.id) if snapshot is None else [*snapshot.get(document.id, {}).values()]
        renewed = document.state.get("reimaged")
        values = {**document.want, **document.state, "id": document.id, "name": document.name,
                  **({**dict.fromkeys(content.SOURCES), "image": renewed.get("image")} if renewed else {}),
                  "status": cinder_status(document, have, bool(used)), "host": host.name,
                  "bootable": bool(document.state.get("bootable", document.want["image"])),
                  "shared": host.settings.pools.get(document.want["pool"], {}).get("type") in ("nfs", "rbd"),
                  "attachments": [{"id": holder.id, "server": holder.want["server"],
                                   "device": holder.want.get("device"),
                                   "server_name": attaching.server_name(host, holder)} for holder in used],
                  "created_at": document.created_at, "updated_at": document.updated_at}
        return {f.name: values.get(f.name) for f in self.kind.fields if SHOW in f.on}

    def left(self, host: LocalHost) -> list[str]:
        """Return the files in storage pools that no document refers to."""
        return pools.orphan_volume_files(host)


class SnapshotDriver(DocumentDriver):
    """The driver that creates and removes this host's volume snapshots: full copies in the storage pool of their
    volume."""

    def __init__(self) -> None:
        super().__init__(VolumeSnapshot)
        self.verbs: Mapping[str, Verb] = {"make": _take, "drop": _drop}

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* with the uuid of the volume. Raises ``InvalidField`` if the volume is
        missing, or its content is not complete. *document*: the stored snapshot, ``None`` for a new one."""
        completed, old = dict(want), document.want.get("volume") if document else None
        if old and completed["volume"] in (old, document.state.get("volume_name") if document else None):
            return {**completed, "volume": old}
        volume = host.documents.standing("volume", completed["volume"])
        if volume is None:
            refuse_missing(InvalidField("volume", "must name a volume of this host", completed["volume"]), "volume",
                           completed["volume"])
        elif not is_content_complete(volume):
            raise InvalidField("volume", "must be complete, and this one is still being made", completed["volume"])
        return {**completed, "volume": volume.id if volume else completed["volume"]}

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the document's fields and the state of the content: ``made`` (it is complete), ``there`` (it exists),
        ``bytes`` (its size). *snapshot*: not used."""
        return {**document.want, **_content(host, document, document.state.get("pool"))}

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps that create or remove the content of the snapshot, from the current state *have* (the result
        of ``observe``) to the requested fields *want* (``None``: remove it)."""
        return plan_volume(want, have)

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the snapshot as API responses show it, with Cinder's status. *have*: the result of ``observe``.
        *snapshot*: not used."""
        state, volume = document.state, host.documents.get("volume", document.want["volume"])
        volume_fields = {"pool": volume.want["pool"], "format": volume.want["format"], "size": volume.want["size"],
                         "bootable": bool(volume.state.get("bootable"))} if volume else {}
        if "bytes" in state:
            volume_fields["size"] = round_up_gib(state["bytes"])
        values = {**document.want, **volume_fields, **state, "id": document.id, "name": document.name,
                  "status": cinder_status(document, have, False) if state or document.want["volume"] else "creating",
                  "host": host.name, "created_at": document.created_at, "updated_at": document.updated_at}
        return {f.name: values.get(f.name) for f in self.kind.fields if SHOW in f.on}


def plan_volume(want: Fields | None, have: Fields | None) -> Iterator[Step]:
    """Yield the steps for a volume or snapshot from the current state *have* (the result of ``observe``) to the
    requested fields *want* (``None``: remove it). Raises ``Conflict`` if the content has disappeared, and ``Immutable``
    for a request to shrink the content."""
    if want is None:
        yield Step("drop", "remove the content")
    elif not have or not have["made"]:
        yield Step("make", "make the content")
    elif reimaging.requests_reimage(want, have):
        yield Step("reimage", "make the content again")
    elif not have["there"] and not have.get("moving"):
        raise Conflict(f"The content of {want['name']!r} is gone from the host{have.get('why') or ''}. Restore it, or "
                       "delete this and make it again.")
    elif "size" in want and want["size"] * GIB < have["bytes"]:
        raise Immutable(
            f"size: {want['name']!r} has {round_up_gib(have['bytes'])} GiB and cannot shrink to {want['size']} GiB. "
                        "Make a smaller one and copy what is needed.", fields=["size"])
    elif "size" in want and want["size"] * GIB > have["bytes"]:
        yield Step("grow", f"grow it to {want['size']} GiB")
    if want is not None and (want.get("move_to") or (have or {}).get("moving")):
        yield Step("move", f"move the content to pool {want.get('move_to') or want['pool']}")


def resolve_volume_source(host: LocalHost, completed: Fields, document: Document | None) -> int:
    """Replace the name of the volume's source (image, volume or snapshot) in *completed* by its uuid. Return the size
    of the source in bytes, 0 for an empty volume. *document*: the stored volume, ``None`` for a new one."""
    source_fields = [name for name in (*content.SOURCES, "remote_source", "existing")
                     if completed.get(name) is not None]
    if len(source_fields) > 1:
        raise InvalidField(source_fields[1],
                           f"cannot be combined with {source_fields[0]}; a volume is made from one of them")
    if not source_fields:
        return 0
    (field,) = source_fields
    if field == "existing":
        return existing.existing_bytes(host, completed, document)
    if field == "remote_source":
        return int(completed[field]["size"]) * GIB
    old = document.want.get(field) if document else None
    if document and old and completed[field] in (old, document.state.get("source_name")):
        completed[field] = old
        origin = host.documents.get(content.SOURCES[field], old)
        return 0 if is_content_complete(document) else content.source_bytes(field, origin, old, field)
    standing = host.documents.standing(content.SOURCES[field], completed[field])
    least = content.source_bytes(field, standing, completed[field], field)
    completed[field] = standing.id if standing else completed[field]
    return least


def _origin_is_encrypted(host: LocalHost, completed: Fields) -> bool:
    field, named = content.source_of(completed)
    origin = host.documents.standing(content.SOURCES[field], named) if field in content.SOURCES else None
    return bool(origin and origin.state.get(keys.SEALED))


def _encryption(host: LocalHost, completed: Fields, document: Document | None, hidden: bool) -> None:
    """Replace ``key`` (the encryption key from the caller) in *completed* by the key sealed with the host's key, or by
    ``None`` if the volume has no key of its own. *hidden*: the volume is copied from an encrypted source, whose key
    also opens the copy. *document*: the stored volume, whose key stays; ``None`` for a new one."""
    if document is not None:
        completed["key"] = document.want.get("key")
        return
    if hidden and completed["format"] != keys.LUKS:
        raise InvalidField("format", f"must be {keys.LUKS}: what it is made from is encrypted", completed["format"])
    if completed["key"] and completed["format"] != keys.LUKS:
        raise InvalidField("key", f"is for volumes of format {keys.LUKS}")
    completed["key"] = keys.seal_key(host, completed["key"]) if completed["key"] and not hidden else None


def _fits(host: LocalHost, pool: Pool, size: int) -> None:
    """Raise ``InvalidField`` if *size* (GiB) exceeds the total capacity of the *pool* times the setting
    ``disk_allocation_ratio``."""
    capacity, ratio = pool.capacity(), host.settings.disk_allocation_ratio
    if capacity is not None and size > (most := int(capacity * ratio / GIB)):
        raise InvalidField("size", f"must be no more than {most} GiB: pool {pool.name!r} has {capacity / GIB:.1f} GiB, "
                                   f"and the agent's disk_allocation_ratio is {ratio:g}", size)


def _size(requested_size: int | None, least: int) -> int:
    if requested_size is None and not least:
        raise InvalidField("size", "is required to make an empty volume")
    if requested_size is not None and requested_size * GIB < least:
        raise InvalidField("size", f"must be at least {round_up_gib(least)} GiB, which its source has", requested_size)
    return requested_size or round_up_gib(least)


def _content(host: LocalHost, document: Document, pool: str | None) -> Fields:
    facts: Fields = {"made": is_content_complete(document), "bytes": document.state.get("bytes", 0), "there": False}
    if facts["made"] and pool:
        try:
            facts["there"] = pools.find_pool(host, pool).has(document.id)
        except MagnetarError as error:
            facts["why"] = f" ({error.message.rstrip('.')})"
    return facts


def _make(task: Task) -> None:
    """Create the volume's content: empty, or copied from its source. If the document's field ``adopt`` or ``existing``
    is set, take over content that is already in the pool."""
    host, want, id = task.host, task.document.want, task.document.id
    pool, size = pools.find_pool(host, want["pool"]), want["size"] * GIB
    if want.get("adopt"):
        adoption.adopt_content(task, pool, size)
        return
    if want.get("existing"):
        existing.take_content(task, pool, size)
        return
    field, named = content.source_of(want)
    origin = host.documents.get(content.SOURCES[field], named) if field in content.SOURCES else None
    notes = {"source_name": origin.name, "bootable": field == "image" or bool(
        origin.state.get("bootable"))} if origin else {}
    if remote_source := want.get("remote_source"):
        notes["bootable"] = remote_source["bootable"]
    if want["format"] == keys.LUKS and keys.SEALED not in task.document.state:
        notes[keys.SEALED] = (origin and origin.state.get(keys.SEALED)) or want.get("key") or keys.seal_key(
            host, (field == "backup" and backups.local_backup_key(host, named)) or keys.draw_key())
    _begin(task, pool, size, notes)
    renewed = task.document.state.get("renewed")
    if renewed and not pool.atomic:
        pool.remove(id)  # so that no old content remains readable
    if renewed or not (pool.atomic and pool.has(id)):
        if want.get("remote_source") and not field:
            copying.from_export(task, pool, size, want["format"])
        elif field:
            COPIES[field](task, pool, size, want["format"], named)
        else:
            pool.make(id, want["format"], size, keys.document_key(host, task.document))
    task.document.state.pop("renewed", None)
    if want.get("reimage"):
        task.document.state["reimaged"] = want["reimage"]
    _made(task, pool, size)


def _reimage(task: Task) -> None:
    """Replace the volume's content by an image or a backup. Raises an error if a guest with the volume runs."""
    reimaging.begin_reimage(task)
    with exports.not_served(task.host, task.document.id):
        _make(task)


def _take(task: Task) -> None:
    """Copy the volume's current content to the snapshot."""
    host, want = task.host, task.document.want
    volume = host.documents.get("volume", want["volume"])
    if volume is None:
        raise Conflict("The volume was removed before its snapshot was taken.")
    pool, size = pools.find_pool(host, volume.want["pool"]), volume.state["bytes"]
    sealed = {keys.SEALED: volume.state[keys.SEALED]} if keys.SEALED in volume.state else {}
    _begin(task, pool, size, {"pool": volume.want["pool"], "format": volume.want["format"], "volume_name": volume.name,
                              "bootable": bool(volume.state.get("bootable")), **sealed})
    if not (pool.atomic and pool.has(task.document.id)):
        copying.from_volume(task, pool, size, volume.want["format"], volume.id)
    _made(task, pool, size)


def _begin(task: Task, pool: Pool, size: int, notes: Fields) -> None:
    """Record in the document, before the content is created in *pool*, that the creation has begun, and reserve the
    uuid as a name in *pool*. After a crash, the agent then knows that incomplete content with this uuid is the
    document's, and creates it again or removes it. *size*: bytes. *notes*: further fields of the document's state.
    Raises ``Conflict`` if other content with this uuid exists."""
    state, id = task.document.state, task.document.id
    if not content.is_content_begun(state) and pool.has(id):
        raise pool.taken(id)
    first = not content.is_content_begun(state)
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
    """Record in the document that its content is complete and has *size* bytes, and remove the reservation of the uuid
    that ``_begin`` made in *pool*."""
    task.document.state.pop("begun", None)
    task.document.state.update(made=True, bytes=size)
    task.keep()
    pool.remove_reservation(task.document.id)


def _grow(task: Task) -> None:
    """Grow the volume's content to the requested size. If a running server has the volume, tell its QEMU the new size.
    """
    host, document, size = task.host, task.document, task.document.want["size"] * GIB
    live = _running(host, document)
    pool = pools.find_pool(host, document.want["pool"])
    with exports.not_served(host, document.id):
        if pool.beneath or not live:
            pool.grow(document.id, document.want["format"], size, keys.document_key(host, document))
        for uuid, target in _running(host, document) if live else ():  # a rescue may have begun meanwhile
            host.hypervisor.resize(uuid, target, size)
    document.state["bytes"] = size
    task.keep()


def _running(host: LocalHost, document: Document) -> list[tuple[str, str]]:
    """Return the running servers that the volume is attached to, as pairs: the server's uuid, and the device name such
    as vdb. Raises ``Conflict`` if a server prevents growing the volume, such as a suspended one."""
    attaching.refuse_while_swapped(host, document.id)
    for holder in holders_of_volume(host, document.id):
        if holder.kind == "volume_export":
            raise Conflict(f"Volume {document.name!r} is attached to server {attaching.server_name(host, holder)!r} of "
                           "another host, where it cannot grow. Detach it first, or migrate the server to this host "
                           "and stop it.")
    running = []
    for attachment in attachments_of_volume(host, document.id):
        refuse_while_it_moves(host, host.documents.get("server", attachment.want["server"]))
        domain, name = host.hypervisor.domain(attachment.want["server"]), attaching.server_name(host, attachment)
        if domain and domain.state == SUSPENDED:
            raise Conflict(f"Server {name!r} has volume {document.name!r} and is suspended: it would wake up to a disk "
                           "of another size. Start or stop it, then repeat the call.")
        if domain and domain.state in LIVE:
            if host.hypervisor.serving(attachment.id):
                raise Conflict(f"Server {name!r} came to this host with volume {document.name!r}, which it reaches as "
                               "if the volume were on another host, and so it cannot grow while the server runs. Stop "
                               "the server, then repeat the call.")
            target = attaching.attached_device(host, attachment)
            running += [(domain.uuid, target)] if target else []
    return running


def _drop(task: Task) -> None:
    """Remove the content of the volume or snapshot."""
    if source := task.document.want.get("remote_source"):
        copying.close_source(task.host, source["export"])
    if existing.return_content(task):
        return
    content.remove_volume_content(task.host, task.document)
