# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of image v2: versions, images, content, tags, actions, schemas."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from magnetar_control.services.image import Embedded
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Guarded, Routed

from . import members, schemas
from .images import METHODS, ImageRoutes

#: The minor versions that are told; the newest is the current one.
VERSIONS = tuple(f"v2.{minor}" for minor in range(9, -1, -1) if minor != 8)


def application(service: Embedded, authenticate: Callable[[Request], None]) -> Routed:
    """What is mounted at ``/image``. *authenticate* sets ``request.context`` or raises ``Fault`` 401."""
    one = "/v2/images/{id}"
    images = ImageRoutes(service)
    return Routed([
        Guarded(method="GET", path="/", handler=versions, who="anyone"),
        Guarded(method="GET", path="/versions", handler=versions, who="anyone"),
        Guarded(method="GET", path="/v2/schemas/{name}", handler=schemas.show),
        Guarded(method="GET", path="/v2/images", handler=images.list),
        Guarded(method="POST", path="/v2/images", handler=images.create),
        Guarded(method="GET", path=one, handler=images.show),
        Guarded(method="PATCH", path=one, handler=images.update),
        Guarded(method="DELETE", path=one, handler=images.delete),
        Guarded(method="PUT", path=f"{one}/file", handler=images.upload, stream=True),
        Guarded(method="GET", path=f"{one}/file", handler=images.download),
        Guarded(method="GET", path="/v2/info/import", handler=methods),
        Guarded(method="PUT", path=f"{one}/stage", handler=images.stage, stream=True),
        Guarded(method="POST", path=f"{one}/import", handler=images.bring),
        Guarded(method="PUT", path=f"{one}/tags/{{tag}}", handler=images.tag),
        Guarded(method="DELETE", path=f"{one}/tags/{{tag}}", handler=images.untag),
        Guarded(method="POST", path=f"{one}/actions/deactivate", handler=images.deactivate, who="admin"),
        Guarded(method="POST", path=f"{one}/actions/reactivate", handler=images.reactivate, who="admin"),
        *members.MemberRoutes(service.members).routes(),
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
