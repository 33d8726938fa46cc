# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens and whose they are: looked up once, remembered until anything in the identity service changes.

A token is ``mt.<key id>.<claims>.<signature>``: claims as compact JSON, signed with HMAC-SHA256, base64url without
padding. It has no row, and names the user and the scope, not the roles: these are looked up when it comes, so a role
that is taken away is gone at once.

Each change of the tables counts ``revision`` up in its own transaction. What is remembered is forgotten at once in the
process that made the change; other processes look at the count at most a second after it.
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
from sqlalchemy import Connection, delete, insert, select, update

from magnetar_control.services import Context
from magnetar_control.store.engine.database import Database, added, now
from magnetar_core.errors import Unauthenticated

from . import assignments, tables
from .resources import Row
from .times import over
from .trust_rows import delegated_roles, trust_chain, use_trust

#: Remembered tokens; when there are more, all are forgotten and looked up again.
REMEMBERED = 20_000
#: Seconds after which the count of changes is looked at again.
LOOK_AGAIN = 1.0
SCOPES = {"user": tables.users, "project": tables.projects, "domain": tables.domains}
PREFIX = "mt"
#: Longest token that is looked at, in characters.
LONGEST = 2048


class Claims(NamedTuple):
    """What a token says. *scope*: project, domain, system or "" (none). Times are seconds since the epoch. The epochs
    are those that user and scope had then. *chain*: ids of the tokens by which it was got, the first first. *trust_id*:
    of the trust that it is for; *user_id* is the trustee then, and *trustor_epoch* the trustor's."""

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
        """The ids of *chain*: with each of these the token ends."""
        return self.chain.split()


@dataclass(frozen=True)
class Token:
    """A valid token: its claims, with user, target (project or domain, with the domain's name) and roles {id, name}.

    The user is the trustor where a trust impersonates.
    """

    claims: Claims
    context: Context
    user: Row
    target: Row | None
    roles: tuple[dict[str, str], ...]
    #: The application credential {id, name, restricted} with which it was got; a restricted one makes no others.
    credential: dict[str, Any] | None = None
    #: The trust that it is for, as Keystone shows it.
    trust: dict[str, Any] | None = None


class Tokens:
    """Looks tokens up, and makes the transactions that change what they are worth. *clock* gives seconds since the
    epoch."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time,
                 look_again: float = LOOK_AGAIN) -> None:
        self.database, self.clock, self.look_again = database, clock, look_again
        self._known: dict[str, Token] = {}
        self._keys: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._revision, self._generation, self._look_at = -1, 0, 0.0

    def find(self, token: str) -> Token | None:
        """Whose *token* is; ``None`` when it is worth nothing."""
        if time.monotonic() >= self._look_at:
            self.database.retried(self._look)
        found = self._known.get(token)
        if found is None:
            found = self.database.retried(lambda: self._look_up(token))
        return found if found is not None and found.claims.expires > self.clock() else None

    @contextlib.contextmanager
    def change(self) -> Iterator[Connection]:
        """A transaction that changes tables of the identity service. One goes on at a time: the others wait for the row
        of the revision."""
        count = update(tables.revision).values(number=tables.revision.c.number + 1)
        with self.database.write() as connection:
            if not connection.execute(count).rowcount:
                added(connection, tables.revision, id=1, number=0)
                connection.execute(count)
            yield connection
        self.forget()

    def forget(self) -> None:
        with self._lock:
            self._generation += 1
            self._known, self._keys, self._look_at = {}, {}, 0.0

    def create(self, claims: Claims) -> tuple[str, Token]:
        """A new token that says *claims*. Raises ``Unauthenticated`` where they are not true any more."""
        with self.database.read() as connection:
            token = self.sign(connection, claims)
            found = token_of(connection, claims, token, self.clock())
        if found is None:
            raise Unauthenticated("User, project or roles changed while you logged in; log in again.")
        if claims.trust_id:
            with self.database.write() as connection:
                use_trust(connection, claims.trust_id)
        return token, found

    def revoke(self, token: Token) -> None:
        """End a token before its time."""
        gone, claims = tables.revocations, token.claims
        with self.change() as connection:
            connection.execute(delete(gone).where(gone.c.expires < self.clock()))
            added(connection, gone, token_id=claims.id, expires=claims.expires)

    def sign(self, connection: Connection, claims: Claims) -> str:
        """A token with the newest key."""
        newest = select(tables.keys).order_by(tables.keys.c.created_at.desc()).limit(1)
        key = connection.execute(newest).mappings().first()
        if key is None:
            raise LookupError("the identity service has no signing key: bootstrap was not run")
        return signed(claims, key["id"], base64.b64decode(key["secret"]))

    def _look(self) -> None:
        """Forget everything when another process changed something."""
        with self.database.read() as connection:
            number = connection.execute(select(tables.revision.c.number)).scalar() or 0
        if number != self._revision:
            self.forget()
        with self._lock:
            self._revision, self._look_at = number, time.monotonic() + self.look_again

    def _look_up(self, token: str) -> Token | None:
        with self._lock:
            generation, keys = self._generation, self._keys
        with contextlib.ExitStack() as stack:
            connection = None
            if not keys:
                connection = stack.enter_context(self.database.read())
                keys = {id: base64.b64decode(secret) for id, secret in connection.execute(
                    select(tables.keys.c.id, tables.keys.c.secret))}
            claims, found = read(token, keys, self.clock()), None
            if claims is not None:
                connection = connection or stack.enter_context(self.database.read())
                found = token_of(connection, claims, token, self.clock())
        with self._lock:
            if generation == self._generation:  # else something changed meanwhile: what was read may be old
                self._keys = keys
                if found is not None:
                    if len(self._known) >= REMEMBERED:
                        self._known = {}
                    self._known[token] = found
        return found


def new_key(connection: Connection) -> None:
    """Sign with a new key from now on; older ones are still believed."""
    connection.execute(insert(tables.keys).values(
        id=secrets.token_hex(4), secret=base64.b64encode(secrets.token_bytes(32)).decode(), created_at=now()))


def token_of(connection: Connection, claims: Claims, token: str, moment: float) -> Token | None:
    """The token that says *claims*; ``None`` when user, scope, roles or the token itself are no longer good."""
    user = find_user(connection, claims.user_id)
    if user is None or not open_(user) or user["epoch"] != claims.user_epoch:
        return None
    revoked = select(tables.revocations.c.token_id).where(
        tables.revocations.c.token_id.in_([claims.id, *claims.ancestors]))
    if connection.execute(revoked).first() is not None:
        return None
    target, credential, trust = None, None, None
    roles: list[dict[str, str]] = []
    if claims.scope:
        target = find_target(connection, claims.scope, claims.scope_id)
        if target is None or not open_(target) or target["epoch"] != claims.scope_epoch:
            return None
        if claims.trust_id:
            user, roles, trust = _trusted(connection, claims, user, moment)
        else:
            roles = assignments.effective(connection, claims.user_id, claims.scope, claims.scope_id)
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


def open_(row: Row) -> bool:
    """Whether a user or target and its domain are enabled."""
    return bool(row["enabled"] and row["domain_enabled"])


def find_user(connection: Connection, id: str) -> Row | None:
    """A user with domain_name and domain_enabled."""
    return find_target(connection, "user", id)


def find_target(connection: Connection, scope: str, id: str) -> Row | None:
    """What a token may be for, with domain_name and domain_enabled."""
    if scope == "system":
        return {"id": id, "enabled": True, "domain_enabled": True, "epoch": 0} if id == assignments.ALL else None
    table, domain = SCOPES[scope], tables.domains.c
    query = select(table, domain.name.label("domain_name"), domain.enabled.label("domain_enabled"))
    if table is not tables.domains:
        query = query.join(tables.domains, domain.id == table.c.domain_id)
    row = connection.execute(query.where(table.c.id == id)).mappings().first()
    return dict(row) if row else None


def _limited(connection: Connection, claims: Claims, roles: list[dict[str, str]],
             moment: float) -> tuple[list[dict[str, str]], dict[str, Any] | None]:
    """The roles of the application credential, and what is told of it; no roles when it is gone or over, or the user
    lost one of them."""
    own = tables.credentials.c
    query = select(own.name, own.roles, own.expires_at, own.unrestricted).where(own.id == claims.credential_id)
    row = connection.execute(query).first()
    if row is None or (row.expires_at is not None and over(row.expires_at, moment)):
        return [], None
    wanted = set(orjson.loads(row.roles))
    found = [role for role in roles if role["id"] in wanted]
    told = {"id": claims.credential_id, "name": row.name, "restricted": not row.unrestricted}
    return (found if len(found) == len(wanted) else []), told


def _trusted(connection: Connection, claims: Claims, trustee: Row,
             moment: float) -> tuple[Row, list[dict[str, str]], dict[str, Any] | None]:
    """Return the user that a token for a trust says, its roles, and what is told of the trust.

    No roles when the trust is gone or over, the trustor lost one of them, or one of the users is disabled.
    """
    chain = trust_chain(connection, claims.trust_id, moment)
    if not chain or chain[0]["trustee_user_id"] != trustee["id"] or chain[0]["project_id"] != claims.scope_id:
        return trustee, [], None
    trust = chain[0]
    trustor = find_user(connection, trust["trustor_user_id"])
    users = [find_user(connection, row["trustee_user_id"]) for row in chain[1:]]
    first = find_user(connection, chain[-1]["trustor_user_id"])
    if trustor is None or trustor["epoch"] != claims.trustor_epoch or not all(
            user is not None and open_(user) for user in (trustor, first, *users)):
        return trustee, [], None
    told = {"id": trust["id"], "impersonation": trust["impersonation"], "trustor_user": {"id": trustor["id"]},
            "trustee_user": {"id": trustee["id"]}}
    return trustor if trust["impersonation"] else trustee, delegated_roles(connection, chain), told


def new_id() -> str:
    """An id for a token; also its audit id."""
    return secrets.token_urlsafe(16)


def signed(claims: Claims, key_id: str, secret: bytes) -> str:
    """The token that says *claims*."""
    head = f"{PREFIX}.{key_id}.{_text(orjson.dumps(tuple(claims)))}"
    return f"{head}.{_text(_mac(head, secret))}"


def read(token: str, keys: Mapping[str, bytes], now: float) -> Claims | None:
    """What *token* says, when one of *keys* signed it and it has not expired; else ``None``."""
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
    except (binascii.Error, ValueError, TypeError):  # signed by us, but by another version
        return None
    return claims._replace(methods=tuple(claims.methods)) if claims.expires > now else None


def _mac(head: str, secret: bytes) -> bytes:
    return hmac.digest(secret, head.encode(), hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
