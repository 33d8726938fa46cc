# SPDX-License-Identifier: GPL-3.0-or-later
"""``cloud``: the identity service on each engine."""

import pytest

from magnetar_control.services.identity import passwords

from .cloud import Cloud


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """Hashes that cost next to nothing: there are hundreds of logins here."""
    monkeypatch.setattr(passwords, "COST", (16, 8, 1))


@pytest.fixture
def cloud(database):
    return Cloud(database)


@pytest.fixture
def small(sqlite):
    """For what the engine has no part in."""
    return Cloud(sqlite)
