# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens and whose they are: looked up once, remembered until anything in the identity service changes.

Each change of the tables counts ``revision`` up in its own transaction. What is remembered is forgotten at once in the
process that made the change; other processes look at the count at most a second after it.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import Connection, delete, insert, select, update

from magnetar_control.services import Context
from magnetar_control.store.database import Database, now
from magnetar_core.errors import Unauthenticated

from . import assignments, tables
from .claims import Claims, read, signed
from .resources import Row

#: Remembered tokens; when there are more, all are forgotten and looked up again.
REMEMBERED = 20_000
#: Seconds after which the count of changes is looked at again.
LOOK_AGAIN = 1.0


@dataclass(frozen=True)
class Token:
    """A valid token: its claims, with user, target (project or domain, with the domain's name) and roles {id, name}."""

    claims: Claims
    context: Context
    user: Row
    target: Row | None
    roles: tuple[dict[str, str], ...]
    #: The application credential {id, name, restricted} with which it was got; a restricted one makes no others.
    credential: dict[str, Any] | None = None


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
        """A transaction that changes tables of the identity service."""
        with self.database.write() as connection:
            counted = connection.execute(update(tables.revision).values(number=tables.revision.c.number + 1))
            if not counted.rowcount:
                connection.execute(insert(tables.revision).values(id=1, number=1))
            yield connection
        self.forget()

    def forget(self) -> None:
        """Look everything up anew."""
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
        return token, found

    def revoke(self, token: Token) -> None:
        """End a token before its time."""
        gone, claims = tables.revocations, token.claims
        with self.change() as connection:
            connection.execute(delete(gone).where(gone.c.expires < self.clock()))
            if connection.execute(select(gone.c.token_id).where(gone.c.token_id == claims.id)).first() is None:
                connection.execute(insert(gone).values(token_id=claims.id, expires=claims.expires))

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
                keys = read_keys(connection)
            claims = read(token, keys, self.clock())
            if claims is None:
                found = None
            else:
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


def read_keys(connection: Connection) -> dict[str, bytes]:
    """All signing keys."""
    return {id: base64.b64decode(secret) for id, secret in connection.execute(
        select(tables.keys.c.id, tables.keys.c.secret))}


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
    target, roles, credential = None, [], None
    if claims.scope:
        target = find_target(connection, claims.scope, claims.scope_id)
        if target is None or not open_(target) or target["epoch"] != claims.scope_epoch:
            return None
        roles = assignments.effective(connection, claims.user_id, claims.scope, claims.scope_id)
        if claims.credential_id:
            roles, credential = _limited(connection, claims, roles, moment)
        if not roles:
            return None
    return Token(claims, _context(claims, token, user, target, roles), user, target, tuple(roles), credential)


def _context(claims: Claims, token: str, user: Row, target: Row | None, roles: list[dict[str, str]]) -> Context:
    project = target if claims.scope == "project" and target else None
    return Context(
        user_id=user["id"], user_name=user["name"], user_domain_id=user["domain_id"],
        project_id=project["id"] if project else None, project_name=project["name"] if project else "",
        project_domain_id=project["domain_id"] if project else "default",
        roles=frozenset(role["name"] for role in roles), expires=claims.expires, token=token)


def open_(row: Row) -> bool:
    """Whether a user or target and its domain are enabled."""
    return bool(row["enabled"] and row["domain_enabled"])


def find_user(connection: Connection, id: str) -> Row | None:
    """A user with domain_name and domain_enabled."""
    return _with_domain(connection, tables.users, id)


def find_target(connection: Connection, scope: str, id: str) -> Row | None:
    """What a token may be for, with domain_name and domain_enabled."""
    if scope == "project":
        return _with_domain(connection, tables.projects, id)
    if scope == "system":
        return {"id": id, "enabled": True, "domain_enabled": True, "epoch": 0} if id == assignments.ALL else None
    row = connection.execute(select(tables.domains).where(tables.domains.c.id == id)).mappings().first()
    return {**row, "domain_enabled": True} if row else None


def _with_domain(connection: Connection, table: Any, id: str) -> Row | None:
    domain = tables.domains.c
    row = connection.execute(
        select(table, domain.name.label("domain_name"), domain.enabled.label("domain_enabled"))
        .join(tables.domains, domain.id == table.c.domain_id).where(table.c.id == id)).mappings().first()
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


def over(text: str, moment: float) -> bool:
    """Whether the time *text* of the tables is past."""
    return seconds(text) <= moment


def seconds(text: str) -> float:
    """The time *text* of the tables, in seconds since the epoch."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
