# SPDX-License-Identifier: GPL-3.0-or-later
"""``/v3/auth``: tokens made, shown and given back, and what their bearers may ask for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, insert, select

from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded
from magnetar_core.errors import InvalidRequest, NotFound, Unauthenticated

from . import catalog, grants, tables
from .bearers import Bearer, Bearers, borne
from .login import Login
from .nouns import DOMAINS, PROJECTS, Noun

Document = dict[str, Any]


class Authentication:
    """*life*: how long a token is good, in seconds; *root*: the host to put into the catalogue for a request."""

    def __init__(self, bearers: Bearers, life: float, root: Callable[[Request], str | None]) -> None:
        self.bearers, self.life, self.root = bearers, life, root

    def routes(self) -> list[Guarded]:
        """The routes below ``/v3/auth``."""
        tokens = "/v3/auth/tokens"
        return [
            Guarded(method="POST", path=tokens, handler=self.login, who="anyone"),
            Guarded(method="GET", path=tokens, handler=self.show),
            Guarded(method="DELETE", path=tokens, handler=self.revoke),
            Guarded(method="GET", path="/v3/auth/catalog", handler=self.catalog),
            Guarded(method="GET", path="/v3/auth/projects", handler=lambda request: self.mine(request, PROJECTS)),
            Guarded(method="GET", path="/v3/auth/domains", handler=lambda request: self.mine(request, DOMAINS)),
            Guarded(method="GET", path="/v3/auth/system", handler=self.system),
        ]

    def login(self, request: Request) -> Answer:
        """A new token, in X-Subject-Token; 401 when it is not known who asks."""
        database = self.bearers.database
        claims = Login(database, self.bearers.find, self.bearers.clock(), self.life).claims(request.json())
        with database.read() as connection:
            token = self.bearers.sign(connection, claims)
            bearer = borne(connection, claims, token, self.bearers.clock())
            if bearer is None:
                raise Unauthenticated("User, project or roles changed while you logged in; log in again.")
            document = self._document(connection, bearer, request)
        return Answer({"token": document}, 201, {"X-Subject-Token": token, "Vary": "X-Auth-Token"})

    def show(self, request: Request) -> Answer:
        """The token in X-Subject-Token: one's own, or any for admins and services; 404 when it is worth nothing."""
        token, bearer = self._subject(request)
        with self.bearers.database.read() as connection:
            document = self._document(connection, bearer, request)
        return Answer({"token": document}, 200, {"X-Subject-Token": token, "Vary": "X-Auth-Token"})

    def revoke(self, request: Request) -> Answer:
        """Give the token in X-Subject-Token back, before its time."""
        _token, bearer = self._subject(request)
        gone, claims = tables.revocations, bearer.claims
        with self.bearers.change() as connection:
            connection.execute(delete(gone).where(gone.c.expires < self.bearers.clock()))
            if connection.execute(select(gone.c.token_id).where(gone.c.token_id == claims.id)).first() is None:
                connection.execute(insert(gone).values(token_id=claims.id, expires=claims.expires))
        return Answer(status=204)

    def catalog(self, request: Request) -> Answer:
        """The catalogue for the token that asks."""
        with self.bearers.database.read() as connection:
            found = catalog.read(connection, request.context.project_id, self.root(request))
        return Answer({"catalog": found, "links": {"next": None, "previous": None,
                                                   "self": f"{request.base}/v3/auth/catalog"}})

    def mine(self, request: Request, noun: Noun) -> Answer:
        """Projects or domains for which the user may have a token."""
        return self.of_user(request, request.context.user_id, noun, f"{request.base}/v3/auth/{noun.plural}")

    def of_user(self, request: Request, user_id: str, noun: Noun, link: str) -> Answer:
        """Enabled projects or domains on which *user_id* has a role."""
        with self.bearers.database.read() as connection:
            ids = grants.targets_of(connection, user_id, noun.name)
            rows = noun.rows(connection, [noun.table.c.id.in_(ids), noun.table.c.enabled.is_(True),
                                          *noun.where(request.query)])
        return Answer({noun.plural: [noun.document(row, f"{request.base}/v3") for row in rows],
                       "links": {"next": None, "previous": None, "self": link}})

    def system(self, request: Request) -> Answer:
        """Whether the user has a role on the system."""
        with self.bearers.database.read() as connection:
            ids = grants.targets_of(connection, request.context.user_id, "system")
        return Answer({"system": [{"all": True} for _id in ids],
                       "links": {"next": None, "previous": None, "self": f"{request.base}/v3/auth/system"}})

    def _subject(self, request: Request) -> tuple[str, Bearer]:
        token = request.headers.get("x-subject-token", "")
        if not token:
            raise InvalidRequest("The header X-Subject-Token is missing; it names the token that is meant.")
        bearer = self.bearers.find(token)
        context = request.context
        allowed = context.is_admin or "service" in context.roles or (
            bearer is not None and bearer.context.user_id == context.user_id)
        if bearer is None or not allowed:  # whether somebody else's token is good is not told
            raise NotFound("The token in X-Subject-Token is not good: unknown, expired or given back.")
        return token, bearer

    def _document(self, connection: Any, bearer: Bearer, request: Request) -> Document:
        found = described(bearer)
        if bearer.claims.scope and not any(name == "nocatalog" for name, _value in request.query):
            found["catalog"] = catalog.read(connection, bearer.context.project_id, self.root(request))
        return found


def described(bearer: Bearer) -> Document:
    """What Keystone says of a token."""
    claims, user, target = bearer.claims, bearer.user, bearer.target
    found: Document = {
        "methods": list(claims.methods), "expires_at": _time(claims.expires), "issued_at": _time(claims.issued),
        "audit_ids": [claims.id, *claims.ancestors[:1]],
        "user": {"id": user["id"], "name": user["name"], "password_expires_at": None,
                 "domain": {"id": user["domain_id"], "name": user["domain_name"]}}}
    if target is not None:
        found["roles"] = list(bearer.roles)
    if claims.scope == "project" and target:
        found["is_domain"] = False
        found["project"] = {"id": target["id"], "name": target["name"],
                            "domain": {"id": target["domain_id"], "name": target["domain_name"]}}
    elif claims.scope == "domain" and target:
        found["domain"] = {"id": target["id"], "name": target["name"]}
    elif claims.scope == "system":
        found["system"] = {"all": True}
    if bearer.credential:
        found["application_credential"] = bearer.credential
    return found


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
