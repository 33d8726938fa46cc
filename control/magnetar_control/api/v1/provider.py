# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource drivers of resource_provider and trait: inventories and traits of hosts, as operators see and set
them."""

from __future__ import annotations

from magnetar_control.compute.access.policy import ADMIN
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.placement.placement import Placement
from magnetar_control.compute.placement.provider_tree import Provider
from magnetar_control.compute.placement.providers import Providers
from magnetar_control.store.claims.inventories import Inventory
from magnetar_core.document import Document
from magnetar_core.errors import Conflict
from magnetar_core.hardware import traits
from magnetar_core.kinds import ResourceProvider
from magnetar_core.operations import Operation

from .driver import CloudDriver, missing_host_error


class ResourceProviders(CloudDriver):
    """The driver of the v1 API for Placement's resource providers. Only administrators may use it. Each host has one
    provider. This API can change it, but not create or remove it."""

    kind = ResourceProvider

    def every(self, caller: Caller) -> list[Document]:
        caller.check_policy(ADMIN)
        return [_provider_document(provider) for provider in Placement(caller.cloud).roots()]

    def given(self, key: str, want: Document) -> Document:
        """Return the desired state *want* after a check. *key*: the host's name or the provider's uuid. Raises
        ``InvalidField``."""
        return {"name": key, **self.kind.check(want, partial=True)}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* without traits that the host's agent reports, and with default values in
        custom inventories. Raises ``NotFound`` for an unknown host."""
        if have is None:
            raise missing_host_error(want, "resource_provider")
        inventories = {name: fields if name in have["_reported_classes"] or "total" not in fields else
                       Inventory(**fields)._asdict() for name, fields in want["own_inventories"].items()}
        return {**want, "name": have["name"], "own_inventories": inventories,
                "own_traits": sorted({*want["own_traits"]} - have["_reported_traits"])}

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        self._set(caller, have, want, dry_run=True)

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        self._set(caller, have, want, dry_run=False)

    def _set(self, caller: Caller, have: Document, want: Document, *, dry_run: bool) -> None:
        changed = {name: want[name] for name in ("own_traits", "own_inventories") if want[name] != have[name]}
        Providers(Placement(caller.cloud)).set_own(
            str(have["id"]), changed.get("own_traits"), changed.get("own_inventories"), dry_run)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Raise ``Conflict``: a resource provider exists as long as its host."""
        raise Conflict(f"{have['name']} is a host: it leaves the cloud with its compute service (DELETE "
                       "/v1/compute_service).")


def _provider_document(provider: Provider) -> Document:
    return {"id": provider.id, "name": provider.name,
            "own_traits": sorted(provider.own_traits), "own_inventories": provider.own_inventories,
            "traits": sorted(provider.traits), "inventories": provider.inventories, "usages": provider.usages,
            "aggregates": sorted(group.name for group in provider.aggregates), "generation": provider.generation,
            "_reported_classes": frozenset(provider.reported_classes), "_reported_traits": provider.reported_traits}


def traits_of_hosts(caller: Caller) -> list[Document]:
    """Return all traits, each with the hosts that have it. Only administrators may call it."""
    caller.check_policy(ADMIN)
    placement = Placement(caller.cloud)
    every = placement.roots()
    hosts: dict[str, list[str]] = {name: [] for name in placement.traits(every)[0]}
    for provider in every:
        for name in provider.traits:
            hosts[name].append(provider.name)
    return [{"name": name, "custom": name not in traits.STANDARD, "hosts": host_names}
            for name, host_names in sorted(hosts.items())]
