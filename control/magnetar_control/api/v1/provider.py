# SPDX-License-Identifier: GPL-3.0-or-later
"""resource_provider and trait: what hosts have for servers to claim, and are, as operators see and set it."""

from __future__ import annotations

from magnetar_control.compute.access.policy import ADMIN
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.placement.placement import Placement
from magnetar_control.compute.placement.provider_tree import Provider
from magnetar_control.compute.placement.providers import Providers
from magnetar_control.store.claims.inventories import Inventory
from magnetar_core.errors import Conflict, NotFound
from magnetar_core.hardware import traits
from magnetar_core.kinds import ResourceProvider
from magnetar_core.operations import Operation
from magnetar_core.reconcile import Document

from .driver import CloudDriver


class ResourceProviders(CloudDriver):
    """Made with their hosts, so here they are only changed. For administrators."""

    kind = ResourceProvider

    def every(self, caller: Caller) -> list[Document]:
        caller.check_policy(ADMIN)
        return [_shown(one) for one in Placement(caller.cloud).roots()]

    def given(self, key: str, want: Document) -> Document:
        """The key is the host's name, or the uuid."""
        return {"name": key, **self.kind.check(want, partial=True)}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Traits that the agent tells are left out, and of custom inventories what is not said is filled in."""
        if have is None:
            raise NotFound(f"There is no host {want.get('name')!r} in this cloud. A host comes into it by the settings "
                           "of its cell's conductor.", kind="resource_provider")
        own = {name: fields if name in have["_told"] or "total" not in fields else
               Inventory(**fields)._asdict() for name, fields in want["own_inventories"].items()}
        return {**want, "name": have["name"], "own_inventories": own,
                "own_traits": sorted({*want["own_traits"]} - have["_told_traits"])}

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        self._set(caller, have, want, dry_run=True)

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        self._set(caller, have, want, dry_run=False)

    def _set(self, caller: Caller, have: Document, want: Document, *, dry_run: bool) -> None:
        changed = {name: want[name] for name in ("own_traits", "own_inventories") if want[name] != have[name]}
        Providers(Placement(caller.cloud)).set_own(
            str(have["id"]), changed.get("own_traits"), changed.get("own_inventories"), dry_run)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """It goes with its host."""
        raise Conflict(f"{have['name']} is a host: it leaves the cloud with its compute service (DELETE "
                       "/v1/compute_service).")


def _shown(one: Provider) -> Document:
    return {"id": one.id, "name": one.name,
            "own_traits": sorted(one.own_traits), "own_inventories": one.own_inventories,
            "traits": sorted(one.traits), "inventories": one.inventories, "usages": one.usages,
            "aggregates": sorted(group.name for group in one.aggregates), "generation": one.generation,
            "_told": frozenset(one.told_classes), "_told_traits": one.told_traits}


def traits_of_hosts(caller: Caller) -> list[Document]:
    """All that there are, with the hosts that have them; for administrators."""
    caller.check_policy(ADMIN)
    placement = Placement(caller.cloud)
    every = placement.roots()
    hosts: dict[str, list[str]] = {name: [] for name in placement.traits(every)[0]}
    for one in every:
        for name in one.traits:
            hosts[name].append(one.name)
    return [{"name": name, "custom": name not in traits.STANDARD, "hosts": found}
            for name, found in sorted(hosts.items())]
