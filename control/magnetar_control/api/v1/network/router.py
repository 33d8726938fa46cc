# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type router: routers of the network service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import NetworkRouter, Subnet
from magnetar_core.operations import Operation

from .networking import Networking, Row, resolve_external_network, resolve_reference


class Routers(Networking):
    kind, plural, body, references = NetworkRouter, "routers", attributes.ROUTER, ("external_network", "interfaces")
    held = "interfaces"

    def as_document(self, row: Row) -> Document:
        gateway = row["gateway"] or {}
        return {"external_network": gateway.get("network_id"), "enable_snat": row["enable_snat"],
                "external_addresses": [fixed_ip["ip_address"] for fixed_ip in gateway.get("external_fixed_ips", ())],
                "interfaces": sorted(row["inside"]), "routes": row["routes"], "status": "ACTIVE",
                "admin_state_up": row["admin_state_up"]}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        want = dict(want)
        if want.get("external_network"):
            want["external_network"] = resolve_external_network(caller, "external_network", want["external_network"])
        elif not want["enable_snat"]:
            if have is None or have["enable_snat"]:
                raise InvalidField("enable_snat", "is for a router with an external_network", False)
            want["enable_snat"] = True  # removing the network resets it
        want["interfaces"] = sorted({
            resolve_reference(caller, Subnet, "subnets", (f"interfaces[{at}]", subnet), lambda _row: True)
            for at, subnet in enumerate(want["interfaces"])})
        return {**want, "routes": self.body.check({"routes": want["routes"]}, "")["routes"]}

    def values(self, want: Document, names: Iterable[str]) -> Document:
        names = set(names)
        values = super().values(want, names - {"external_network", "enable_snat"})
        if names & {"external_network", "enable_snat"}:
            values["external_gateway_info"] = {"network_id": want["external_network"], "enable_snat": want[
                "enable_snat"]} if want["external_network"] else None
        return values

    def drawn(self, want: Document, have: Document | None) -> set[str]:
        same = (have or {}).get("external_network") == want["external_network"]
        return set() if same else {"external_addresses"}

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Delete the router, after removing its static routes and its interfaces."""
        store: Any = caller.cloud.services.network.resources[self.plural]
        store.put(caller.context, have["id"], {"routes": []}, [])
        super().remove(caller, have, operation)
