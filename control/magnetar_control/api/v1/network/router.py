# SPDX-License-Identifier: GPL-3.0-or-later
"""Routers of the network service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import NetworkRouter, Subnet
from magnetar_core.operations import Operation
from magnetar_core.reconcile import Document

from .networking import Networking, Row, external, reference


class Routers(Networking):
    kind, plural, body, references = NetworkRouter, "routers", attributes.ROUTER, ("external_network", "interfaces")
    held = "interfaces"

    def shown(self, row: Row) -> Document:
        gateway = row["gateway"] or {}
        return {"external_network": gateway.get("network_id"), "enable_snat": row["enable_snat"],
                "external_addresses": [one["ip_address"] for one in gateway.get("external_fixed_ips", ())],
                "interfaces": sorted(row["inside"]), "routes": row["routes"], "status": "ACTIVE",
                "admin_state_up": row["admin_state_up"]}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        want = dict(want)
        if want.get("external_network"):
            want["external_network"] = external(caller, "external_network", want["external_network"])
        elif not want["enable_snat"]:
            if have is None or have["enable_snat"]:
                raise InvalidField("enable_snat", "is for a router with an external_network", False)
            want["enable_snat"] = True  # with the network it goes
        want["interfaces"] = sorted({
            reference(caller, Subnet, "subnets", (f"interfaces[{at}]", one), lambda _row: True)
            for at, one in enumerate(want["interfaces"])})
        return {**want, "routes": self.body.check({"routes": want["routes"]}, "")["routes"]}

    def values(self, want: Document, names: Iterable[str]) -> Document:
        names = set(names)
        found = super().values(want, names - {"external_network", "enable_snat"})
        if names & {"external_network", "enable_snat"}:
            found["external_gateway_info"] = {"network_id": want["external_network"], "enable_snat": want[
                "enable_snat"]} if want["external_network"] else None
        return found

    def drawn(self, want: Document, have: Document | None) -> set[str]:
        same = (have or {}).get("external_network") == want["external_network"]
        return set() if same else {"external_addresses"}

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Its interfaces go before."""
        store: Any = caller.cloud.services.network.resources[self.plural]
        store.put(caller.context, have["id"], {"routes": []}, [])
        super().remove(caller, have, operation)
