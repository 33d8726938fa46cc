# SPDX-License-Identifier: GPL-3.0-or-later
"""People use a cloud in trouble; then everything comes to an end, and is well."""

from __future__ import annotations

import os
import time
from collections import Counter

from sqlalchemy import func, select

from magnetar_control.services.volume.tables import snapshots, volumes
from magnetar_control.store.engine import tables

from .invariants import broken, past
from .people import Budget, Person
from .trouble import Trouble
from .world import World

#: Seconds in which everything must have come to an end when there is no trouble any more.
CALM = 300.0
#: Seconds in which the audit must have put right what is left to it.
REPAIRED = 180.0


def live(world: World, operations: int, people: int = 20, most: int = 3, quick: int = 5) -> None:
    """The whole story with so many *operations*, by *people* with up to *most* servers each. The seed is printed;
    MAGNETAR_KILL_SEED gives another."""
    seed = os.environ.get("MAGNETAR_KILL_SEED", "31")
    print(f"\nMAGNETAR_KILL_SEED={seed} on {world.engine}")
    try:
        lived(world, seed, operations, people, most, quick)
        calm(world)
    finally:
        for said, times in (*world.traces().most_common(12), *world.repairs().most_common(12)):
            print(f"{times} times: {said}")
    print(f"states: {dict(states(world))}")
    ended(world)


def still_at_work(world: World) -> dict[str, int]:
    """How many actions and tasks of volumes have not ended."""
    found = {}
    for cell, database in world.parts.store.databases():
        with database.read() as connection:
            found[cell.name] = connection.execute(select(func.count()).where(
                tables.actions.c.state.in_(("queued", "running")))).scalar_one()
    with world.parts.api_database.read() as connection:
        for table in (volumes, snapshots):
            found[table.name] = connection.execute(select(func.count()).where(table.c.task.is_not(None))).scalar_one()
    return {name: count for name, count in found.items() if count}


def lived(world: World, seed: str, operations: int, count: int, most: int, quick: int) -> None:
    """Have people use the cloud in trouble."""
    image, budget, began = world.admin.image(), Budget(operations), time.monotonic()
    people = [Person(world, f"{seed} {number}", budget, most, image, quick) for number in range(count)]
    trouble = Trouble(world, seed)
    for thread in (*people, trouble):
        thread.start()
    for person in people:
        person.join()
    trouble.end()
    print(f"trouble: {', '.join(trouble.told)}")
    print(f"asked, {budget.asked.total()} in {time.monotonic() - began:.0f} s: {dict(budget.asked.most_common())}")
    for person in people:
        assert person.failed == [], person.failed


def calm(world: World) -> None:
    """Everything comes to an end, and is well."""
    world.until_open()
    world.parts.store.close()  # connections that were cut
    for name in world.hosts:
        world.wait_agent(name)
    _rest(world)
    time.sleep(2.5)  # guests that changed by themselves are followed
    well(world)


def _rest(world: World) -> None:
    began = time.monotonic()
    while work := still_at_work(world):
        assert time.monotonic() - began < CALM, f"still at work after {CALM:g} s: {work}"
        time.sleep(0.1)
    print(f"calm after {time.monotonic() - began:.1f} s")


def ended(world: World) -> None:
    """All servers go, and nothing of them is left."""
    for one in world.admin.get("/v2.1/servers").json["servers"]:
        world.admin.delete(f"/v2.1/servers/{one['id']}")
    _rest(world)
    assert states(world) == {}
    well(world)


def well(world: World) -> None:
    """Nothing is broken; what is left to the audit may take it a few looks."""
    began = time.monotonic()
    while (found := broken(world)) and time.monotonic() - began < REPAIRED:
        time.sleep(1.0)
    if time.monotonic() - began > 1.0:
        print(f"well after {time.monotonic() - began:.1f} s")
    assert found == [], "\n".join([*found, "", *past(world, found)])


def states(world: World) -> Counter[str]:
    """How many servers are in which vm_state."""
    found: Counter[str] = Counter()
    for _cell, database in world.parts.store.databases():
        with database.read() as connection:
            found.update(connection.execute(select(tables.servers.c.vm_state).where(
                tables.servers.c.deleted_at.is_(None))).scalars())
    return found
