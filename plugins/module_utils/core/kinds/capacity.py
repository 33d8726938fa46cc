# SPDX-License-Identifier: GPL-3.0-or-later
"""capacity: whether a cloud, zone or aggregate has room for the servers of a failed host; read only."""

from __future__ import annotations

from ..fields import READ, Field, Kind
from ..values import Boolean, Choices, Integer, ListOf, Nullable, Text, Value


class Capacity(Kind):
    """The answer to the question whether any one host of a cloud, zone or aggregate may fail."""

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
