# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens and their owners. A token is looked up once, and cached until anything in the identity service changes.

A token is ``mt.<key id>.<claims>.<signature>``: claims as compact JSON, signed with HMAC-SHA256, base64url without
padding. It has no row. It names the user and the scope, but not the roles: they are looked up when the token is used,
so a removed role has no effect any more.

Each change of the tables increments ``revision`` in its own transaction. The process that made the change clears its
cache immediately; other processes check the number within a second.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, Select, Table, bindparam, delete, insert, select, update

from magnetar_control.services import Context
from magnetar_control.store.engine.database import Database, insert_if_absent, utc_now
from magnetar_control.store.engine.json_column import JsonColumn
from magnetar_core.errors import Unauthenticated

from . import assignments, tables
from .resources import Row
from .times import is_past
from .trust_rows import delegated_roles, trust_chain, use_trust

#: Number of cached tokens; when it is exceeded, the cache is emptied.
REMEMBERED = 20_000
#: Seconds between two checks of ``revision``.
RECHECK_INTERVAL = 1.0
PREFIX = "mt"
#: Longest token that is accepted, in characters.
LONGEST = 2048


def _target_query(table: Table) -> Select[Any]:
    """Return the query for a row of *table* with its domain. The bound parameter ``target`` is the id of the row. JSON
    columns are left out, because tokens do not need them."""
    domain = tables.domains.c
    columns = (column for column in table.c if not isinstance(column.type, JsonColumn))
    query = select(*columns, domain.name.label("domain_name"), domain.enabled.label("domain_enabled"))
    if table is not tables.domains:
        query = query.join_from(table, tables.domains, domain.id == table.c.domain_id)
    return query.where(table.c.id == bindparam("target"))


#: The queries for users and targets, built once.
_TARGETS = {"user": _target_query(tables.users), "project": _target_query(tables.projects),
            "domain": _target_query(tables.domains)}


class Claims(NamedTuple):
    """The contents of a token, which are signed.

    ``scope``: project, domain, system or "" (unscoped). Times are seconds since the epoch. ``user_epoch``,
    ``scope_epoch``: the values of the column ``epoch`` of user and scope when the token was issued; the token becomes
    invalid when one of them increases. ``credential_id``: the application credential of the login. ``chain``: the ids
    of the tokens from which this token was obtained, separated by blanks, the first one first. ``trust_id``: the trust,
    if the token is for a trust; then ``user_id`` is the trustee, and ``trustor_epoch`` the epoch of the trustor.
    """

    id: str
    user_id: str
    user_epoch: int
    issued: float
    expires: float
    methods: tuple[str, ...]
    scope: str = ""
    scope_id: str = ""
    scope_epoch: int = 0
    credential_id: str = ""
    chain: str = ""
    trust_id: str = ""
    trustor_epoch: int = 0

    @property
    def ancestors(self) -> list[str]:
        """Return the ids in ``chain`` as a list. If one of these tokens is revoked, this token becomes invalid, too."""
        return self.chain.split()


@dataclass(frozen=True)
class Token:
    """A valid token. ``user``, ``target``: the present rows of the user and of the project or domain of the scope, each
    with the name of its domain. ``roles``: the present roles {id, name}.

    For a trust with *impersonation*, the user is the trustor.
    """

    claims: Claims
    context: Context
    user: Row
    target: Row | None
    roles: tuple[dict[str, str], ...]
    #: The application credential {id, name, restricted} that was used to log in; a restricted one creates no others.
    credential: dict[str, Any] | None = None
    #: The trust of the token, as Keystone shows it.
    trust: dict[str, Any] | None = None


class Tokens:
    """A cache of valid tokens, and the transactions that issue and revoke tokens. *clock*: returns seconds since the
    epoch. *recheck_interval*: seconds between checks for changes by other processes."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time,
                 recheck_interval: float = RECHECK_INTERVAL) -> None:
        self.database, self.clock, self.recheck_interval = database, clock, recheck_interval
        self._known: dict[str, Token] = {}
        self._keys: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._revision, self._generation, self._look_at = -1, 0, 0.0

    def find(self, token: str) -> Token | None:
        """Return the valid ``Token`` with the text *token*; ``None`` if the token is not valid."""
        if time.monotonic() >= self._look_at:
            self.database.retried(self._clear_stale_cache)
        known_token = self._known.get(token)
        if known_token is None:
            known_token = self.database.retried(lambda: self._look_up(token))
        return known_token if known_token is not None and known_token.claims.expires > self.clock() else None

    @contextlib.contextmanager
    def change(self) -> Iterator[Connection]:
        """Yield the connection of a transaction that changes tables of the identity service. Such transactions run one
        after the other, because each increases, and so locks, the revision number in the database: other processes
        compare it to find out that they must clear their caches."""
        count = update(tables.revision).values(number=tables.revision.c.number + 1)
        with self.database.write() as connection:
            if not connection.execute(count).rowcount:
                insert_if_absent(connection, tables.revision, id=1, number=0)
                connection.execute(count)
            yield connection
        self.forget()

    def forget(self) -> None:
        with self._lock:
            self._generation += 1
            self._known, self._keys, self._look_at = {}, {}, 0.0

    def create(self, claims: Claims) -> tuple[str, Token]:
        """Return (text, ``Token``) of a new token with *claims*. Raises ``Unauthenticated`` if user, scope or roles
        have changed meanwhile."""
        with self.database.read() as connection:
            token = self.sign(connection, claims)
            valid_token = token_of(connection, claims, token, self.clock())
        if valid_token is None:
            raise Unauthenticated("User, project or roles changed while you logged in; log in again.")
        if claims.trust_id:
            with self.database.write() as connection:
                use_trust(connection, claims.trust_id)
        return token, valid_token

    def revoke(self, token: Token) -> None:
        """Revoke *token*, so that it becomes invalid before it expires."""
        revocations, claims = tables.revocations, token.claims
        with self.change() as connection:
            connection.execute(delete(revocations).where(revocations.c.expires < self.clock()))
            insert_if_absent(connection, revocations, token_id=claims.id, expires=claims.expires)

    def sign(self, connection: Connection, claims: Claims) -> str:
        """Return the text of a token with *claims*, signed with the newest key."""
        newest = select(tables.keys).order_by(tables.keys.c.created_at.desc()).limit(1)
        key = connection.execute(newest).mappings().first()
        if key is None:
            raise LookupError("the identity service has no signing key: bootstrap was not run")
        return sign_claims(claims, key["id"], base64.b64decode(key["secret"]))

    def _clear_stale_cache(self) -> None:
        """Clear the cache if another process has changed an identity table since the last check."""
        with self.database.read() as connection:
            number = connection.execute(select(tables.revision.c.number)).scalar() or 0
        if number != self._revision:
            self.forget()
        with self._lock:
            self._revision, self._look_at = number, time.monotonic() + self.recheck_interval

    def _look_up(self, token: str) -> Token | None:
        with self._lock:
            generation, keys = self._generation, self._keys
        with contextlib.ExitStack() as stack:
            connection = None
            if not keys:
                connection = stack.enter_context(self.database.read())
                keys = {id: base64.b64decode(secret) for id, secret in connection.execute(
                    select(tables.keys.c.id, tables.keys.c.secret))}
            claims, valid_token = verify_token(token, keys, self.clock()), None
            if claims is not None:
                connection = connection or stack.enter_context(self.database.read())
                valid_token = token_of(connection, claims, token, self.clock())
        with self._lock:
            if generation == self._generation:  # otherwise the data may be outdated by a change
                self._keys = keys
                if valid_token is not None:
                    if len(self._known) >= REMEMBERED:
                        self._known = {}
                    self._known[token] = valid_token
        return valid_token


def insert_signing_key(connection: Connection) -> None:
    """Insert a new key for signing tokens. Tokens signed with older keys stay valid."""
    connection.execute(insert(tables.keys).values(
        id=secrets.token_hex(4), secret=base64.b64encode(secrets.token_bytes(32)).decode(), created_at=utc_now()))


def token_of(connection: Connection, claims: Claims, token: str, moment: float) -> Token | None:
    """Return the ``Token`` with *claims* and the text *token*; ``None`` if its user, scope or roles are not valid at
    *moment*, or if it was revoked."""
    user = find_user(connection, claims.user_id)
    if user is None or not is_row_enabled(user) or user["epoch"] != claims.user_epoch:
        return None
    revoked = select(tables.revocations.c.token_id).where(
        tables.revocations.c.token_id.in_([claims.id, *claims.ancestors]))
    if connection.execute(revoked).first() is not None:
        return None
    target, credential, trust = None, None, None
    roles: list[dict[str, str]] = []
    if claims.scope:
        target = find_target(connection, claims.scope, claims.scope_id)
        if target is None or not is_row_enabled(target) or target["epoch"] != claims.scope_epoch:
            return None
        if claims.trust_id:
            user, roles, trust = _trusted(connection, claims, user, moment)
        else:
            roles = assignments.effective_roles(connection, claims.user_id, claims.scope, claims.scope_id)
        if claims.credential_id:
            roles, credential = _limited(connection, claims, roles, moment)
        if not roles:
            return None
    project: Row = target if claims.scope == "project" and target else {}
    context = Context(
        user_id=user["id"], user_name=user["name"], user_domain_id=user["domain_id"], project_id=project.get("id"),
        project_name=project.get("name", ""), project_domain_id=project.get("domain_id", "default"),
        roles=frozenset(role["name"] for role in roles) if claims.scope != "domain" else frozenset(),
        expires=claims.expires, token=token, scope=claims.scope)
    return Token(claims, context, user, target, tuple(roles), credential, trust)


def is_row_enabled(row: Row) -> bool:
    """Return whether the user, project or domain in *row* is enabled, and so is the domain to which it belongs."""
    return bool(row["enabled"] and row["domain_enabled"])


def find_user(connection: Connection, id: str) -> Row | None:
    """Return the row of a user with the additional columns domain_name and domain_enabled; ``None`` if there is no such
    user."""
    return find_target(connection, "user", id)


def find_target(connection: Connection, scope: str, id: str) -> Row | None:
    """Return the row of the user, project or domain *id*, with the additional columns domain_name and domain_enabled;
    ``None`` if there is none. *scope*: user, project or domain; or system, whose row is a constant."""
    if scope == "system":
        return {"id": id, "enabled": True, "domain_enabled": True, "epoch": 0} if id == assignments.ALL else None
    row = connection.execute(_TARGETS[scope], {"target": id}).mappings().first()
    return dict(row) if row else None


def _limited(connection: Connection, claims: Claims, roles: list[dict[str, str]],
             moment: float) -> tuple[list[dict[str, str]], dict[str, Any] | None]:
    """Return (roles, credential) of a token with *claims* that was issued to an application credential. *roles*: the
    roles of the user.

    The returned roles are those of *roles* that the credential includes. They are empty if the credential is deleted or
    has expired at *moment*, or if the user has lost a role of the credential. The returned credential is {id, name,
    restricted}; ``None`` if it is deleted or has expired.
    """
    columns = tables.credentials.c
    query = select(columns.name, columns.roles, columns.expires_at,
                   columns.unrestricted).where(columns.id == claims.credential_id)
    row = connection.execute(query).first()
    if row is None or (row.expires_at is not None and is_past(row.expires_at, moment)):
        return [], None
    credential_roles = set(row.roles)
    remaining_roles = [role for role in roles if role["id"] in credential_roles]
    credential = {"id": claims.credential_id, "name": row.name, "restricted": not row.unrestricted}
    return (remaining_roles if len(remaining_roles) == len(credential_roles) else []), credential


def _trusted(connection: Connection, claims: Claims, trustee: Row,
             moment: float) -> tuple[Row, list[dict[str, str]], dict[str, Any] | None]:
    """Return (user, roles, trust) of a token with *claims* for a trust: the user as whom the token acts, the delegated
    roles, and the trust as in Keystone's token. *trustee*: the user who has the token.

    The roles are empty if the trust is deleted or has expired at *moment*, if the trustor has lost a role of the trust,
    or if one of the users is disabled.
    """
    chain = trust_chain(connection, claims.trust_id, moment)
    if not chain or chain[0]["trustee_user_id"] != trustee["id"] or chain[0]["project_id"] != claims.scope_id:
        return trustee, [], None
    trust = chain[0]
    trustor = find_user(connection, trust["trustor_user_id"])
    users = [find_user(connection, row["trustee_user_id"]) for row in chain[1:]]
    first = find_user(connection, chain[-1]["trustor_user_id"])
    if trustor is None or trustor["epoch"] != claims.trustor_epoch or not all(
            user is not None and is_row_enabled(user) for user in (trustor, first, *users)):
        return trustee, [], None
    trust_document = {"id": trust["id"], "impersonation": trust["impersonation"], "trustor_user": {"id": trustor["id"]},
                      "trustee_user": {"id": trustee["id"]}}
    return trustor if trust["impersonation"] else trustee, delegated_roles(connection, chain), trust_document


def draw_token_id() -> str:
    """Return a random id for a token, which is also its audit id."""
    return secrets.token_urlsafe(16)


def sign_claims(claims: Claims, key_id: str, secret: bytes) -> str:
    """Return the text of a token with *claims*, signed with the key *secret*. *key_id*: the id of this key, which the
    token contains."""
    head = f"{PREFIX}.{key_id}.{_text(orjson.dumps(tuple(claims)))}"
    return f"{head}.{_text(_mac(head, secret))}"


def verify_token(token: str, keys: Mapping[str, bytes], now: float) -> Claims | None:
    """Return the claims of *token* if its signature is valid and it has not expired at *now* (seconds since the epoch);
    otherwise ``None``. *keys*: the signing keys by id."""
    if len(token) > LONGEST or not token.isascii():
        return None
    head, dot, signature = token.rpartition(".")
    words = head.split(".")
    if not dot or len(words) != 3 or words[0] != PREFIX or words[1] not in keys:
        return None
    if not hmac.compare_digest(_text(_mac(head, keys[words[1]])), signature):
        return None
    try:
        claims = Claims(*orjson.loads(base64.urlsafe_b64decode(words[2] + "=" * (-len(words[2]) % 4))))
    except (binascii.Error, ValueError, TypeError):  # signed by another version of this service
        return None
    return claims._replace(methods=tuple(claims.methods)) if claims.expires > now else None


def _mac(head: str, secret: bytes) -> bytes:
    return hmac.digest(secret, head.encode(), hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
