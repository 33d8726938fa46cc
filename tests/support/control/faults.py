# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of faults."""

from __future__ import annotations

import contextlib

from sqlalchemy.exc import OperationalError

from magnetar_control.store.engine.database import Database


@contextlib.contextmanager
def away(name, monkeypatch):
    """Within the context, make the database *name* fail as if its server did not answer."""
    with monkeypatch.context() as patched:
        for method in ("read", "write"):
            usual = getattr(Database, method)

            def refused(database, usual=usual):
                if database.name == name:
                    raise OperationalError("SELECT", {}, ConnectionError("nobody answers"))
                return usual(database)

            patched.setattr(Database, method, refused)
        yield
