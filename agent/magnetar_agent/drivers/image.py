# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type image: checks the content that servers boot from, and stores it once, read-only.

``document.state`` holds the facts of the content: ``status``, ``size``, ``virtual_size``, ``disk_format``, ``digests``
(sha256 and sha512), ``ovf`` and ``ova_disk`` (description and disk of an OVA), ``file`` (its path), ``source`` (where
it came from), ``origin`` (the identity of the file that it was read from) and ``pinned`` (the checksum was given by a
user, not computed). ``want["source"]`` is removed when the content is stored.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.images import ceph, importing, of_volume, sources
from magnetar_agent.images.store import ContentPart, check_digests
from magnetar_agent.reconcile.documents import REPLACEMENT, Document
from magnetar_agent.servers.disks import rbd_images
from magnetar_core.errors import Conflict, ImageRefused, Immutable, InUse, InvalidField, NotFound
from magnetar_core.fields import SHOW
from magnetar_core.kinds import Image
from magnetar_core.operations import utc_timestamp
from magnetar_core.plan import Result, Step, diff_documents
from magnetar_core.reconcile import refuse_missing

from .document import DocumentDriver

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from io import BufferedReader

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_agent.reconcile.task import Task, Verb
    from magnetar_core.operations import Operation

#: Fields that cannot change once the image has its content.
FIXED = [field.name for field in Image.settable() if field.fixed and field.compared and field.name != "id"]


class ImageDriver(DocumentDriver):
    """The resource driver of images. It stores the content of images, and returns the content's path for servers."""

    def __init__(self) -> None:
        super().__init__(Image)
        self.verbs: Mapping[str, Verb] = {"fetch": _fetch, "drop": _drop}

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* with a checked source, and with the uuids of the kernel and ramdisk
        images. *document*: the stored image; ``None`` for a new one."""
        want = dict(want)
        stored, requested_source = document and importing.content_is_stored(document), want.get("source")
        source = ceph.ceph_source(host, want) if requested_source and requested_source.get(
            "upload") else requested_source
        want.update({"source": source} if source else {})
        if document and stored:
            _match_stored_content(host, want, document)
        else:
            _new(host, want, document)
            importing.check_image_room(host, requested_source or {})
        for name, format in (("kernel", "aki"), ("ramdisk", "ari")):
            if want.get(name) and not (document and document.want.get(name) == want[name]):
                want[name] = _part(host, name, want[name], format)
        if document and stored and any(want.get(name) != document.want.get(name) for name in FIXED):
            want["source"] = source or document.state["source"]  # of the image made in its place, if that is allowed
        importing.check_boot_fields(want, want.get("disk_format"))
        return want

    def check_replacement(self, host: LocalHost, want: Fields, requested: Fields, document: Document) -> None:
        """Raise an error if the source in *want* cannot replace the present content of the image. A local file is read
        to check its checksum; uploads and downloads are checked when they arrive. *requested*: the fields that the
        caller sent. *document*: the stored image."""
        source = want.get("source") or {}
        importing.check_image_room(host, requested.get("source") or {}, document.state.get("size") or 0)
        if "volume" in source:
            raise InvalidField("source.volume", "cannot take the place of content that is there: give the image "
                                                "another name, or remove it first", source["volume"])
        if "path" in source:
            with sources.open_file(source["path"], host.settings.image_paths) as file:
                _look(host, file, want)
                check_digests({name: hashlib.file_digest(file, name).hexdigest()
                       for name in [want["checksum"].partition(":")[0]]}, want["checksum"])

    def release(self, host: LocalHost, document: Document) -> None:
        """Raise ``InUse`` while another image uses this one as its kernel or ramdisk. Servers do not prevent the
        removal, because they have hard links to the content."""
        users = [other.name for other in host.documents.list("image")
                 if document.id in (other.want.get("kernel"), other.want.get("ramdisk")) and other.id != document.id]
        if users:
            raise InUse(f"Image {document.name!r} is the kernel or ramdisk of {', '.join(users)}. Remove "
                        f"{'these' if len(users) > 1 else 'that'} first.", users=users)

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the image's stored fields, whether its content is on the host (``stored``), and the source from which
        missing content can be fetched again (``origin``)."""
        return {**document.want, "stored": importing.content_is_stored(document),
                "origin": document.state.get("source")}

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps that fetch missing content, or remove the content if *want* is ``None``. Yields nothing for
        an image that waits for its upload."""
        if want is None:
            if have and have["stored"]:
                yield Step("drop", "remove the content")
        elif not (have and have["stored"]):
            source = want.get("source") or (have or {}).get("origin") or importing.UPLOAD
            if source != importing.UPLOAD:
                place = "Ceph" if ceph.FIELD in source else source.get("path") or source.get("url") or source["volume"]
                yield Step("fetch", f"take in the content from {place}", source=source)

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the image's fields as API responses show them, with its status, and with its sizes once it has
        content."""
        state = document.state
        waits = (document.want.get("source") or state.get("source") or importing.UPLOAD) == importing.UPLOAD
        absent = "queued" if waits else "error" if state.get("fault") else "saving" if state else "active"
        values = {**document.want, **{key: state.get(key) for key in ("size", "virtual_size", "consistency")},
                  importing.OVF: state.get(importing.OVF) or (document.want.get("source") or {}).get(importing.OVF),
                  "status": "active" if importing.content_is_stored(document) else absent, "id": document.id,
                  "name": document.name, "created_at": document.created_at, "updated_at": document.updated_at}
        return {f.name: values.get(f.name) for f in self.kind.fields if SHOW in f.on}

    def sweep(self, host: LocalHost) -> None:
        """Remove content that belongs to no stored image, and incomplete files that a crash has left."""
        importing.image_store(host).sweep(lambda: _kept_content_paths(host))

    def receive(self, host: LocalHost, key: str, chunks: Iterable[bytes], length: int | None,
                operation: Operation) -> Result:
        """Store an upload as the content of the image *key* (name or uuid); return the result. *length*: the number of
        bytes in *chunks*; ``None`` if unknown. After an error the image is unchanged, so the upload can be repeated. If
        the image already has content, the upload is only compared with it."""
        document = host.documents.find("image", key)
        if document is None or document.deleting:
            raise NotFound(f"There is no image {key!r} on this host. Make it first, with source {{upload: true}}.",
                           kind="image", key=key)
        source = document.want.get("source") or document.state.get("source")
        if not importing.content_is_stored(document) and not (source or {}).get("upload"):
            raise Conflict(f"Image {document.name!r} takes its content from its source, not from an upload. Remove it "
                           "and make it with source {upload: true}.")
        advance = partial(importing.advance_bytes, operation, length, "upload")
        with importing.image_store(host).part(document.id, length) as part:
            part.write_chunks(chunks, length, host.settings.image_max_bytes, advance)
            with host.locks.hold("image", document.id):
                again = host.documents.get("image", document.id)
                if again is None or again.deleting:
                    raise Conflict(f"Image {document.name!r} was removed during the upload.")
                return self._settle(host, again, part, operation)

    def _settle(self, host: LocalHost, document: Document, part: ContentPart, operation: Operation) -> Result:
        shown_before = self.show(host, document, None)
        if importing.content_is_stored(document):
            if part.digests != document.state["digests"]:
                raise Immutable(f"Image {document.name!r} has other content already (sha256:"
                                f"{document.state['digests']['sha256']}; this is sha256:{part.digests['sha256']}). "
                                "Remove it first, or use another name.", fields=["checksum"])
            return Result([], [], shown_before)
        importing.commit_content(host, document, part, importing.UPLOAD, None, operation)
        document.updated_at = utc_timestamp()
        document.state.pop("fault", None)
        host.documents.write(document)
        shown_after = self.show(host, document, None)
        compared = {f.name for f in self.kind.settable() if f.compared} | {"status"}
        return Result([Step("receive", "take in the uploaded content")],
                      diff_documents({n: shown_before[n] for n in compared}, {n: shown_after[n] for n in compared}),
                      shown_after)


def _kept_content_paths(host: LocalHost) -> Iterator[Path]:
    """Yield the paths of image content that ``sweep`` must not remove: content of stored images, and content that is
    about to be stored."""
    for document in host.documents.list("image"):
        if document.state.get("file"):
            yield Path(document.state["file"])
        for want in (document.want, document.state.get(REPLACEMENT, {})) if document.state.get("unfinished") else ():
            if want.get("checksum"):
                yield importing.image_store(host).ready(document.id, want["checksum"])
        if not importing.content_is_stored(document):
            yield from importing.copy_paths(host, document.id)


def _fetch(task: Task, source: dict[str, Any]) -> None:
    """Store the content of *source* in the image. *source*: a volume, a local file, an image in Ceph, or a URL. If
    ``_drop`` has already downloaded the content, take the downloaded file."""
    host, document = task.host, task.document
    if ceph.FIELD in source:
        ceph.take_ceph_image(task, source[ceph.FIELD])
        return
    if "volume" in source:
        of_volume.take_volume_image(task, source["volume"])
        return
    store, checksum = importing.image_store(host), document.want.get("checksum")
    ready = store.ready(document.id, checksum) if checksum else None
    if ready and ready.exists():
        advance = partial(importing.advance_bytes, task.operation, ready.stat().st_size, "checksum")
        with store.adopt(document.id, ready, host.settings.image_max_bytes, advance) as part:
            importing.commit_content(host, document, part, source, None, task.operation)
        return
    with _filled(task, source) as (part, origin):
        importing.commit_content(host, document, part, source, origin, task.operation)


@contextmanager
def _filled(task: Task, source: dict[str, Any]) -> Iterator[tuple[ContentPart, dict[str, Any] | None]]:
    """Yield (file with the whole content of *source*, attributes of the source). The file is a ``ContentPart``, which
    is not yet in the image store. The attributes identify the local file that was read; ``None`` for a URL."""
    settings = task.host.settings
    # pylint: disable-next=contextmanager-generator-missing-cleanup  # contextlib throws what happens in the block here
    with sources.open_source(source, settings.image_paths, settings.image_max_bytes) as opened, \
            importing.image_store(task.host).part(task.document.id, opened.length) as part:
        advance = partial(importing.advance_bytes, task.operation, opened.length,
                          "download" if "url" in source else "copy")
        part.write_chunks(opened.chunks, opened.length, settings.image_max_bytes, advance)
        yield part, opened.origin


def _drop(task: Task) -> None:
    """Remove the image's content, after downloading the new content if it will be replaced. Servers that were created
    from the image keep the content by their hard links."""
    replacement = None if task.document.deleting else task.document.state.get(REPLACEMENT)
    if replacement:
        _make_ready(task, replacement)
    file = Path(task.document.state["file"])
    file.unlink(missing_ok=True)
    rbd_images.forget_rbd_base(task.host, file.name)
    with suppress(OSError):
        file.parent.rmdir()


def _make_ready(task: Task, want: Fields) -> None:
    """If the image's new source is a URL, download the new content before the present content is removed. If the
    download fails, the present content is kept. *want*: the new fields of the image. Local files need no such step,
    because they were already checked, and uploads need none, because they arrive later."""
    host, document, source = task.host, task.document, want.get("source") or importing.UPLOAD
    path = importing.image_store(host).ready(document.id, want["checksum"])
    if "url" not in source or path.exists():
        return
    try:
        with _filled(task, source) as (part, _origin):
            importing.checked_content(host, want, part)
            importing.image_store(host).keep_ready(part, path)
    except Exception:
        for note in (REPLACEMENT, "unfinished"):
            document.state.pop(note, None)  # the caller that notes the error stores this
        raise


def _new(host: LocalHost, want: Fields, document: Document | None) -> None:
    """Check the source of an image without stored content, and set it in *want*. The source is the requested one, or by
    default the source of *document* (the stored image; ``None`` for a new one). Raises ``InvalidField``."""
    source = want.get("source") or (document.state.get("source") if document else None)
    if source is None:
        raise InvalidField("source", "is required to make an image: {path: …}, {url: …}, {volume: …} or "
                                     "{upload: true}")
    want["source"] = source
    if "url" in source:
        sources.check_url(source["url"])
        if not want.get("checksum"):
            raise InvalidField("checksum", "is required with source.url, as sha256:HEX or sha512:HEX")
    elif "path" in source:
        with sources.open_file(source["path"], host.settings.image_paths) as file:
            ova = _look(host, file, want).ova
        if ova:  # shown in dry runs, too
            want["source"] = {**source, importing.OVF: ova.description.as_document()}
    elif "volume" in source:
        want.update(of_volume.complete_volume_source(host, want))
    elif source["upload"] is not True:
        raise InvalidField("source.upload", "must be true; give a path or a url otherwise")


def _look(host: LocalHost, file: BufferedReader, want: Fields) -> importing.Inspection:
    return importing.inspect_file(host, file.fileno(), os.fstat(file.fileno()).st_size, want)


def _match_stored_content(host: LocalHost, want: Fields, document: Document) -> None:
    """Compare the requested fields *want* with the content that the image already has, and remove the source from
    *want*. If the requested checksum is a checksum of this content, set the stored checksum in *want*, so that the
    content is kept. However, if the source is a local file whose content has changed since the image was stored, set
    the checksum of the new content."""
    state = document.state
    source = want.pop("source", None)
    if want.get("ova_disk") == state.get("ova_disk"):  # a name for the only disk
        want["ova_disk"] = document.want.get("ova_disk")
    name, _colon, digest = want["checksum"].partition(":")
    if state["digests"][name] == digest:
        want["checksum"] = document.want["checksum"]
        if source and "path" in source:
            _compare(host, want, document, source)


def _compare(host: LocalHost, want: Fields, document: Document, source: dict[str, Any]) -> None:
    state = document.state
    with sources.open_file(source["path"], host.settings.image_paths) as file:
        if sources.file_origin(source["path"], file) == state["origin"]:
            return
        facts = _look(host, file, {"properties": want.get("properties"), "ova_disk": want.get("ova_disk")}).facts
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest == state["digests"]["sha256"]:
        return
    if state["pinned"]:
        raise ImageRefused(f"source.path: {source['path']} has sha256:{digest}, and the checksum of image "
                           f"{document.name!r} is {document.want['checksum']}. Give the checksum of the new content.",
                           field="checksum", expected=document.want["checksum"], found=f"sha256:{digest}")
    want["checksum"] = f"sha256:{digest}"
    if want.get("disk_format") == document.want.get("disk_format"):
        want["disk_format"] = facts.format


def _part(host: LocalHost, field: str, reference: str, format: str) -> str:
    """Return the uuid of the image *reference* (name or uuid), to be used as a kernel or ramdisk. Raises
    ``InvalidField`` for *field* unless that image has content in the given *format*."""
    image = host.documents.standing("image", reference)
    if image is None:
        refuse_missing(InvalidField(field, "must name an image of this host", reference), "image", reference)
        return reference
    if not importing.content_is_stored(image):
        raise InvalidField(field, "must name an image that is active; send its content first", reference)
    if image.state["disk_format"] != format:
        raise InvalidField(field, f"must name an image of format {format}, and this one is "
                                  f"{image.state['disk_format']}", reference)
    return image.id
