# SPDX-License-Identifier: GPL-3.0-or-later
"""Trusts as tokens and logins read them: the row, the trusts that it was redelegated from, and the roles it gives."""

from __future__ import annotations

import orjson
from sqlalchemy import Connection, update

from magnetar_core.errors import Unauthenticated

from . import assignments, tables
from .resources import Row, one
from .times import over


def trust_chain(connection: Connection, trust_id: str, moment: float) -> list[Row]:
    """Return the trust and those that it was redelegated from, the first trust last; empty where one has expired."""
    chain: list[Row] = []
    next_id: str | None = trust_id
    while next_id is not None:
        row = one(connection, tables.trusts, id=next_id)
        if row is None or (row["expires_at"] is not None and over(row["expires_at"], moment)):
            return []
        chain.append(row)
        next_id = row["redelegated_trust_id"]
    return chain


def delegated_roles(connection: Connection, chain: list[Row]) -> list[dict[str, str]]:
    """Return the roles {id, name} that a trust gives, implied ones too.

    Empty where the first trustor no longer has one of them: the trust gives nothing then.
    """
    trust, first = chain[0], chain[-1]
    below = assignments.closure(connection)
    given: set[str] = set().union(*(below.get(id, {id}) for id in orjson.loads(trust["roles"])))
    held = assignments.effective(connection, first["trustor_user_id"], "project", trust["project_id"])
    roles = [role for role in held if role["id"] in given]
    return roles if len(roles) == len(given) else []


def use_trust(connection: Connection, trust_id: str) -> None:
    """Count a token got by a trust. Raises ``Unauthenticated`` where the trust's uses are all spent."""
    trust = tables.trusts.c
    counted = connection.execute(update(tables.trusts).where(trust.id == trust_id, trust.remaining_uses > 0).values(
        remaining_uses=trust.remaining_uses - 1)).rowcount
    row = one(connection, tables.trusts, id=trust_id)
    if row is None or (not counted and row["remaining_uses"] is not None):
        raise Unauthenticated(f"The trust {trust_id} is gone, or was used as often as it may be.")
