# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of allocations."""

import threading

from magnetar_control.store.claims import allocations
from magnetar_control.store.claims.allocations import Amounts, Ratios
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import cells
from magnetar_control.store.hosts import hosts

SMALL = Amounts(1, 512, 2)


def a_cell(database):
    with database.write() as connection:
        connection.execute(cells.insert().values(id="cell", name="one", database_url="sqlite://", created_at=utc_now()))
    return "cell"


def a_host(database, name="kvm1", vcpus=4, memory_mb=4096, disk_gb=100, pcpus=0):
    with database.write() as connection:
        id = hosts.upsert_host_row(connection, name, "cell", "https://kvm1:6553")
        hosts.save_host_inventory(connection, name, {"vcpus": vcpus, "memory_mb": memory_mb, "disk_gb": disk_gb,
                                                     "pcpus": pcpus},
                                  Ratios(1.0, 1.0, 1.0))
    return id


def claim(database, consumer, host, amounts=SMALL, **more):
    with database.write() as connection:
        return allocations.claim_host_resources(connection, consumer, more.pop("server", consumer), host, amounts,
                                                **more)


def race(database, works):
    """Run *works* at the same time in threads; return their results."""
    results, start = [None] * len(works), threading.Barrier(len(works))

    def run(at):
        start.wait()
        results[at] = database.retried(works[at])

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results
