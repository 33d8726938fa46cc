# SPDX-License-Identifier: GPL-3.0-or-later
"""``/v3/auth``: tokens made, shown and given back, and what their users may ask for."""

from __future__ import annotations

from magnetar_control.services import Document
from magnetar_control.services.identity import Embedded, users
from magnetar_control.services.identity.login import Login
from magnetar_control.services.identity.resources import DOMAINS, PROJECTS, IdentityResource
from magnetar_control.services.identity.tokens import Token
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded
from magnetar_core.errors import InvalidRequest, NotFound

from . import views
from .query import filters


class TokenRoutes:
    """The routes below ``/v3/auth``."""

    def __init__(self, service: Embedded) -> None:
        self.service, self.tokens = service, service.tokens

    def routes(self) -> list[Guarded]:
        """All of them."""
        tokens = "/v3/auth/tokens"
        return [
            Guarded(method="POST", path=tokens, handler=self.create, who="anyone"),
            Guarded(method="GET", path=tokens, handler=self.show),
            Guarded(method="DELETE", path=tokens, handler=self.revoke),
            Guarded(method="GET", path="/v3/auth/catalog", handler=self.catalog),
            Guarded(method="GET", path="/v3/auth/projects", handler=lambda request: self.targets(request, PROJECTS)),
            Guarded(method="GET", path="/v3/auth/domains", handler=lambda request: self.targets(request, DOMAINS)),
            Guarded(method="GET", path="/v3/auth/system", handler=self.system),
        ]

    def create(self, request: Request) -> Answer:
        """A new token, in X-Subject-Token; 401 when it is not known who asks."""
        claims = Login(self.tokens.database, self.tokens.find, self.tokens.clock(), self.service.life).claims(
            request.json())
        token, found = self.tokens.create(claims)
        return self._answer(request, token, found, 201)

    def show(self, request: Request) -> Answer:
        """The token in X-Subject-Token: one's own, or any for admins and services; 404 when it is worth nothing."""
        return self._answer(request, *self._subject(request))

    def revoke(self, request: Request) -> Answer:
        """Give the token in X-Subject-Token back, before its time."""
        self.tokens.revoke(self._subject(request)[1])
        return Answer(status=204)

    def catalog(self, request: Request) -> Answer:
        """The catalogue for the token that asks."""
        return views.listed("catalog", self._catalog(request, request.context.project_id),
                            f"{request.base}/v3/auth/catalog")

    def targets(self, request: Request, resource: IdentityResource) -> Answer:
        """Projects or domains for which the user may have a token."""
        found = users.targets(self.tokens, request.context.user_id, resource, filters(request, resource))
        return views.resources(request, resource.plural, found)

    def system(self, request: Request) -> Answer:
        """Whether the user has a role on the system."""
        has = users.has_system_role(self.tokens, request.context.user_id)
        return views.listed("system", [{"all": True}] if has else [], f"{request.base}/v3/auth/system")

    def _subject(self, request: Request) -> tuple[str, Token]:
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
        shown = views.token(found)
        if found.claims.scope and not any(name == "nocatalog" for name, _value in request.query):
            shown["catalog"] = self._catalog(request, found.context.project_id)
        return Answer({"token": shown}, status, {"X-Subject-Token": token, "Vary": "X-Auth-Token"})

    def _catalog(self, request: Request, project_id: str | None) -> list[Document]:
        return self.service.catalog(project_id, request.root)
