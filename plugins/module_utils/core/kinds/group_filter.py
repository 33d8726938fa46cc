# SPDX-License-Identifier: GPL-3.0-or-later
"""group_filter: a security group of a cloud, as filter rules on a host."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind, Record
from ..values import Choices, Integer, ListOf, Nullable, Uuid
from .common import NAME, TIME
from .networking import ADDRESS, PREFIX

#: Maximum number of rules of a group, and of addresses of its ports on other hosts.
MANY = 100_000
_PORT = Nullable(Integer(0, 65535))


class GroupFilter(Kind):
    """The rules of a cloud's security group on a host. NICs refer to the group by its uuid. A group that the host lacks
    allows no traffic.
    """

    noun, plural = "group_filter", "group_filters"

    id = Field(Uuid(), "The uuid of the security group.", on=FIXED, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(NAME, "The same.", required=True, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    revision = Field(Integer(0, 2**63 - 1), "Number of this state of the group; an older number changes nothing.",
                     default=0,
                     sample=3)
    rules = Field(
        ListOf(Record(
            direction=Field(Choices("ingress", "egress"), "To the ports, or from them.", required=True),
            ethertype=Field(Choices("IPv4", "IPv6"), "IP version.", required=True),
            protocol=Field(Nullable(Integer(0, 255)), "Number of the IP protocol; any when omitted."),
            port_range_min=Field(_PORT, "The first port, or the type of ICMP."),
            port_range_max=Field(_PORT, "The last port, or the code of ICMP."),
            remote_ip_prefix=Field(Nullable(PREFIX), "From or to these addresses only."),
            remote_group=Field(Nullable(Uuid()), "From or to ports of this security group only.")), MANY),
        "The allowed traffic; all other traffic is dropped.", default=[],
        sample=[{"direction": "ingress", "ethertype": "IPv4", "protocol": 6, "port_range_min": 22,
                 "port_range_max": 22, "remote_ip_prefix": "192.0.2.0/24", "remote_group": None}])
    members = Field(ListOf(ADDRESS, MANY), "Addresses of ports of other hosts in this group. The agent knows the "
                    "ports of its own host.", default=[], sample=["192.0.2.7"])
    created_at = Field(TIME, "When it was created, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")
    updated_at = Field(TIME, "When it was last changed, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")
