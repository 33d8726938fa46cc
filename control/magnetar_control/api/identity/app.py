# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of identity v3, their authentication and the form of their errors."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from magnetar_control.api.failures import RoutedService
from magnetar_control.api.fault_forms import keystone_document
from magnetar_control.services.identity import EmbeddedIdentity
from magnetar_control.services.identity.limits import UnifiedLimits
from magnetar_control.services.identity.resources import PROJECTS, RESOURCES
from magnetar_control.services.identity.role_assignments import RoleAssignments
from magnetar_control.services.identity.store import IdentityStore
from magnetar_control.services.quotas import Quotas
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Application, guarded_route, unauthenticated_fault
from magnetar_control.web.routing import ANY_SLASH
from magnetar_core.document import Document

from . import limits, none, projects, resources, role_assignments, tokens, trusts, users

#: The version of the Identity API that the documents follow.
VERSION = "v3.14"


def identity_application(service: EmbeddedIdentity, quotas: Mapping[str, Quotas] | None = None) -> RoutedService:
    """Return the web application of the Identity API, mounted at ``/identity``. *quotas*: the quotas of each service,
    by service type such as ``compute``; the unified limits API reads and sets them."""
    def authenticate(request: Request) -> None:
        token = service.tokens.find(request.headers.get("x-auth-token", ""))
        if token is None:
            raise unauthenticated_fault(request.base)
        request.context, request.extra["token"] = token.context, token

    return RoutedService([
        guarded_route("GET /", handle_identity_versions, who="anyone"),
        guarded_route("GET /v3", lambda request: {"version": _document(request)}, who="anyone"),
        *tokens.TokenRoutes(service).routes(), *role_assignments.role_assignment_routes(
            RoleAssignments(service.tokens)),
        *limits.unified_limit_routes(UnifiedLimits(service.tokens.database, quotas or {})),
        *users.user_routes(service.tokens), *trusts.trust_routes(service.tokens),
        *none.absent_identity_routes(service.tokens),
        *resources.group_member_routes(service.tokens),
        *projects.project_tag_routes(IdentityStore(PROJECTS, service.tokens)),
        *(route for resource in RESOURCES for route in resources.identity_resource_routes(
            IdentityStore(resource, service.tokens))),
    ], authenticate, render_keystone_fault, ANY_SLASH)


def render_keystone_fault(fault: Fault) -> Answer:
    """Return the HTTP answer for *fault*, in the format of Keystone's errors."""
    headers = {"WWW-Authenticate": "Keystone"} if fault.status == HTTPStatus.UNAUTHORIZED else {}
    return Answer(keystone_document(fault), fault.status, headers)


def _document(request: Request) -> Document:
    return {"id": VERSION, "status": "stable", "updated": "2020-04-07T00:00:00Z",
            "links": [{"rel": "self", "href": f"{request.base}/v3/"}],
            "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}]}


def handle_identity_versions(request: Request) -> Answer:
    """Return the list of versions of the Identity API; there is only one."""
    return Answer({"versions": {"values": [_document(request)]}}, 300, {"Location": f"{request.base}/v3/"})


class ExternalKeystone(Application):
    """The application at ``/identity`` of a cloud that uses an external Keystone. It answers all requests with 404 and
    the URL of Keystone."""

    def __init__(self, url: str) -> None:
        self.url = url

    def admit(self, request: Request) -> Answer:
        return self.handle(request)

    def handle(self, request: Request) -> Answer:
        """Return status 404 in the format of Keystone's errors, with the URL of Keystone in the message."""
        return render_keystone_fault(
            Fault(404, f"This cloud has no identity service of its own; ask Keystone at {self.url}."))
