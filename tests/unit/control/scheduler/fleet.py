# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts for tests, as rows of the store; and what a choice among hosts must give."""

import orjson

from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.request_spec import RequestSpec
from magnetar_control.scheduler.weighers import sum_of, weights_of_rows
from magnetar_control.store.claims.allocations import RESOURCES, USUAL, Amounts, claimable_amounts
from magnetar_control.store.hosts.aggregates import Aggregate
from magnetar_control.store.hosts.host_row import HostRow

INFO = {"virt_types": ["kvm", "qemu"], "hypervisor_type": "QEMU", "hypervisor_version": "7.2.22", "cpu_model": "EPYC"}


def row(name, *, info=None, ratios=USUAL, **more):
    """A host of 16 CPUs, 64 GiB of memory and 1000 GiB of disk, with *more* columns."""
    made = {"id": f"id-{name}", "name": name, "cell_id": "cell", "endpoint": "https://192.0.2.7:6553",
            "disabled": False, "forced_down": False, "cell_disabled": False, "vcpus": 16, "memory_mb": 65536,
            "disk_gb": 1000, "pcpus": 0, "servers": 0, "own_traits": "[]",
            "info": orjson.dumps({**INFO, **(info or {})}).decode()}
    for resource in RESOURCES:
        made |= {f"{resource}_used": 0, f"{resource}_ratio": None, f"{resource}_reserved": 0}
    made |= more
    limits = {f"{name}_limit": n for name, n in claimable_amounts(made, ratios)._asdict().items()}
    return HostRow.of_values(made | limits | more)


def told_cell(id, dedicated, free=None, shared="0-3"):
    """A NUMA cell as agents tell it: 4 GiB, without large pages."""
    parts = {"cpus_dedicated": dedicated, "memory_mb": 4096, "pages": {}}
    return {"id": id, "cpus_shared": shared, "threads": [], **parts, "free": {
        **parts, "cpus_dedicated": dedicated if free is None else free}}


def states(*rows, aggregates=(), down=()):
    """The states of hosts that are up, except *down*."""
    made = HostStates()
    made.refresh(rows, aggregates)
    for one in rows:
        made.up(one.name, one.name not in down)
    return made


def request(**more):
    """A request for 1 CPU, 1 GiB of memory and 10 GiB of disk."""
    return RequestSpec(**{"server_id": "s", "project_id": "p", "amounts": Amounts(1, 1024, 10), **more})


def aggregate(*hosts, id=1, **metadata):
    """An aggregate of those hosts."""
    return Aggregate(id, f"uuid-{id}", f"aggregate {id}", metadata, "2026-01-01", None, list(hosts))


def plainly(states, spec):
    """The definition of ``choose``, for tests and benchmarks: weights and names of all that pass, best first."""
    asked = states.filters_for(spec)
    passed = [host for host in states.hosts.values() if all(one.passes(host, spec) for one in asked)]
    computed = states.rules.computed_weighers
    rows = [(*host.row(spec.mates.get(host.name, 0)), *(one.worth(host, spec) for one in computed)) for host in passed]
    columns = list(zip(*rows, strict=True))
    low, high = tuple(map(min, columns)), tuple(map(max, columns))
    found = [(*weights_of_rows([row], sum_of(host.profile, spec, states.rules.multipliers, low, high, computed)),
              host.name) for row, host in zip(rows, passed, strict=True)]
    return sorted(found, key=lambda one: (-one[0], one[1]))
