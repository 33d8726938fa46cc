# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of identity v3, and how it asks who it is and says what is wrong."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from magnetar_control.services.identity import Embedded
from magnetar_control.services.identity.resources import RESOURCES
from magnetar_control.services.identity.role_assignments import RoleAssignments
from magnetar_control.services.identity.store import IdentityStore
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Guarded, Routed, unknown

from .groups import GroupRoutes
from .resources import IdentityRoutes
from .role_assignments import RoleAssignmentRoutes
from .tokens import TokenRoutes
from .users import UserRoutes

#: The version of the Identity API whose documents these are.
VERSION = "v3.14"


def application(service: Embedded) -> Routed:
    """What is mounted at ``/identity``."""
    tokens = service.tokens
    routes = [
        Guarded(method="GET", path="/", handler=versions, who="anyone"),
        Guarded(method="GET", path="/v3", handler=version, who="anyone"),
        *TokenRoutes(service).routes(), *RoleAssignmentRoutes(RoleAssignments(tokens)).routes(),
        *UserRoutes(tokens).routes(), *GroupRoutes(tokens).routes(),
        *(route for resource in RESOURCES for route in IdentityRoutes(IdentityStore(resource, tokens)).routes()),
    ]

    def authenticate(request: Request) -> None:
        token = tokens.find(request.headers.get("x-auth-token", ""))
        if token is None:
            raise unknown(request.base)
        request.context, request.extra["token"] = token.context, token

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
