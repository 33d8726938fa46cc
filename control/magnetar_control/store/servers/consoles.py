# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens of consoles, in the cell of their server, by their hashes: good once, until they expire or their server goes
to another host. One of SPICE is good for the channels of one session."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, delete, insert, select, update

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import console_tokens as tokens

#: Unused tokens that a server may have; a new one takes the place of the oldest.
OF_SERVER = 32
_OF_SERVER = delete(tokens).where(tokens.c.server_id == bindparam("server"))
_HASH: BindParameter[str] = bindparam("key")
_OLDER = select(tokens.c.number).where(tokens.c.server_id == bindparam("server")).order_by(
    tokens.c.number.desc()).offset(OF_SERVER - 1)


def make(connection: Connection, database: Database, seconds: float, **values: Any) -> None:
    """A new one, good for so many *seconds*. Expired ones of the cell go."""
    connection.execute(delete(tokens).where(tokens.c.expires_at <= database.clock()))
    old = connection.execute(_OLDER, {"server": values["server_id"]}).scalars().all()
    if old:
        connection.execute(delete(tokens).where(tokens.c.number.in_(old)))
    connection.execute(insert(tokens).values(expires_at=database.clock(seconds), **values))


def find(connection: Connection, database: Database, hash: str) -> Row[Any] | None:
    """The one with this *hash*, unless it has expired."""
    return connection.execute(select(tokens).where(
        tokens.c.hash == _HASH, tokens.c.expires_at > database.clock()), {"key": hash}).one_or_none()


def take(connection: Connection, database: Database, hash: str) -> bool:
    """Use it up; False when it was used before, or is not good any more."""
    return connection.execute(delete(tokens).where(
        tokens.c.hash == _HASH, tokens.c.expires_at > database.clock()), {"key": hash}).rowcount == 1


def begin_channels(connection: Connection, database: Database, hash: str, channels: int, seconds: float) -> bool:
    """Use it up, but for so many *channels* that are opened within *seconds*; False as of ``take``."""
    return connection.execute(update(tokens).where(
        tokens.c.hash == _HASH, tokens.c.expires_at > database.clock(), tokens.c.channels.is_(None)).values(
        channels=channels, expires_at=database.clock(seconds)), {"key": hash}).rowcount == 1


def take_channel(connection: Connection, database: Database, hash: str) -> bool:
    """Use it for a further channel; False when it is good for none."""
    return connection.execute(update(tokens).where(
        tokens.c.hash == _HASH, tokens.c.expires_at > database.clock(), tokens.c.channels > 0).values(
        channels=tokens.c.channels - 1), {"key": hash}).rowcount == 1


def drop(connection: Connection, hash: str) -> None:
    """It is not good for anything any more."""
    connection.execute(delete(tokens).where(tokens.c.hash == _HASH), {"key": hash})


def end(connection: Connection, server_id: str) -> None:
    """Those of a server are not good any more."""
    connection.execute(_OF_SERVER, {"server": server_id})
