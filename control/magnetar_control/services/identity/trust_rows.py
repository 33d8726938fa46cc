# SPDX-License-Identifier: GPL-3.0-or-later
"""Trusts, as tokens and logins use them: the row, the trusts that it was redelegated from, and its roles."""

from __future__ import annotations

from sqlalchemy import Connection, update

from magnetar_core.errors import Unauthenticated

from . import assignments, tables
from .resources import Row, fetch_identity_row
from .times import is_past


def trust_chain(connection: Connection, trust_id: str, moment: float) -> list[Row]:
    """Return the row of the trust *trust_id*, followed by the trusts from which it was redelegated, up to the original
    trust. Empty if one of them is deleted, or has expired at *moment* (seconds since the epoch)."""
    chain: list[Row] = []
    next_id: str | None = trust_id
    while next_id is not None:
        row = fetch_identity_row(connection, tables.trusts, id=next_id)
        if row is None or (row["expires_at"] is not None and is_past(row["expires_at"], moment)):
            return []
        chain.append(row)
        next_id = row["redelegated_trust_id"]
    return chain


def delegated_roles(connection: Connection, chain: list[Row]) -> list[dict[str, str]]:
    """Return the roles {id, name} that a trust delegates, including implied roles. *chain*: the result of
    ``trust_chain``.

    Empty if the original trustor no longer has all of these roles; then the trust cannot be used.
    """
    trust, first = chain[0], chain[-1]
    below = assignments.implied_role_closure(connection)
    trust_role_ids: set[str] = set().union(*(below.get(id, {id}) for id in trust["roles"]))
    trustor_roles = assignments.effective_roles(connection, first["trustor_user_id"], "project", trust["project_id"])
    roles = [role for role in trustor_roles if role["id"] in trust_role_ids]
    return roles if len(roles) == len(trust_role_ids) else []


def use_trust(connection: Connection, trust_id: str) -> None:
    """Decrement the remaining uses of a trust, for a new token. Raises ``Unauthenticated`` if there are none left."""
    trust = tables.trusts.c
    counted = connection.execute(update(tables.trusts).where(trust.id == trust_id, trust.remaining_uses > 0).values(
        remaining_uses=trust.remaining_uses - 1)).rowcount
    row = fetch_identity_row(connection, tables.trusts, id=trust_id)
    if row is None or (not counted and row["remaining_uses"] is not None):
        raise Unauthenticated(f"The trust {trust_id} is gone, or was used as often as it may be.")
