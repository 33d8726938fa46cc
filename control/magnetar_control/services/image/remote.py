# SPDX-License-Identifier: GPL-3.0-or-later
"""The client of a service with Glance's API v2, as a ``services.Images``; also for the control plane's own image
service on another machine. Content is streamed in both directions."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

import orjson

from magnetar_control.services import Context
from magnetar_control.services.service_client import ServiceClient
from magnetar_core import errors
from magnetar_core.document import Document, Documents

from .fields import check_properties

#: Bytes of content in one piece.
PIECE = 1 << 20
#: Fields of Glance's image; all other keys are properties.
FIELDS = frozenset((
    "checksum", "container_format", "created_at", "direct_url", "disk_format", "file", "id", "locations", "min_disk",
    "min_ram", "name", "os_hash_algo", "os_hash_value", "os_hidden", "owner", "protected", "schema", "self", "size",
    "status", "stores", "tags", "updated_at", "virtual_size", "visibility"))
PATCH = "application/openstack-images-v2.1-json-patch"
#: Statuses of an image without content.
WAITING = ("queued", "saving")
LINKS = frozenset(("direct_url", "file", "locations", "schema", "self", "stores"))


class Remote:
    """The client of a Glance server at *url* (without ``/v2``), an implementation of ``services.Images``.

    *token*: a function that returns a token of a service user with the role admin; called with true, it requests a new
    token. *ca*: certificates to trust. *timeout*: seconds to wait for data on the connection.
    """

    def __init__(self, url: str, token: Callable[[bool], str], ca: Path | None = None, timeout: float = 60.0) -> None:
        client = ServiceClient("image service", url, "/v2/images", token, ca, timeout)
        self._json, self._send = client.json, client.send

    def show(self, context: Context, id: str) -> Document | None:
        """Return the image; ``None`` if there is none that *context* may see.

        The request uses the user's token, if there is one. Without a token, as in conductors, a private image of
        another project is not returned.
        """
        return self.show_with_location(context, id)[0]

    def show_with_location(self, context: Context, id: str) -> tuple[Document | None, str]:
        """Return the image, and the rbd URL in its ``direct_url`` or ``locations`` (an empty string when there is
        none). The image is ``None`` if *context* may not see it. Glance returns locations only if its settings allow
        that, and usually only to administrators."""
        answer = self._json("GET", f"/{_quote_segment(id)}", token=context.token, accept=(404, 403))
        if answer is None:
            return None, ""
        image = parse_glance_image(answer)
        hidden = image["visibility"] == "private" and image["owner"] not in (None, context.project_id)
        if hidden and not context.token and not context.is_admin:
            return None, ""
        urls = [answer.get("direct_url"), *(location.get("url") for location in answer.get("locations") or ())]
        return image, next((url for url in urls if isinstance(url, str) and url.startswith("rbd://")), "")

    def list(self, context: Context, name: str | None = None,
             properties: Mapping[str, str] | None = None) -> Documents:
        """Return all images that *context* may list. *name*, *properties*: return only images with this name and these
        property values."""
        images: Documents = []
        following = "?" + urllib.parse.urlencode(
            {**(properties or {}), "limit": 1000, **({} if name is None else {"name": name})})
        while following:
            page = self._json("GET", following, token=context.token)
            images += map(parse_glance_image, page["images"])
            following = page.get("next", "").removeprefix("/v2/images")
        return images

    def update(self, context: Context, id: str, change: Callable[[Document], Document]) -> Document:
        have = self._json("GET", f"/{_quote_segment(id)}", token=context.token)
        patch: Documents = [{"op": "remove" if value is None and name not in FIELDS else "add", "value": value,
                             "path": "/" + name.replace("~", "~0").replace("/", "~1")}
                            for name, value in change(parse_glance_image(have)).items()]
        with self._send("PATCH", f"/{_quote_segment(id)}", {"Content-Type": PATCH}, orjson.dumps(patch),
                        context.token) as got:
            return parse_glance_image(orjson.loads(got.read()))

    def content(self, id: str) -> tuple[Iterator[bytes], int]:
        """Return (iterator over the pieces of the image's content, size in bytes). Raises ``NotFound`` when there is no
        content."""
        answer = self._send("GET", f"/{_quote_segment(id)}/file", {"Accept": "application/octet-stream"})
        if answer.status == 204:
            answer.close()
            raise errors.NotFound(f"Image {id} has no content.")
        size = int(answer.headers.get("Content-Length")
                   or 0) or self._json("GET", f"/{_quote_segment(id)}").get("size") or 0
        return _pieces(answer, id, size), size

    def create(self, context: Context, name: str | None, *, share_with: str | None = None,
               **attributes: Any) -> Document:
        """Create an image without content (status queued) and return it. The request uses the user's token, if there is
        one. If the image cannot be shared with the project *share_with*, delete the image again, and raise the error.
        """
        properties = attributes.pop("properties", {})
        check_properties(properties)
        body = {"name": name, **properties, **attributes}
        if not context.token:
            body.setdefault("owner", context.project_id)
        made = parse_glance_image(self._json("POST", "", body, context.token))
        if share_with is not None:
            try:
                self._json("POST", f"/{_quote_segment(made['id'])}/members", {"member": share_with}, context.token)
            except errors.MagnetarError:
                self.delete(context, made["id"])
                raise
        return made

    def check_room(self, context: Context, more: int, size: int, image: str = "") -> None:
        """Do nothing, because Glance checks its quotas itself, during the upload."""

    def upload(self, id: str, chunks: Iterable[bytes], *, size: int | None = None) -> Document:
        length = {} if size is None else {"Content-Length": str(size)}
        self._send("PUT", f"/{_quote_segment(id)}/file", {"Content-Type": "application/octet-stream", **length},
                   chunks).close()
        return parse_glance_image(self._json("GET", f"/{_quote_segment(id)}"))

    def fail(self, id: str, why: str) -> None:
        """Delete the image *id*, whose upload has failed, as Nova does. Do nothing if the image has content. *why*, the
        reason, is not used, because Glance cannot store a reason."""
        image = self._json("GET", f"/{_quote_segment(id)}", accept=(404,))
        if image is not None and image["status"] in WAITING:
            self._json("DELETE", f"/{_quote_segment(id)}", accept=(404,))

    def delete(self, context: Context, id: str) -> None:
        self._json("DELETE", f"/{_quote_segment(id)}", token=context.token, accept=(404,))


def parse_glance_image(answer: Document) -> Document:
    """Convert an image from Glance's JSON *answer* to the form that ``services.Images`` returns: keys that are not
    fields of Glance become ``properties``."""
    image = {name: value for name, value in answer.items() if name in FIELDS - LINKS}
    return {**image, "properties": {name: value for name, value in answer.items() if name not in FIELDS}}


def _quote_segment(id: str) -> str:
    return urllib.parse.quote(id, safe="")


def _pieces(answer: Any, id: str, size: int) -> Iterator[bytes]:
    """Yield the content of the image *id*, *size* bytes in total, from the HTTP response *answer*. Raises
    ``Unavailable`` when the response ends early, so that incomplete content is not used."""
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
