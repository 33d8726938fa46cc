# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's hard links to the content of its image. They keep the content when the image is removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.images import importing
from magnetar_agent.images.store import MODE
from magnetar_agent.reconcile.documents import Document, flush_file
from magnetar_core.errors import Conflict, InvalidField, NoSpace
from magnetar_core.hardware.image_properties import shutdown_timeout
from magnetar_core.image_format import is_encrypted
from magnetar_core.reconcile import refuse_missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from magnetar_agent.host.host import LocalHost

#: Names of the links.
PARTS = ("base", "kernel", "ramdisk")
BOOTABLE = ("raw", "qcow2", "iso", "aki")


def bootable_image(host: LocalHost, reference: str, field: str = "image") -> Document:
    """Return the document of the image *reference* (uuid or name). Raises ``InvalidField`` for the field *field* if a
    server cannot boot from it."""
    image = host.documents.standing("image", reference)
    if image is None:
        refuse_missing(
            InvalidField(field, f"must name an image of this host, and there is none called {reference!r}; register "
                                    "it first"), "image", reference)
        return Document("image", reference, reference, {"min_ram": 0, "min_disk": 0, "properties": {}},
                        state={"status": "active", "disk_format": "qcow2"})
    if image.state.get("status") != "active" and "url" in (image.want.get("source") or {}):
        raise InvalidField(field,
                           f"must be active, and the content of {reference!r} is still loaded, or could not be; see "
                                  "its operation, or ensure it again")
    if image.state.get("status") != "active":
        raise InvalidField(field,
                           f"must be active, and {reference!r} is {image.state.get('status', 'queued')}; send its "
                                  "content first")
    if image.state["disk_format"] not in BOOTABLE:
        raise InvalidField(field, f"must be something to boot from, and {reference!r} is a ramdisk")
    for _name, _part in _parts(host, image, field):
        pass
    return image


def is_complete(host: LocalHost, id: str) -> bool:
    """Return whether a server could be created from the image with the uuid *id* now: this host has the content of the
    image and of its kernel and ramdisk, if any."""
    image = host.documents.standing("image", id)
    try:
        return image is not None and all(
            importing.content_is_stored(document) for document in (image,
                                                                   *(part for _name, part in _parts(host, image))))
    except InvalidField:
        return False


def _parts(host: LocalHost, image: Document, field: str = "image") -> Iterator[tuple[str, Document]]:
    """Yield (name, document) of the image's kernel and of its ramdisk, if it has them. The name is kernel or ramdisk.
    Raises ``InvalidField`` for the field *field* if this host lacks the content of one."""
    for name in ("kernel", "ramdisk"):
        if reference := image.want.get(name):
            part = host.documents.find("image", reference)
            if part is None or part.state.get("status") != "active":
                raise InvalidField(field, f"{image.name!r} needs its {name} {reference!r}, which is not there")
            yield name, part


def link_image(host: LocalHost, id: str, folder: Path, prefix: str = "") -> dict[str, Any]:
    """Create hard links in *folder* to the content of the image with the uuid *id*, and of its kernel and
    ramdisk. The links' names begin with *prefix*.

    Return a dict: ``image`` (uuid), ``name``, ``format``, ``virtual_size``, ``digest`` (SHA-256), ``iso``,
    ``encrypted``, ``shutdown_timeout`` (seconds, ``None`` if the image has none), and ``boot``: ``{ramdisk, cmdline}``
    for an image with a kernel (``ramdisk``: whether there is one), otherwise ``None``."""
    image = host.documents.get("image", id)
    if image is None:
        raise Conflict("The image was removed while the server was made. Register it again, then repeat the call.")
    content, format = importing.content_of(image)
    link_file(content, folder / (prefix + ("kernel" if format == "aki" else "base")))
    for name, part in _parts(host, image):
        link_file(importing.content_by_id(host, part.id)[0], folder / (prefix + name))
    boots = image.want.get("kernel") or format == "aki"
    return {"image": image.id, "name": image.name, "format": format, "iso": format == "iso",
            "encrypted": is_encrypted(image.want), "digest": content.name,
            "virtual_size": image.state.get("virtual_size") or 0,
            "shutdown_timeout": shutdown_timeout(image.want["properties"]),
            "boot": {"ramdisk": bool(image.want.get("ramdisk")), "cmdline": image.want.get("cmdline")} if boots
            else None}


def unlink_image(folder: Path, prefix: str = "") -> None:
    """Remove the links that ``link_image`` created in *folder* with this *prefix*."""
    for part in PARTS:
        (folder / (prefix + part)).unlink(missing_ok=True)


def link_file(source: Path, target: Path) -> None:
    """Create the hard link *target* to *source*, or a copy if the file systems differ, atomically. Does nothing if
    *target* exists. The caller must flush the folder."""
    if target.exists():
        return
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    try:
        try:
            os.link(source, part)
        except OSError:
            part.touch(0o600)
            shutil.copyfile(source, part)
            part.chmod(MODE)
            flush_file(part)
        part.rename(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        if not source.exists():
            raise Conflict("The content of the image went while the server took hold of it: the image is removed, or "
                           "recreated. Repeat the call.") from error
        raise NoSpace(f"{target.name} of the server cannot be written: {error.strerror}. Free some room under "
                      f"{target.parent.parent}.") from error
