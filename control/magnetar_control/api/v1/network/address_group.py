# SPDX-License-Identifier: GPL-3.0-or-later
"""Address groups of the network service."""

from __future__ import annotations

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_core.kinds import AddressGroup
from magnetar_core.reconcile import Document

from .networking import Networking, Row, of_project


class AddressGroups(Networking):
    """Those of the project, and those that are shared with it."""

    kind, plural, body, held = AddressGroup, "address_groups", attributes.ADDRESS_GROUP, "addresses"

    def mine(self, caller: Caller, found: list[Row]) -> list[Row]:
        return list(filter(of_project(caller), found))

    def shown(self, row: Row) -> Document:
        return {"addresses": sorted(row["addresses"])}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        if want.get("addresses") is None:
            return {name: value for name, value in want.items() if name != "addresses"}
        return {**want, "addresses": sorted({attributes.PREFIX.check(one, f"addresses[{at}]")
                                             for at, one in enumerate(want["addresses"])})}
