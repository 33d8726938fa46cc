# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type image: images that the caller sees; ``PUT /v1/image/{key}/data`` uploads content."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from magnetar_control.api.values import to_second
from magnetar_control.compute.caller import Caller
from magnetar_control.services.image.fields import check_properties
from magnetar_control.services.image.images import check_image_owner, check_image_writer, check_readable
from magnetar_control.web import Answer, Request
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, ImageRefused, InvalidField, InvalidRequest
from magnetar_core.image_format import HEAD, detect_image_format
from magnetar_core.kinds import Image
from magnetar_core.kinds.image import BOOT
from magnetar_core.operations import Operation
from magnetar_core.plan import Result, Step
from magnetar_core.reconcile import is_uuid_key

from .driver import CloudDriver

#: The properties that hold fields of the kind.
DESCRIPTION, CHECKSUM, CONSISTENCY = "description", "magnetar_checksum", "magnetar_consistency"
STATUS = {"killed": "error", "importing": "saving", "uploading": "saving"}
OCTETS = "application/octet-stream"
#: Fields of the kind to Glance's attributes.
SHARING = {"visibility": "visibility", "is_protected": "protected"}


def render_image(image: Mapping[str, Any]) -> Document:
    """Return *image*, in the format of Glance, as an image in the format of the v1 API."""
    properties = image["properties"]
    checksum = properties.get(CHECKSUM) or (f"sha512:{image['os_hash_value']}" if image.get("os_hash_value") else None)
    return {"id": image["id"], "name": image["name"] or "", "description": properties.get(DESCRIPTION) or "",
            "checksum": checksum, "disk_format": image["disk_format"], "kernel": None, "ramdisk": None, "cmdline": None,
            "ova_disk": None, "ovf": None, "min_disk": image["min_disk"], "min_ram": image["min_ram"],
            "properties": {name: value for name, value in properties.items()
                           if name not in (DESCRIPTION, CHECKSUM, CONSISTENCY) and isinstance(value, str)},
            "consistency": properties.get(CONSISTENCY), "visibility": image["visibility"],
            "is_protected": bool(image.get("protected")),
            "status": STATUS.get(image["status"], image["status"]), "size": image.get("size"),
            "virtual_size": image.get("virtual_size"), "created_at": to_second(image["created_at"]),
            "updated_at": to_second(image["updated_at"] or image["created_at"]), "_owner": image.get("owner"),
            "_visibility": image["visibility"], "_sha512": image.get("os_hash_value"), "_md5": image.get("checksum")}


class CloudImages(CloudDriver):
    """The driver of the v1 API for images. A name refers to an image of the caller's project, if there is one;
    otherwise to an image of another project."""

    kind = Image
    host_only = {"ova_disk": None, "kernel": None, "ramdisk": None, "cmdline": None}
    new = {"status": "queued"}

    def __init__(self) -> None:
        self.more: Mapping[str, Mapping[str, Callable[..., Answer]]] = {
            "data": {"PUT": self.upload, "GET": self.download}}

    def every(self, caller: Caller, name: str | None = None) -> list[Document]:
        """Return the images that the caller can refer to by name. *name*: only the images with this name; ``None``:
        all."""
        images = map(render_image, caller.cloud.services.image.list(caller.context, name))
        return [image for image in images if _may_use(caller, image, ("public",))]

    def find(self, caller: Caller, key: str) -> Document | None:
        image = caller.cloud.services.image.show(caller.context, key.lower()) if is_uuid_key(key) else None
        if image is not None:
            document = render_image(image)
            return document if _may_use(caller, document, ("public", "community")) else None
        return self.only(caller, self.every(caller, key), key)

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        """Yield the step that removes the content of an image if the image is removed; otherwise no step, because
        images are created without content."""
        if want is None and have and have["status"] == "active":
            yield Step("drop", "remove the content")

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* without its source, and with the size of the upload as ``_size``. If the
        checksum in *want* is the sha512 of the current content, replace this checksum by the checksum in *have*. The
        checksum in *have* may use another algorithm, and would count as different. Raises ``InvalidField`` for a source
        other than an upload."""
        for way in ("path", "url"):
            if way in (want.get("source") or {}):
                raise InvalidField(f"source.{way}", "is for a single host: images of a cloud are uploaded (filename)")
        if "volume" in (want.get("source") or {}):
            raise InvalidField("source.volume", "is for a single host: use `openstack image create --volume`, which "
                                                "asks the volume service of the cloud")
        want = {**want, "_size": (want.get("source") or {}).get("size", 0),
                "visibility": want.get("visibility") or "shared", "is_protected": bool(want.get("is_protected"))}
        want.pop("source", None)
        if have and have["status"] == "queued":
            caller.cloud.services.image.check_room(caller.context, 0, want["_size"], have["id"])
        digest = want.get("checksum") or ""
        if have and digest.startswith("sha512:") and digest[7:] == have["_sha512"]:
            want["checksum"] = have["checksum"]
        return want

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Check that the caller may create images, and that the quota suffices for the image. *have*: the image that
        *want* replaces, whose size does not count; ``None`` if there is none."""
        check_image_writer(caller.context)
        freed = (have or {}).get("size") or 0
        caller.cloud.services.image.check_room(caller.context, int(have is None), want["_size"] - freed)

    def make(self, caller: Caller, want: Document, operation: Operation) -> None:
        self.check_make(caller, want, None)
        fixed = {name: want[name] for name in ("id", "disk_format", "min_disk", "min_ram", "visibility")
                 if want.get(name)}
        if want.get("is_protected"):
            fixed["protected"] = True
        own_properties = {DESCRIPTION: want["description"], CHECKSUM: want.get("checksum")}
        caller.cloud.services.image.create(
            caller.context, want.get("name"), **fixed, container_format=container_of(want.get("disk_format")),
            properties={**want["properties"], **{name: value for name, value in own_properties.items() if value}})

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Update the fields *names* of the image, and remove its properties that *want* does not contain. The format
        and the checksum can be changed only while the image has no content."""
        old, new = dict(have["properties"]), dict(want["properties"])
        if have["description"]:
            old[DESCRIPTION] = have["description"]
        if want["description"]:
            new[DESCRIPTION] = want["description"]
        check_properties(new)
        values = {**{name: want[name] for name in names if name in ("name", "min_disk", "min_ram", "disk_format")},
                  **{name: None for name in old if name not in new},
                  **{name: value for name, value in new.items() if old.get(name) != value},
                  **({CHECKSUM: want["checksum"]} if "checksum" in names else {})}
        if "disk_format" in names:
            values["container_format"] = container_of(want["disk_format"])
        values.update((name, want[field]) for field, name in SHARING.items() if field in names)

        def changed(image: Document) -> Document:
            if "checksum" in names and image["status"] != "queued":
                raise Conflict(f"Image {have['name']!r} is getting its content just now. Try again when it has it.")
            return values

        caller.cloud.services.image.update(caller.context, have["id"], changed)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        caller.cloud.services.image.delete(caller.context, have["id"])

    # Content

    def upload(self, request: Request, caller: Caller, _driver: CloudDriver, key: str) -> Answer:
        """Store the request body as the content of the image *key*, and return the result. Raises ``InvalidRequest`` if
        the digest of the content differs from the image's checksum."""
        have = self.one(caller, key)
        check_image_owner(caller.context, {"owner": have["_owner"]})
        with request.upload() as pieces:
            self._take(caller, have, pieces, request.length)
        result = Result([Step("receive", "take in the uploaded content")], [
            {"path": "status", "old": "queued", "new": "active"}], self.public(self.one(caller, have["id"])))
        return Answer({**result.as_dict(), "request_id": request.id})

    def _take(self, caller: Caller, have: Document, pieces: Iterator[bytes], size: int | None) -> None:
        first = read_image_head(pieces)
        if not have["disk_format"]:
            format = detect_image_format(first)
            self._set(caller, have, {"disk_format": format, "container_format": container_of(format)})
        digest: dict[str, str] = {}
        try:
            content = self._checked(caller, have, first, pieces, digest)
            caller.cloud.services.image.upload(have["id"], content, size=size)
        except InvalidRequest as error:
            raise ImageRefused(error.message) from None
        if not digest["said"]:
            self._set(caller, have, {CHECKSUM: digest["found"]})

    def _set(self, caller: Caller, have: Document, values: Document) -> None:
        caller.cloud.services.image.update(caller.context, have["id"], lambda _image: values)

    def _checked(self, caller: Caller, have: Document, first: bytes, remaining: Iterator[bytes],
                 digest: dict[str, str]) -> Iterator[bytes]:
        """Yield the uploaded content of the image *have* (the piece *first*, then the pieces *remaining*), and compute
        its digest. Store the checksum that the image should have in *digest* as ``said`` and, after the last piece, the
        computed digest as ``found``. Raises ``InvalidRequest`` if the two differ. The image has the status ``saving``
        from the first piece on, so its checksum cannot change meanwhile."""
        digest["said"] = self.one(caller, have["id"])["checksum"] or ""
        algorithm, _colon, claimed = (digest["said"] or "sha256:").partition(":")
        hasher = hashlib.new(algorithm)
        for piece in itertools.chain((first,) if first else (), remaining):
            hasher.update(piece)
            yield piece
        digest["found"] = f"{algorithm}:{hasher.hexdigest()}"
        if claimed and hasher.hexdigest() != claimed:
            raise InvalidRequest(f"The content has {digest['found']}, and {digest['said']} was said; nothing is kept.")

    def download(self, request: Request, caller: Caller, _driver: CloudDriver, key: str) -> Answer:
        have = self.one(caller, key)
        check_readable(caller.context, have)
        if have["status"] not in ("active", "deactivated"):
            raise Conflict(f"Image {have['name']!r} has no content yet.")
        pieces, size = caller.cloud.services.image.content(have["id"])
        return Answer(request.download(pieces), 200, {"Content-Length": str(size), "Content-MD5": have["_md5"]}, OCTETS)


def _may_use(caller: Caller, image: Document, open_visibilities: Collection[str]) -> bool:
    """Return whether the caller may use *image*, one of the images that the caller can see. Administrators can see the
    images of all projects; they may use those of their own project and those with a visibility in *open_visibilities*.
    Other callers may use all images that they can see. If the image was found by its name, *open_visibilities* must not
    contain community, because any project can publish a community image with any name."""
    return image["_owner"] == caller.project or image["_visibility"] in open_visibilities or not caller.context.is_admin


def container_of(format: str | None) -> str:
    """Return Glance's container_format for the disk format *format*."""
    return format if format in BOOT else "bare"


def read_image_head(pieces: Iterator[bytes]) -> bytes:
    """Read as many of *pieces* as are needed to detect the image's format, and return their bytes; fewer bytes if the
    content is shorter."""
    head = bytearray()
    while len(head) < HEAD and (piece := next(pieces, b"")):
        head += piece
    return bytes(head)
