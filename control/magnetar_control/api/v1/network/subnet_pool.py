# SPDX-License-Identifier: GPL-3.0-or-later
"""The drivers of the resource types subnet_pool and address_scope of the network service."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_control.services.network.subnets.subnet_pools import join_prefixes
from magnetar_core.document import Document
from magnetar_core.kinds import AddressScope, SubnetPool

from .networking import Networking, Row, resolve_reference, usable_by_project


class AddressScopes(Networking):
    """The driver of the v1 API for Neutron address scopes that belong to the caller's project or are shared with it."""

    kind, plural, body = AddressScope, "address_scopes", attributes.ADDRESS_SCOPE

    def project_rows(self, caller: Caller, service_rows: list[Row]) -> list[Row]:
        return list(filter(usable_by_project(caller), service_rows))

    def as_document(self, row: Row) -> Document:
        return {"ip_version": row["ip_version"], "shared": row["shared"]}


class SubnetPools(Networking):
    """The driver of the v1 API for subnet pools that belong to the caller's project or are shared with it."""

    kind, plural, body, references = SubnetPool, "subnetpools", attributes.SUBNET_POOL, ("address_scope",)
    own = ("prefixes", "min_prefixlen", "default_prefixlen", "max_prefixlen", "default_quota", "shared", "is_default")

    def project_rows(self, caller: Caller, service_rows: list[Row]) -> list[Row]:
        return list(filter(usable_by_project(caller), service_rows))

    def as_document(self, row: Row) -> Document:
        return {"address_scope": row["address_scope_id"], "ip_version": row["ip_version"],
                **{name: row[name] for name in self.own}}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        plain = self.body.changes({"prefixes": want["prefixes"]}, "")
        want = {**want, "prefixes": list(map(str, join_prefixes(plain["prefixes"])))}
        if want["address_scope"] in (None, (have or {}).get("address_scope")):
            return want
        return {**want, "address_scope": resolve_reference(
            caller, AddressScope, "address_scopes", ("address_scope", want["address_scope"]),
            usable_by_project(caller))}

    def values(self, want: Document, names: Iterable[str]) -> Document:
        values = super().values(want, names)
        return {{"address_scope": "address_scope_id"}.get(name, name): value for name, value in values.items()}
