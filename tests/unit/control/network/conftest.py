# SPDX-License-Identifier: GPL-3.0-or-later
"""An embedded network service on a fresh database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_control.services.network import Embedded
from magnetar_control.store.database import Database
from tests.unit.control.serving import Asker, authenticate


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A file of SQLite."""
    found = Database(f"sqlite:///{tmp_path}/api.sqlite")
    yield found
    found.close()


@pytest.fixture
def service(database: Database) -> Embedded:
    """With its first network."""
    found = Embedded(database)
    found.create_tables()
    found.bootstrap()
    return found


@pytest.fixture
def ask(service: Embedded) -> Asker:
    """Asks as a user."""
    return Asker(service.application(authenticate))
