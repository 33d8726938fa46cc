# SPDX-License-Identifier: GPL-3.0-or-later
"""Console tokens, stored as hashes in the cell of their server.

A token can be used once, until it expires or its server moves to another host. A SPICE token can be used for the
channels of one session."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, delete, insert, select, update

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.rows import SelectedRow
from magnetar_control.store.engine.tables import console_tokens as tokens

#: Unused tokens that a server may have; a new one replaces the oldest.
OF_SERVER = 32


class ConsoleToken(SelectedRow):
    """A row of the table ``console_tokens``: a token that opens the console of a server."""

    number: int
    hash: str
    server_id: str
    type: str
    host: str
    project_id: str
    user_id: str
    #: For a SPICE console with an open main channel: how many more channels its client may open.
    channels: int | None
    expires_at: str


_OF_SERVER = delete(tokens).where(tokens.c.server_id == bindparam("server"))
_HASH: BindParameter[str] = bindparam("key")
_OLDER = select(tokens.c.number).where(tokens.c.server_id == bindparam("server")).order_by(
    tokens.c.number.desc()).offset(OF_SERVER - 1)


def insert_console_token(connection: Connection, database: Database, seconds: float, **values: Any) -> None:
    """Insert a console token that is valid for *seconds*. Also removes expired tokens of the cell, and the server's
    oldest tokens if it has too many. *values*: columns of the token."""
    connection.execute(delete(tokens).where(tokens.c.expires_at <= database.clock()))
    old = connection.execute(_OLDER, {"server": values["server_id"]}).scalars().all()
    if old:
        connection.execute(delete(tokens).where(tokens.c.number.in_(old)))
    connection.execute(insert(tokens).values(expires_at=database.clock(seconds), **values))


def fetch_console_token(connection: Connection, database: Database, hash: str) -> ConsoleToken | None:
    """Return the console token with this *hash*; ``None`` when there is none or it has expired."""
    return ConsoleToken.optional(connection.execute(ConsoleToken.selection(tokens).where(
        tokens.c.hash == _HASH, tokens.c.expires_at > database.clock()), {"key": hash}).one_or_none())


def consume_console_token(connection: Connection, database: Database, hash: str) -> bool:
    """Remove a valid console token, so that it cannot be used again. Return ``False`` when it was used before or has
    expired. *hash*: of the token."""
    return connection.execute(delete(tokens).where(
        tokens.c.hash == _HASH, tokens.c.expires_at > database.clock()), {"key": hash}).rowcount == 1


def open_console_channels(connection: Connection, database: Database, hash: str, channels: int, seconds: float) -> bool:
    """Use a SPICE token for the first channel of a session, and allow *channels* further channels, to be opened within
    *seconds*. Return ``False`` when the token was used before or has expired. *hash*: of the token."""
    return connection.execute(update(tokens).where(
        tokens.c.hash == _HASH, tokens.c.expires_at > database.clock(), tokens.c.channels.is_(None)).values(
        channels=channels, expires_at=database.clock(seconds)), {"key": hash}).rowcount == 1


def consume_console_channel(connection: Connection, database: Database, hash: str) -> bool:
    """Use a SPICE token for a further channel of its session. Return ``False`` when no more channels are allowed, or
    the token has expired. *hash*: of the token."""
    return connection.execute(update(tokens).where(
        tokens.c.hash == _HASH, tokens.c.expires_at > database.clock(), tokens.c.channels > 0).values(
        channels=tokens.c.channels - 1), {"key": hash}).rowcount == 1


def remove_console_token(connection: Connection, hash: str) -> None:
    """Remove the token with this *hash*."""
    connection.execute(delete(tokens).where(tokens.c.hash == _HASH), {"key": hash})


def remove_console_tokens(connection: Connection, server_id: str) -> None:
    """Remove all tokens of a server."""
    connection.execute(_OF_SERVER, {"server": server_id})
