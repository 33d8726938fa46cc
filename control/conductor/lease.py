# SPDX-License-Identifier: GPL-3.0-or-later
"""The lease of an action: what a conductor writes or asks of a host, it does while the action is its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import cast

from sqlalchemy import Connection

from magnetar_control.store.database import Database


class LeaseLost(Exception):
    """Another conductor has the action meanwhile."""


class LeasedDatabase:
    """A database to which an action writes only while it holds its lease: *confirm* raises ``LeaseLost`` otherwise
    (``Work.confirm_lease`` or ``Work.confirm_old_lease``)."""

    def __init__(self, confirm: Callable[[], None], database: Database) -> None:
        self.confirm, self.database = confirm, database
        self.read, self.retried = database.read, database.retried

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction. Raises ``LeaseLost``."""
        with self.database.write() as connection:
            self.confirm()
            yield connection


def leased(confirm: Callable[[], None], database: Database) -> Database:
    """A ``LeasedDatabase``, for functions that take a ``Database``."""
    return cast("Database", LeasedDatabase(confirm, database))
