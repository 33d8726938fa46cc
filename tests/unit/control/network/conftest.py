# SPDX-License-Identifier: GPL-3.0-or-later
"""An embedded network service on a fresh database of each engine."""

from __future__ import annotations

import pytest

from magnetar_control.api.network.app import application
from magnetar_control.services.network import Embedded
from magnetar_control.store.database import Database
from tests.unit.control.serving import Asker, authenticate


@pytest.fixture
def service(database: Database) -> Embedded:
    """With its first network."""
    found = Embedded(database)
    found.bootstrap()
    return found


@pytest.fixture
def ask(service: Embedded) -> Asker:
    """Asks as a user."""
    return Asker(application(service, authenticate))


@pytest.fixture
def sqlite_service(sqlite: Database) -> Embedded:
    """On SQLite alone."""
    found = Embedded(sqlite)
    found.bootstrap()
    return found
