# SPDX-License-Identifier: GPL-3.0-or-later
"""Trusts (OS-TRUST): a trustor lets a trustee act with some of the trustor's roles on one project.

The trustee gets a token for a trust with ``login``. With *impersonation* the token acts as the trustor. A trustee may
redelegate a redelegable trust: with no more roles, no later end, and one less redelegation. Source: Identity API v3,
"OS-TRUST".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from magnetar_control.services import Context
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, Forbidden, InvalidField, NotFound
from magnetar_core.values import Boolean, Integer, ListOf, MapOf, Nullable, Text, Value

from . import assignments, tables
from .resources import PROJECTS, ROLES, USERS, IdentityResource, Row, fetch_identity_row, new_row
from .times import is_past, parse_expiry
from .tokens import Token, Tokens
from .trust_rows import trust_chain

#: Maximum number of trusts of one trustor; Heat creates one for each stack.
MOST = 1000
#: Keystone's default of max_redelegation_count.
MOST_REDELEGATIONS = 3
TRUSTS = IdentityResource(name="trust", plural="trusts", table=tables.trusts, fields={}, constant={"deleted_at": None})
ID = Text(1, 64)
FIELDS: Mapping[str, Value] = {
    "trustor_user_id": ID, "trustee_user_id": ID, "impersonation": Boolean(), "project_id": Nullable(ID),
    "remaining_uses": Nullable(Integer(1)), "allow_redelegation": Nullable(Boolean()),
    "redelegation_count": Nullable(Integer(0)), "redelegated_trust_id": Nullable(ID),
    "roles": Nullable(ListOf(MapOf(Text(), Value()), 1000))}
REQUIRED = ("trustor_user_id", "trustee_user_id", "impersonation")
COLUMNS = ("trustor_user_id", "trustee_user_id", "impersonation", "project_id", "remaining_uses")
#: Keys that a client may send and that are not stored, such as the response to an earlier request, sent back.
UNKEPT = frozenset({*FIELDS, "expires_at", "id", "links", "roles_links", "deleted_at"})


def create_trust(tokens: Tokens, token: Token, body: Mapping[str, Any]) -> Document:
    """Create a trust of the caller from the request *body*, and return it. Raises ``InvalidField``, ``Forbidden``,
    ``NotFound``, ``Conflict``."""
    request = _checked(body)
    if token.claims.scope == "system":
        raise Forbidden("You are not authorized to perform the requested action: it needs a token for a project.")
    if request["trustor_user_id"] != token.context.user_id:
        raise Forbidden("The authenticated user should match the trustor: trusts are made by the user who trusts.")
    if request["project_id"] and not request["roles"]:
        raise Forbidden("At least one role should be specified.")
    row = new_row({**{name: request[name] for name in COLUMNS}, "redelegation_count": _count(request),
                   "expires_at": parse_expiry(body.get("expires_at"), "nobody could use the trust")})
    try:
        with tokens.change() as connection:
            USERS.row(connection, row["trustee_user_id"])
            chain = _redelegated(connection, tokens, token, request["redelegated_trust_id"])
            roles = _roles(connection, request, chain[-1]["trustor_user_id"] if chain else row["trustor_user_id"])
            if chain:
                _redelegate(row, request, roles, chain)
            row |= {"roles": roles, "extra": {name: value for name, value in body.items() if name not in UNKEPT}}
            _check_room(connection, row["trustor_user_id"], tokens.clock())
            connection.execute(insert(tables.trusts).values(row))
            return _document(connection, fetch_identity_row(connection, tables.trusts, id=row["id"]) or row)
    except IntegrityError as error:
        raise Conflict("There is a trust of the same users, project, impersonation and end already.") from error


def list_trusts(tokens: Tokens, token: Token, filters: Mapping[str, str]) -> Documents:
    """Return the trusts that match *filters* (value by column), without their roles.

    Administrators may list all trusts. Other users must name themselves as trustor or trustee in *filters*; otherwise
    ``Forbidden`` is raised.
    """
    context = token.context
    if not context.is_admin and context.user_id not in filters.values():
        raise Forbidden("You are not authorized to perform the requested action: identity:list_trusts. Name yourself "
                        "as trustor_user_id or trustee_user_id.")
    with tokens.database.read() as connection:
        rows = TRUSTS.documents(connection, **filters)
    return [{name: value for name, value in _trust_document(row).items() if name != "roles"} for row in rows]


def show_trust(tokens: Tokens, context: Context, id: str) -> Document:
    """Return a trust to its trustor, its trustee or an administrator. Raises ``NotFound``, ``Forbidden``."""
    with tokens.database.read() as connection:
        return _document(connection, _usable(connection, tokens, context, id, "trustor_user_id", "trustee_user_id"))


def delete_trust(tokens: Tokens, context: Context, id: str) -> None:
    """Delete a trust and all trusts redelegated from it; the tokens of all these trusts become invalid. Only the
    trustor and administrators may do this. An expired trust can be deleted too, because it counts towards the limit of
    trusts. Raises ``NotFound``, ``Forbidden``."""
    with tokens.change() as connection:
        _check_owner(context, fetch_identity_row(connection, tables.trusts, id=id), id, "trustor_user_id")
        connection.execute(delete(tables.trusts).filter_by(id=id))


def _check_owner(context: Context, row: Row | None, id: str, *owners: str) -> Row:
    """Return *row*, the row of the trust *id*, if the caller may access it: the caller is an administrator, or the user
    in one of the columns *owners* (such as trustor_user_id). Raises ``Forbidden``, and ``NotFound`` if *row* is
    ``None``."""
    if row is None:
        raise NotFound(f"Could not find trust: {id}.")
    if not context.is_admin and context.user_id not in [row[owner] for owner in owners]:
        raise Forbidden("You are not authorized to perform the requested action: it is for the users of the trust.")
    return row


def _usable(connection: Connection, tokens: Tokens, context: Context, id: str, *owners: str) -> Row:
    """Return the row of the trust *id*. Raises ``NotFound`` if the trust does not exist, has expired or is used up, and
    ``Forbidden`` if the caller may not access the trust. *owners*: as in ``_check_owner``."""
    chain = trust_chain(connection, id, tokens.clock())
    usable = chain[0] if chain and chain[0]["remaining_uses"] != 0 else None
    return _check_owner(context, usable, id, *owners)


def _checked(body: Mapping[str, Any]) -> dict[str, Any]:
    for name in REQUIRED:
        if body.get(name) is None:
            raise InvalidField(name, "is missing; a trust needs it")
    return {name: value.check(body.get(name), name) for name, value in FIELDS.items()}


def _check_room(connection: Connection, trustor_id: str, moment: float) -> None:
    """Check that the user *trustor_id* may create another trust. If the user has ``MOST`` trusts, delete those that
    have expired at *moment*; if none has, raise ``Forbidden``."""
    columns = tables.trusts.c
    trusts = connection.execute(select(columns.id, columns.expires_at).where(columns.trustor_user_id
                                                                             == trustor_id)).all()
    past = [trust.id for trust in trusts if trust.expires_at is not None and is_past(trust.expires_at, moment)]
    if len(trusts) >= MOST and past:
        connection.execute(delete(tables.trusts).where(columns.id.in_(past)))
    elif len(trusts) >= MOST:
        raise Forbidden(f"The user has {MOST} trusts, and may have no more. Delete one that is not needed.")


def _count(request: Mapping[str, Any]) -> int:
    """Return how often the requested trust may be redelegated; 0 for never. *request*: the fields of the request.
    Raises ``Forbidden`` above the maximum, and ``InvalidField`` if a trust that may be redelegated has
    ``remaining_uses``."""
    count: int | None = request["redelegation_count"]
    if not request["allow_redelegation"] or count == 0:
        return 0
    if count is not None and count > MOST_REDELEGATIONS:
        raise Forbidden(f"Requested redelegation depth of {count} is greater than allowed {MOST_REDELEGATIONS}.")
    if request["remaining_uses"] is not None:
        raise InvalidField("remaining_uses", "must not be set if redelegation is allowed", request["remaining_uses"])
    return MOST_REDELEGATIONS if count is None else count


def _roles(connection: Connection, request: Mapping[str, Any], trustor_id: str) -> list[str]:
    """Return the ids of the roles in the *request* for a trust. Raises ``NotFound`` for a role that the trustor does
    not have on the project."""
    if not request["project_id"]:
        return []
    PROJECTS.row(connection, request["project_id"])
    trustor_roles = assignments.effective_roles(connection, trustor_id, "project", request["project_id"])
    roles = []
    for role in request["roles"] or ():
        if len(role) != 1 or not isinstance(reference := next(iter(role.values())), str) or not {"id",
                                                                                                 "name"} & set(role):
            raise InvalidField("roles", "must be objects with one of id and name", role)
        match = next((trustor_role["id"] for trustor_role in trustor_roles if reference
                      == trustor_role[next(iter(role))]), None)
        if match is None:
            raise NotFound(f"Could not find role: {reference}. The trustor has no such role on the project.")
        roles.append(match)
    return list(dict.fromkeys(roles))


def _redelegated(connection: Connection, tokens: Tokens, token: Token, asked_id: str | None) -> list[Row]:
    """Return the trust for which *token* was issued, followed by the trusts from which it was redelegated; empty for a
    token without a trust. *asked_id*: the field redelegated_trust_id of the request. Raises ``Forbidden`` if *asked_id*
    is another trust, and ``NotFound`` if the trust is deleted or has expired."""
    trust_id = token.claims.trust_id
    if asked_id not in (None, trust_id):
        raise Forbidden("redelegated_trust_id is not the trust of the token: log in with the scope of that trust.")
    chain = trust_chain(connection, trust_id, tokens.clock()) if trust_id else []
    if trust_id and not chain:
        raise NotFound(f"Could not find trust: {trust_id}.")
    return chain


def _redelegate(row: dict[str, Any], request: Mapping[str, Any], roles: Iterable[str], chain: list[Row]) -> None:
    """Complete *row*, the columns of a new trust that is redelegated from the first trust in *chain*: its
    ``redelegation_count``, its expiry and its parent. *chain*: the result of ``trust_chain``. *request*, *roles*: the
    requested fields and role ids.

    Raises ``Forbidden`` if a trust in *chain* may not be redelegated, or if the new trust would permit more than a
    trust in *chain*: a later expiry, other roles or another project, or impersonation. Also raises ``Forbidden`` if
    *request* sets ``remaining_uses`` or a wrong ``redelegation_count``.
    """
    parent = chain[0]
    remaining, requested = parent["redelegation_count"] - 1, request["redelegation_count"]
    if row["redelegation_count"] and requested is not None and requested != remaining:
        raise Forbidden('Modifying "redelegation_count" upon redelegation is forbidden. Omit it.')
    if row["redelegation_count"]:
        row["redelegation_count"] = remaining
    for trust in chain:
        if not 0 < trust["redelegation_count"] <= MOST_REDELEGATIONS:
            raise Forbidden(f"Remaining redelegation depth of {trust['redelegation_count']} out of allowed range of "
                            f"[0..{MOST_REDELEGATIONS}].")
        if row["remaining_uses"] is not None:
            raise Forbidden('Field "remaining_uses" must not be set in order to redelegate a trust.')
        if trust["expires_at"] is not None and (row["expires_at"] or trust["expires_at"]) > trust["expires_at"]:
            raise Forbidden("Requested expiration time is more than redelegated trust can provide.")
        if not set(roles) <= set(trust["roles"]) or row["project_id"] != trust["project_id"]:
            raise Forbidden("Some of requested roles are not in redelegated trust.")
        if row["impersonation"] and not trust["impersonation"]:
            raise Forbidden("Impersonation is not allowed because redelegated trust does not specify impersonation. "
                            f"Redelegated trust id: {trust['id']}.")
    row |= {"expires_at": row["expires_at"] or parent["expires_at"], "redelegated_trust_id": parent["id"]}


def _trust_document(row: Document) -> Document:
    return {**row, "expires_at": row["expires_at"] and f"{row['expires_at']}Z"}


def _document(connection: Connection, row: Row) -> Document:
    """Return the trust in *row*, with its roles, as the object in API responses."""
    return {**_trust_document(TRUSTS.document(row)),
            "roles": ROLES.documents(connection, tables.roles.c.id.in_(row["roles"]))}


def check_not_delegated(token: Token, purpose: str) -> None:
    """Raise ``Forbidden`` if *token* was issued to an application credential. *purpose*: the refused operation, for the
    error message."""
    if token.claims.credential_id:
        raise Forbidden(f"The token was got with an application credential: such a one does not {purpose}.")
