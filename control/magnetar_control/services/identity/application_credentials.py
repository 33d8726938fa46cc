# SPDX-License-Identifier: GPL-3.0-or-later
"""Application credentials. A user creates one for the project of the user's token, with roles of that token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, Forbidden, InvalidField, InvalidRequest
from magnetar_core.values import Boolean, ListOf, MapOf, Nullable, Text, Value

from . import assignments, passwords, tables
from .resources import DESCRIPTION, NAME, USERS, IdentityResource, Secret, new_row
from .times import parse_expiry
from .tokens import Token, Tokens

#: Maximum number of application credentials of a user.
MOST = 100
CREDENTIALS = IdentityResource(
    name="application credential", plural="application_credentials", table=tables.credentials, fields={},
    constant={"system": None})
FIELDS: Mapping[str, Value] = {
    "name": NAME.value, "description": DESCRIPTION.value, "secret": Nullable(Secret(0, passwords.LONGEST)),
    "unrestricted": Nullable(Boolean()), "roles": Nullable(ListOf(MapOf(Text(), Value()), 1000))}


#: Further accepted keys: they are checked separately, or ignored.
GIVEN = ("access_rules", "expires_at", "project_id", "user_id", "links", "id", "system")


def list_application_credentials(tokens: Tokens, user_id: str, name: str | None) -> Documents:
    """Return the application credentials of a user. *name*: return only the credential with this name; ``None`` for
    all."""
    with tokens.database.read() as connection:
        USERS.row(connection, user_id)
        credentials = CREDENTIALS.documents(connection, user_id=user_id, **({} if name is None else {"name": name}))
        roles = assignments.fetch_role_names(connection, {
            id for credential in credentials for id in credential["roles"]})
    return [_with_roles(credential, roles) for credential in credentials]


def show_application_credential(tokens: Tokens, user_id: str, id: str) -> Document:
    """Return an application credential. Raises ``NotFound``."""
    with tokens.database.read() as connection:
        row = CREDENTIALS.row(connection, id, user_id=user_id)
        return _with_roles(CREDENTIALS.document(row), assignments.fetch_role_names(connection, row["roles"]))


def create_application_credential(tokens: Tokens, token: Token, user_id: str, body: Mapping[str, Any]) -> Document:
    """Create an application credential for the project of *token*, and return it with its ``secret``, which is never
    shown again. *body*: the request; without roles in it, the credential gets all roles of the token."""
    if user_id != token.context.user_id:
        raise Forbidden("Application credentials are made by the user whose they are.")
    if token.context.project_id is None:
        raise InvalidRequest("An application credential is for a project; ask with a token that has one.")
    check_unrestricted(token)
    if body.get("access_rules"):
        raise InvalidField("access_rules", "are not supported here; give the credential fewer roles instead")
    if unknown := sorted(set(body) - {*FIELDS, *GIVEN}):
        raise InvalidField(unknown[0][:80], f"is nothing that an application credential has; there are "
                           f"{', '.join(sorted(FIELDS))}, expires_at")
    if body.get("project_id", token.context.project_id) not in (None, token.context.project_id):
        raise InvalidField("project_id", "is that of the token; ask with a token for the other project",
                           body["project_id"])
    checked = {name: value.check(body.get(name), name) for name, value in FIELDS.items()}
    chosen_secret = checked["secret"]
    secret = chosen_secret or passwords.draw_secret()
    roles_by_id = {role["id"]: role for role in _roles(checked["roles"], token.roles)}
    row = new_row({
        "user_id": user_id, "project_id": token.context.project_id, "name": checked["name"],
        "description": checked["description"],
        "secret": passwords.hash_password(chosen_secret) if chosen_secret else passwords.hash_secret(secret),
        "unrestricted": bool(checked["unrestricted"]), "roles": list(roles_by_id),
        "expires_at": parse_expiry(body.get("expires_at"), "nobody could log in with the credential"), "extra": {}})
    try:
        with tokens.change() as connection:
            _check_room(connection, user_id)
            connection.execute(insert(tables.credentials).values(row))
    except IntegrityError as error:
        raise Conflict(f"There is an application credential named {row['name']} already.") from error
    return {**_with_roles(CREDENTIALS.document(row), roles_by_id.values()), "secret": secret}


def _check_room(connection: Connection, user_id: str) -> None:
    have = connection.execute(select(func.count()).select_from(tables.credentials).filter_by(user_id=user_id)).scalar()
    if (have or 0) >= MOST:
        raise Forbidden(f"Unable to create additional application credentials: the user has {MOST}, and may have no "
                        "more. Delete one that is not needed.")


def delete_application_credential(tokens: Tokens, token: Token, user_id: str, id: str) -> None:
    """Delete an application credential. Tokens that were issued to it become invalid."""
    check_unrestricted(token)
    with tokens.change() as connection:
        CREDENTIALS.row(connection, id, user_id=user_id)
        connection.execute(delete(tables.credentials).filter_by(id=id))


def check_unrestricted(token: Token) -> None:
    """Raise ``Forbidden`` for a token of a restricted application credential."""
    if token.credential and token.credential["restricted"]:
        raise Forbidden("The token was got with an application credential that is restricted: such a one neither "
                        "makes nor removes application credentials.")


def _with_roles(document: Document, roles: Iterable[dict[str, str]]) -> Document:
    """Return a copy of the application credential *document* that lists its roles as {id, name} instead of ids.
    *roles*: the {id, name} of existing roles; other ids are left out."""
    roles_by_id = {role["id"]: role for role in roles}
    return {**document, "roles": [roles_by_id[id] for id in document["roles"] if id in roles_by_id]}


def _roles(requested: list[dict[str, str]] | None, token_roles: tuple[dict[str, str], ...]) -> list[dict[str, str]]:
    """Return the elements of *token_roles* that match *requested* by id or name; all of them if *requested* is
    ``None``. Raises ``InvalidField`` for a requested role that the token does not have."""
    granted = []
    for role in requested or ():
        match = [token_role for token_role in token_roles if token_role["id"] == role.get("id")
                 or token_role["name"] == role.get("name")]
        if not match:
            raise InvalidField("roles", f"names {role.get('name') or role.get('id')}, which your token has not")
        granted += match
    return granted if requested else list(token_roles)
