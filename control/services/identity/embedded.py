# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded identity service: Keystone's v3 on the API database."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from magnetar_control.services import Context, Documents
from magnetar_control.store.database import Database

from . import catalog, passwords, tables
from .bootstrap import first
from .tokens import LOOK_AGAIN, Tokens

HOUR = 3600.0
#: How long a token is good, in seconds: least, most, usual.
SHORTEST, LONGEST, USUAL = HOUR, 24 * HOUR, 8 * HOUR


class Embedded:
    """Implements ``services.Identity``. *life*: of tokens, in seconds. *follow*: the catalogue's host is the one by
    which the client asked. *look_again*: seconds after which changes by other processes count. *clock*: seconds since
    the epoch."""

    def __init__(self, database: Database, life: float = USUAL, follow: bool = True, look_again: float = LOOK_AGAIN,
                 clock: Callable[[], float] = time.time) -> None:
        if not SHORTEST <= life <= LONGEST:
            raise ValueError(f"the life of tokens is {life:.0f} s; it must be {SHORTEST:.0f} to {LONGEST:.0f}")
        self.database, self.life, self.follow = database, life, follow
        self.tokens = Tokens(database, clock, look_again)

    def validate(self, token: str) -> Context | None:
        """Whose *token* is; ``None`` when it is unknown, expired, revoked or of a disabled user or project."""
        found = self.tokens.find(token)
        return found.context if found else None

    def project_exists(self, context: Context, project_id: str) -> bool:
        """Whether there is such a project."""
        with self.database.read() as connection:
            query = select(tables.projects.c.id).where(tables.projects.c.id == project_id)
            return connection.execute(query).first() is not None

    def catalog(self, project_id: str | None, root: str) -> Documents:
        """The catalogue of a token for a project; *root*: the host by which the client asked."""
        with self.database.read() as connection:
            return catalog.read(connection, project_id, root if self.follow else None)

    def bootstrap(self, url: str, password: str | None = None,
                  keep: Callable[[str], None] | None = None) -> str | None:
        """Make what a cloud has from its beginning, where it is missing. Gives the password of admin when it was made
        now, else ``None``. *url*: root of the services (``https://cloud:8774``); *password*: instead of one by chance.
        *keep* is called with the password before it counts, so that no crash loses it: to write ``clouds_yaml``. Two
        processes may do it at once; one of them keeps the password."""
        password = password or passwords.drawn()
        kept = passwords.hashed(password)
        for last in (False, False, True):
            try:
                with self.tokens.change() as connection:
                    made = first(connection, url, kept)
                    if made and keep:
                        keep(password)
                return password if made else None
            except IntegrityError:  # another process made it meanwhile
                if last:
                    raise
        raise AssertionError("the last try returns or raises")
