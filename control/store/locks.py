# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks by name, held until the transaction ends: what was counted under one stays true."""

from __future__ import annotations

import hashlib

from sqlalchemy import BigInteger, Connection, bindparam, func, select

_LOCK = select(func.pg_advisory_xact_lock(bindparam("number", type_=BigInteger)))


def advisory_lock(connection: Connection, *words: str) -> None:
    """Wait for everybody else who holds the lock of these *words*. SQLite needs none: only one transaction writes."""
    if connection.dialect.name == "postgresql":
        number = int.from_bytes(hashlib.sha256("\0".join(words).encode()).digest()[:8], "big", signed=True)
        connection.execute(_LOCK, {"number": number})
