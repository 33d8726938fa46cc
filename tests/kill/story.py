# SPDX-License-Identifier: GPL-3.0-or-later
"""People use a cloud while its parts are killed; then everything comes to an end, and is well."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter

from sqlalchemy import func, select

from magnetar_control.conductor import audit
from magnetar_control.services.volume.tables import volumes
from magnetar_control.store import tables

from .people import Person
from .world import World

#: Servers that one person makes, one after the other.
EACH = 5
#: Seconds in which everything must have come to an end when nothing is killed any more.
CALM = 180.0
STATES = {"active", "stopped", "paused", "suspended", "resized", "error"}


def live(world: World, count: int, each: int = EACH) -> None:
    """The whole story with *count* servers. The seed is printed; MAGNETAR_KILL_SEED gives another."""
    seed = os.environ.get("MAGNETAR_KILL_SEED", "31")
    print(f"\nMAGNETAR_KILL_SEED={seed} on {world.engine}")
    try:
        lived(world, seed, count, each)
        calm(world)
    finally:
        for said, times in world.traces().most_common(12):
            print(f"{times} times: {said}")
    found = states(world)
    print(f"states: {dict(found)}")
    assert set(found) <= STATES


def kills(world: World, seed: str, over: threading.Event, told: list[str]) -> None:
    """Until *over*: kill or cut something, wait, again."""
    chance = random.Random(f"{seed} kills")
    things = [*world.roles, *world.roles, *world.hosts, "database", "database"]
    while not over.wait(chance.uniform(1.0, 4.0)):
        thing, pause = chance.choice(things), chance.choice((0.0, 0.0, chance.uniform(0.5, 4.0)))
        told.append(f"{thing} {pause:.1f}")
        if thing == "database":
            world.cut()
        else:
            world.kill(thing, pause)


def still_at_work(world: World) -> dict[str, int]:
    """How many actions and tasks of volumes have not ended."""
    found = {}
    for cell, database in world.parts.store.databases():
        with database.read() as connection:
            found[cell.name] = connection.execute(select(func.count()).where(
                tables.actions.c.state.in_(("queued", "running")))).scalar_one()
    with world.parts.api_database.read() as connection:
        found["volumes"] = connection.execute(select(func.count()).where(volumes.c.task.is_not(None))).scalar_one()
    return {name: count for name, count in found.items() if count}


def lived(world: World, seed: str, count: int, each: int) -> None:
    """Have people use the cloud while it is killed."""
    image = world.admin.image()
    people = [Person(world, f"{seed} {number}", each, image) for number in range(count // each)]
    over, told = threading.Event(), []
    killer = threading.Thread(target=kills, args=(world, seed, over, told), daemon=True)
    for thread in (*people, killer):
        thread.start()
    for person in people:
        person.join()
    over.set()
    killer.join()
    assert told
    print(f"killed: {', '.join(told)}")
    print(f"asked: {dict(sum((person.asked for person in people), Counter()))}")
    for person in people:
        assert person.failed == [], person.failed


def calm(world: World) -> None:
    """Everything comes to an end, and is well."""
    world.until_open()
    world.parts.store.close()  # connections that were cut
    for name in world.hosts:
        world.wait_agent(name)
    began = time.monotonic()
    while work := still_at_work(world):
        assert time.monotonic() - began < CALM, f"still at work after {CALM:g} s: {work}"
        time.sleep(0.1)
    print(f"calm after {time.monotonic() - began:.1f} s")
    time.sleep(2.5)  # guests that changed by themselves are followed
    found, _state = audit.run_with_state(world.parts.store, world.parts.agents, world.parts.services())
    assert found == [], "\n".join(one.text for one in found)


def states(world: World) -> Counter[str]:
    """How many servers are in which vm_state."""
    found: Counter[str] = Counter()
    for _cell, database in world.parts.store.databases():
        with database.read() as connection:
            found.update(connection.execute(select(tables.servers.c.vm_state).where(
                tables.servers.c.deleted_at.is_(None))).scalars())
    return found
