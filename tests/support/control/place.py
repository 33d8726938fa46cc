# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of place."""

import threading
from random import Random

import pytest

from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.place import place_server
from magnetar_control.store.claims.allocations import Amounts, Ratios
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import (
    cells,
)
from magnetar_control.store.hosts import aggregates as store_aggregates
from magnetar_control.store.hosts import hosts

ONE = Amounts(1, 100, 1)


@pytest.fixture
def fleet(database):
    """Add three hosts, each with room for two servers, to the database."""
    with database.write() as connection:
        connection.execute(cells.insert().values(id="cell", name="one", database_url="sqlite://", created_at=utc_now()))
        for name in ("kvm1", "kvm2", "kvm3"):
            hosts.upsert_host_row(connection, name, "cell", f"https://{name}:6553")
            hosts.save_host_inventory(connection, name, {"vcpus": 2, "memory_mb": 4096, "disk_gb": 100},
                                      Ratios(1.0, 1.0, 1.0))
    return database


def a_memory(database):
    states = HostStates()
    with database.read() as connection:
        states.refresh(hosts.fetch_host_rows(connection), store_aggregates.fetch_aggregate_rows(connection))
    for name in states.hosts:
        states.up(name, True)
    return states


def race(conduct, conductors=3):
    threads = [threading.Thread(target=conduct, args=(at,)) for at in range(conductors)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def raced(database, wishes):
    """Let several conductors schedule in parallel, each with its list of requests (*wishes*) and with host states from
    before the race. Return the hosts of placed servers, and the errors of the others."""
    memories, placed, refused = [a_memory(database) for _one in wishes], [], []

    def conduct(at):
        for one in wishes[at]:
            try:
                placed.append(place_server(database, memories[at], one, random=Random(at)).host)
            except NoValidHost as error:
                refused.append(error)

    race(conduct, len(wishes))
    return placed, refused
