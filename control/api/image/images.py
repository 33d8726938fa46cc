# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of images: list, create, show, update, delete; content, tags, actions."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import orjson

from magnetar_control.services import Document
from magnetar_control.services.image import Embedded
from magnetar_control.services.image.embedded import STAGED
from magnetar_control.services.image.fields import FIELDS
from magnetar_control.services.image.permissions import check_fields, check_owner, check_readable, check_writer
from magnetar_control.web import Answer, Fault, Request
from magnetar_core.errors import InvalidRequest, NotFound

from . import views
from .patch import patched
from .query import listing

PATCHES = ("application/openstack-images-v2.1-json-patch", "application/openstack-images-v2.0-json-patch")
OCTETS = "application/octet-stream"
#: How images are imported.
METHODS = ("glance-direct",)


class ImageRoutes:
    """What the routes do."""

    def __init__(self, service: Embedded) -> None:
        self.service = service

    def list(self, request: Request) -> Answer:
        """A page of images."""
        found, more = self.service.page(request.context, listing(request.query))
        rest = [(name, value) for name, value in request.query if name != "marker"]
        answer: Document = {"images": [views.image(image) for image in found], "schema": "/v2/schemas/images",
                            "first": _link(rest)}
        if more:
            answer["next"] = _link([*rest, ("marker", found[-1]["id"])])
        return Answer(answer)

    def create(self, request: Request) -> Answer:
        """A queued image."""
        check_writer(request.context)
        wanted = request.json()
        if not isinstance(wanted, dict):
            raise InvalidRequest("The body must be an object with the fields of the image.")
        check_fields(request.context, wanted)
        wanted.setdefault("name", None)
        properties = {key: value for key, value in wanted.items() if key not in FIELDS and key != "id"}
        known = {key: value for key, value in wanted.items() if key not in properties}
        image = self.service.create(request.context, **known, properties=properties)
        return Answer(views.image(image), 201, {"Location": f"{request.base}/v2/images/{image['id']}",
                                                "OpenStack-image-import-methods": ",".join(METHODS)})

    def show(self, request: Request) -> Answer:
        """One image."""
        return Answer(views.image(self._seen(request)))

    def update(self, request: Request) -> Answer:
        """Change it by a JSON patch."""
        if _media_type(request) not in PATCHES:
            raise Fault(415, f"An image is changed by a JSON patch; its Content-Type must be {PATCHES[0]}.")
        try:
            operations = orjson.loads(request.content)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
        return Answer(views.image(self.service.update(
            request.context, request.params["id"], lambda image: patched(views.image(image), operations))))

    def delete(self, request: Request) -> Answer:
        """Remove image and content."""
        self.service.delete(request.context, self._seen(request)["id"])
        return Answer(status=204)

    def upload(self, request: Request) -> Answer:
        """Take the content in, piece by piece."""
        return self._take(request, "active")

    def stage(self, request: Request) -> Answer:
        """Take the content in, to be imported ("Interoperable image import", glance-direct)."""
        return self._take(request, STAGED)

    def bring(self, request: Request) -> Answer:
        """Import what was staged."""
        body = request.json()
        method = body.get("method") if isinstance(body, dict) else None
        if not isinstance(method, dict) or method.get("name") not in METHODS:
            raise InvalidRequest(f'The body must be {{"method": {{"name": one of {", ".join(METHODS)}}}}}.')
        self.service.bring(request.context, request.params["id"])
        return Answer(status=202)

    def _take(self, request: Request, then: str) -> Answer:
        if _media_type(request) != OCTETS:
            raise Fault(415, f"Content comes with Content-Type {OCTETS}.")
        image = self._seen(request)
        check_owner(request.context, image)
        self.service.upload(image["id"], request.chunks(), then)
        return Answer(status=204)

    def download(self, request: Request) -> Answer:
        """The content, piece by piece; 204 when there is none yet."""
        image = self._seen(request)
        check_readable(request.context, image)
        if image["status"] not in ("active", "deactivated"):
            return Answer(status=204)
        pieces, size = self.service.content(image["id"])
        headers = {"Content-Length": str(size), "Content-MD5": image["checksum"]}
        if request.method == "HEAD":
            return Answer(b"", 200, {"Content-MD5": image["checksum"]}, OCTETS)
        return Answer(pieces, 200, headers, OCTETS)

    def tag(self, request: Request) -> Answer:
        """Put a tag on it; nothing when it is there."""
        self.service.tag(request.context, request.params["id"], request.params["tag"])
        return Answer(status=204)

    def untag(self, request: Request) -> Answer:
        """Take a tag off it; 404 when it is not there."""
        self.service.untag(request.context, request.params["id"], request.params["tag"])
        return Answer(status=204)

    def deactivate(self, request: Request) -> Answer:
        """Nobody but administrators gets the content any more."""
        self.service.deactivate(request.context, request.params["id"])
        return Answer(status=204)

    def reactivate(self, request: Request) -> Answer:
        """Everybody who may see it gets the content again."""
        self.service.reactivate(request.context, request.params["id"])
        return Answer(status=204)

    def _seen(self, request: Request) -> Document:
        """The image that the URL names. Raises ``NotFound`` when it is not there for this user."""
        image = self.service.show(request.context, request.params["id"])
        if image is None:
            raise NotFound(f"No image found with ID {request.params['id']}.")
        return image


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _link(query: Any) -> str:
    return "/v2/images" + (f"?{urlencode(query)}" if query else "")
