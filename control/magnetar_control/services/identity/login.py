# SPDX-License-Identifier: GPL-3.0-or-later
"""Logging in: methods and scope of ``POST /v3/auth/tokens`` to claims (Identity API v3, "Authentication and tokens").

Whatever is wrong with who asks is the same 401; what is wrong with the form of the request is a 400.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Table, select

from magnetar_control.store.engine.database import Database
from magnetar_core.errors import Forbidden, InvalidRequest, MagnetarError, Unauthenticated
from magnetar_core.values import Text

from . import assignments, passwords, tables
from .login_failures import Attempt
from .resources import DEFAULT, Row
from .times import over, seconds
from .tokens import Claims, Token, find_target, find_user, new_id, open_
from .trust_rows import delegated_roles, trust_chain

METHODS = ("password", "token", "application_credential")
REFUSED = "The request you have made requires authentication: user, password or token are not right, or not enabled."
#: How often in a row a token may be got by another one: each is named in it, and it must not become too long.
LONGEST_CHAIN = 16
#: Names and ids. What may hold a secret is checked by hand, as the answer must not repeat it.
TEXT = Text(0, 1 << 20)
TRUST = "OS-TRUST:trust"
Find = Callable[[str], Token | None]


class Authentication:
    """One login. *find* looks a token up; *life* is how long a new one lives, in seconds; *address* is where the client
    is."""

    connection: Connection

    def __init__(self, database: Database, find: Find, moment: float, life: float, address: str = "") -> None:
        self.database, self.find, self.moment, self.address = database, find, moment, address
        #: A token never lives longer than that by which it was got.
        self.expires = moment + life
        self.credential: Row | None = None
        self.parent: Token | None = None
        #: The trust that is the scope, and its trustor's epoch.
        self.trust_id, self.trustor_epoch = "", 0
        #: Whose password or secret was given: an id, or a name that nobody has.
        self.account = ""
        #: What was given as a password or secret, and what is kept of the right one (``None``: there is none).
        self.secrets: list[tuple[str, str | None]] = []

    def claims(self, body: Any) -> Claims:
        """What the token will say. Raises ``InvalidRequest``, 401, or 429 after too many failures."""
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
        return Claims(new_id(), user["id"], user["epoch"], self.moment, self.expires, tuple(methods), scope, scope_id,
                      epoch, self.credential["id"] if self.credential else "", " ".join(chain), self.trust_id,
                      self.trustor_epoch)

    def _authenticated(self, methods: list[str], identity: Any) -> Row:
        """The user, whose passwords and secrets are right."""
        with self.database.read() as self.connection:
            users = [self._user(method, identity) for method in methods]
            attempt = Attempt(self.database, self.account, self.address, self.moment)
            if self.secrets:
                attempt.check(self.connection)
        right = [passwords.matches(*pair) for pair in self.secrets]  # without a connection: it takes long
        user = users[0]
        same = user is not None and all(other is not None and other["id"] == user["id"] for other in users)
        if user is None or not same or not all(right) or not open_(user):
            if self.secrets:
                attempt.failed()
            raise Unauthenticated(REFUSED)
        if self.secrets:
            attempt.succeeded()
        return user

    def _user(self, method: str, identity: Any) -> Row | None:
        if method not in METHODS:
            raise Unauthenticated(f"The method {method!r} is not known here; there are {', '.join(METHODS)}.")
        given = _part(identity, method, "auth.identity")
        return {"password": self._password, "token": self._token,
                "application_credential": self._credential}[method](given)

    def _password(self, given: Any) -> Row | None:
        user = _part(given, "user", "auth.identity.password")
        password = user.get("password")
        if not isinstance(password, str):
            raise InvalidRequest("auth.identity.password.user.password must be text.")
        row = self._named(tables.users, user, "auth.identity.password.user")
        self.account = row["id"] if row else str(user.get("id") or user.get("name"))
        self.secrets.append((password, row["password"] if row else None))
        return row

    def _token(self, given: Any) -> Row | None:
        token = given.get("id")
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

    def _credential(self, given: Any) -> Row | None:
        secret = given.get("secret")
        if not isinstance(secret, str):
            raise InvalidRequest("auth.identity.application_credential.secret must be text.")
        own = tables.credentials.c
        if "id" in given:
            condition = own.id == TEXT.check(given["id"], "application_credential.id")
        else:
            user = self._named(tables.users, _part(given, "user", "application_credential"),
                               "application_credential.user")
            condition = (own.user_id == (user["id"] if user else "")) & (
                own.name == TEXT.check(given.get("name"), "application_credential.name"))
        row = self.connection.execute(select(tables.credentials).where(condition)).mappings().first()
        self.account = row["id"] if row else str(given.get("id") or given.get("name"))
        self.secrets.append((secret, row["secret"] if row else None))
        if row is None or (row["expires_at"] is not None and over(row["expires_at"], self.moment)):
            return None
        if row["expires_at"] is not None:
            self.expires = min(self.expires, seconds(row["expires_at"]))
        self.credential = dict(row)
        return find_user(self.connection, row["user_id"])

    def _scope(self, auth: Any, user: Row) -> tuple[str, str, int]:
        """Kind, id and epoch of what the token is for."""
        wanted = auth.get("scope")
        if self.credential:
            if wanted is not None:
                raise Unauthenticated("An application credential has a project of its own; leave the scope out.")
            return self._open(user, "project", self.credential["project_id"])
        if wanted == "unscoped" or (isinstance(wanted, dict) and "unscoped" in wanted):
            return "", "", 0
        if wanted is None:
            return self._default(user)
        if not isinstance(wanted, dict) or len(wanted) != 1:
            raise InvalidRequest(f"auth.scope must be an object with one of project, domain, system, {TRUST}, or the "
                                 "text unscoped.")
        kind = next(iter(wanted))
        if kind == TRUST:
            id = TEXT.check(_part(wanted, TRUST, "auth.scope").get("id"), f"auth.scope.{TRUST}.id")
            return self._trusted(user, id)
        if kind == "system":
            if wanted["system"] != {"all": True}:
                raise InvalidRequest('auth.scope.system must be {"all": true}.')
            return self._open(user, "system", assignments.ALL)
        table = {"project": tables.projects, "domain": tables.domains}.get(kind)
        if table is None:
            raise InvalidRequest(f"auth.scope names {kind!r}; it may name project, domain, system or {TRUST}.")
        row = self._named(table, _part(wanted, kind, "auth.scope"), f"auth.scope.{kind}")
        return self._open(user, kind, row["id"] if row else "")

    def _trusted(self, user: Row, id: str) -> tuple[str, str, int]:
        """Return the project of a trust, for its trustee. Raises ``Unauthenticated``, ``Forbidden``."""
        chain = trust_chain(self.connection, id, self.moment)
        if not chain or chain[0]["remaining_uses"] == 0:
            raise Unauthenticated(f"Could not find trust: {id[:80]}. It is gone, over, or used as often as it may be.")
        trust = chain[0]
        if trust["trustee_user_id"] != user["id"]:
            raise Forbidden("User is not a trustee.")
        trustor = find_user(self.connection, trust["trustor_user_id"])
        if trustor is None or not open_(trustor):
            raise Forbidden("Trustor is disabled.")
        project = find_target(self.connection, "project", trust["project_id"]) if trust["project_id"] else None
        if project is None or not open_(project):
            raise Unauthenticated("The trust is for no project that is enabled.")
        if not delegated_roles(self.connection, chain):
            raise Forbidden("Trustee has no delegated roles: the trustor no longer has them.")
        if trust["expires_at"] is not None:
            self.expires = min(self.expires, seconds(trust["expires_at"]))
        self.trust_id, self.trustor_epoch = id, trustor["epoch"]
        return "project", project["id"], project["epoch"]

    def _default(self, user: Row) -> tuple[str, str, int]:
        """The user's default project; no scope when there is none, or no role on it."""
        if user["default_project_id"] and self.parent is None:
            try:
                return self._open(user, "project", user["default_project_id"])
            except MagnetarError:
                pass
        return "", "", 0

    def _open(self, user: Row, kind: str, id: str) -> tuple[str, str, int]:
        target = find_target(self.connection, kind, id)
        if target is None or not open_(target) or not assignments.effective(self.connection, user["id"], kind, id):
            raise Unauthenticated(f"You have no role on this {kind}, or there is none such; ask its administrators "
                                  "for one.")
        return kind, id, target["epoch"]

    def _named(self, table: Table, given: Any, where: str) -> Row | None:
        """A row with its domain, by id, or by name and domain; ``None`` when there is none."""
        if "id" in given:
            id: str | None = TEXT.check(given["id"], f"{where}.id")
        else:
            condition = table.c.name == TEXT.check(given.get("name"), f"{where}.name (or id)")
            if "domain_id" in table.c:
                condition &= table.c.domain_id == self._domain(given.get("domain"), f"{where}.domain")
            id = self.connection.execute(select(table.c.id).where(condition)).scalar()
        if table is tables.users:
            return find_user(self.connection, id) if id else None
        return find_target(self.connection, "project" if table is tables.projects else "domain", id) if id else None

    def _domain(self, given: Any, where: str) -> str:
        if given is None:
            return DEFAULT
        if not isinstance(given, dict):
            raise InvalidRequest(f"{where} must be an object with id or name.")
        if "id" in given:
            id: str = TEXT.check(given["id"], f"{where}.id")
            return id
        name = TEXT.check(given.get("name"), f"{where}.name (or id)")
        return self.connection.execute(select(tables.domains.c.id).where(tables.domains.c.name == name)).scalar() or ""


def _part(whole: Any, name: str, where: str) -> Any:
    part = whole.get(name) if isinstance(whole, dict) else None
    if not isinstance(part, dict):
        raise InvalidRequest(f"{where} must hold an object {name}.")
    return part
