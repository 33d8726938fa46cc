# SPDX-License-Identifier: GPL-3.0-or-later
"""server_topology: the NUMA topology of a server of a cloud; read only."""

from __future__ import annotations

from ..fields import READ, Field, Kind
from ..values import Integer, ListOf, Nullable, Text, Value


class ServerTopology(Kind):
    """The NUMA nodes of a guest, and its memory page size."""

    noun, plural = "server_topology", "server_topologies"
    report_doc = "The NUMA topology of the server, as the only item."

    server = Field(Text(1, 64), "Uuid of the server.", on=READ, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    nodes = Field(ListOf(Value()), "Its NUMA nodes: {memory_mb, vcpu_set, siblings}, for administrators with "
                                   "host_node and cpu_pinning; empty for a guest that has none of its own.", on=READ,
                  sample=[{"memory_mb": 1024, "vcpu_set": [0, 1], "siblings": [], "host_node": 0,
                           "cpu_pinning": {"0": 4, "1": 5}}])
    pagesize_kb = Field(Nullable(Integer()), "The size of its pages in KiB; null for pages as they come.", on=READ,
                        sample=None)
