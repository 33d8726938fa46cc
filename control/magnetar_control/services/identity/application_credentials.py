# SPDX-License-Identifier: GPL-3.0-or-later
"""Application credentials: made by a user for the project of a token, with roles that the token has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from magnetar_control.services import Document, Documents
from magnetar_core.errors import Conflict, Forbidden, InvalidField, InvalidRequest
from magnetar_core.values import Boolean, ListOf, MapOf, Nullable, Text, Value

from . import assignments, passwords, tables
from .resources import DESCRIPTION, NAME, USERS, IdentityResource, Secret, new_row
from .times import parse_expiry
from .tokens import Token, Tokens

#: Application credentials of a user.
MOST = 100
CREDENTIALS = IdentityResource(
    name="application credential", plural="application_credentials", table=tables.credentials, fields={},
    constant={"system": None})
FIELDS: Mapping[str, Value] = {
    "name": NAME.value, "description": DESCRIPTION.value, "secret": Nullable(Secret(0, passwords.LONGEST)),
    "unrestricted": Nullable(Boolean()), "roles": Nullable(ListOf(MapOf(Text(), Value()), 1000))}


#: Besides these: what is looked at by itself, and what says nothing of its own.
GIVEN = ("access_rules", "expires_at", "project_id", "user_id", "links", "id", "system")


def list_all(tokens: Tokens, user_id: str, name: str | None) -> Documents:
    """Those of a user; of a *name* where it is given."""
    with tokens.database.read() as connection:
        USERS.row(connection, user_id)
        found = CREDENTIALS.documents(connection, user_id=user_id, **({} if name is None else {"name": name}))
        roles = assignments.names(connection, {id for one in found for id in orjson.loads(one["roles"])})
    return [_with_roles(one, roles) for one in found]


def show(tokens: Tokens, user_id: str, id: str) -> Document:
    """One. Raises ``NotFound``."""
    with tokens.database.read() as connection:
        row = CREDENTIALS.row(connection, id, user_id=user_id)
        return _with_roles(CREDENTIALS.document(row), assignments.names(connection, orjson.loads(row["roles"])))


def create(tokens: Tokens, token: Token, user_id: str, given: Mapping[str, Any]) -> Document:
    """A new one for the project of the token, with the roles named, or all of the token's; with its ``secret``, which
    is told once."""
    if user_id != token.context.user_id:
        raise Forbidden("Application credentials are made by the user whose they are.")
    if token.context.project_id is None:
        raise InvalidRequest("An application credential is for a project; ask with a token that has one.")
    _check_unrestricted(token)
    if given.get("access_rules"):
        raise InvalidField("access_rules", "are not supported here; give the credential fewer roles instead")
    if unknown := sorted(set(given) - {*FIELDS, *GIVEN}):
        raise InvalidField(unknown[0][:80], f"is nothing that an application credential has; there are "
                           f"{', '.join(sorted(FIELDS))}, expires_at")
    if given.get("project_id", token.context.project_id) not in (None, token.context.project_id):
        raise InvalidField("project_id", "is that of the token; ask with a token for the other project",
                           given["project_id"])
    checked = {name: value.check(given.get(name), name) for name, value in FIELDS.items()}
    own = checked["secret"]
    secret = own or passwords.drawn()
    held = {role["id"]: role for role in _roles(checked["roles"], token.roles)}
    row = new_row({
        "user_id": user_id, "project_id": token.context.project_id, "name": checked["name"],
        "description": checked["description"],
        "secret": passwords.hashed(own) if own else passwords.hashed_secret(secret),
        "unrestricted": bool(checked["unrestricted"]), "roles": orjson.dumps(list(held)).decode(),
        "expires_at": parse_expiry(given.get("expires_at"), "nobody could log in with the credential"), "extra": "{}"})
    try:
        with tokens.change() as connection:
            _check_room(connection, user_id)
            connection.execute(insert(tables.credentials).values(row))
    except IntegrityError as error:
        raise Conflict(f"There is an application credential named {row['name']} already.") from error
    return {**_with_roles(CREDENTIALS.document(row), held.values()), "secret": secret}


def _check_room(connection: Connection, user_id: str) -> None:
    have = connection.execute(select(func.count()).select_from(tables.credentials).filter_by(user_id=user_id)).scalar()
    if (have or 0) >= MOST:
        raise Forbidden(f"Unable to create additional application credentials: the user has {MOST}, and may have no "
                        "more. Delete one that is not needed.")


def remove(tokens: Tokens, token: Token, user_id: str, id: str) -> None:
    """Remove it; its tokens end."""
    _check_unrestricted(token)
    with tokens.change() as connection:
        CREDENTIALS.row(connection, id, user_id=user_id)
        connection.execute(delete(tables.credentials).filter_by(id=id))


def _check_unrestricted(token: Token) -> None:
    if token.credential and token.credential["restricted"]:
        raise Forbidden("The token was got with an application credential that is restricted: such a one neither "
                        "makes nor removes application credentials.")


def _with_roles(document: Document, roles: Iterable[dict[str, str]]) -> Document:
    """The credential with those *roles* that it has."""
    known = {role["id"]: role for role in roles}
    return {**document, "roles": [known[id] for id in orjson.loads(document["roles"]) if id in known]}


def _roles(wanted: list[dict[str, str]] | None, held: tuple[dict[str, str], ...]) -> list[dict[str, str]]:
    """The held roles that are named by id or name; all when none is named."""
    found = []
    for role in wanted or ():
        match = [own for own in held if own["id"] == role.get("id") or own["name"] == role.get("name")]
        if not match:
            raise InvalidField("roles", f"names {role.get('name') or role.get('id')}, which your token has not")
        found += match
    return found if wanted else list(held)
