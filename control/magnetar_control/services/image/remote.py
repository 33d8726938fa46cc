# SPDX-License-Identifier: GPL-3.0-or-later
"""``services.Images`` over HTTP: any service that speaks Glance's API v2, the control plane's own on another machine
too. Content goes through piece by piece, both ways."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

import orjson

from magnetar_control.services import Context, Document, Documents
from magnetar_control.services.service_client import ServiceClient
from magnetar_core import errors

from .fields import check_properties

#: Bytes of content in one piece.
PIECE = 1 << 20
#: Fields of Glance's image; whatever else it has are properties.
FIELDS = frozenset((
    "checksum", "container_format", "created_at", "direct_url", "disk_format", "file", "id", "locations", "min_disk",
    "min_ram", "name", "os_hash_algo", "os_hash_value", "os_hidden", "owner", "protected", "schema", "self", "size",
    "status", "stores", "tags", "updated_at", "virtual_size", "visibility"))
PATCH = "application/openstack-images-v2.1-json-patch"
#: Statuses of an image that waits for its content.
WAITING = ("queued", "saving")
LINKS = frozenset(("direct_url", "file", "locations", "schema", "self", "stores"))


class Remote:
    """*url*: of the service, without ``/v2``. *token* gives a token of a service user who may see all images (role
    admin); with true, one that was not given before. *ca*: certificates to trust. *timeout*: seconds of silence."""

    def __init__(self, url: str, token: Callable[[bool], str], ca: Path | None = None, timeout: float = 60.0) -> None:
        client = ServiceClient("image service", url, "/v2/images", token, ca, timeout)
        self._json, self._asked = client.json, client.asked

    def show(self, context: Context, id: str) -> Document | None:
        """The image, if *context* may see it: asked with the user's token where there is one. Without one (a conductor
        at work for a user who was let in before) a private image of another project is not there."""
        return self.show_with_location(context, id)[0]

    def show_with_location(self, context: Context, id: str) -> tuple[Document | None, str]:
        """``direct_url`` or one of the ``locations``, which Glance shows where its settings say so, mostly to
        administrators alone: so not to a *context* with a user's token."""
        answer = self._json("GET", f"/{_word(id)}", token=context.token, accept=(404, 403))
        if answer is None:
            return None, ""
        image = plain(answer)
        hidden = image["visibility"] == "private" and image["owner"] not in (None, context.project_id)
        if hidden and not context.token and not context.is_admin:
            return None, ""
        urls = [answer.get("direct_url"), *(one.get("url") for one in answer.get("locations") or ())]
        return image, next((url for url in urls if isinstance(url, str) and url.startswith("rbd://")), "")

    def list(self, context: Context, name: str | None = None,
             properties: Mapping[str, str] | None = None) -> Documents:
        """See ``services.Images``."""
        found: Documents = []
        following = "?" + urllib.parse.urlencode(
            {**(properties or {}), "limit": 1000, **({} if name is None else {"name": name})})
        while following:
            page = self._json("GET", following, token=context.token)
            found += map(plain, page["images"])
            following = page.get("next", "").removeprefix("/v2/images")
        return found

    def update(self, context: Context, id: str, change: Callable[[Document], Document]) -> Document:
        have = self._json("GET", f"/{_word(id)}", token=context.token)
        patch: Documents = [{"op": "remove" if value is None and name not in FIELDS else "add", "value": value,
                             "path": "/" + name.replace("~", "~0").replace("/", "~1")}
                            for name, value in change(plain(have)).items()]
        with self._asked("PATCH", f"/{_word(id)}", {"Content-Type": PATCH}, orjson.dumps(patch), context.token) as got:
            return plain(orjson.loads(got.read()))

    def content(self, id: str) -> tuple[Iterator[bytes], int]:
        """See ``services.Images``. Raises ``NotFound`` when there is none."""
        answer = self._asked("GET", f"/{_word(id)}/file", {"Accept": "application/octet-stream"})
        if answer.status == 204:
            answer.close()
            raise errors.NotFound(f"Image {id} has no content.")
        size = int(answer.headers.get("Content-Length") or 0) or self._json("GET", f"/{_word(id)}").get("size") or 0
        return _pieces(answer, id, size), size

    def create(self, context: Context, name: str | None, *, share_with: str | None = None, **wanted: Any) -> Document:
        """A queued image, made with the user's token where there is one. One that cannot be shared goes again."""
        properties = wanted.pop("properties", {})
        check_properties(properties)
        body = {"name": name, **properties, **wanted}
        if not context.token:
            body.setdefault("owner", context.project_id)
        made = plain(self._json("POST", "", body, context.token))
        if share_with is not None:
            try:
                self._json("POST", f"/{_word(made['id'])}/members", {"member": share_with}, context.token)
            except errors.MagnetarError:
                self.delete(context, made["id"])
                raise
        return made

    def check_room(self, context: Context, more: int, size: int, image: str = "") -> None:
        """Only the service knows."""

    def upload(self, id: str, chunks: Iterable[bytes], *, size: int | None = None) -> Document:
        length = {} if size is None else {"Content-Length": str(size)}
        self._asked("PUT", f"/{_word(id)}/file", {"Content-Type": "application/octet-stream", **length}, chunks).close()
        return plain(self._json("GET", f"/{_word(id)}"))

    def fail(self, id: str, why: str) -> None:
        """Its content will not come: the image goes, as Nova has it (Glance has no place for the reason). One that has
        its content stays."""
        found = self._json("GET", f"/{_word(id)}", accept=(404,))
        if found is not None and found["status"] in WAITING:
            self._json("DELETE", f"/{_word(id)}", accept=(404,))

    def delete(self, context: Context, id: str) -> None:
        self._json("DELETE", f"/{_word(id)}", token=context.token, accept=(404,))


def plain(answer: Document) -> Document:
    """Glance's image as ``services.Images`` has it: what is no field of Glance is a property."""
    image = {name: value for name, value in answer.items() if name in FIELDS - LINKS}
    return {**image, "properties": {name: value for name, value in answer.items() if name not in FIELDS}}


def _word(id: str) -> str:
    return urllib.parse.quote(id, safe="")


def _pieces(answer: Any, id: str, size: int) -> Iterator[bytes]:
    """All *size* bytes; a content that breaks off is told, and never taken for the whole."""
    sent = 0
    with answer:
        try:
            while piece := answer.read(PIECE):
                sent += len(piece)
                yield piece
        except (OSError, HTTPException) as error:
            raise errors.Unavailable(f"The content of image {id} broke off after {sent} of {size} bytes.") from error
    if sent != size:
        raise errors.Unavailable(f"The content of image {id} broke off after {sent} of {size} bytes.")
