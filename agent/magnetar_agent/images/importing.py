# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking in the content of an image, and finding it again by the image's document."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.reconcile.documents import Document
from magnetar_core import image_format
from magnetar_core.errors import Conflict, ImageRefused, InvalidField
from magnetar_core.kinds.image import VMDK

from .store import ContentPart, ImageStore, check_length

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_core.operations import Operation

#: Names of what is made for an image in its folder; QEMU's tools write it under the second one.
COPIES = ("volume", "volume.part")
#: The source of an image whose content a client sends.
UPLOAD = {"upload": True}


def store(host: LocalHost) -> ImageStore:
    return ImageStore(host.settings.state_dir / "images", host.locks)


def stored(document: Document) -> bool:
    """Whether the content is there: a file of that name is complete, since it was flushed before it got the name."""
    file = document.state.get("file")
    return file is not None and Path(file).is_file()


def content_of(document: Document) -> tuple[Path, str]:
    """Path and format (raw, qcow2, iso, aki, ari) of the content that *document* describes. The file never changes; who
    needs it for longer than the image exists makes a hard link to it. Raises ``Conflict`` where there is none."""
    if document.deleting or not stored(document):
        raise Conflict(f"Image {document.name!r} has no content on this host yet. Upload it, or wait until it is "
                       "active.")
    return Path(document.state["file"]), str(document.state["disk_format"])


def content_by_id(host: LocalHost, id: str) -> tuple[Path, str]:
    """As ``content_of``, of the image with uuid *id*."""
    return content_of(host.documents.get("image", id) or Document("image", id, id, {}))


def check_room(host: LocalHost, source: dict[str, Any], freed: int = 0) -> None:
    """Raises what an upload would end with, where *source* says its size and there is no room for that, also when so
    many bytes are *freed* before."""
    if length := source.get("size"):
        check_length(length, host.settings.image_max_bytes)
        store(host).check_room(length, freed)


def adopt(host: LocalHost, document: Document, file: Path, operation: Operation) -> None:
    """Make an image of *document* and the disk in *file*, which is moved. The caller holds the lock of its name. A
    crash in between leaves a document without content (see ``stored``), which the caller removes."""
    progress = partial(advance, operation, file.stat().st_size, "checksum")
    with store(host).adopt(document.id, file, host.settings.image_max_bytes, progress) as part:
        take(host, document, part, UPLOAD, None, operation)


def advance(operation: Operation, total: int | None, phase: str, done: int) -> None:
    operation.advance(done, total, "bytes", phase)


def check_clear(document: Document | None) -> None:
    """Raises ``Conflict`` for an image with encrypted content, of which nothing is made but the server itself."""
    if document is not None and image_format.is_encrypted(document.want):
        raise Conflict(f"The content of image {document.name!r} is encrypted, as it is the root disk of a shelved "
                       "server. Nothing is made of it but that server; unshelve it.")


def inspected(host: LocalHost, head: bytes, size: int, want: Fields) -> image_format.Facts:
    """What content for an image of this document is; see ``image_format.inspect``. Raises ``ImageRefused``, also for
    what this host does not take, or where it is not as claimed."""
    claimed = want.get("disk_format")
    facts = image_format.inspect(head, size, claimed, image_format.is_encrypted(want))
    limit = host.settings.image_max_virtual_bytes
    if facts.virtual_size > limit:
        raise ImageRefused(
            f"The image claims a virtual size of {facts.virtual_size} bytes, and this host takes images up to "
            f"{limit} bytes. If the claim is right, raise image_max_virtual_bytes in the agent's settings.")
    if claimed not in (None, facts.format):
        raise ImageRefused(f"disk_format says {claimed}, and the content is {facts.format}. Give the right "
                           "disk_format, or leave it out: it is found from the content.")
    return facts


def checked_content(host: LocalHost, want: Fields, part: ContentPart) -> image_format.Facts:
    """What the part is, settled on disk. Raises ``ImageRefused`` or ``InvalidField`` unless it is what is wanted."""
    part.check_digests(want.get("checksum"))
    facts = inspected(host, part.head(), part.size, want)
    check_boot_fields(want, facts.format)
    part.settle()
    return facts


def copies(host: LocalHost, image: str) -> list[Path]:
    """Where a copy or conversion for the image with this uuid lies while it is made: its name in the image's folder,
    and the one under which QEMU's tools write it."""
    return [store(host).path(image, name) for name in COPIES]


def take(host: LocalHost, document: Document, part: ContentPart, source: dict[str, Any],
         origin: dict[str, Any] | None, operation: Operation) -> None:
    """Check what was written and make it the image's content: of a VMDK a qcow2, under the digests of what came.
    Changes nothing before all checks have passed."""
    want, claimed = document.want, document.want.get("checksum")
    facts, format = checked_content(host, want, part), None
    if facts.format == VMDK:
        format = _converted(host, document.id, part, operation)
    files = store(host)
    file = files.path(document.id, part.digests["sha256"])
    want.update(checksum=claimed or f"sha256:{part.digests['sha256']}", disk_format=facts.format)
    document.state.update(
        file=str(file), size=part.size, virtual_size=facts.virtual_size, disk_format=format or facts.format,
        digests=part.digests, source=source, origin=origin, pinned=claimed is not None, status="active")
    want.pop("source", None)
    host.hypervisor.permit([part.path])
    with files.still():
        host.documents.write(document)  # before the file has its name: after a crash that is no orphan
        files.commit(document.id, part)


def _converted(host: LocalHost, image: str, part: ContentPart, operation: Operation) -> str:
    """Have a qcow2 take the place of the VMDK in *part*, whose headers were looked at; returns its format. QEMU's user
    reads it, and nothing but it. Raises ``TooLarge`` where little becomes much: what is compressed, or in many places
    at once."""
    path, written = copies(host, image)

    def told(done: int, total: int) -> None:
        if written.exists():
            check_length(written.stat().st_size, host.settings.image_max_bytes)
        operation.advance(done, total, "bytes", "convert")

    try:
        path.unlink(missing_ok=True)
        host.hypervisor.copy_disk(part.path, VMDK, path, "qcow2", told)
        check_length(path.stat().st_size, host.settings.image_max_bytes)
        part.replace(path)
    finally:
        for left in (path, written):
            left.unlink(missing_ok=True)
    part.size = part.path.stat().st_size
    part.settle()
    return "qcow2"


def check_boot_fields(want: Fields, format: str | None) -> None:
    """Kernel, ramdisk and command line belong together. *format* ``None``: not known yet."""
    if want.get("kernel") and format in ("iso", "aki", "ari"):
        raise InvalidField("kernel", f"is for disks only, and this image is {format}")
    if want.get("ramdisk") and not want.get("kernel") and format != "aki" and format is not None:
        raise InvalidField("ramdisk", "needs a kernel")
    if want.get("cmdline") and not want.get("kernel") and format not in ("aki", None):
        raise InvalidField("cmdline", "needs a kernel, or an image of format aki")
