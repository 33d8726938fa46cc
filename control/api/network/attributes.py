# SPDX-License-Identifier: GPL-3.0-or-later
"""Attributes of Neutron's resources: what each may be, and whether it is set when one is made, changed, or both (API
reference, Networking v2.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.values import Anything, Id, Null, Number, record
from magnetar_core.fields import Field, Record
from magnetar_core.values import Choices, ListOf, Mac, MapOf, Nullable, Text, Value

from .values import ADDRESS, TEXT, TRUTH, Cidr, FixedIp, Prefix, Protocol, Version4, Word, items

#: Neutron's name of an attribute to the service's.
NAMES = {"tenant_id": "project_id", "provider:network_type": "type", "provider:physical_network": "bridge",
         "router:external": "external", "binding:host_id": "host", "binding:vnic_type": "vnic_type",
         "binding:profile": "profile"}


def attributes(fixed: Mapping[str, Value], changing: Mapping[str, Value], required: str = "",
               description: Value = TEXT) -> Record:
    """Those of a resource. *fixed*: set when it is made; *changing*: set then and later; *required* of a new one."""
    made = {name: Field(value, "", required=name in required.split(), on="create") for name, value in fixed.items()}
    both = {name: Field(value, "", required=name in required.split(), on="create update")
            for name, value in changing.items()}
    owner: Any = {"project_id": Field(TEXT, "", on="create"), "tenant_id": Field(TEXT, "", on="create")}
    return Record(**made, **both, description=Field(description, "", on="create update"), **owner)


NETWORK = attributes(
    {"mtu": Number(576, 65535), "provider:network_type": Choices("nat", "isolated", "flat"),
     "provider:physical_network": Nullable(Text(0, 255)), "provider:segmentation_id": Null()},
    {"name": TEXT, "admin_state_up": TRUTH, "shared": TRUTH, "is_default": TRUTH, "port_security_enabled": TRUTH,
     "router:external": TRUTH})

SUBNET = attributes(
    {"network_id": Id(), "cidr": Cidr(), "ip_version": Version4(), "subnetpool_id": Null(), "ipv6_ra_mode": Null(),
     "ipv6_address_mode": Null()},
    {"name": TEXT, "gateway_ip": Nullable(ADDRESS), "enable_dhcp": TRUTH, "dns_nameservers": items(ADDRESS),
     "allocation_pools": items(record({"start": ADDRESS, "end": ADDRESS}, "start", "end")),
     "host_routes": items(record({"destination": Prefix(), "nexthop": ADDRESS}, "destination", "nexthop"))},
    required="network_id cidr")

PORT = attributes(
    {"network_id": Id()},
    {"name": TEXT, "admin_state_up": TRUTH, "mac_address": Mac(), "device_id": TEXT, "device_owner": TEXT,
     # Null is as left out: an address is chosen.
     "fixed_ips": Nullable(ListOf(FixedIp(Id(), ADDRESS), 10_000)), "security_groups": items(Id()),
     "port_security_enabled": TRUTH, "binding:host_id": TEXT, "binding:profile": MapOf(Text(), Anything()),
     "binding:vnic_type": Choices("normal")}, required="network_id")

SECURITY_GROUP = attributes({}, {"name": TEXT, "stateful": TRUTH}, required="name")

_PORT = Nullable(Number(0, 65535))
SECURITY_GROUP_RULE = attributes(
    {"security_group_id": Id(), "direction": Word("ingress", "egress"), "ethertype": Word("IPv4", "IPv6"),
     "protocol": Protocol(), "port_range_min": _PORT, "port_range_max": _PORT, "remote_ip_prefix": Nullable(Prefix()),
     "remote_group_id": Nullable(Id())},
    {}, required="security_group_id direction", description=Nullable(Text(0, 255)))
