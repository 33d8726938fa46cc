# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever is killed and cut while servers live: at the end nothing is stuck, lost, doubled or left behind.

The seed draws what people ask for and what is killed when; it is printed, and MAGNETAR_KILL_SEED gives another.
MAGNETAR_KILL_SERVERS says how many servers.
"""

from __future__ import annotations

import os

import pytest
from sqlalchemy import insert

from magnetar_control.store import tables
from tools import postgres

from .story import live
from .world import World

ENGINES = ("sqlite", "postgres")


@pytest.fixture(params=ENGINES)
def world(request):
    """A cloud on each engine."""
    if request.param == "postgres" and postgres.programs() is None:
        pytest.skip("PostgreSQL's server is not installed (Debian's package postgresql)")
    with World(request.param) as found:
        with found.parts.api_database.write() as connection:
            connection.execute(insert(tables.flavors).values(
                id="2", name="small", vcpus=2, ram=128, created_at="2026-11-21T00:00:00.000000"))
        yield found


@pytest.mark.slow
def test_nothing_is_stuck_or_leaked(world):
    live(world, int(os.environ.get("MAGNETAR_KILL_SERVERS", "100")))


@pytest.mark.parametrize("world", [pytest.param(engine, marks=pytest.mark.deep(shard=f"kills, {engine}"))
                                   for engine in ENGINES], indirect=True)
def test_nothing_is_stuck_or_leaked_of_many(world):
    live(world, int(os.environ.get("MAGNETAR_KILL_SERVERS", "300")))
