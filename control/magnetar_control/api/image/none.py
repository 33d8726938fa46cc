# SPDX-License-Identifier: GPL-3.0-or-later
"""Resources of Glance that the embedded image service does not have: metadata definitions and tasks. Lists are empty
and name their schemas, which clients read (API reference, "Metadata definitions", "Tasks")."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.errors import InvalidRequest, NotFound

#: The properties of each resource, for its schema.
NAMESPACE = ("namespace", "display_name", "description", "visibility", "protected", "owner", "created_at", "updated_at",
             "self", "schema")
OBJECT = ("name", "description", "required", "properties", "created_at", "updated_at", "self", "schema")
PROPERTY = ("name", "title", "description", "type", "operators", "default", "enum", "minimum", "maximum", "minLength",
            "maxLength", "pattern", "items", "minItems", "maxItems", "uniqueItems", "additionalItems", "readonly")
TAG = ("name", "created_at", "updated_at")
RESOURCE_TYPE = ("name", "prefix", "properties_target", "created_at", "updated_at")
TASK = ("id", "type", "status", "owner", "expires_at", "created_at", "updated_at", "self", "schema")
#: Routes of absent resources, and the reasons.
_ONE_STORE = "There is one store, the folder of the image service; images are neither spread over several nor copied."
_NO_CACHE = "The image service has no cache, as its content lies beside it. Each host keeps what its servers stand on."
_NO_LOCATIONS = "The content of an image lies in the image service, and at no other location. Upload it."
ABSENT = {"GET /v2/info/stores": _ONE_STORE, "GET /v2/info/stores/detail": _ONE_STORE, "GET /v2/cache": _NO_CACHE,
          "DELETE /v2/cache": _NO_CACHE, "PUT /v2/cache/{id}": _NO_CACHE, "DELETE /v2/cache/{id}": _NO_CACHE,
          "GET /v2/images/{id}/locations": _NO_LOCATIONS, "POST /v2/images/{id}/locations": _NO_LOCATIONS}


def absent_image_routes() -> list[Guarded]:
    """Return routes for Glance resources that this service does not support, such as metadata definitions and tasks.
    Lists of such resources are empty. As in Glance, only administrators may use tasks."""
    namespaces = "/v2/metadefs/namespaces"
    return [
        guarded_route(f"GET {namespaces}", lambda _request: {
            "namespaces": [], "first": namespaces, "schema": "/v2/schemas/metadefs/namespaces"}),
        guarded_route(f"GET {namespaces}/{{id}}", _no_namespace),
        guarded_route(f"POST {namespaces}", _not_made, who="admin"),
        *(guarded_route(f"{method} {namespaces}/{{id}}", _no_namespace, who="admin") for method in ("PUT", "DELETE")),
        guarded_route(f"GET {namespaces}/{{id}}/{{kind}}", _no_namespace),
        guarded_route(f"POST {namespaces}/{{id}}/{{kind}}", _no_namespace, who="admin"),
        *(guarded_route(path, partial(_absent, why)) for path, why in ABSENT.items()),
        guarded_route("GET /v2/metadefs/resource_types", lambda _request: {"resource_types": []}),
        guarded_route("GET /v2/tasks", lambda _request: {
            "tasks": [], "first": "/v2/tasks", "schema": "/v2/schemas/tasks"}, who="admin"),
        guarded_route("GET /v2/tasks/{id}", _no_task, who="admin"),
        guarded_route("POST /v2/tasks", _not_made, who="admin")]


def _no_namespace(request: Request) -> NoReturn:
    raise NotFound(f"Metadata definition namespace={request.params['id'][:80]} was not found.")


def _absent(why: str, _request: Request) -> NoReturn:
    raise NotFound(why)


def _no_task(request: Request) -> NoReturn:
    raise NotFound(f"No task found with ID {request.params['id'][:80]}")


def _not_made(_request: Request) -> NoReturn:
    raise InvalidRequest("Embedded images have neither metadata definitions nor tasks. Properties of images are set on "
                         "the images; content comes with PUT /v2/images/ID/file.")
