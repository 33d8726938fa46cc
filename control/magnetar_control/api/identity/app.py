# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of identity v3, and how it asks who it is and says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from magnetar_control.api.failures import RoutedService
from magnetar_control.api.fault_forms import keystone_document
from magnetar_control.services import Document
from magnetar_control.services.identity import EmbeddedIdentity
from magnetar_control.services.identity.limits import UnifiedLimits
from magnetar_control.services.identity.resources import PROJECTS, RESOURCES
from magnetar_control.services.identity.role_assignments import RoleAssignments
from magnetar_control.services.identity.store import IdentityStore
from magnetar_control.services.quotas import Quotas
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Application, route, unknown
from magnetar_control.web.routing import ANY_SLASH

from . import limits, none, projects, resources, role_assignments, tokens, trusts, users

#: The version of the Identity API whose documents these are.
VERSION = "v3.14"


def application(service: EmbeddedIdentity, quotas: Mapping[str, Quotas] | None = None) -> RoutedService:
    """What is mounted at ``/identity``. *quotas*: those of services that are set here, by the services' types."""
    def authenticate(request: Request) -> None:
        token = service.tokens.find(request.headers.get("x-auth-token", ""))
        if token is None:
            raise unknown(request.base)
        request.context, request.extra["token"] = token.context, token

    return RoutedService([
        route("GET /", versions, who="anyone"),
        route("GET /v3", lambda request: {"version": _document(request)}, who="anyone"),
        *tokens.TokenRoutes(service).routes(), *role_assignments.routes(RoleAssignments(service.tokens)),
        *limits.routes(UnifiedLimits(service.tokens.database, quotas or {})),
        *users.routes(service.tokens), *trusts.routes(service.tokens), *none.routes(service.tokens),
        *resources.members(service.tokens),
        *projects.tags(IdentityStore(PROJECTS, service.tokens)),
        *(one for resource in RESOURCES for one in resources.routes(IdentityStore(resource, service.tokens))),
    ], authenticate, rendered, ANY_SLASH)


def rendered(fault: Fault) -> Answer:
    """A fault as Keystone says it."""
    headers = {"WWW-Authenticate": "Keystone"} if fault.status == HTTPStatus.UNAUTHORIZED else {}
    return Answer(keystone_document(fault), fault.status, headers)


def _document(request: Request) -> Document:
    return {"id": VERSION, "status": "stable", "updated": "2020-04-07T00:00:00Z",
            "links": [{"rel": "self", "href": f"{request.base}/v3/"}],
            "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}]}


def versions(request: Request) -> Answer:
    """All versions: one."""
    return Answer({"versions": {"values": [_document(request)]}}, 300, {"Location": f"{request.base}/v3/"})


class Elsewhere(Application):
    """The application in place of the embedded identity service, where a Keystone is used: whoever asks it is told
    where Keystone is."""

    def __init__(self, url: str) -> None:
        self.url = url

    def admit(self, request: Request) -> Answer:
        return self.handle(request)

    def handle(self, request: Request) -> Answer:
        """404, in Keystone's form."""
        return rendered(Fault(404, f"This cloud has no identity service of its own; ask Keystone at {self.url}."))
