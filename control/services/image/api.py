# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of image v2: versions, images, content, tags, actions, schemas. Members are in ``sharing``."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson

from magnetar_control.services import Context, Document
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Guarded, Routed
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, NotFound

from . import fields, schemas, sharing, store

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from .embedded import Embedded

#: The minor versions that are told; the newest is the current one.
VERSIONS = tuple(f"v2.{minor}" for minor in range(9, -1, -1) if minor != 8)
PATCHES = ("application/openstack-images-v2.1-json-patch", "application/openstack-images-v2.0-json-patch")
OCTETS = "application/octet-stream"
#: How images are imported, and the state of one whose content waits for it.
METHODS, STAGED = ("glance-direct",), "uploading"


def application(service: Embedded, authenticate: Callable[[Request], None]) -> Routed:
    """The web application."""
    one = "/v2/images/{id}"
    verbs = Verbs(service)
    return Routed([
        Guarded(method="GET", path="/", handler=versions, who="anyone"),
        Guarded(method="GET", path="/versions", handler=versions, who="anyone"),
        Guarded(method="GET", path="/v2/schemas/{name}", handler=schemas.show),
        Guarded(method="GET", path="/v2/images", handler=verbs.list),
        Guarded(method="POST", path="/v2/images", handler=verbs.create),
        Guarded(method="GET", path=one, handler=verbs.show),
        Guarded(method="PATCH", path=one, handler=verbs.update),
        Guarded(method="DELETE", path=one, handler=verbs.delete),
        Guarded(method="PUT", path=f"{one}/file", handler=verbs.upload, stream=True),
        Guarded(method="GET", path=f"{one}/file", handler=verbs.download),
        Guarded(method="GET", path="/v2/info/import", handler=methods),
        Guarded(method="PUT", path=f"{one}/stage", handler=verbs.stage, stream=True),
        Guarded(method="POST", path=f"{one}/import", handler=verbs.bring),
        Guarded(method="PUT", path=f"{one}/tags/{{tag}}", handler=verbs.tag),
        Guarded(method="DELETE", path=f"{one}/tags/{{tag}}", handler=verbs.untag),
        Guarded(method="POST", path=f"{one}/actions/deactivate", handler=verbs.deactivate, who="admin"),
        Guarded(method="POST", path=f"{one}/actions/reactivate", handler=verbs.reactivate, who="admin"),
        *sharing.routes(service.database),
    ], authenticate, rendered)


def rendered(fault: Fault) -> Answer:
    """A fault as Glance says it to clients that take JSON."""
    title = HTTPStatus(fault.status).phrase
    return Answer({"code": f"{fault.status} {title}", "title": title, "message": fault.message}, fault.status)


def versions(request: Request) -> Answer:
    """The versions of the API, all at one place."""
    found = [{"id": id, "status": "SUPPORTED" if at else "CURRENT",
              "links": [{"rel": "self", "href": f"{request.base}/v2/"}]} for at, id in enumerate(VERSIONS)]
    return Answer({"versions": found}, 200 if request.path.startswith("/versions") else 300)


def methods(request: Request) -> Answer:  # noqa: ARG001 - the same for all
    """How images are imported."""
    return Answer({"import-methods": {"description": "Import methods available.", "type": "array",
                                      "value": list(METHODS)}})


def may_write(context: Context) -> None:
    """Raise ``Forbidden`` for who may only read."""
    if not context.is_admin and "member" not in context.roles:
        raise Forbidden("You are not authorized to complete this action: it needs the role member.")


def may_change(context: Context, image: Document) -> None:
    """Raise ``Forbidden`` for who may see the image, but not change it."""
    may_write(context)
    if not context.is_admin and (image["owner"] is None or image["owner"] != context.project_id):
        raise Forbidden("You are not permitted to modify this image: it is another project's.")


def may_have(context: Context, wanted: Document) -> None:
    """Raise ``Forbidden`` for fields that only administrators set."""
    if not context.is_admin and wanted.get("visibility") == "public":
        raise Forbidden("Only administrators make images public; share it, or make it a community image.")
    if not context.is_admin and wanted.get("owner", context.project_id) != context.project_id:
        raise Forbidden("Only administrators give images to other projects.")


class Verbs:
    """What the routes do."""

    def __init__(self, service: Embedded) -> None:
        self.service, self.database = service, service.database

    def list(self, request: Request) -> Answer:
        """A page of images."""
        with self.database.read() as connection:
            found, more = store.page(connection, request.context, request.query)
        rest = [(name, value) for name, value in request.query if name != "marker"]
        answer: Document = {"images": [fields.shown(image) for image in found], "schema": "/v2/schemas/images",
                            "first": _link(rest)}
        if more:
            answer["next"] = _link([*rest, ("marker", found[-1]["id"])])
        return Answer(answer)

    def create(self, request: Request) -> Answer:
        """A queued image."""
        may_write(request.context)
        wanted = request.json()
        if not isinstance(wanted, dict):
            raise InvalidRequest("The body must be an object with the fields of the image.")
        may_have(request.context, wanted)
        wanted.setdefault("name", None)
        properties = {key: value for key, value in wanted.items() if key not in fields.FIELDS and key != "id"}
        known = {key: value for key, value in wanted.items() if key not in properties}
        image = self.service.create(request.context, **known, properties=properties)
        return Answer(fields.shown(image), 201, {"Location": f"{request.base}/v2/images/{image['id']}",
                                                 "OpenStack-image-import-methods": ",".join(METHODS)})

    def show(self, request: Request) -> Answer:
        """One image."""
        with self.database.read() as connection:
            return Answer(fields.shown(seen(connection, request)))

    def update(self, request: Request) -> Answer:
        """Change it by a JSON patch."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in PATCHES:
            raise Fault(415, f"An image is changed by a JSON patch; its Content-Type must be {PATCHES[0]}.")
        try:
            operations = orjson.loads(request.content)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
        with self.database.write() as connection:
            image = seen(connection, request, lock=True)
            may_change(request.context, image)
            changes = fields.patched(fields.shown(image), operations)
            values = self._changed(request.context, image, changes)
            if (names := values.pop("tags", None)) is not None:
                store.set_tags(connection, image["id"], names)
            store.change(connection, image["id"], values)
            return Answer(fields.shown(seen(connection, request)))

    def _changed(self, context: Context, image: Document, changes: Document) -> Document:
        """The columns of *changes*, checked."""
        gone = {name for name, value in changes.items() if value is None and name not in fields.FIELDS}
        values, more = fields.checked({name: value for name, value in changes.items() if name not in gone})
        # What stays as it is needs no right: clients send all fields that they know.
        may_have(context, {name: value for name, value in values.items() if value != image[name]})
        for name in ("disk_format", "container_format"):
            if name in values and values[name] != image[name] and image["status"] != "queued":
                raise Forbidden(f"{name} cannot be changed any more: the content is there, and is of that format.")
        properties = {**image["properties"], **more}
        values["properties"] = fields.kept({name: value for name, value in properties.items() if name not in gone})
        return values

    def delete(self, request: Request) -> Answer:
        """Remove image and content."""
        with self.database.read() as connection:
            image = seen(connection, request)
        self.service.delete(request.context, image["id"])
        return Answer(status=204)

    def upload(self, request: Request) -> Answer:
        """Take the content in, piece by piece."""
        return self._take(request, "active")

    def stage(self, request: Request) -> Answer:
        """Take the content in, to be imported ("Interoperable image import", glance-direct)."""
        return self._take(request, STAGED)

    def bring(self, request: Request) -> Answer:
        """Import what was staged: it was looked at then, so the image is active at once."""
        body = request.json()
        method = body.get("method") if isinstance(body, dict) else None
        if not isinstance(method, dict) or method.get("name") not in METHODS:
            raise InvalidRequest(f'The body must be {{"method": {{"name": one of {", ".join(METHODS)}}}}}.')
        with self.database.write() as connection:
            image = self._changeable(connection, request)
            if not store.change(connection, image["id"], {"status": "active"}, (STAGED,)):
                raise Conflict(f"Image {image['id']} is {image['status']}; stage its content before you import it.")
        return Answer(status=202)

    def _take(self, request: Request, then: str) -> Answer:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != OCTETS:
            raise Fault(415, f"Content comes with Content-Type {OCTETS}.")
        with self.database.read() as connection:
            image = seen(connection, request)
        may_change(request.context, image)
        self.service.upload(image["id"], request.chunks(), then)
        return Answer(status=204)

    def download(self, request: Request) -> Answer:
        """The content, piece by piece; 204 when there is none yet."""
        with self.database.read() as connection:
            image = seen(connection, request)
        if image["status"] == "deactivated" and not request.context.is_admin:
            raise Forbidden(f"Image {image['id']} is deactivated; an administrator may reactivate it.")
        if image["status"] not in ("active", "deactivated"):
            return Answer(status=204)
        pieces, size = self.service.content(image["id"])
        headers = {"Content-Length": str(size), "Content-MD5": image["checksum"]}
        if request.method == "HEAD":
            return Answer(b"", 200, {"Content-MD5": image["checksum"]}, OCTETS)
        return Answer(pieces, 200, headers, OCTETS)

    def tag(self, request: Request) -> Answer:
        """Put a tag on it; nothing when it is there."""
        with self.database.write() as connection:
            image = self._changeable(connection, request)
            store.set_tags(connection, image["id"], fields.tags("tags", [*image["tags"], request.params["tag"]]))
        return Answer(status=204)

    def untag(self, request: Request) -> Answer:
        """Take a tag off it; 404 when it is not there."""
        with self.database.write() as connection:
            image, tag = self._changeable(connection, request), request.params["tag"]
            if tag not in image["tags"]:
                raise NotFound(f"Image {image['id']} has no tag {tag}.")
            store.set_tags(connection, image["id"], [name for name in image["tags"] if name != tag])
        return Answer(status=204)

    def deactivate(self, request: Request) -> Answer:
        """Nobody but administrators gets the content any more."""
        return self._status(request, "deactivated")

    def reactivate(self, request: Request) -> Answer:
        """Everybody who may see it gets the content again."""
        return self._status(request, "active")

    def _status(self, request: Request, status: str) -> Answer:
        with self.database.write() as connection:
            image = seen(connection, request)
            if not store.change(connection, image["id"], {"status": status}, ("active", "deactivated")):
                raise Forbidden(f"Image {image['id']} is {image['status']}; only what is active or deactivated can "
                                f"become {status}.")
        return Answer(status=204)

    def _changeable(self, connection: Connection, request: Request) -> Document:
        image = seen(connection, request, lock=True)
        may_change(request.context, image)
        return image


def seen(connection: Connection, request: Request, lock: bool = False) -> Document:
    """The image that the URL names; ``NotFound`` when it is not there for this user."""
    image = store.find(connection, request.context, request.params["id"], lock)
    if image is None:
        raise NotFound(f"No image found with ID {request.params['id']}.")
    return image


def _link(query: Any) -> str:
    return "/v2/images" + (f"?{urlencode(query)}" if query else "")
