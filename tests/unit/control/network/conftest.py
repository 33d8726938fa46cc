# SPDX-License-Identifier: GPL-3.0-or-later
"""An embedded network service on a fresh database of each engine."""

from __future__ import annotations

import pytest

from magnetar_control.api.network.app import network_application
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from magnetar_control.store.engine.database import Database
from tests.support.control.serving import Asker, authenticate


@pytest.fixture
def service(database: Database) -> EmbeddedNetworks:
    """With its first network."""
    found = EmbeddedNetworks(database)
    found.bootstrap()
    return found


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def ask(service: EmbeddedNetworks) -> Asker:
    """Asks as a user."""
    return Asker(network_application(service, authenticate))


@pytest.fixture
def sqlite_service(sqlite: Database) -> EmbeddedNetworks:
    """On SQLite alone."""
    found = EmbeddedNetworks(sqlite)
    found.bootstrap()
    return found
