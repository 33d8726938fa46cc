# SPDX-License-Identifier: GPL-3.0-or-later
"""Import of the content of an image, and lookup of the content by the image's document."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from magnetar_agent.reconcile.documents import Document
from magnetar_core import image_format
from magnetar_core.errors import Conflict, ImageRefused, InvalidField
from magnetar_core.images.ova import ArchivedDisk, Ova, is_archive, read_ova
from magnetar_core.kinds.image import CONVERTED_FORMATS

from . import unpacking
from .store import ContentPart, ImageStore, check_length

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_core.images.hyperv import ReadAt
    from magnetar_core.operations import Operation

#: Names of the copy for an image in its folder; QEMU's tools write it under the second one.
COPIES = ("volume", "volume.part")
#: Formats of the disk in an OVA.
OF_ARCHIVES = (*CONVERTED_FORMATS, "qcow2")
#: The source of an image whose content a client sends.
UPLOAD = {"upload": True}
#: Field of an image, and of its source while the image is made, with the description of an OVA.
OVF = "ovf"


class Inspection(NamedTuple):
    """The result of ``inspect_file``. *facts*: format and size of the disk. Of an OVA also *ova*, the archive, and
    *archived*, the disk in it."""

    facts: image_format.Facts
    ova: Ova | None = None
    archived: ArchivedDisk | None = None


def image_store(host: LocalHost) -> ImageStore:
    return ImageStore(host.settings.state_dir / "images", host.locks)


def content_is_stored(document: Document) -> bool:
    """Return whether this host stores the content of the image *document*. Only complete content has the final file
    name."""
    file = document.state.get("file")
    return file is not None and Path(file).is_file()


def content_of(document: Document) -> tuple[Path, str]:
    """Return path and format (raw, qcow2, iso, aki, ari) of the content of the image *document*. Raises ``Conflict``
    when this host does not store it.

    The file never changes, but is removed with the image. A caller that needs it longer makes a hard link to it.
    """
    if document.deleting or not content_is_stored(document):
        raise Conflict(f"Image {document.name!r} has no content on this host yet. Upload it, or wait until it is "
                       "active.")
    return Path(document.state["file"]), str(document.state["disk_format"])


def content_by_id(host: LocalHost, id: str) -> tuple[Path, str]:
    """Return path and format of the content of the image with the uuid *id*; see ``content_of``."""
    return content_of(host.documents.get("image", id) or Document("image", id, id, {}))


def check_image_room(host: LocalHost, source: dict[str, Any], freed: int = 0) -> None:
    """Check before an upload that the size stated in *source* fits. Raises ``TooLarge`` or ``NoSpace``. *freed*: bytes
    that will be removed first. Without a stated size do nothing."""
    if length := source.get("size"):
        check_length(length, host.settings.image_max_bytes)
        image_store(host).check_room(length, freed)


def adopt_disk(host: LocalHost, document: Document, file: Path, operation: Operation) -> None:
    """Make the disk *file* the content of the new image *document*; the file is moved. The caller must hold the lock of
    the image's name. After a crash, the document may exist without content (see ``content_is_stored``); then the caller
    must remove the document."""
    progress = partial(advance_bytes, operation, file.stat().st_size, "checksum")
    with image_store(host).adopt(document.id, file, host.settings.image_max_bytes, progress) as part:
        commit_content(host, document, part, UPLOAD, None, operation)


def advance_bytes(operation: Operation, total: int | None, phase: str, done: int) -> None:
    operation.advance(done, total, "bytes", phase)


def check_not_encrypted(document: Document | None) -> None:
    """Raise ``Conflict`` for an image with encrypted content (the root disk of a shelved server), which can only become
    a server's disk again. ``None``: do nothing."""
    if document is not None and image_format.is_encrypted(document.want):
        raise Conflict(f"The content of image {document.name!r} is encrypted, as it is the root disk of a shelved "
                       "server. Nothing is made of it but that server; unshelve it.")


def inspect_content(host: LocalHost, read: ReadAt, size: int, want: Fields) -> image_format.Facts:
    """Return format and sizes of the new content for an image (``image_format.inspect_image``). *read*: reads the
    content at an offset; *size*: the number of all bytes; *want*: the image's fields. Raises ``ImageRefused`` for
    content that this host does not accept, or whose format differs from the declared ``disk_format``."""
    claimed = want.get("disk_format")
    facts = image_format.inspect_image(read(0, min(image_format.HEAD, size)), size, claimed,
                                       image_format.is_encrypted(want), read)
    limit = host.settings.image_max_virtual_bytes
    if facts.virtual_size > limit:
        raise ImageRefused(
            f"The image claims a virtual size of {facts.virtual_size} bytes, and this host takes images up to "
            f"{limit} bytes. If the claim is right, raise image_max_virtual_bytes in the agent's settings.")
    if claimed not in (None, facts.format):
        raise ImageRefused(f"disk_format says {claimed}, and the content is {facts.format}. Give the right "
                           "disk_format, or leave it out: it is found from the content.")
    return facts


def inspect_file(host: LocalHost, descriptor: int, size: int, want: Fields) -> Inspection:
    """Return the ``Inspection`` of new image content: *size* bytes in the open file *descriptor*. *want*: the image's
    fields. In an OVA archive, the disk that the field ``ova_disk`` selects is inspected. Raises ``ImageRefused`` or
    ``InvalidField``."""
    read, name = _reader_of(descriptor, 0, size), want.get("ova_disk")
    if not is_archive(read(0, image_format.SECTOR)):
        if name is not None:
            raise InvalidField("ova_disk", "is for an OVA, and the content is none", name)
        return Inspection(inspect_content(host, read, size, want))
    ova = read_ova(read, size)
    archived = ova.disk(name)
    disk = archived.member
    facts = inspect_content(host, _reader_of(descriptor, disk.offset, disk.size), disk.size, want)
    if facts.format not in OF_ARCHIVES:
        raise ImageRefused(f"The disk {disk.name!r} of the OVA is {facts.format}, and it must be "
                           f"{' or '.join(OF_ARCHIVES)}. Unpack the OVA, and give the disk as the image.")
    return Inspection(facts, ova, archived)


def _reader_of(descriptor: int, begin: int, size: int) -> ReadAt:
    """Return a function that reads from one part of the open file *descriptor*: the *size* bytes that begin at the
    offset *begin*. The function takes an offset in the part and a length, and reads nothing outside the part."""
    def read(at: int, length: int) -> bytes:
        return os.pread(descriptor, min(length, size - at), begin + at) if 0 <= at < size else b""
    return read


def checked_content(host: LocalHost, want: Fields, part: ContentPart) -> Inspection:
    """Check the new content of an image, in the temporary file *part*, against the image's fields *want*, flush it to
    disk, and return what was found. Raises ``ImageRefused`` or ``InvalidField``."""
    part.check_digests(want.get("checksum"))
    inspection = inspect_file(host, part.descriptor, part.size, want)
    check_boot_fields(want, inspection.facts.format)
    part.make_read_only()
    return inspection


def copy_paths(host: LocalHost, image: str) -> list[Path]:
    """Return the two paths of an unfinished copy or conversion for the image with the uuid *image*: the file, and the
    temporary file that QEMU's tools write first."""
    return [image_store(host).path(image, name) for name in COPIES]


def commit_content(host: LocalHost, document: Document, part: ContentPart, source: dict[str, Any],
                   origin: dict[str, Any] | None, operation: Operation) -> None:
    """Check the content in the temporary file *part* and make it the content of the image *document*. Nothing is
    changed if a check fails.

    The disk of an OVA is unpacked, and a VMDK, VHD or VHDX is converted to qcow2; the recorded digests stay those of
    the content as delivered. *source*: the image's source, and *origin*: the attributes of a local source file
    (``file_origin``); both are recorded in the document.
    """
    want, claimed = document.want, document.want.get("checksum")
    (facts, ova, archived), format = checked_content(host, want, part), None
    if archived:
        _unpack(host, document.id, part, archived, operation)
    if facts.format in CONVERTED_FORMATS:
        format = _converted(host, document.id, part, facts.format, operation)
    files = image_store(host)
    file = files.path(document.id, part.file_name)
    want.update(checksum=claimed or f"sha256:{part.digests['sha256']}", disk_format=facts.format)
    document.state.update(
        ovf=ova and ova.description.as_document(), ova_disk=archived and archived.member.name,
        file=str(file), size=part.size, virtual_size=facts.virtual_size, disk_format=format or facts.format,
        digests=part.digests, source={name: value for name, value in source.items() if name != OVF}, origin=origin,
        pinned=claimed is not None, status="active")
    want.pop("source", None)
    host.hypervisor.permit([part.path])
    with files.still():
        host.documents.write(document)  # before the file has its name: after a crash the file is no orphan
        files.commit(document.id, part)


def _unpack(host: LocalHost, image: str, part: ContentPart, disk: ArchivedDisk, operation: Operation) -> None:
    """Replace the OVA in the temporary file *part*, new content of the image with the uuid *image*, by the *disk* in
    it. Raises ``ImageRefused`` if the disk does not fit the archive's manifest, or ``NoSpace``."""
    path, _written = copy_paths(host, image)
    image_store(host).check_room(disk.member.size)
    try:
        path.unlink(missing_ok=True)
        target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            unpacking.copy_archived_disk(part.descriptor, disk, target,
                                   partial(advance_bytes, operation, disk.member.size, "unpack"))
        finally:
            os.close(target)
        part.replace(path)
    finally:
        path.unlink(missing_ok=True)
    part.size, part.member = disk.member.size, disk.member.name
    part.make_read_only()


def _converted(host: LocalHost, image: str, part: ContentPart, old_format: str, operation: Operation) -> str:
    """Convert the disk in the temporary file *part*, new content of the image with the uuid *image*, to a qcow2, and
    replace the disk by the qcow2. Return the new format, ``qcow2``. A process of QEMU's user reads the disk, without
    access to other files. *old_format*: its format. Raises ``TooLarge`` if the qcow2 gets too large: the disk may be
    compressed, or refer to the same data several times."""
    path, written = copy_paths(host, image)

    def report_progress(done: int, total: int) -> None:
        if written.exists():
            check_length(written.stat().st_size, host.settings.image_max_bytes)
        operation.advance(done, total, "bytes", "convert")

    try:
        path.unlink(missing_ok=True)
        host.hypervisor.copy_disk(part.path, old_format, path, "qcow2", report_progress)
        check_length(path.stat().st_size, host.settings.image_max_bytes)
        part.replace(path)
    finally:
        for leftover in (path, written):
            leftover.unlink(missing_ok=True)
    part.size = part.path.stat().st_size
    part.make_read_only()
    return "qcow2"


def check_boot_fields(want: Fields, format: str | None) -> None:
    """Raise ``InvalidField`` unless kernel, ramdisk and command line in the image's fields *want* fit its *format* and
    each other. *format* is ``None`` if it is not known yet."""
    if want.get("kernel") and format in ("iso", "aki", "ari"):
        raise InvalidField("kernel", f"is for disks only, and this image is {format}")
    if want.get("ramdisk") and not want.get("kernel") and format != "aki" and format is not None:
        raise InvalidField("ramdisk", "needs a kernel")
    if want.get("cmdline") and not want.get("kernel") and format not in ("aki", None):
        raise InvalidField("cmdline", "needs a kernel, or an image of format aki")
