# SPDX-License-Identifier: GPL-3.0-or-later
"""Subnets of the network service."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_core.kinds import Subnet
from magnetar_core.reconcile import Document

from .networking import NOTHING, Networking, Row, rows, usable


class Subnets(Networking):
    """Those of the project, and of networks that all use."""

    kind, plural, body, references = Subnet, "subnets", attributes.SUBNET, ("network",)
    own = ("cidr", "gateway_ip", "enable_dhcp", "allocation_pools", "dns_nameservers", "host_routes",
           "ipv6_address_mode", "ipv6_ra_mode")

    def mine(self, caller: Caller, found: list[Row]) -> list[Row]:
        shared = {one["id"] for one in rows(caller, "networks", shared=[True])} if found else set()
        return [one for one in found if one["project_id"] == caller.project or one["network_id"] in shared]

    def shown(self, row: Row) -> Document:
        return {"network": row["network_id"], **{name: row[name] for name in self.own}}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        want = {**want, "network": usable(caller, "network", want["network"])}
        plain = self.body.check({**self.values(want, self.own), "network_id": NOTHING}, "")
        return {**want, **{name: value for name, value in plain.items() if name in want}}

    def values(self, want: Document, names: Iterable[str]) -> Document:
        found = super().values(want, names)
        return {{"network": "network_id"}.get(name, name): value for name, value in found.items()}
