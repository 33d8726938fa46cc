# SPDX-License-Identifier: GPL-3.0-or-later
"""Logins: turn the methods and the scope of ``POST /v3/auth/tokens`` into claims (Identity API v3, "Authentication and
tokens").

All problems with the client's identity give the same 401; problems with the form of the request give a 400.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Table, select

from magnetar_control.store.engine.database import Database
from magnetar_core.errors import Forbidden, InvalidRequest, MagnetarError, Unauthenticated
from magnetar_core.values import Text

from . import assignments, passwords, tables
from .login_failures import CredentialCheck
from .resources import DEFAULT, Row
from .times import epoch_seconds, is_past
from .tokens import Claims, Token, draw_token_id, find_target, find_user, is_row_enabled
from .trust_rows import delegated_roles, trust_chain

METHODS = ("password", "token", "application_credential")
REFUSED = "The request you have made requires authentication: user, password or token are not right, or not enabled."
#: Maximum length of a chain of tokens exchanged for tokens: a token names all of them, and must not become too long.
LONGEST_CHAIN = 16
#: Names and ids. Fields that may contain a secret are checked separately, because the response must not repeat it.
TEXT = Text(0, 1 << 20)
TRUST = "OS-TRUST:trust"
Find = Callable[[str], Token | None]


class Authentication:
    """The check of one login request (``POST /v3/auth/tokens``). *find*: takes the text of a token, and returns its
    ``Token``. *moment*: the present time in seconds since the epoch. *life*: the lifetime of a new token in seconds.
    *address*: the client's IP address."""

    connection: Connection

    def __init__(self, database: Database, find: Find, moment: float, life: float, address: str = "") -> None:
        self.database, self.find, self.moment, self.address = database, find, moment, address
        #: When the new token expires: never later than the token or credential of the login.
        self.expires = moment + life
        self.credential: Row | None = None
        self.parent: Token | None = None
        #: The trust that is the scope, and the epoch of its trustor.
        self.trust_id, self.trustor_epoch = "", 0
        #: The account of the password or secret: an id, or an unknown name.
        self.account = ""
        #: Pairs of a password or secret from the request and the stored hash (``None``: there is none).
        self.secrets: list[tuple[str, str | None]] = []

    def claims(self, body: Any) -> Claims:
        """Check the login request *body*, and return the contents of the new token. Raises ``InvalidRequest``, or an
        error with status 401, or 429 after too many failed logins."""
        auth = _part(body, "auth", "the body")
        identity = _part(auth, "identity", "auth")
        methods = identity.get("methods")
        if not isinstance(methods, list) or not methods or not all(isinstance(method, str) for method in methods):
            raise InvalidRequest("auth.identity.methods must be a list of at least one method.")
        methods = list(dict.fromkeys(methods))
        user = self._authenticated(methods, identity)
        with self.database.read() as self.connection:
            scope, scope_id, epoch = self._scope(auth, user)
        chain: list[str] = []
        if self.parent:
            methods = list(dict.fromkeys([*self.parent.claims.methods, *methods]))
            chain = [*self.parent.claims.ancestors, self.parent.claims.id]
        return Claims(draw_token_id(), user["id"], user["epoch"], self.moment, self.expires, tuple(methods), scope,
                      scope_id, epoch, self.credential["id"] if self.credential else "", " ".join(chain), self.trust_id,
                      self.trustor_epoch)

    def _authenticated(self, methods: list[str], identity: Any) -> Row:
        """Return the row of the user whom all authentication methods in the request identify, after checking all
        passwords and secrets. *methods*: the names of the methods, such as password. *identity*: the object
        ``auth.identity`` of the request. Raises ``Unauthenticated``."""
        with self.database.read() as self.connection:
            users = [self._user(method, identity) for method in methods]
            attempt = CredentialCheck(self.database, self.account, self.address, self.moment)
            if self.secrets:
                attempt.check(self.connection)
        right = [passwords.password_matches(*pair) for pair in self.secrets]  # takes long, so without a connection
        user = users[0]
        same = user is not None and all(other is not None and other["id"] == user["id"] for other in users)
        if user is None or not same or not all(right) or not is_row_enabled(user):
            if self.secrets:
                attempt.failed()
            raise Unauthenticated(REFUSED)
        if self.secrets:
            attempt.succeeded()
        return user

    def _user(self, method: str, identity: Any) -> Row | None:
        if method not in METHODS:
            raise Unauthenticated(f"The method {method!r} is not known here; there are {', '.join(METHODS)}.")
        credentials = _part(identity, method, "auth.identity")
        return {"password": self._password, "token": self._token,
                "application_credential": self._credential}[method](credentials)

    def _password(self, credentials: Any) -> Row | None:
        user = _part(credentials, "user", "auth.identity.password")
        password = user.get("password")
        if not isinstance(password, str):
            raise InvalidRequest("auth.identity.password.user.password must be text.")
        row = self._find_referenced_row(tables.users, user, "auth.identity.password.user")
        self.account = row["id"] if row else str(user.get("id") or user.get("name"))
        self.secrets.append((password, row["password"] if row else None))
        return row

    def _token(self, credentials: Any) -> Row | None:
        token = credentials.get("id")
        if not isinstance(token, str):
            raise InvalidRequest("auth.identity.token.id must be text.")
        self.parent = self.find(token)
        if self.parent and self.parent.claims.credential_id:
            raise Forbidden("A token got with an application credential cannot be used to get another one.")
        if self.parent and self.parent.claims.trust_id:
            raise Forbidden("Using trust-scoped token to create another token. Create a new trust-scoped token "
                            "instead.")
        if self.parent is None:
            return None
        if len(self.parent.claims.ancestors) >= LONGEST_CHAIN:
            raise Forbidden(f"This token was got by a token, that by another, and so on {LONGEST_CHAIN} times. Log in "
                        "with the password, or with a token nearer to that login.")
        self.expires = min(self.expires, self.parent.claims.expires)
        return self.parent.user

    def _credential(self, credentials: Any) -> Row | None:
        secret = credentials.get("secret")
        if not isinstance(secret, str):
            raise InvalidRequest("auth.identity.application_credential.secret must be text.")
        columns = tables.credentials.c
        if "id" in credentials:
            condition = columns.id == TEXT.check(credentials["id"], "application_credential.id")
        else:
            user = self._find_referenced_row(tables.users, _part(credentials, "user", "application_credential"),
                                             "application_credential.user")
            condition = (columns.user_id == (user["id"] if user else "")) & (
                columns.name == TEXT.check(credentials.get("name"), "application_credential.name"))
        row = self.connection.execute(select(tables.credentials).where(condition)).mappings().first()
        self.account = row["id"] if row else str(credentials.get("id") or credentials.get("name"))
        self.secrets.append((secret, row["secret"] if row else None))
        if row is None or (row["expires_at"] is not None and is_past(row["expires_at"], self.moment)):
            return None
        if row["expires_at"] is not None:
            self.expires = min(self.expires, epoch_seconds(row["expires_at"]))
        self.credential = dict(row)
        return find_user(self.connection, row["user_id"])

    def _scope(self, auth: Any, user: Row) -> tuple[str, str, int]:
        """Return the scope of the new token as (kind, id, epoch). *kind*: project, domain or system. *epoch*: the value
        of the column ``epoch`` of this project or domain, which increases when earlier tokens for it become invalid.
        ("", "", 0) for an unscoped token. *auth*: the object ``auth`` of the request. Raises ``Unauthenticated``,
        ``Forbidden``, ``InvalidRequest``."""
        scope = auth.get("scope")
        if self.credential:
            if scope is not None:
                raise Unauthenticated("An application credential has a project of its own; leave the scope out.")
            return self._open(user, "project", self.credential["project_id"])
        if scope == "unscoped" or (isinstance(scope, dict) and "unscoped" in scope):
            return "", "", 0
        if scope is None:
            return self._default(user)
        if not isinstance(scope, dict) or len(scope) != 1:
            raise InvalidRequest(f"auth.scope must be an object with one of project, domain, system, {TRUST}, or the "
                                 "text unscoped.")
        kind = next(iter(scope))
        if kind == TRUST:
            id = TEXT.check(_part(scope, TRUST, "auth.scope").get("id"), f"auth.scope.{TRUST}.id")
            return self._trusted(user, id)
        if kind == "system":
            if scope["system"] != {"all": True}:
                raise InvalidRequest('auth.scope.system must be {"all": true}.')
            return self._open(user, "system", assignments.ALL)
        table = {"project": tables.projects, "domain": tables.domains}.get(kind)
        if table is None:
            raise InvalidRequest(f"auth.scope names {kind!r}; it may name project, domain, system or {TRUST}.")
        row = self._find_referenced_row(table, _part(scope, kind, "auth.scope"), f"auth.scope.{kind}")
        return self._open(user, kind, row["id"] if row else "")

    def _trusted(self, user: Row, id: str) -> tuple[str, str, int]:
        """Return the scope of a token for the trust *id*, as ("project", id, epoch) (see ``_scope``). Raises
        ``Unauthenticated`` if the trust is deleted, expired or used up, or if its project is disabled. Raises
        ``Forbidden`` if *user* is not the trustee, or if the trustor is disabled or no longer has the roles of the
        trust."""
        chain = trust_chain(self.connection, id, self.moment)
        if not chain or chain[0]["remaining_uses"] == 0:
            raise Unauthenticated(f"Could not find trust: {id[:80]}. It is gone, over, or used as often as it may be.")
        trust = chain[0]
        if trust["trustee_user_id"] != user["id"]:
            raise Forbidden("User is not a trustee.")
        trustor = find_user(self.connection, trust["trustor_user_id"])
        if trustor is None or not is_row_enabled(trustor):
            raise Forbidden("Trustor is disabled.")
        project = find_target(self.connection, "project", trust["project_id"]) if trust["project_id"] else None
        if project is None or not is_row_enabled(project):
            raise Unauthenticated("The trust is for no project that is enabled.")
        if not delegated_roles(self.connection, chain):
            raise Forbidden("Trustee has no delegated roles: the trustor no longer has them.")
        if trust["expires_at"] is not None:
            self.expires = min(self.expires, epoch_seconds(trust["expires_at"]))
        self.trust_id, self.trustor_epoch = id, trustor["epoch"]
        return "project", project["id"], project["epoch"]

    def _default(self, user: Row) -> tuple[str, str, int]:
        """Return the user's default project as the scope ("project", id, epoch) of the new token (see ``_scope``); ("",
        "", 0) if the user has no default project, or no role on it."""
        if user["default_project_id"] and self.parent is None:
            try:
                return self._open(user, "project", user["default_project_id"])
            except MagnetarError:
                pass
        return "", "", 0

    def _open(self, user: Row, kind: str, id: str) -> tuple[str, str, int]:
        target = find_target(self.connection, kind, id)
        if target is None or not is_row_enabled(target) or not assignments.effective_roles(self.connection, user["id"],
                                                                                           kind, id):
            raise Unauthenticated(f"You have no role on this {kind}, or there is none such; ask its administrators "
                                  "for one.")
        return kind, id, target["epoch"]

    def _find_referenced_row(self, table: Table, reference: Any, where: str) -> Row | None:
        """Return the row, with its domain, that *reference* identifies: an object {id}, or {name, domain}. ``None`` if
        there is no such row. *where*: the path of *reference* in the request, for errors."""
        if "id" in reference:
            id: str | None = TEXT.check(reference["id"], f"{where}.id")
        else:
            condition = table.c.name == TEXT.check(reference.get("name"), f"{where}.name (or id)")
            if "domain_id" in table.c:
                condition &= table.c.domain_id == self._domain(reference.get("domain"), f"{where}.domain")
            id = self.connection.execute(select(table.c.id).where(condition)).scalar()
        if table is tables.users:
            return find_user(self.connection, id) if id else None
        return find_target(self.connection, "project" if table is tables.projects else "domain", id) if id else None

    def _domain(self, reference: Any, where: str) -> str:
        if reference is None:
            return DEFAULT
        if not isinstance(reference, dict):
            raise InvalidRequest(f"{where} must be an object with id or name.")
        if "id" in reference:
            id: str = TEXT.check(reference["id"], f"{where}.id")
            return id
        name = TEXT.check(reference.get("name"), f"{where}.name (or id)")
        return self.connection.execute(select(tables.domains.c.id).where(tables.domains.c.name == name)).scalar() or ""


def _part(whole: Any, name: str, where: str) -> Any:
    part = whole.get(name) if isinstance(whole, dict) else None
    if not isinstance(part, dict):
        raise InvalidRequest(f"{where} must hold an object {name}.")
    return part
