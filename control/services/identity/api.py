# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of identity v3, and how it asks who it is and says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Guarded, Routed, unknown

from .authentication import Authentication
from .bearers import Bearers
from .collection import Collection
from .granting import Granting
from .nouns import NOUNS
from .people import People

#: The version of the Identity API whose documents these are.
VERSION = "v3.14"


def application(bearers: Bearers, life: float, root: Callable[[Request], str | None]) -> Routed:
    """The web application; see ``Authentication`` for the arguments."""
    authentication = Authentication(bearers, life, root)
    routes = [
        Guarded(method="GET", path="/", handler=versions, who="anyone"),
        Guarded(method="GET", path="/v3", handler=version, who="anyone"),
        *authentication.routes(), *Granting(bearers).routes(), *People(bearers, authentication).routes(),
        *(route for noun in NOUNS for route in Collection(noun, bearers).routes()),
    ]

    def authenticate(request: Request) -> None:
        bearer = bearers.find(request.headers.get("x-auth-token", ""))
        if bearer is None:
            raise unknown(request.base)
        request.context, request.extra["bearer"] = bearer.context, bearer

    return Routed(routes, authenticate, rendered)


def rendered(fault: Fault) -> Answer:
    """A fault as Keystone says it."""
    headers = {"WWW-Authenticate": "Keystone"} if fault.status == HTTPStatus.UNAUTHORIZED else {}
    return Answer({"error": {"code": fault.status, "message": fault.message, "title": HTTPStatus(fault.status).phrase}},
                  fault.status, headers)


def _document(request: Request) -> dict[str, Any]:
    return {"id": VERSION, "status": "stable", "updated": "2020-04-07T00:00:00Z",
            "links": [{"rel": "self", "href": f"{request.base}/v3/"}],
            "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}]}


def versions(request: Request) -> Answer:
    """All versions: one."""
    return Answer({"versions": {"values": [_document(request)]}}, 300, {"Location": f"{request.base}/v3/"})


def version(request: Request) -> Answer:
    """The version."""
    return Answer({"version": _document(request)})
