# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type subnet: subnets of the network service."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_network

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import Subnet, SubnetPool

from .networking import NOTHING, Networking, Row, resolve_network, resolve_reference, usable_by_project, visible_rows

#: Fields to the names of the service.
NAMES = {"network": "network_id", "subnet_pool": "subnetpool_id", "prefix_length": "prefixlen"}


class Subnets(Networking):
    """The driver of the v1 API for subnets that belong to the caller's project or are on shared networks. A request
    that names a subnet pool may leave out the CIDR."""

    kind, plural, body, references = Subnet, "subnets", attributes.SUBNET, ("network", "subnet_pool")
    own = ("cidr", "gateway_ip", "enable_dhcp", "allocation_pools", "dns_nameservers", "host_routes",
           "ipv6_address_mode", "ipv6_ra_mode")

    def project_rows(self, caller: Caller, service_rows: list[Row]) -> list[Row]:
        shared = {network["id"] for network in visible_rows(caller, "networks",
                                                            shared=[True])} if service_rows else set()
        return [row for row in service_rows if row["project_id"] == caller.project or row["network_id"] in shared]

    def as_document(self, row: Row) -> Document:
        return {"network": row["network_id"], "subnet_pool": row["subnetpool_id"],
                "prefix_length": ip_network(row["cidr"]).prefixlen, **{name: row[name] for name in self.own}}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        want = {**want, "network": resolve_network(caller, "network", want["network"])}
        if have is None and not want.get("cidr") and not want.get("subnet_pool"):
            raise InvalidField("cidr", "is required, or subnet_pool, of which addresses are taken")
        if want.get("subnet_pool") not in (None, (have or {}).get("subnet_pool")):
            want["subnet_pool"] = resolve_reference(caller, SubnetPool, "subnetpools",
                                                    ("subnet_pool", want["subnet_pool"]), usable_by_project(caller))
        plain = self.body.check({**self.values(want, self.own), "network_id": NOTHING}, "")
        return {**want, **{name: value for name, value in plain.items() if name in want}}

    def values(self, want: Document, names: Iterable[str]) -> Document:
        values = super().values(want, names)
        return {NAMES.get(name, name): value for name, value in values.items()}
