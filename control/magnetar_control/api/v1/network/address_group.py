# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type address_group: address groups of the network service."""

from __future__ import annotations

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_core.document import Document
from magnetar_core.kinds import AddressGroup

from .networking import Networking, Row, usable_by_project


class AddressGroups(Networking):
    """The driver of the v1 API for Neutron address groups that belong to the caller's project or are shared with it."""

    kind, plural, body, held = AddressGroup, "address_groups", attributes.ADDRESS_GROUP, "addresses"

    def project_rows(self, caller: Caller, service_rows: list[Row]) -> list[Row]:
        return list(filter(usable_by_project(caller), service_rows))

    def as_document(self, row: Row) -> Document:
        return {"addresses": sorted(row["addresses"])}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        if want.get("addresses") is None:
            return {name: value for name, value in want.items() if name != "addresses"}
        return {**want, "addresses": sorted({attributes.PREFIX.check(prefix, f"addresses[{at}]")
                                             for at, prefix in enumerate(want["addresses"])})}
