# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever is killed, stopped, cut, frozen and filled while servers live: at the end nothing is stuck, lost, doubled or
left behind.

The seed draws what people ask for and what happens when; it is printed, and MAGNETAR_KILL_SEED gives another.
MAGNETAR_KILL_OPERATIONS says how many changes are asked for.
"""

from __future__ import annotations

import os

import pytest

from tools import postgres

from .story import live
from .world import ROOT, World, second_flavor

ENGINES = ("sqlite", "postgres")


@pytest.fixture(params=ENGINES)
def world(request):
    """A cloud on each engine."""
    if request.param == "postgres" and postgres.postgres_programs() is None:
        pytest.skip("PostgreSQL's server is not installed (Debian's package postgresql)")
    with World(request.param, small=ROOT) as found:
        second_flavor(found)
        yield found


# PostgreSQL's world can freeze besides.
@pytest.mark.slow
def test_nothing_is_stuck_or_leaked(world):
    live(world, int(os.environ.get("MAGNETAR_KILL_OPERATIONS", "2000")))


@pytest.mark.parametrize("world", [pytest.param(engine, marks=pytest.mark.deep(shard=f"kills, {engine}"))
                                   for engine in ENGINES], indirect=True)
def test_nothing_is_stuck_or_leaked_of_many(world):
    live(world, int(os.environ.get("MAGNETAR_KILL_OPERATIONS", "2000")), quick=0)
