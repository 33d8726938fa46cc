# SPDX-License-Identifier: GPL-3.0-or-later
"""``/v3/OS-TRUST``: trusts, for trustor, trustee and administrators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magnetar_control.api.query import check_known
from magnetar_control.services import Document
from magnetar_control.services.identity import trusts
from magnetar_control.services.identity.tokens import Tokens
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import NotFound

from .views import body, listed, resource

USERS = ("trustor_user_id", "trustee_user_id")


def routes(tokens: Tokens) -> list[Guarded]:
    """Return the routes of trusts and their roles."""
    def listing(request: Request) -> Document:
        check_known(request, USERS, "trusts are")
        return listed(request, "trusts", (resource(request, "OS-TRUST/trusts", found) for found in trusts.list_trusts(
            tokens, request.extra["token"], dict(request.query))))

    def shown(request: Request) -> Document:
        return trusts.show_trust(tokens, request.context, request.params["id"])

    def role(request: Request) -> Document:
        found = next((one for one in shown(request)["roles"] if one["id"] == request.params["role"]), None)
        if found is None:
            raise NotFound(f"Could not find role: {request.params['role']}.")
        return {"role": resource(request, "roles", found)}

    every, one = "/v3/OS-TRUST/trusts", "/v3/OS-TRUST/trusts/{id}"
    return [
        route(f"GET {every}", undelegated(listing)),
        route(f"POST {every}", undelegated(lambda request: {"trust": _document(request, trusts.create_trust(
            tokens, request.extra["token"], body(request, "trust")))}), 201),
        route(f"GET {one}", undelegated(lambda request: {"trust": _document(request, shown(request))})),
        route(f"DELETE {one}", undelegated(lambda request: trusts.delete_trust(
            tokens, request.context, request.params["id"])), 204),
        route(f"GET {one}/roles", undelegated(lambda request: listed(request, "roles", (
            resource(request, "roles", found) for found in shown(request)["roles"])))),
        route(f"GET {one}/roles/{{role}}", undelegated(role)),
    ]


def undelegated(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """Return *handler* for all tokens except those of application credentials, as Keystone since 2026."""
    def guarded(request: Request) -> Any:
        trusts.check_not_delegated(request.extra["token"], "manage trusts")
        return handler(request)

    return guarded


def _document(request: Request, trust: Document) -> Document:
    path = f"OS-TRUST/trusts/{trust['id']}/roles"
    links = {"self": f"{request.base}/v3/{path}", "next": None, "previous": None}
    roles = [resource(request, "roles", role) for role in trust["roles"]]
    return {**resource(request, "OS-TRUST/trusts", trust), "roles": roles, "roles_links": links}
