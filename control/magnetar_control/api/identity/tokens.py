# SPDX-License-Identifier: GPL-3.0-or-later
"""``/v3/auth``: tokens made, shown and given back, and what their users may ask for."""

from __future__ import annotations

from datetime import UTC, datetime

from magnetar_control.services import Document
from magnetar_control.services.identity import EmbeddedIdentity, users
from magnetar_control.services.identity.login import Authentication
from magnetar_control.services.identity.resources import DOMAINS, PROJECTS, IdentityResource, Row
from magnetar_control.services.identity.tokens import Token
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded, route
from magnetar_control.web.quick import Way
from magnetar_core.errors import InvalidRequest, NotFound

from .views import filters, listed, some


class TokenRoutes:
    """The routes below ``/v3/auth``."""

    def __init__(self, service: EmbeddedIdentity) -> None:
        self.service, self.tokens = service, service.tokens

    def routes(self) -> list[Guarded]:
        """All of them."""
        return [
            route("POST /v3/auth/tokens", self.create, who="anyone", way=Way.LOGIN),
            route("GET /v3/auth/tokens", lambda request: self._answer(request, *self._subject(request))),
            route("DELETE /v3/auth/tokens", lambda request: self.tokens.revoke(self._subject(request)[1]), 204),
            route("GET /v3/auth/catalog", lambda request: listed(request, "catalog", self.service.catalog(
                request.context.project_id, request.root))),
            route("GET /v3/auth/projects", lambda request: self.targets(request, PROJECTS)),
            route("GET /v3/auth/domains", lambda request: self.targets(request, DOMAINS)),
            route("GET /v3/auth/system", lambda request: listed(request, "system", [{"all": True}] if (
                users.has_system_role(self.tokens, request.context.user_id)) else [])),
        ]

    def create(self, request: Request) -> Answer:
        """A new token, in X-Subject-Token; 401 when it is not known who asks, 429 after too many failures."""
        claims = Authentication(self.tokens.database, self.tokens.find, self.tokens.clock(), self.service.life,
                       request.address).claims(request.json())
        token, found = self.tokens.create(claims)
        return self._answer(request, token, found, 201)

    def targets(self, request: Request, resource: IdentityResource) -> Document:
        """Projects or domains for which the user may have a token."""
        found = users.targets(self.tokens, request.context.user_id, resource, filters(request, resource))
        return some(request, resource, found)

    def _subject(self, request: Request) -> tuple[str, Token]:
        """The token in X-Subject-Token: one's own, or any for admins and services; 404 when it is worth nothing."""
        token = request.headers.get("x-subject-token", "")
        if not token:
            raise InvalidRequest("The header X-Subject-Token is missing; it names the token that is meant.")
        found, context = self.tokens.find(token), request.context
        allowed = context.is_admin or "service" in context.roles or (
            found is not None and found.context.user_id == context.user_id)
        if found is None or not allowed:  # whether somebody else's token is good is not told
            raise NotFound("The token in X-Subject-Token is not good: unknown, expired or given back.")
        return token, found

    def _answer(self, request: Request, token: str, found: Token, status: int = 200) -> Answer:
        shown = document(found)
        if found.claims.scope and not any(name == "nocatalog" for name, _value in request.query):
            shown["catalog"] = self.service.catalog(found.context.project_id, request.root)
        return Answer({"token": shown}, status, {"X-Subject-Token": token, "Vary": "X-Auth-Token"})


def document(found: Token) -> Document:
    """A token as Keystone shows it, without the catalogue."""
    claims, target = found.claims, found.target
    shown: Document = {
        "methods": list(claims.methods), "expires_at": _time(claims.expires), "issued_at": _time(claims.issued),
        "audit_ids": [claims.id, *claims.ancestors[:1]],
        "user": {**_with_domain(found.user), "password_expires_at": None}}
    if target is not None:
        shown["roles"] = list(found.roles)
    if claims.scope == "project" and target:
        shown |= {"is_domain": False, "project": _with_domain(target)}
    elif claims.scope == "domain" and target:
        shown["domain"] = {"id": target["id"], "name": target["name"]}
    elif claims.scope == "system":
        shown["system"] = {"all": True}
    if found.trust:
        shown["OS-TRUST:trust"] = found.trust
    if found.credential:
        shown["application_credential"] = found.credential
    return shown


def _with_domain(row: Row) -> Document:
    return {"id": row["id"], "name": row["name"], "domain": {"id": row["domain_id"], "name": row["domain_name"]}}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
