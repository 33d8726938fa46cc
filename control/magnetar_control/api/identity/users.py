# SPDX-License-Identifier: GPL-3.0-or-later
"""Resources of a user, below ``/v3/users/{user}``: projects, password, groups, application credentials. Users can
access only their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magnetar_control.api.query import check_known
from magnetar_control.services.identity import application_credentials, users
from magnetar_control.services.identity.resources import GROUPS, PROJECTS
from magnetar_control.services.identity.tokens import Tokens
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_control.web.quick import RunIn
from magnetar_core.document import Document
from magnetar_core.errors import Forbidden, InvalidRequest, NotFound

from .views import query_filters, render_filtered_page, render_list, render_resource, request_object


def user_routes(tokens: Tokens) -> list[Guarded]:
    """Return the routes of a user's projects, password, groups and application credentials."""
    def projects(request: Request, user: str) -> Document:
        projects = users.list_user_targets(tokens, user, PROJECTS, query_filters(request, PROJECTS), check=True)
        return render_filtered_page(request, PROJECTS, projects)

    def password(request: Request, user: str) -> None:
        passwords = request_object(request, "user")
        if not isinstance(passwords.get("original_password"), str):
            raise InvalidRequest('The body must be {"user": {"original_password": text, "password": text}}.')
        users.change_user_password(tokens, user, passwords["original_password"], passwords.get("password"),
                                   request.address)

    def credentials(request: Request, user: str) -> Document:
        check_known(request, ("name",), "application credentials are")
        credentials = application_credentials.list_application_credentials(tokens, user,
                                                                           dict(request.query).get("name"))
        return render_list(request, "application_credentials", (_credential(request, credential)
                                                                for credential in credentials))

    def create(request: Request, user: str) -> Document:
        made = application_credentials.create_application_credential(tokens, request.extra["token"], user,
                                                                     request_object(request, "application_credential"))
        return {"application_credential": _credential(request, made)}

    user_path, every = "/v3/users/{user}", "/v3/users/{user}/application_credentials"
    return [
        guarded_route(f"GET {user_path}/projects", require_own_user(projects)),
        guarded_route(f"POST {user_path}/password", require_own_user(password), 204, run_in=RunIn.LOGIN),  # hashes
        guarded_route(f"GET {user_path}/groups", require_own_user(lambda request, user: render_filtered_page(
            request, GROUPS, users.list_user_groups(tokens, user, query_filters(request, GROUPS))))),
        guarded_route(f"GET {every}", require_own_user(require_untrusted(credentials))),
        guarded_route(f"POST {every}", require_own_user(require_untrusted(create)), 201, run_in=RunIn.LOGIN),
        guarded_route(f"GET {every}/{{id}}", require_own_user(require_untrusted(
            lambda request, user: {"application_credential": _credential(
            request, application_credentials.show_application_credential(tokens, user, request.params["id"]))}))),
        guarded_route(f"DELETE {every}/{{id}}", require_own_user(
            require_untrusted(lambda request, user: application_credentials.delete_application_credential(
            tokens, request.extra["token"], user, request.params["id"]))), 204),
    ]


def require_untrusted(handler: Callable[[Request, str], Any]) -> Callable[[Request, str], Any]:
    """Return a handler that calls *handler*, but raises ``Forbidden`` if the caller's token comes from a trust, because
    an application credential that is created with such a token would outlive the trust. *handler* takes the request and
    the user's id."""
    def guarded(request: Request, user: str) -> Any:
        if request.extra["token"].claims.trust_id:
            raise Forbidden("Cannot manage application credentials with a token issued via delegation: yours is for a "
                            "trust.")
        return handler(request, user)

    return guarded


def require_own_user(handler: Callable[[Request, str], Any]) -> Callable[[Request], Any]:
    """Return a handler that passes the request and the user id in the URL to *handler*. The handler raises ``NotFound``
    if the id is another user's and the caller is not an administrator."""
    def guarded(request: Request) -> Any:
        user_id = request.params["user"]
        if user_id != request.context.user_id and not request.context.is_admin:
            raise NotFound(f"Could not find user: {user_id}.")
        return handler(request, user_id)

    return guarded


def _credential(request: Request, credential: Document) -> Document:
    return render_resource(request, f"users/{credential['user_id']}/application_credentials", credential)
