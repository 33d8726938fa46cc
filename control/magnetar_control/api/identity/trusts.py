# SPDX-License-Identifier: GPL-3.0-or-later
"""``/v3/OS-TRUST``: trusts, for their trustors, their trustees and administrators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magnetar_control.api.query import check_known
from magnetar_control.services.identity import trusts
from magnetar_control.services.identity.tokens import Tokens
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import NotFound

from .views import render_list, render_resource, request_object

USERS = ("trustor_user_id", "trustee_user_id")


def trust_routes(tokens: Tokens) -> list[Guarded]:
    """Return the routes of Keystone's trusts (OS-TRUST) and of the roles that a trust delegates."""
    def listing(request: Request) -> Document:
        check_known(request, USERS, "trusts are")
        return render_list(request, "trusts", (render_resource(request, "OS-TRUST/trusts", trust)
                                               for trust in trusts.list_trusts(
            tokens, request.extra["token"], dict(request.query))))

    def shown(request: Request) -> Document:
        return trusts.show_trust(tokens, request.context, request.params["id"])

    def role(request: Request) -> Document:
        role = next((role for role in shown(request)["roles"] if role["id"] == request.params["role"]), None)
        if role is None:
            raise NotFound(f"Could not find role: {request.params['role']}.")
        return {"role": render_resource(request, "roles", role)}

    every, trust_path = "/v3/OS-TRUST/trusts", "/v3/OS-TRUST/trusts/{id}"
    return [
        guarded_route(f"GET {every}", require_undelegated(listing)),
        guarded_route(f"POST {every}", require_undelegated(lambda request: {"trust": _document(request,
                                                                                               trusts.create_trust(
            tokens, request.extra["token"], request_object(request, "trust")))}), 201),
        guarded_route(f"GET {trust_path}", require_undelegated(lambda request: {"trust": _document(request,
                                                                                                   shown(request))})),
        guarded_route(f"DELETE {trust_path}", require_undelegated(lambda request: trusts.delete_trust(
            tokens, request.context, request.params["id"])), 204),
        guarded_route(f"GET {trust_path}/roles", require_undelegated(lambda request: render_list(request, "roles", (
            render_resource(request, "roles", role) for role in shown(request)["roles"])))),
        guarded_route(f"GET {trust_path}/roles/{{role}}", require_undelegated(role)),
    ]


def require_undelegated(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """Return a handler that calls *handler*, but raises an error if the caller's token comes from an application
    credential. Keystone refuses such tokens too, since 2026."""
    def guarded(request: Request) -> Any:
        trusts.check_not_delegated(request.extra["token"], "manage trusts")
        return handler(request)

    return guarded


def _document(request: Request, trust: Document) -> Document:
    path = f"OS-TRUST/trusts/{trust['id']}/roles"
    links = {"self": f"{request.base}/v3/{path}", "next": None, "previous": None}
    roles = [render_resource(request, "roles", role) for role in trust["roles"]]
    return {**render_resource(request, "OS-TRUST/trusts", trust), "roles": roles, "roles_links": links}
