# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of images: list, create, show, update by JSON patches, delete; content, tags, actions."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

from magnetar_control.api.values import to_second
from magnetar_control.services.image import EmbeddedImages
from magnetar_control.services.image.embedded import STAGED
from magnetar_control.services.image.fields import FIELDS, PROPERTY, is_read_only
from magnetar_control.services.image.images import check_image_owner, check_image_writer, check_readable
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_control.web.request import parse_json
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, Forbidden, InvalidField, InvalidRequest, NoSpace, NotFound

from .query import parse_image_listing

OCTETS = "application/octet-stream"
#: Import methods ("Interoperable image import").
METHODS = ("glance-direct",)
#: Reasons for the absence of the other methods.
NO_METHODS = {"web-download": "nothing is downloaded here; do so, and upload it with openstack image create --file",
              "copy-image": "there is one store", "glance-download": "there is no other Glance to download from"}
ONE_STORE = "must be left out: there is one store"
#: The value of a removed field.
REMOVED: Document = {"name": None, "disk_format": None, "container_format": None, "tags": []}


class ImageRoutes:
    """The routes of images in the Image API, and their handlers."""

    def __init__(self, service: EmbeddedImages) -> None:
        self.service = service

    def routes(self) -> list[Guarded]:
        """Return the routes of images, with their handlers."""
        service, every, image_path = self.service, "/v2/images", "/v2/images/{id}"
        return [
            guarded_route(f"GET {every}", self.list), guarded_route(f"POST {every}", self.create),
            guarded_route(f"GET {image_path}", lambda request: image_view(self._seen(request))),
            guarded_route(f"PATCH {image_path}", self.update),
            guarded_route(f"DELETE {image_path}", lambda request: service.delete(request.context,
                                                                                 self._seen(request)["id"]), 204),
            guarded_route(f"PUT {image_path}/file", lambda request: self.upload_content(request, "active"), 204,
                          stream=True),
            guarded_route(f"GET {image_path}/file", self.download),
            guarded_route(f"PUT {image_path}/stage", lambda request: self.upload_content(request, STAGED), 204,
                          stream=True),
            guarded_route(f"POST {image_path}/import", self.import_staged, 202),
            guarded_route("GET /v2/info/usage", self.usage),
            guarded_route(f"GET {image_path}/tasks", self.tasks),
            guarded_route(f"PUT {image_path}/tags/{{tag}}", lambda request: service.tag(*request.service_arguments()),
                          204),
            guarded_route(f"DELETE {image_path}/tags/{{tag}}",
                          lambda request: service.tag(*request.service_arguments(False)), 204),
            guarded_route(f"POST {image_path}/actions/deactivate", partial(self.activate, "deactivated"), 204, "admin"),
            guarded_route(f"POST {image_path}/actions/reactivate", partial(self.activate, "active"), 204, "admin"),
        ]

    def list(self, request: Request) -> Document:
        """Return one page of the images that match the query: GET /v2/images."""
        images, more = self.service.page(request.context, parse_image_listing(request.query))
        query_pairs = [(name, value) for name, value in request.query if name != "marker"]
        answer: Document = {"images": [image_view(image) for image in images], "schema": "/v2/schemas/images",
                            "first": _link(query_pairs)}
        if more:
            answer["next"] = _link([*query_pairs, ("marker", images[-1]["id"])])
        return answer

    def create(self, request: Request) -> Answer:
        """Create an image without content, in the status ``queued``, and return it: POST /v2/images."""
        check_image_writer(request.context)
        image_body = request.json()
        if not isinstance(image_body, dict):
            raise InvalidRequest("The body must be an object with the fields of the image.")
        image_body.setdefault("name", None)
        properties = {key: value for key, value in image_body.items() if key not in FIELDS and key != "id"}
        fields = {key: value for key, value in image_body.items() if key not in properties}
        image = self.service.create(request.context, **fields, properties=properties)
        return Answer(image_view(image), 201, {"Location": f"{request.base}/v2/images/{image['id']}",
                                               "OpenStack-image-import-methods": ",".join(METHODS)})

    def update(self, request: Request) -> Document:
        """Change an image as the JSON patch in the body describes, and return the image."""
        form = PATCHES.get(_media_type(request))
        if form is None:
            raise Fault(415, f"An image is changed by a JSON patch; its Content-Type must be {next(iter(PATCHES))}.")
        operations = parse_json(request.content)
        return image_view(self.service.update(*request.service_arguments(
            lambda image: apply_image_patch(image_view(image), form(operations)))))

    def upload_content(self, request: Request, then: str) -> None:
        """Store the request body as the content of an image, piece by piece. *then*: the status of the image after the
        upload: ``active``, or, for an upload that a later request imports, ``uploading``."""
        if _media_type(request) != OCTETS:
            raise Fault(415, f"Content comes with Content-Type {OCTETS}.")
        if store := request.headers.get("x-image-meta-store"):
            raise InvalidField("X-Image-Meta-Store", ONE_STORE, store)
        image = self._seen(request)
        check_image_owner(request.context, image)
        try:
            with request.upload() as pieces:
                self.service.upload(image["id"], pieces, then, request.length)
        except NoSpace as error:
            raise Fault(413, f"Image storage media is full: {error.message}") from None

    def import_staged(self, request: Request) -> None:
        """Import the content of an image that a client has uploaded with ``PUT …/stage``: POST /v2/images/{id}/import.
        """
        body = request.json()
        method = body.get("method") if isinstance(body, dict) else None
        if not isinstance(method, dict) or not isinstance(method.get("name"), str):
            raise InvalidRequest(f'The body must be {{"method": {{"name": one of {", ".join(METHODS)}}}}}.')
        if method["name"] not in METHODS:
            why = NO_METHODS.get(method["name"], "there is no such method")
            raise InvalidField("method.name", f"must be {' or '.join(METHODS)}: {why}", method["name"])
        for name in ("stores", "all_stores"):
            if body.get(name):
                raise InvalidField(name, ONE_STORE, body[name])
        if unknown := {*body} - {"method", "stores", "all_stores", "all_stores_must_succeed"} or {*method} - {"name"}:
            raise InvalidField(min(unknown)[:80], "is nothing that an import looks at")
        self.service.import_staged(*request.service_arguments())

    def tasks(self, request: Request) -> Document:
        """Return the tasks of an image: always an empty list, because this service has no tasks. Raises ``NotFound`` if
        the caller may not see the image."""
        self._seen(request)
        return {"tasks": []}

    def usage(self, request: Request) -> Document:
        """Return the image limits and the usage of the caller's project. Sizes are in MiB."""
        return {"usage": {name: {"limit": limit, "usage": used}
                          for name, (limit, used) in self.service.usage(request.context.project_id or "").items()}}

    def download(self, request: Request) -> Answer:
        """Return the content of an image, streamed piece by piece; status 204 if the image has no content yet."""
        image = self._seen(request)
        check_readable(request.context, image)
        if image["status"] not in ("active", "deactivated"):
            return Answer(status=204)
        pieces, size = self.service.content(image["id"])
        headers = {"Content-Length": str(size), "Content-MD5": image["checksum"]}
        if request.method == "HEAD":
            return Answer(b"", 200, {"Content-MD5": image["checksum"]}, OCTETS)
        return Answer(request.download(pieces), 200, headers, OCTETS)

    def activate(self, status: str, request: Request) -> None:
        """Set the *status* of an image: ``deactivated`` (only administrators can download it) or ``active``."""
        self.service.activate(*request.service_arguments(status))

    def _seen(self, request: Request) -> Document:
        """Return the image that the URL names. Raises ``NotFound`` if the image does not exist or the user may not see
        it."""
        image = self.service.show(*request.service_arguments())
        if image is None:
            raise NotFound(f"No image found with ID {request.params['id']}.")
        return image


def image_view(image: Document) -> Document:
    """Return *image* in the format of Glance's answers, in which properties are keys of the same object as the image's
    fields."""
    path = f"/v2/images/{image['id']}"
    fields = {key: value for key, value in image.items() if key not in ("properties", "why")}
    return {**image["properties"], **fields, "created_at": to_second(image["created_at"]),
            "updated_at": to_second(image["updated_at"] or image["created_at"]),
            "self": path, "file": f"{path}/file", "schema": "/v2/schemas/image"}


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _link(query: Any) -> str:
    return "/v2/images" + (f"?{urlencode(query)}" if query else "")


def _as_they_are(operations: Any) -> Any:
    return operations


def _of_draft_4(operations: Any) -> Any:
    """Convert a JSON patch of draft 4 to RFC 6902: {"replace": "/name", "value": "x"} becomes {"op": "replace", "path":
    "/name", "value": "x"}. *operations*: the decoded request body. Raises ``InvalidRequest``."""
    return [_of_draft_4_one(operation) for operation in operations] if isinstance(operations, list) else operations


def _of_draft_4_one(operation: Any) -> Document:
    kinds = [kind for kind in ("add", "remove", "replace") if kind in operation] if isinstance(operation, dict) else []
    if len(kinds) != 1:
        raise InvalidRequest('Operation objects must contain exactly one member named "add", "remove", or "replace".')
    value_member = {name: value for name, value in operation.items() if name == "value"}
    return {"op": kinds[0], "path": operation[kinds[0]], **value_member}


#: Media types of patches to functions that convert them to RFC 6902: v2.0 has the form of its fourth draft.
PATCHES = {"application/openstack-images-v2.1-json-patch": _as_they_are,
           "application/openstack-images-v2.0-json-patch": _of_draft_4}


def apply_image_patch(image: Document, operations: Any) -> Document:
    """Return the changes that a JSON patch (RFC 6902, with Glance's operations) makes to *image*, an image in Glance's
    format. The result maps each changed field or property to its new value, ``None`` for a removed property. *image* is
    not modified."""
    if not isinstance(operations, list):
        raise InvalidRequest("The body must be a list of operations {op, path, value}.")
    now: Document = dict(image)
    changes: Document = {}
    for operation in operations:
        name = _path(operation)
        if is_read_only(name) or name in ("id", "owner_specified"):
            raise Forbidden(f"Attribute '{name}' is set by the image service itself and cannot be changed.")
        _change(operation, name, now, changes)
    return changes


def _change(operation: Document, name: str, now: Document, changes: Document) -> None:
    """Apply *operation*, one operation of a JSON patch, to the field or property *name* of an image. The function
    modifies *now*, the image's document, and stores the new value in *changes*."""
    kind = operation.get("op")
    if kind in ("replace", "remove") and name not in now:
        raise Conflict(f"There is no {name} to {kind}; add it.")
    if kind == "remove":
        if name in FIELDS and name not in REMOVED:
            raise Forbidden(f"{name} cannot be removed; replace it.")
        now.pop(name)
        changes[name] = REMOVED.get(name)
    elif kind in ("add", "replace"):
        if "value" not in operation:
            raise InvalidRequest(f"The operation {kind} of {name} needs a value.")
        now[name] = changes[name] = operation["value"]
        if name not in FIELDS:
            PROPERTY.check(operation["value"], name)
    else:
        raise InvalidRequest("op must be add, replace or remove.")


def _path(operation: Any) -> str:
    path = operation.get("path") if isinstance(operation, dict) else None
    if not isinstance(path, str) or not path.startswith("/") or "/" in (name := path[1:]) or not name:
        raise InvalidRequest('Each operation must be an object with a path such as "/name": one slash and the name.')
    return name.replace("~1", "/").replace("~0", "~")
