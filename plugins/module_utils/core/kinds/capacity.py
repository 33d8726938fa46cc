# SPDX-License-Identifier: GPL-3.0-or-later
"""capacity: whether a cloud, zone or aggregate has room for the servers of a failed host; read only. balance: the real
load of the hosts of a cell, and the live migrations that even it out or free a host."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind
from ..values import Boolean, Choices, Integer, ListOf, Nullable, Text, Value

SAMPLE_ID = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
#: The most moves that a request may allow.
MOST_MOVES = 1000


class Capacity(Kind):
    """A report that says whether all servers of a cloud, zone or aggregate still have a place if one of its hosts
    fails.
    """

    noun, plural = "capacity", "capacities"
    report_doc = "The cloud, its zones and its aggregates; with O(zone) or O(aggregate) only these."

    name = Field(Text(), "V(cloud), or the name of the zone or aggregate.", on=READ, sample="cloud")
    scope = Field(Choices("cloud", "zone", "aggregate"), "The hosts that are meant.", on=READ, sample="cloud")
    zone = Field(Nullable(Text()), "The zone, for its report.", on=READ, sample=None)
    aggregate = Field(Nullable(Text()), "The aggregate, for its report.", on=READ, sample=None)
    holds = Field(Boolean(), "Whether all servers of each host have a place on other hosts.", on=READ, sample=False)
    reason = Field(Text(), "Why, in a sentence.", on=READ, sample="1 of 3 hosts may not fail. kvm3: 1 of 12 servers "
                   "have no place on another host (web1). Of 3 hosts the filters refused: RamFilter 2, RetryFilter 1.")
    hosts = Field(Integer(), "Number of hosts.", on=READ, sample=3)
    servers = Field(Integer(), "Number of servers on them.", on=READ, sample=36)
    lacking = Field(ListOf(Value(), 2**31), "The hosts that may not fail: {host, servers, unplaced, examples, reason}. "
                    "C(unplaced) is the number of servers without a place, C(examples) has the ids and names of the "
                    "largest, C(servers) is null if the host's cell does not answer.", on=READ,
                    sample=[{"host": "kvm3", "servers": 12, "unplaced": 1,
                             "examples": [{"id": "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", "name": "web1"}],
                             "reason": "Of 3 hosts the filters refused: RamFilter 2, RetryFilter 1."}])


class Balance(Kind):
    """The load of the hosts of a cell, and the live migrations that would balance it."""

    noun, plural = "balance", "balances"
    sample_changes = {"state": ("unbalanced", "balanced")}
    sample_actions = ("record", "move")

    id = Field(Text(1, 64), "The uuid of the cell.", on=READ, sample="5f0a2c1e-9d3b-4c55-8f51-0e6d1b7a9c20")
    name = Field(Text(1, 255), "The cell's name.", on=FIXED, required=True, aliases=("cell",), sample="cell1")
    state = Field(Choices("balanced"), "V(balanced) does the proposed moves. Reported as V(unbalanced) while moves are "
                  "proposed.", default="balanced", sample="balanced")
    free_host = Field(Nullable(Text(1, 255)), "Move the running servers of this host to other hosts, instead of "
                      "evening out the load of all hosts.", compared=False, sample=None)
    max_moves = Field(Nullable(Integer(1, MOST_MOVES)), "The most moves; by default 10, and with O(free_host) as many "
                      "as needed.", compared=False, sample=None)
    keep_going = Field(Boolean(), "Whether the next move is done after one that failed.", default=False,
                       compared=False, sample=False)
    hosts = Field(ListOf(Value(), 2**31), "The hosts: {name, cpus, cpus_used, memory_mb, memory_mb_used, load}. "
                  "C(load) is the greater share in use, from 0 to 1.", on=READ,
                  sample=[{"name": "kvm1", "cpus": 64, "cpus_used": 51.2, "memory_mb": 257000, "memory_mb_used": 90000,
                           "load": 0.8}])
    moves = Field(ListOf(Value(), 2**31), "The proposed moves in their order: {id, name, source, target, cpus_used, "
                  "memory_mb_used, reason}.", on=READ,
                  sample=[{"id": SAMPLE_ID, "name": "web1", "source": "kvm1", "target": "kvm2", "cpus_used": 12.5,
                           "memory_mb_used": 4096,
                           "reason": "kvm1 80% -> 60%, kvm2 20% -> 40% (CPU of kvm1; mean 50%)"}])
    stays = Field(ListOf(Value(), 2**31), "Hosts that should give a server and cannot, or servers that stay on the "
                  "host to be freed: {name, reason}.", on=READ, sample=[])
    unmeasured = Field(ListOf(Value(), 2**31), "Hosts that take no part: {name, reason}.", on=READ,
                       sample=[{"name": "kvm9", "reason": "It is down."}])
    dropped = Field(Integer(), "Number of moves that are not proposed because after them a host could not fail any "
                    "more.", on=READ, sample=0)
