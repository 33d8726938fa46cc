# SPDX-License-Identifier: GPL-3.0-or-later
"""Application credentials: made by a user for the project of a token, with roles that the token has."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from magnetar_control.services import Document, Documents
from magnetar_control.store.database import now
from magnetar_core.errors import Conflict, Forbidden, InvalidField, InvalidRequest, NotFound
from magnetar_core.values import Boolean, ListOf, MapOf, Nullable, Text, Value

from . import assignments, passwords, tables
from .resources import DESCRIPTION, NAME, USERS, Row
from .tokens import Token, Tokens

SHOWN = ("id", "name", "description", "user_id", "project_id", "unrestricted", "expires_at")
FIELDS: Mapping[str, Value] = {
    "name": NAME.value, "description": DESCRIPTION.value, "secret": Nullable(Text(0, passwords.LONGEST)),
    "unrestricted": Nullable(Boolean()), "roles": Nullable(ListOf(MapOf(Text(), Value()), 1000))}


def list_all(tokens: Tokens, user_id: str, name: str | None) -> Documents:
    """Those of a user; of a *name* where it is given."""
    own = tables.credentials.c
    with tokens.database.read() as connection:
        USERS.row(connection, user_id)
        rows = connection.execute(select(tables.credentials).where(
            own.user_id == user_id, own.name == (own.name if name is None else name)).order_by(own.name)
            ).mappings().all()
        roles = {role["id"]: role for role in assignments.names(
            connection, {id for row in rows for id in orjson.loads(row["roles"])})}
    return [_document(dict(row), roles) for row in rows]


def show(tokens: Tokens, user_id: str, id: str) -> Document:
    """One. Raises ``NotFound``."""
    with tokens.database.read() as connection:
        row = _row(connection, id, user_id)
        roles = {role["id"]: role for role in assignments.names(connection, orjson.loads(row["roles"]))}
    return _document(row, roles)


def create(tokens: Tokens, token: Token, user_id: str, given: Mapping[str, Any]) -> Document:
    """A new one for the project of the token, with the roles named, or all of the token's; with its ``secret``, which
    is told once."""
    _check_maker(token, user_id)
    if given.get("access_rules"):
        raise InvalidField("access_rules", "are not supported here; give the credential fewer roles instead")
    checked = {name: value.check(given.get(name), name) for name, value in FIELDS.items()}
    secret = checked["secret"] or passwords.drawn()
    held = {role["id"]: role for role in _roles(checked["roles"], token.roles)}
    row: dict[str, Any] = {
        "id": uuid.uuid4().hex, "user_id": user_id, "project_id": token.context.project_id, "name": checked["name"],
        "description": checked["description"], "secret": passwords.hashed(secret),
        "unrestricted": bool(checked["unrestricted"]), "roles": orjson.dumps(list(held)).decode(),
        "expires_at": _expiry(given.get("expires_at")), "created_at": now(), "extra": "{}"}
    try:
        with tokens.change() as connection:
            connection.execute(insert(tables.credentials).values(row))
    except IntegrityError as error:
        raise Conflict(f"There is an application credential named {row['name']} already.") from error
    return {**_document(row, held), "secret": secret}


def remove(tokens: Tokens, token: Token, user_id: str, id: str) -> None:
    """Remove it; its tokens end."""
    _check_unrestricted(token)
    with tokens.change() as connection:
        row = _row(connection, id, user_id)
        connection.execute(delete(tables.credentials).where(tables.credentials.c.id == row["id"]))


def _check_maker(token: Token, user_id: str) -> None:
    if user_id != token.context.user_id:
        raise Forbidden("Application credentials are made by the user whose they are.")
    if token.context.project_id is None:
        raise InvalidRequest("An application credential is for a project; ask with a token that has one.")
    _check_unrestricted(token)


def _check_unrestricted(token: Token) -> None:
    if token.credential and token.credential["restricted"]:
        raise Forbidden("The token was got with an application credential that is restricted: such a one neither "
                        "makes nor removes application credentials.")


def _row(connection: Connection, id: str, user_id: str) -> Row:
    own = tables.credentials.c
    row = connection.execute(select(tables.credentials).where(own.id == id, own.user_id == user_id)).mappings().first()
    if row is None:
        raise NotFound(f"Could not find application credential: {id}.")
    return dict(row)


def _document(row: Row, roles: Mapping[str, dict[str, str]]) -> Document:
    return {**{name: row[name] for name in SHOWN}, "system": None,
            "roles": [roles[id] for id in orjson.loads(row["roles"]) if id in roles]}


def _roles(wanted: list[dict[str, str]] | None, held: tuple[dict[str, str], ...]) -> list[dict[str, str]]:
    """The held roles that are named by id or name; all when none is named."""
    found = []
    for role in wanted or ():
        match = [own for own in held if own["id"] == role.get("id") or own["name"] == role.get("name")]
        if not match:
            raise InvalidField("roles", f"names {role.get('name') or role.get('id')}, which your token has not")
        found += match
    return found if wanted else list(held)


def _expiry(text: Any) -> str | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise InvalidField("expires_at", "must be a time such as 2030-01-31T12:00:00", text) from None
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="microseconds")
