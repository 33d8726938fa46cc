# SPDX-License-Identifier: GPL-3.0-or-later
"""What belongs to a user, below ``/v3/users/{user}``: projects, password, groups, application credentials. Users reach
their own only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magnetar_control.api.query import check_known
from magnetar_control.services import Document
from magnetar_control.services.identity import application_credentials, users
from magnetar_control.services.identity.resources import GROUPS, PROJECTS
from magnetar_control.services.identity.tokens import Tokens
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_control.web.quick import Way
from magnetar_core.errors import Forbidden, InvalidRequest, NotFound

from .views import body, filters, listed, resource, some


def routes(tokens: Tokens) -> list[Guarded]:
    """All of them."""
    def projects(request: Request, user: str) -> Document:
        found = users.targets(tokens, user, PROJECTS, filters(request, PROJECTS), check=True)
        return some(request, PROJECTS, found)

    def password(request: Request, user: str) -> None:
        given = body(request, "user")
        if not isinstance(given.get("original_password"), str):
            raise InvalidRequest('The body must be {"user": {"original_password": text, "password": text}}.')
        users.change_password(tokens, user, given["original_password"], given.get("password"),
                              request.address)

    def credentials(request: Request, user: str) -> Document:
        check_known(request, ("name",), "application credentials are")
        found = application_credentials.list_all(tokens, user, dict(request.query).get("name"))
        return listed(request, "application_credentials", (_credential(request, one) for one in found))

    def create(request: Request, user: str) -> Document:
        made = application_credentials.create(tokens, request.extra["token"], user,
                                              body(request, "application_credential"))
        return {"application_credential": _credential(request, made)}

    one, every = "/v3/users/{user}", "/v3/users/{user}/application_credentials"
    return [
        route(f"GET {one}/projects", own(projects)),
        route(f"POST {one}/password", own(password), 204, way=Way.LOGIN),  # to hash takes long
        route(f"GET {one}/groups", own(lambda request, user: some(
            request, GROUPS, users.groups(tokens, user, filters(request, GROUPS))))),
        route(f"GET {every}", own(untrusted(credentials))),
        route(f"POST {every}", own(untrusted(create)), 201, way=Way.LOGIN),
        route(f"GET {every}/{{id}}", own(untrusted(lambda request, user: {"application_credential": _credential(
            request, application_credentials.show(tokens, user, request.params["id"]))}))),
        route(f"DELETE {every}/{{id}}", own(untrusted(lambda request, user: application_credentials.remove(
            tokens, request.extra["token"], user, request.params["id"]))), 204),
    ]


def untrusted(handler: Callable[[Request, str], Any]) -> Callable[[Request, str], Any]:
    """Return *handler* for tokens without a trust: a credential would outlive the trust."""
    def guarded(request: Request, user: str) -> Any:
        if request.extra["token"].claims.trust_id:
            raise Forbidden("Cannot manage application credentials with a token issued via delegation: yours is for a "
                            "trust.")
        return handler(request, user)

    return guarded


def own(handler: Callable[[Request, str], Any]) -> Callable[[Request], Any]:
    """*handler*, of the request and the user that it names: for that user and for admins."""
    def guarded(request: Request) -> Any:
        user_id = request.params["user"]
        if user_id != request.context.user_id and not request.context.is_admin:
            raise NotFound(f"Could not find user: {user_id}.")
        return handler(request, user_id)

    return guarded


def _credential(request: Request, found: Document) -> Document:
    return resource(request, f"users/{found['user_id']}/application_credentials", found)
