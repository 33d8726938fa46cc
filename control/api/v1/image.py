# SPDX-License-Identifier: GPL-3.0-or-later
"""image: those of the image service that the caller sees; content is sent through ``PUT /v1/image/{key}/data``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import orjson

from magnetar_control.web import Answer, Request
from magnetar_core.errors import Ambiguous, ImageRefused, InvalidField, InvalidRequest, MagnetarError
from magnetar_core.kinds import Image
from magnetar_core.plan import Result, Step
from magnetar_core.reconcile import is_uuid

from .asks import Asks, Document, error_of, paged
from .driver import Driver
from .operations import Operation

#: What is no property of an image (Image API v2), and the properties in which fields of the kind are kept.
KNOWN = frozenset((
    "id", "name", "status", "visibility", "protected", "os_hidden", "checksum", "os_hash_algo", "os_hash_value", "size",
    "virtual_size", "disk_format", "container_format", "min_disk", "min_ram", "owner", "tags", "created_at",
    "updated_at", "self", "file", "schema", "locations", "direct_url", "stores"))
DESCRIPTION, CHECKSUM = "description", "magnetar_checksum"
STATUS = {"killed": "error", "importing": "saving", "uploading": "saving"}
PATCH = "application/openstack-images-v2.1-json-patch"
OCTETS = "application/octet-stream"


def shown(image: Mapping[str, Any]) -> Document:
    """Glance's image as the kind has it."""
    checksum = image.get(CHECKSUM) or (f"sha512:{image['os_hash_value']}" if image.get("os_hash_value") else None)
    return {"id": image["id"], "name": image["name"] or "", "description": image.get(DESCRIPTION) or "",
            "checksum": checksum, "disk_format": image["disk_format"], "kernel": None, "ramdisk": None, "cmdline": None,
            "min_disk": image["min_disk"], "min_ram": image["min_ram"],
            "properties": {name: value for name, value in image.items()
                           if name not in KNOWN and name not in (DESCRIPTION, CHECKSUM) and isinstance(value, str)},
            "status": STATUS.get(image["status"], image["status"]), "size": image.get("size"),
            "virtual_size": image.get("virtual_size"), "created_at": image["created_at"],
            "updated_at": image["updated_at"], "_owner": image.get("owner"), "_visibility": image["visibility"],
            "_sha512": image.get("os_hash_value")}


class Images(Driver):
    """Own ones are meant before others of the same name."""

    kind = Image
    absent = {"kernel": None, "ramdisk": None, "cmdline": None}
    new = {"status": "queued"}

    def __init__(self) -> None:
        self.more: Mapping[str, Mapping[str, Callable[..., Answer]]] = {
            "data": {"PUT": self.upload, "GET": self.download}}

    def every(self, asks: Asks) -> list[Document]:
        """Those that can be meant by their name."""
        return self._listed(asks)

    def _listed(self, asks: Asks, **filters: str) -> list[Document]:
        """All pages."""
        found = paged(asks.image, "/images", "images", limit="1000", **filters)
        return [one for one in map(shown, found) if _mine(asks, one, ("public",))]

    def find(self, asks: Asks, key: str) -> Document | None:
        """By uuid, or by name."""
        if is_uuid(key):
            try:
                one = shown(asks.image("GET", f"/images/{key.lower()}"))
                return one if _mine(asks, one, ("public", "community")) else None
            except MagnetarError as error:
                if error.status != 404:
                    raise
        named = self._listed(asks, name=key)
        found = [one for one in named if one["_owner"] == asks.project] or named
        if len(found) > 1:
            raise Ambiguous(f"{len(found)} images have the name {key!r}; use a uuid.",
                            uuids=[one["id"] for one in found])
        return found[0] if found else None

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        """An image comes without content; what it has goes with it."""
        if want is None and have and have["status"] == "active":
            yield Step("drop", "remove the content")

    def complete(self, asks: Asks, want: Document, have: Document | None) -> Document:
        """Content comes by upload only; a digest of another kind than the one kept is compared with Glance's own."""
        for way in ("path", "url"):
            if way in (want.get("source") or {}):
                raise InvalidField(f"source.{way}", "is for a single host: images of a cloud are uploaded (filename)")
        want = {name: value for name, value in want.items() if name != "source"}
        digest = want.get("checksum") or ""
        if have and digest.startswith("sha512:") and digest[7:] == have["_sha512"]:
            want["checksum"] = have["checksum"]
        return want

    def make(self, asks: Asks, want: Document, operation: Operation) -> None:
        """A queued image."""
        fixed = {name: want[name] for name in ("id", "name", "disk_format", "min_disk", "min_ram") if want.get(name)}
        kept = {DESCRIPTION: want["description"], CHECKSUM: want.get("checksum")}
        asks.image("POST", "/images", {
            **want["properties"], **{name: value for name, value in kept.items() if value}, **fixed,
            "container_format": want.get("disk_format") if want.get("disk_format") in ("aki", "ari") else "bare"})

    def change(self, asks: Asks, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """A JSON patch."""
        patch: list[Document] = [{"op": "replace", "path": f"/{name}", "value": want[name]}
                                 for name in names if name in ("name", "min_disk", "min_ram")]
        old, new = dict(have["properties"]), dict(want["properties"])
        if have["description"]:
            old[DESCRIPTION] = have["description"]
        if want["description"]:
            new[DESCRIPTION] = want["description"]
        patch += [{"op": "remove", "path": f"/{_pointer(name)}"} for name in old if name not in new]
        patch += [{"op": "add", "path": f"/{_pointer(name)}", "value": value}
                  for name, value in new.items() if old.get(name) != value]
        asks.image("PATCH", f"/images/{have['id']}", patch, PATCH)

    def remove(self, asks: Asks, have: Document, operation: Operation) -> None:
        """With its content."""
        asks.image("DELETE", f"/images/{have['id']}")

    # Content

    def upload(self, request: Request, asks: Asks, _noun: Driver, key: str) -> Answer:
        """Take the content in; it must have the digest that was said."""
        have = self.one(asks, key)
        pieces = request.chunks()
        first = next(pieces, b"")
        if not have["disk_format"]:
            self._patch(asks, have, "disk_format", sniffed(first))
        inner = asks.inner("PUT", f"/v2/images/{have['id']}/file", media_type=OCTETS)
        digest: dict[str, str] = {}
        inner._chunks = lambda: self._checked(have, first, pieces, digest)  # noqa: SLF001 - the other half of Request
        answer = asks.mounts["/image"].handle(inner)
        if answer.status >= 400:
            content = answer.body()
            message = orjson.loads(content)["message"] if isinstance(content, bytes) and content else ""
            raise ImageRefused(message) if answer.status in (400, 415) else error_of(answer.status, message)
        if not have["checksum"]:
            self._patch(asks, have, CHECKSUM, digest["found"])
        result = Result([Step("receive", "take in the uploaded content")],
                        [{"path": "status", "old": "queued", "new": "active"}], public(self.one(asks, have["id"])))
        return Answer({**result.as_dict(), "request_id": request.id})

    def _patch(self, asks: Asks, have: Document, name: str, value: str) -> None:
        asks.image("PATCH", f"/images/{have['id']}", [{"op": "add", "path": f"/{name}", "value": value}], PATCH)

    def _checked(self, have: Document, first: bytes, rest: Iterator[bytes], digest: dict[str, str]) -> Iterator[bytes]:
        algorithm, _colon, claimed = (have["checksum"] or "sha256:").partition(":")
        found = hashlib.new(algorithm)
        for piece in _all(first, rest):
            found.update(piece)
            yield piece
        digest["found"] = f"{algorithm}:{found.hexdigest()}"
        if claimed and found.hexdigest() != claimed:
            raise InvalidRequest(f"The content has {digest['found']}, and {have['checksum']} was said; nothing is "
                                 "kept.")

    def download(self, request: Request, asks: Asks, _noun: Driver, key: str) -> Answer:
        """The content."""
        have = self.one(asks, key)
        answer = asks.mounts["/image"].handle(asks.inner("GET", f"/v2/images/{have['id']}/file"))
        if answer.status != 200:
            status = answer.status if answer.status >= 400 else 409
            raise error_of(status, f"Image {have['name']!r} has no content yet.")
        return answer


def _mine(asks: Asks, one: Document, open: Collection[str]) -> bool:
    """Whether the image can be meant: the project's own, and those of a visibility in *open*. Administrators see those
    of all projects elsewhere, and not here. Anybody may give a community image any name: its uuid is to mean it."""
    return one["_owner"] == asks.project or one["_visibility"] in open or not asks.context.is_admin


def _all(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def sniffed(first: bytes) -> str:
    """The format of content, by its beginning; the image service looks closer."""
    if first.startswith(b"QFI\xfb"):
        return "qcow2"
    return "iso" if first[32769:32774] == b"CD001" else "raw"


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
