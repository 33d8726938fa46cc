# SPDX-License-Identifier: GPL-3.0-or-later
"""``/v3/auth``: creation, validation and revocation of tokens, and the targets that users may choose."""

from __future__ import annotations

from datetime import UTC, datetime

from magnetar_control.services.identity import EmbeddedIdentity, users
from magnetar_control.services.identity.login import Authentication
from magnetar_control.services.identity.resources import DOMAINS, PROJECTS, IdentityResource, Row
from magnetar_control.services.identity.tokens import Token
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_control.web.quick import RunIn
from magnetar_core.document import Document
from magnetar_core.errors import InvalidRequest, NotFound

from .views import query_filters, render_filtered_page, render_list


class TokenRoutes:
    """The routes of tokens and authentication, below ``/v3/auth``."""

    def __init__(self, service: EmbeddedIdentity) -> None:
        self.service, self.tokens = service, service.tokens

    def routes(self) -> list[Guarded]:
        """Return the routes below ``/v3/auth``, with their handlers."""
        return [
            guarded_route("POST /v3/auth/tokens", self.create, who="anyone", run_in=RunIn.LOGIN),
            guarded_route("GET /v3/auth/tokens", lambda request: self._answer(request, *self._subject(request))),
            guarded_route("DELETE /v3/auth/tokens", lambda request: self.tokens.revoke(self._subject(request)[1]), 204),
            guarded_route("GET /v3/auth/catalog", lambda request: render_list(request, "catalog", self.service.catalog(
                request.context.project_id, request.root))),
            guarded_route("GET /v3/auth/projects", lambda request: self.targets(request, PROJECTS)),
            guarded_route("GET /v3/auth/domains", lambda request: self.targets(request, DOMAINS)),
            guarded_route("GET /v3/auth/system", lambda request: render_list(request, "system", [{"all": True}] if (
                users.has_system_role(self.tokens, request.context.user_id)) else [])),
        ]

    def create(self, request: Request) -> Answer:
        """Authenticate a user: POST /v3/auth/tokens. Return the new token in the header X-Subject-Token; 401 for failed
        authentication, 429 after too many failures."""
        claims = Authentication(self.tokens.database, self.tokens.find, self.tokens.clock(), self.service.life,
                       request.address).claims(request.json())
        token, issued = self.tokens.create(claims)
        return self._answer(request, token, issued, 201)

    def targets(self, request: Request, resource: IdentityResource) -> Document:
        """Return the projects or domains (*resource*) for which the user may get a token."""
        targets = users.list_user_targets(self.tokens, request.context.user_id, resource,
                                          query_filters(request, resource))
        return render_filtered_page(request, resource, targets)

    def _subject(self, request: Request) -> tuple[str, Token]:
        """Return the token in the header X-Subject-Token (the token that the caller asks about), as text and as a
        ``Token``. Administrators and services may name any token, others only a token of their own user. Raises
        ``NotFound`` for an invalid token and for a token that the caller may not see."""
        token = request.headers.get("x-subject-token", "")
        if not token:
            raise InvalidRequest("The header X-Subject-Token is missing; it names the token that is meant.")
        subject, context = self.tokens.find(token), request.context
        allowed = context.is_admin or "service" in context.roles or (
            subject is not None and subject.context.user_id == context.user_id)
        if subject is None or not allowed:  # other callers do not learn whether the token is valid
            raise NotFound("The token in X-Subject-Token is not good: unknown, expired or given back.")
        return token, subject

    def _answer(self, request: Request, token: str, subject: Token, status: int = 200) -> Answer:
        shown = token_view(subject)
        if subject.claims.scope and not any(name == "nocatalog" for name, _value in request.query):
            shown["catalog"] = self.service.catalog(subject.context.project_id, request.root)
        return Answer({"token": shown}, status, {"X-Subject-Token": token, "Vary": "X-Auth-Token"})


def token_view(token: Token) -> Document:
    """Return *token* in the format of Keystone's answers, without the service catalog."""
    claims, target = token.claims, token.target
    shown: Document = {
        "methods": list(claims.methods), "expires_at": _time(claims.expires), "issued_at": _time(claims.issued),
        "audit_ids": [claims.id, *claims.ancestors[:1]],
        "user": {**_with_domain(token.user), "password_expires_at": None}}
    if target is not None:
        shown["roles"] = list(token.roles)
    if claims.scope == "project" and target:
        shown |= {"is_domain": False, "project": _with_domain(target)}
    elif claims.scope == "domain" and target:
        shown["domain"] = {"id": target["id"], "name": target["name"]}
    elif claims.scope == "system":
        shown["system"] = {"all": True}
    if token.trust:
        shown["OS-TRUST:trust"] = token.trust
    if token.credential:
        shown["application_credential"] = token.credential
    return shown


def _with_domain(row: Row) -> Document:
    return {"id": row["id"], "name": row["name"], "domain": {"id": row["domain_id"], "name": row["domain_name"]}}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
