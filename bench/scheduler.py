# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the scheduler on simulated hosts: how long a choice among them takes, against looking at every host (the
plain definition), and how many claims a second some conductors make on one PostgreSQL, with nothing over-committed.

The server is a temporary one, durable as PostgreSQL is by default, and removed afterwards. Run ``bench/schedule``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import orjson
from figures import Figure, spread, table, timed
from sqlalchemy import insert

from magnetar_control.scheduler import choose as chooser
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.place import place
from magnetar_control.scheduler.request_spec import RequestSpec
from magnetar_control.store import allocations, hosts
from magnetar_control.store.aggregates import Aggregate
from magnetar_control.store.allocations import RESOURCES, Amounts, limits
from magnetar_control.store.database import Database, now
from magnetar_control.store.tables import API, cells
from magnetar_control.store.tables import hosts as host_table
from magnetar_core.hardware import traits

Row = dict[str, Any]
#: A fleet, how full it is, and what is asked beside flavors.
FLEETS: dict[str, tuple[float, dict[str, Any]]] = {
    "half full": (0.5, {}),
    "nearly full": (0.95, {}),
    "empty, all of a make alike": (0.0, {}),
    "half full, a zone and an extra spec": (0.5, {
        "availability_zone": "rack", "extra_specs": {"aggregate_instance_extra_specs:ssd": "true"}}),
    "half full, traits that a quarter has": (0.5, {
        "extra_specs": {"trait:HW_CPU_X86_AVX512F": "required", "trait:CUSTOM_SLOW": "forbidden"}}),
}
#: Flavors that are asked for: CPUs, MiB, GiB.
FLAVORS = (Amounts(1, 512, 1), Amounts(1, 2048, 20), Amounts(2, 4096, 40), Amounts(4, 8192, 80), Amounts(8, 16384, 160))
SECONDS = 8.0
#: Those of a host with a CPU of today; of every other host all but the last.
TRAITS = sorted(traits.ALWAYS) + [one for one in traits.X86.values() if "AVX512" not in one]
TRAITS = [*TRAITS[:59], "HW_CPU_X86_AVX512F"]


def fleet(chance: Random, size: int, used: float) -> list[Row]:
    """Rows of hosts of four makes in two cells, each about *used* full, none like the other; 2 in 100 disabled."""
    rows = []
    for number in range(size):
        vcpus, memory, disk, model = ((32, 131072, 2000, "a"), (64, 262144, 4000, "a"), (64, 524288, 4000, "b"),
                                      (128, 1048576, 8000, "b"))[chance.randrange(4)]
        row: Row = {"id": str(UUID(int=chance.getrandbits(128))), "name": f"kvm{number:05}", "number": number + 1,
                    "cell_id": f"cell{number % 2}", "endpoint": f"https://10.0.{number // 256}.{number % 256}:6553",
                    "disabled": chance.random() < 0.02, "forced_down": False, "vcpus": vcpus, "memory_mb": memory,
                    "disk_gb": disk, "pcpus": 0, "servers": 0, "created_at": now(), "info": orjson.dumps(
                        {"cpu_model": model, "virt_types": ["kvm"], "hypervisor_type": "QEMU", "traits": TRAITS[
                            :40 if number % 2 else 60] + (["CUSTOM_SLOW"] if number % 4 == 2 else [])}).decode()}
        row |= {f"{name}_{what}": value for name in RESOURCES for what, value in (("ratio", None), ("reserved", 0))}
        for name, limit in limits(row)._asdict().items():
            row |= {f"{name}_limit": limit, f"{name}_used": int(limit * min(1.0, used * chance.uniform(0.6, 1.4)))}
        rows.append(row)
    return rows


def states_of(rows: list[Row]) -> HostStates:
    """The memory of a conductor: all hosts up, a tenth of them in a zone of their own."""
    states = HostStates()
    zone = Aggregate(1, "uuid", "rack", {"availability_zone": "rack", "ssd": "true"}, "2026-01-01", None,
                     [str(row["name"]) for row in rows[::10]])
    states.refresh([{**row, "cell_disabled": False} for row in rows], [zone])
    for row in rows:
        states.up(str(row["name"]), True)
    return states


def requests(chance: Random, **more: Any) -> Iterator[RequestSpec]:
    """Servers, one after the other."""
    for number in count():
        yield RequestSpec(f"{chance.getrandbits(64):x}-{number}", "project", chance.choice(FLAVORS), **more)


def choices(size: int, rounds: int) -> Iterator[Figure]:
    """Choices, each of them used at once, so that the next sees other numbers."""
    from tests.unit.control.scheduler.fleet import plainly

    for name, (used, more) in FLEETS.items():
        chance = Random(size)  # noqa: S311 - a simulation
        states, wishes = states_of(fleet(chance, size, used)), requests(chance, **more)
        taken, plain = [], []
        for at, wish in zip(range(rounds), wishes, strict=False):
            began = time.perf_counter()
            found = chooser.choose(states, wish, 3, random=chance)
            taken.append((time.perf_counter() - began) * 1000)
            if at % (rounds // 5) == 0:
                plain.append(timed(partial(plainly, states, wish)))
            states.used(found[0].host, wish.amounts)
        slow = sorted(taken)
        yield Figure(f"choice among {size} hosts, {name}", statistics.median(taken), floor=statistics.median(plain),
                     floor_name="every host", limit=5.0, spread=spread(taken), notes=(
                         f"99 of 100 within {slow[len(slow) * 99 // 100]:.2f} ms, the slowest {slow[-1]:.1f} ms",))


def conductor(url: str, seed: int, rows: list[Row], ready: Any, answers: Any) -> None:
    """One process: chooses and claims until the time is up, with a memory that hears nothing of the others."""
    database, states, chance = Database(url, pool=1), states_of(rows), Random(seed)  # noqa: S311 - a simulation
    wishes, done, waits = requests(chance), 0, []
    with database.read() as connection:
        hosts.show(connection, "kvm00000")
    ready.wait()
    start = time.monotonic()
    while time.monotonic() < start + SECONDS:
        began = time.perf_counter()
        try:
            place(database, states, next(wishes), random=chance)
        except chooser.NoValidHost:
            break
        waits.append((time.perf_counter() - began) * 1000)
        done += 1
    answers.put((done, time.monotonic() - start, waits))
    database.close()


def together(conductors: int, url: str, rows: list[Row]) -> list[tuple[int, float, list[float]]]:
    """What that many processes tell that began at the same moment."""
    context = get_context("spawn")
    answers, ready = context.Queue(), context.Barrier(conductors)
    processes = [context.Process(target=conductor, args=(url, at, rows, ready, answers)) for at in range(conductors)]
    for process in processes:
        process.start()
    told = [answers.get(timeout=300) for _process in processes]
    for process in processes:
        process.join()
    return told


def claims(size: int, conductors: int, used: float, name: str, folder: Path,
           limit: float | None = None) -> Iterator[Figure]:
    """Claims of *conductors* processes, and whether the counters say the same as the allocations afterwards."""
    from tools import postgres

    database = Database(postgres.url(folder, "postgres"))
    rows = fleet(Random(size), size, used)  # noqa: S311 - a simulation
    with database.write() as connection:
        API.drop_all(connection)
        API.create_all(connection)
        connection.execute(insert(cells), [{"id": name, "name": name, "database_url": "", "disabled": False,
                                            "created_at": now()} for name in ("cell0", "cell1")])
        connection.execute(insert(host_table), rows)
    told = together(conductors, postgres.url(folder, "postgres"), rows)
    before = {row["name"]: [row[f"{name}_used"] for name in RESOURCES] for row in rows}
    with database.read() as connection:
        wrong = [one for one in allocations.audit(connection)
                 if [n - had for n, had in zip(one.counted[:3], before[one.host], strict=True)] != list(one.held[:3])]
        over = [row["name"] for row in hosts.every(connection)
                if any(row[f"{name}_used"] > row[f"{name}_limit"] for name in RESOURCES)]
    database.close()
    done, waits = sum(n for n, _seconds, _waits in told), [wait for _n, _seconds, waits in told for wait in waits]
    rate = done / max(seconds for _n, seconds, _waits in told)
    note = (f"{rate:.0f} claims per second, {done} in all; {len(over)} hosts over-committed, {len(wrong)} with wrong "
            f"counters; choosing and claiming take {statistics.median(waits):.2f} ms (median)")
    if over or wrong:
        raise SystemExit(f"{name}: {note}: {(over or wrong)[:3]}")
    yield Figure(f"a claim of {conductors} conductors, {name}", 1000 / rate, limit=limit, notes=(note,))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=10_000, metavar="N", help="simulated hosts (default: 10000)")
    parser.add_argument("--rounds", type=int, default=1000, metavar="N", help="choices (default: 1000)")
    parser.add_argument("--conductors", type=int, default=4, metavar="N", help="processes that claim (default: 4)")
    parser.add_argument("--only", choices=("choices", "claims"), help="measure this only")
    given = parser.parse_args()
    found: list[Figure] = []
    before = os.getloadavg()[0]
    sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
    if given.only != "claims":
        found += choices(given.hosts, given.rounds)
    if given.only != "choices":
        from tools import postgres

        with postgres.cluster(()) as folder:
            found += claims(given.hosts, given.conductors, 0.5, f"{given.hosts} hosts half full", folder, 2.0)
            found += claims(20, given.conductors, 0.5, "20 hosts until they are full", folder)
    print(f"{os.cpu_count()} CPUs, load {before:.1f} before, {os.getloadavg()[0]:.1f} after\n\n{table(found)}")
    return int(any(one.reached is False for one in found))


if __name__ == "__main__":
    sys.exit(main())
