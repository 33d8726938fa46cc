# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of image v2: versions, images, members, JSON schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from magnetar_control.api.failures import RoutedService
from magnetar_control.api.fault_forms import webob_answer
from magnetar_control.services.image import EmbeddedImages
from magnetar_control.services.image.fields import LONGEST, READ_ONLY, VISIBILITIES
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import NotFound
from magnetar_core.kinds.image import BOOT, FORMATS

from . import members, none
from .images import METHODS, ImageRoutes

#: The advertised minor versions; the newest is the current one.
VERSIONS = tuple(f"v2.{minor}" for minor in range(9, -1, -1) if minor != 8)

TEXT: Document = {"type": ["null", "string"], "maxLength": 255}
NUMBER: Document = {"type": "integer", "minimum": 0}
TIME: Document = {"type": "string"}
FLAG: Document = {"type": "boolean"}
STATES = ("queued", "saving", "uploading", "active", "killed", "deactivated")

IMAGE: Document = {
    "name": "image",
    "properties": {
        "id": {"type": "string", "description": "A UUID."}, "name": TEXT, "owner": TEXT,
        "status": {"type": "string", "enum": list(STATES)},
        "visibility": {"type": "string", "enum": list(VISIBILITIES)},
        "disk_format": {"type": ["null", "string"], "enum": [None, *FORMATS]},
        "container_format": {"type": ["null", "string"], "enum": [None, "bare", *BOOT]},
        "min_disk": NUMBER, "min_ram": NUMBER, "protected": FLAG, "os_hidden": FLAG,
        "size": {"type": ["null", "integer"]},
        "virtual_size": {"type": ["null", "integer"]}, "checksum": TEXT, "os_hash_algo": TEXT, "os_hash_value": TEXT,
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 255}},
        "created_at": TIME, "updated_at": TIME, "self": TIME, "file": TIME, "schema": TIME},
    "additionalProperties": {"type": "string", "maxLength": LONGEST},
    "links": [{"rel": "self", "href": "{self}"}, {"rel": "enclosure", "href": "{file}"},
              {"rel": "describedby", "href": "{schema}"}]}
for _name in READ_ONLY & set(IMAGE["properties"]):
    IMAGE["properties"][_name] = {**IMAGE["properties"][_name], "readOnly": True}

MEMBER: Document = {
    "name": "member",
    "properties": {"image_id": TIME, "member_id": TIME, "created_at": TIME, "updated_at": TIME, "schema": TIME,
                   "status": {"type": "string", "enum": ["pending", "accepted", "rejected"]}}}


class ImageApplication(RoutedService):
    """The web application of the Image API. Its error answers are HTML, JSON or text, depending on the request header
    ``Accept``."""

    def refused(self, request: Request, fault: Fault) -> Answer:
        """Override ``Routed.refused``: return an error answer as Glance does, that is, in the format of the library
        WebOb."""
        answer = webob_answer(fault, request.headers.get("accept", ""))
        answer.headers.update(fault.headers)
        return answer


def _many(name: str, item: Document) -> Document:
    properties = {name: {"type": "array", "items": item}, "schema": TIME, "first": TIME, "next": TIME}
    return {"name": name, "properties": properties,
            "links": [{"rel": "first", "href": "{first}"}, {"rel": "next", "href": "{next}"}]}


def _of(name: str, properties: Sequence[str]) -> Document:
    return {"name": name, "properties": dict.fromkeys(properties, TIME)}


_TASK, _NAMESPACE = _of("task", none.TASK), _of("namespace", none.NAMESPACE)
_RESOURCE_TYPE = _of("resource_type_association", none.RESOURCE_TYPE)
SCHEMAS = {"image": IMAGE, "images": _many("images", IMAGE), "member": MEMBER, "members": _many("members", MEMBER),
           "task": _TASK, "tasks": _many("tasks", _TASK)}
_OBJECT, _PROPERTY, _TAG = _of("object", none.OBJECT), _of("property", none.PROPERTY), _of("tag", none.TAG)
METADEFS = {"namespace": _NAMESPACE, "namespaces": _many("namespaces", _NAMESPACE), "object": _OBJECT,
            "objects": _many("objects", _OBJECT), "property": _PROPERTY, "properties": {
                "name": "properties", "properties": {"properties": {
                    "type": "object", "additionalProperties": _PROPERTY}}},
            "tag": _TAG, "tags": _many("tags", _TAG), "resource_type": _RESOURCE_TYPE,
            "resource_types": _many("resource_type_associations", _RESOURCE_TYPE)}


def image_application(service: EmbeddedImages, authenticate: Callable[[Request], None]) -> RoutedService:
    """Return the web application of the Image API, mounted at ``/image``. *authenticate*: a function that sets
    ``request.context``, or raises ``Fault`` 401."""
    return ImageApplication([
        guarded_route("GET /", handle_image_versions, who="anyone"),
        guarded_route("GET /versions", handle_image_versions, who="anyone"),
        guarded_route("GET /v2/schemas/{name}", lambda request: handle_image_schema(request, SCHEMAS)),
        guarded_route("GET /v2/schemas/metadefs/{name}", lambda request: handle_image_schema(request, METADEFS)),
        guarded_route("GET /v2/info/import", lambda _request: {"import-methods": {
            "description": "Import methods available.", "type": "array", "value": list(METHODS)}}),
        *ImageRoutes(service).routes(), *members.image_member_routes(service.members), *none.absent_image_routes(),
    ], authenticate, lambda fault: webob_answer(fault, ""))


def handle_image_versions(request: Request) -> Answer:
    """Return the list of versions of the image API. All versions have the same URL."""
    versions = [{"id": id, "status": "SUPPORTED" if at else "CURRENT",
                 "links": [{"rel": "self", "href": f"{request.base}/v2/"}]} for at, id in enumerate(VERSIONS)]
    return Answer({"versions": versions}, 200 if request.path.startswith("/versions") else 300)


def handle_image_schema(request: Request, schemas: Mapping[str, Document]) -> Document:
    """Return the JSON schema that the URL names, for clients that validate with schemas (python-glanceclient). Raises
    ``NotFound``."""
    name = request.params["name"]
    if name not in schemas:
        raise NotFound(f"There is no schema {name}; there are {', '.join(schemas)}.")
    return schemas[name]
