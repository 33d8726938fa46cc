# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the scheduler on simulated hosts. Run ``bench/schedule``.

Measured are the time of a choice of hosts, next to a plain implementation that checks every host, and the claims per
second that several conductors make in one PostgreSQL, without over-commitment. Some of the hosts have NUMA cells with
CPUs, large pages and a GPU each, which servers of mixed flavors request. The PostgreSQL server is temporary, with its
default durability.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import orjson
from figures import Figure, spread, table
from sqlalchemy import Connection, insert, select

from magnetar_control.scheduler import choose as chooser
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.place import place_server
from magnetar_control.scheduler.request_spec import RequestSpec, claimed_amounts, devices_of, numa_of
from magnetar_control.store.claims import host_counters
from magnetar_control.store.claims.allocations import RESOURCES, Amounts, claimable_amounts
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.schema import create_tables
from magnetar_control.store.engine.tables import API, cells
from magnetar_control.store.engine.tables import allocations as claimed
from magnetar_control.store.engine.tables import hosts as host_table
from magnetar_control.store.hosts import hosts
from magnetar_control.store.hosts.aggregates import Aggregate
from magnetar_control.store.hosts.host_row import HostRow
from magnetar_core.hardware import numa, traits
from magnetar_core.hardware.cpus import cpu_text
from magnetar_core.hardware.numa import Needs

Row = dict[str, Any]
T = TypeVar("T")
#: Hosts by name: how full they are, and further fields of the requests.
FLEETS: dict[str, tuple[float, dict[str, Any]]] = {
    "half full": (0.5, {}),
    "nearly full": (0.95, {}),
    "empty, all of a make alike": (0.0, {}),
    "half full, a zone and an extra spec": (0.5, {
        "availability_zone": "rack", "extra_specs": {"aggregate_instance_extra_specs:ssd": "true"}}),
    "half full, traits that a quarter has": (0.5, {
        "extra_specs": {"trait:HW_CPU_X86_AVX512F": "required", "trait:CUSTOM_SLOW": "forbidden"}}),
}
#: Requested flavors: CPUs, MiB, GiB.
FLAVORS = (Amounts(1, 512, 1), Amounts(1, 2048, 20), Amounts(2, 4096, 40), Amounts(4, 8192, 80), Amounts(8, 16384, 160))
#: Number of NUMA cells of a host, and extra specs about them; a third of the servers has none of these.
CELLS = 4
SPECS: tuple[dict[str, str], ...] = (
    {}, {"hw:cpu_policy": "dedicated"},
    {"hw:cpu_policy": "dedicated", "hw:numa_nodes": "2", "hw:mem_page_size": "large"})
GPU = {"pci_passthrough:alias": "gpu:1"}
#: Flavors of mixed servers (CPUs, MiB), each with any of the extra specs above; one in ten also has a GPU.
MIXED = ((2, 4096), (4, 8192), (8, 16384))
WITH_CELLS = f"half full, {CELLS} NUMA cells each, mixed flavors"
SECONDS = 8.0
#: All hosts count as full after this number of consecutive servers without a host.
PATIENCE = 20
#: Traits of a host with a current CPU; every other host has the first 40.
TRAITS = sorted(traits.ALWAYS) + [one for one in traits.X86.values() if "AVX512" not in one]
TRAITS = [*TRAITS[:59], "HW_CPU_X86_AVX512F"]


def fleet(chance: Random, size: int, used: float) -> list[Row]:
    """Return database rows of *size* hosts, with values drawn by *chance*: four models in two cells, each with about
    the share *used* in use; 2 in 100 are disabled."""
    rows = []
    for number in range(size):
        vcpus, memory, disk, model = ((32, 131072, 2000, "a"), (64, 262144, 4000, "a"), (64, 524288, 4000, "b"),
                                      (128, 1048576, 8000, "b"))[chance.randrange(4)]
        row: Row = {"id": str(UUID(int=chance.getrandbits(128))), "name": f"kvm{number:05}", "number": number + 1,
                    "cell_id": f"cell{number % 2}", "endpoint": f"https://10.0.{number // 256}.{number % 256}:6553",
                    "disabled": chance.random() < 0.02, "forced_down": False, "vcpus": vcpus, "memory_mb": memory,
                    "disk_gb": disk, "pcpus": 0, "servers": 0, "own_traits": "[]", "created_at": utc_now(),
                    "info": orjson.dumps(
                        {"cpu_model": model, "virt_types": ["kvm"], "hypervisor_type": "QEMU", "traits": TRAITS[
                            :40 if number % 2 else 60] + (["CUSTOM_SLOW"] if number % 4 == 2 else [])}).decode()}
        row |= {f"{name}_{what}": value for name in RESOURCES for what, value in (("ratio", None), ("reserved", 0))}
        for name, limit in claimable_amounts(row)._asdict().items():
            row |= {f"{name}_limit": limit, f"{name}_used": int(limit * min(1.0, used * chance.uniform(0.6, 1.4)))}
        rows.append(row)
    return rows


def give_cells(chance: Random, rows: list[Row]) -> list[Row]:
    """Add NUMA cells to the *rows* of hosts, and return the rows. Three of four CPUs are dedicated, half of the memory
    is large pages of 2 MiB, and each cell has a GPU. Each cell has about the host's share of free resources.
    """
    for row in rows:
        row |= {"pcpus": row["vcpus"] * 3 // 4, "vcpus": row["vcpus"] // 4}
        cells, devices = [], []
        for at in range(CELLS):
            dedicated = row["pcpus"] // CELLS
            first = at * (dedicated + row["vcpus"] // CELLS)
            memory, free = row["memory_mb"] // CELLS, 1 - min(1.0, row["memory_mb_used"] / row["memory_mb_limit"])
            own = set(range(first, first + dedicated))
            left = set(sorted(own)[:round(dedicated * free * chance.uniform(0.6, 1.0))])
            cells.append({
                "id": at, "cpus_dedicated": cpu_text(own), "threads": [], "sockets": [at * 2 // CELLS],
                "cpus_shared": cpu_text(set(range(first + dedicated, first + dedicated + row["vcpus"] // CELLS))),
                "memory_mb": memory, "pages": {"2048": memory // 4}, "free": {
                    "cpus_dedicated": cpu_text(left), "memory_mb": int(memory * free),
                    "pages": {"2048": int(memory // 4 * free)}}})
            devices.append({"aliases": ["gpu"], "numa_node": at, "total": 1, "free": 1})
        info = {**orjson.loads(row["info"]), "numa_cells": cells, "pci_pools": devices,
                "pci_devices": {"gpu": {"total": CELLS, "free": CELLS}}}
        free_cpus = sum(len(one.dedicated) for one in numa.parse_cells([{**one, **one["free"]} for one in cells]))
        row |= {"info": orjson.dumps(info).decode(), "pcpus_limit": row["pcpus"],
                "pcpus_used": row["pcpus"] - free_cpus, "vcpus_limit": row["vcpus_limit"] // 4,
                "vcpus_used": row["vcpus_used"] // 4}
    return rows


def mixed(chance: Random) -> Iterator[RequestSpec]:
    """Yield requests for servers of mixed flavors, drawn by *chance*, without end."""
    for number in count():
        vcpus, ram = chance.choice(MIXED)
        specs = chance.choice(SPECS) | (GPU if chance.random() < 0.1 else {})
        flavor = {"name": "mixed", "vcpus": vcpus, "ram": ram, "disk": 20, "extra_specs": specs}
        yield RequestSpec(f"{chance.getrandbits(64):x}-{number}", "project", claimed_amounts(flavor), vcpus=vcpus,
                          numa=numa_of(flavor, {}, ()), extra_specs=specs, devices=devices_of(flavor))


def states_of(rows: list[Row]) -> HostStates:
    """Return the host states of a conductor: all hosts up, a tenth of them in a zone of their own."""
    states = HostStates()
    zone = Aggregate(1, "uuid", "rack", {"availability_zone": "rack", "ssd": "true"}, "2026-01-01", None,
                     [str(row["name"]) for row in rows[::10]])
    states.refresh(map(HostRow.of_values, rows), [zone])
    for row in rows:
        states.up(str(row["name"]), True)
    return states


def requests(chance: Random, **more: Any) -> Iterator[RequestSpec]:
    """Yield requests for servers with flavors drawn by *chance*, without end. *more*: further fields of each request.
    """
    for number in count():
        yield RequestSpec(f"{chance.getrandbits(64):x}-{number}", "project", chance.choice(FLAVORS), **more)


def measured(taken: list[float], work: Callable[..., T], *given: Any, **named: Any) -> T:
    """Call *work* and return its result. Append the CPU milliseconds of this thread to *taken*."""
    began = time.thread_time()
    found = work(*given, **named)
    taken.append((time.thread_time() - began) * 1000)
    return found


def choices(size: int, rounds: int) -> Iterator[Figure]:
    """Measure choices among *size* hosts. Each choice is counted as used immediately, so that the next one sees other
    numbers. Times are CPU times of this thread, because choices never wait.
    """
    from tests.unit.control.scheduler.fleet import plainly

    for name, (used, more) in {**FLEETS, WITH_CELLS: (0.5, {})}.items():
        chance = Random(size)  # noqa: S311 - a simulation
        rows = fleet(chance, size, used)
        states, wishes = (states_of(give_cells(chance, rows)), mixed(chance)) if name == WITH_CELLS else (
            states_of(rows), requests(chance, **more))
        taken, plain = [], []
        for at, wish in zip(range(rounds), wishes, strict=False):
            found = measured(taken, chooser.choose_hosts, states, wish, 3, random=chance)
            if at % (rounds // 5) == 0:
                measured(plain, plainly, states, wish)
            states.used(found[0].host, wish.amounts, numa=wish.numa, devices=wish.devices)
        slow = sorted(taken)
        yield Figure(f"choice among {size} hosts, {name}", statistics.median(taken), floor=statistics.median(plain),
                     floor_name="every host", limit=5.0, spread=spread(taken), notes=(
                         f"99 of 100 within {slow[len(slow) * 99 // 100]:.2f} ms, the slowest {slow[-1]:.1f} ms",))


class Told(NamedTuple):
    """The report of a process that claims: the *placed* servers (host and NUMA needs of each), the *seconds* and *cpu*
    seconds of all, and the milliseconds of each (*waits*).
    """

    placed: list[tuple[str, Needs | None]]
    seconds: float
    cpu: float
    waits: list[float]


def cpu_of_servers(folder: Path) -> float:
    """Return the CPU seconds that the PostgreSQL server in *folder* has used, including its ended processes."""
    leader, found = (folder / "d" / "postmaster.pid").read_text(encoding="utf-8").split()[0], 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            words = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            if leader in (path.parent.name, words[1]):
                found += sum(map(int, words[11:15] if leader == path.parent.name else words[11:13]))
    return found / os.sysconf("SC_CLK_TCK")


def conductor(url: str, seed: int, rows: list[Row], ready: Any, answers: Any) -> None:
    """Choose hosts and claim resources in a separate process, from when *ready* (a barrier) lets it begin until the
    time is over; put a ``Told`` into the queue *answers*. *rows*: the hosts; *seed*: of the random choices. Its host
    states do not include the claims of other processes."""
    with_cells = "numa_cells" in orjson.loads(rows[0]["info"])
    database, states, chance = Database(url, pool=1), states_of(rows), Random(seed)  # noqa: S311 - a simulation
    wishes, placed, waits, misses = (mixed if with_cells else requests)(chance), [], [], 0
    with database.read() as connection:
        hosts.fetch_host_row(connection, "kvm00000")
    ready.wait()
    start, used = time.monotonic(), time.process_time()
    while time.monotonic() < start + SECONDS and misses < PATIENCE:
        began = time.perf_counter()
        try:
            wish = next(wishes)
            placed.append((place_server(database, states, wish, random=chance).host, wish.numa))
        except chooser.NoValidHost:
            misses += 1
            continue
        misses = 0
        waits.append((time.perf_counter() - began) * 1000)
    answers.put(Told(placed, time.monotonic() - start, time.process_time() - used, waits))
    database.close()


def together(conductors: int, url: str, rows: list[Row]) -> list[Told]:
    """Start *conductors* processes that begin at the same moment, and return their reports."""
    context = get_context("spawn")
    answers, ready = context.Queue(), context.Barrier(conductors)
    processes = [context.Process(target=conductor, args=(url, at, rows, ready, answers)) for at in range(conductors)]
    for process in processes:
        process.start()
    told = [answers.get(timeout=300) for _process in processes]
    for process in processes:
        process.join()
    return told


def refused(rows: list[Row], placed: list[tuple[str, Needs | None]]) -> int:
    """Return the number of *placed* servers for which the NUMA cells of their hosts have no room. Agents give CPUs,
    memory and pages to one server after the other, and refuse these servers, which are then scheduled again.
    """
    cells = {row["name"]: [{**cell, **cell["free"]} for cell in orjson.loads(row["info"]).get("numa_cells", ())]
             for row in rows}
    left, found = {name: numa.parse_cells(one) for name, one in cells.items()}, 0
    for host, asked in placed:
        if asked is not None:
            try:
                left[host] = numa.remaining_cells(left[host], [numa.place_guest(left[host], asked)])
            except numa.NoFit:
                found += 1
    return found


def too_many_devices(connection: Connection, rows: list[Row]) -> list[str]:
    """Return the hosts whose claims of devices exceed their devices."""
    held: Counter[str] = Counter()
    for host_id, text in connection.execute(select(claimed.c.host_id, claimed.c.devices)):
        held[host_id] += sum(orjson.loads(text).values())
    return [row["name"] for row in rows
            if held[row["id"]] > sum(one["total"] for one in orjson.loads(row["info"]).get("pci_pools", ()))]


def claims(rows: list[Row], conductors: int, name: str, folder: Path, limit: float | None = None) -> Iterator[Figure]:
    """Measure the claims of *conductors* processes, and check afterwards that the counters of hosts equal the sums of
    the allocations.
    """
    from tools import postgres

    database = Database(postgres.postgres_url(folder, "postgres"))
    with database.write() as connection:
        API.drop_all(connection)
        create_tables(connection, API)
        connection.execute(insert(cells), [{"id": name, "name": name, "database_url": "", "disabled": False,
                                            "created_at": utc_now()} for name in ("cell0", "cell1")])
        connection.execute(insert(host_table), rows)
    cpu = -cpu_of_servers(folder)
    told = together(conductors, postgres.postgres_url(folder, "postgres"), rows)
    cpu += cpu_of_servers(folder)
    before = {row["name"]: [row[f"{name}_used"] for name in RESOURCES] for row in rows}
    with database.read() as connection:
        wrong = [one for one in host_counters.audit_host_counters(connection) if [n - had for n, had in zip(
            one.counted[:len(RESOURCES)], before[one.host], strict=True)] != list(one.held[:len(RESOURCES)])]
        over = [row.name for row in hosts.fetch_host_rows(connection)
                if any(used > limit for used, limit in zip(row.used, row.limits, strict=True))]
        over += too_many_devices(connection, rows)
    database.close()
    placed, waits = [one for by in told for one in by.placed], [one for by in told for one in by.waits]
    rate, own = len(placed) / max(by.seconds for by in told), sum(by.cpu for by in told)
    note = (f"{rate:.0f} claims per second, {len(placed)} in all, {refused(rows, placed)} of them refused by cells; "
            f"{len(over)} hosts over-committed, {len(wrong)} with wrong counters; choosing and claiming take "
            f"{statistics.median(waits):.2f} ms (median), and a claim {own / len(placed) * 1000:.2f} ms of CPU of "
            f"conductors and {cpu / len(placed) * 1000:.2f} ms of PostgreSQL")
    if over or wrong:
        raise SystemExit(f"{name}: {note}: {(over or wrong)[:3]}")
    yield Figure(f"a claim of {conductors} conductors, {name}", 1000 / rate, limit=limit, notes=(note,),
                 cpu=(own + cpu) / len(placed) * 1000)


def main() -> int:
    """Run the command line."""
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

        with postgres.postgres_cluster(()) as folder:
            for size, name, limit in ((given.hosts, f"{given.hosts} hosts half full", 2.0),
                                      (20, "20 hosts until they are full", None)):
                chance = Random(size)  # noqa: S311 - a simulation
                found += claims(fleet(chance, size, 0.5), given.conductors, name, folder, limit)
                found += claims(give_cells(chance, fleet(chance, size, 0.5)), given.conductors,
                                f"{name}, {CELLS} NUMA cells each", folder, limit)
    print(f"{os.cpu_count()} CPUs, load {before:.1f} before, {os.getloadavg()[0]:.1f} after\n\n{table(found)}")
    return int(any(one.reached is False for one in found))


if __name__ == "__main__":
    sys.exit(main())
