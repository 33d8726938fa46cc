# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of resource providers by operators: traits, inventories, aggregates, and custom traits and resource classes.

An agent's report of its host stays: an operator adds custom traits and resource classes, and sets the amount that
servers cannot get (``reserved``) and the overcommit (``allocation_ratio``). A change applies to claims from its
transaction on, to conductors within seconds, and outlasts later reports of the agent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.hosts import aggregates
from magnetar_control.store.claims import inventories
from magnetar_control.store.claims import traits as custom_traits
from magnetar_control.store.claims.allocations import SHARED
from magnetar_control.store.claims.inventories import Inventory
from magnetar_control.store.hosts import aggregates as stored_aggregates
from magnetar_control.store.hosts import hosts
from magnetar_core.errors import Conflict, InUse, InvalidField, InvalidRequest, NotFound
from magnetar_core.hardware import traits
from magnetar_core.hardware.standard import GIVEN_CLASSES

from .consumers import ConsumerRequest, Consumers, no_room
from .placement import Placement
from .provider_tree import CLASSES, COLUMNS, STANDARD, Provider

#: A requested inventory: fields of ``Inventory``; ``None`` removes the operator's values.
InventoryFields = Mapping[str, Any] | None


class Providers:
    """The operations of Placement's API that change resource providers. The parameter *generation* is the provider's
    generation that the client has read; ``None`` skips the check that this generation is still current."""

    def __init__(self, placement: Placement) -> None:
        self.placement, self.cloud = placement, placement.cloud

    @property
    def _reserved(self) -> dict[str, int]:
        settings = self.cloud.settings
        return {"vcpus": settings.reserved_host_cpus, "memory_mb": settings.reserved_host_memory_mb,
                "disk_gb": settings.reserved_host_disk_gb, "pcpus": 0}

    @contextmanager
    def _changing(self, id: str, generation: int | None = None, *,
                  groups: bool = False) -> Iterator[tuple[Connection, Provider]]:
        """Lock the host of provider *id* in a new transaction, and yield the transaction and the provider. *groups*:
        lock all aggregates too. Raises ``NotFound``, and ``Conflict`` for an old *generation*."""
        with self.cloud.store.api.write() as connection:
            if groups:  # Before the host, in the order of changes of aggregates, so that the two cannot deadlock.
                stored_aggregates.fetch_aggregate_rows(connection, lock=True)
            provider = self.placement.read_provider(connection, id, lock=True)
            check_provider_generation(provider, generation)
            yield connection, provider
        self.cloud.hosts.all(fresh=True)

    def set_own(self, id: str, names: Iterable[str] | None, own_inventories: Mapping[str, Mapping[str, Any]] | None,
                dry_run: bool = False) -> None:
        """Set the traits *names* and the inventories *own_inventories* (fields by resource class) that an operator
        defines for a provider. For classes that the agent reports, only ``reserved`` and ``allocation_ratio`` can be
        set. *names* or *own_inventories* that are ``None`` change nothing. Missing custom traits and classes are
        created. *dry_run*: check only, and raise the same errors. Raises the errors of ``set_traits`` and
        ``set_inventories``."""
        with self._changing(id) as (connection, provider):
            if names is not None:
                for name in sorted({*names} - custom_traits.fetch_trait_names(connection)):
                    if not traits.check_custom_traits([name]):
                        custom_traits.insert_trait_row(connection, name)
                self._give_traits(connection, provider, names)
            if own_inventories is not None:
                for name in own_inventories:
                    if not traits.check_custom_traits([name]):
                        inventories.insert_resource_class(connection, name)
                agent_totals = {name: {"total": provider.inventories[name]["total"]}
                                for name in provider.reported_classes}
                requested = {name: {**agent_totals.get(name, {}), **fields} for name, fields in own_inventories.items()}
                self._set_inventories(connection, provider, requested, whole=True, store_equal=True)
            if dry_run:
                connection.rollback()

    # Traits
    def set_traits(self, id: str, generation: int | None, names: Iterable[str]) -> Provider:
        """Set the operator's traits of a provider to *names*, and return the provider. Traits that the host's agent
        reports are not changed. Raises ``InvalidRequest`` for traits that an operator cannot set, ``NotFound``,
        ``Conflict``."""
        with self._changing(id, generation) as (connection, provider):
            self._give_traits(connection, provider, names)
        return self.placement.provider(id)

    def _give_traits(self, connection: Connection, provider: Provider, names: Iterable[str]) -> None:
        own_traits = frozenset(names) - provider.reported_traits
        unknown = own_traits - traits.STANDARD - provider.own_traits
        if missing := sorted(unknown and unknown - custom_traits.fetch_trait_names(connection)):
            raise InvalidRequest(f"No such trait(s): {', '.join(missing)[:255]}. Make custom ones first: PUT "
                                 "/traits/CUSTOM_…")
        if odd := sorted(name for name in own_traits & traits.AGENT_TRAITS if name.startswith("COMPUTE_")):
            raise InvalidRequest(f"{', '.join(odd)[:255]}: what a host can do its agent tells, and {traits.DISABLED} "
                                 "those have that are disabled (`openstack compute service set --disable`).")
        if own_traits != provider.own_traits:
            hosts.update_host_row(connection, provider.name, own_traits=hosts.names_text(own_traits))

    def make_trait(self, name: str) -> bool:
        """Create the custom trait *name*. Return ``True`` if it is new, ``False`` if it already exists. Raises
        ``InvalidRequest`` for a name that is not custom."""
        if name in traits.STANDARD:
            return False
        if wrong := traits.check_custom_traits([name]):
            raise InvalidRequest(f"A trait that is made here is a custom one: {wrong}.")
        with self.cloud.store.api.write() as connection:
            return custom_traits.insert_trait_row(connection, name)

    def drop_trait(self, name: str) -> None:
        """Delete the custom trait *name*. Raises ``InvalidRequest`` for a standard trait, ``InUse`` while a provider
        has it, ``NotFound``."""
        if name in traits.STANDARD:
            raise InvalidRequest(f"Cannot delete standard trait {name}.")
        if users := [provider.name for provider in self.placement.providers() if name in provider.traits]:
            raise InUse(f"The trait {name[:255]} is in use by {', '.join(users[:5])}: take it from these providers "
                        "first, or out of their agents' settings.")
        with self.cloud.store.api.write() as connection:
            if not custom_traits.remove_trait_row(connection, name):
                raise NotFound(f"No such trait(s): {name[:255]}.")

    # Resource classes
    def make_class(self, name: str) -> bool:
        """Create the custom resource class *name*. Return ``True`` if it is new, ``False`` if it already exists. Raises
        ``InvalidRequest`` for a name that is not custom."""
        if name in STANDARD:
            return False
        if traits.check_custom_traits([name]):
            raise InvalidRequest(f"{name[:80]!r} must be CUSTOM_ and capital letters, digits and _: a resource class "
                                 "that is made here is a custom one.")
        with self.cloud.store.api.write() as connection:
            return inventories.insert_resource_class(connection, name)

    def drop_class(self, name: str) -> None:
        """Delete the custom resource class *name*. Raises ``InvalidRequest`` for a standard class, ``InUse`` while a
        provider has an inventory of it, ``NotFound``."""
        if name in STANDARD:
            raise InvalidRequest(f"Cannot delete standard resource class {name}.")
        with self.cloud.store.api.write() as connection:
            roots = self.placement.read_roots(connection)
            if not any(name in provider.inventories for root in roots for provider in root.tree) and (
                    inventories.remove_resource_class(connection, name)):
                return
            if name in inventories.fetch_resource_classes(connection):
                raise InUse(f"Cannot delete resource class {name} which is in use in inventory: delete the "
                            "inventories, or take it out of the agents' provider.yaml and pci_device_spec, first.")
        raise NotFound(f"No such resource class {name[:80]}.")

    # Inventories
    def set_inventories(self, id: str, generation: int | None, requested: Mapping[str, InventoryFields],
                        whole: bool = False) -> Provider:
        """Set the inventories *requested* (fields by resource class) of a provider, and return the provider. *whole*:
        also remove the operator's values of all other classes. A ratio or reserved amount that equals the current value
        is not stored, so that it still changes with the settings and aggregates. Raises ``InvalidField``,
        ``InvalidRequest``, ``NotFound``, ``Conflict``."""
        with self._changing(id, generation) as (connection, provider):
            self._set_inventories(connection, provider, requested, whole)
        return self.placement.provider(id)

    def _set_inventories(self, connection: Connection, provider: Provider, requested: Mapping[str, InventoryFields],
                         whole: bool,
                         store_equal: bool = False) -> None:
        """Set the inventories *requested* (fields by resource class) of a locked provider. *whole*: also remove the
        operator's values of all other classes. *store_equal*: store values even if they equal the current values."""
        if whole:
            requested = {**dict.fromkeys((*provider.inventories, *provider.classes)), **requested}
        _check_inventories(connection, requested)
        columns: dict[str, Any] = {}
        for name, fields in sorted(requested.items()):
            if name not in CLASSES and name not in provider.reported_classes:
                _set_own_class(connection, provider, name, fields)
                continue
            own_values = _own_settings(provider, name, fields, store_equal)
            if name in CLASSES:
                columns |= self._columns(COLUMNS[name], own_values)
            else:
                inventories.save_operator_inventory(connection, provider.id, name, own_values)
        hosts.update_host_row(connection, provider.name, provider.ratios, **columns)

    def _columns(self, column: str, own_values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of the host's row that store *own_values*, the fields that an operator has set for a
        standard resource class. *column*: the column prefix of the class, such as ``vcpus``."""
        reserved = own_values.get("reserved")
        columns = {f"{column}_own_reserved": reserved,
                   f"{column}_reserved": self._reserved[column] if reserved is None else reserved}
        return columns | ({f"{column}_ratio": own_values.get("allocation_ratio")} if column in SHARED else {})

    # Inventories and allocations together
    def reshape(self, requested: Mapping[str, tuple[int, Mapping[str, InventoryFields]]],
                consumer_requests: Mapping[str, ConsumerRequest]) -> None:
        """Replace inventories of providers and allocations of consumers in one transaction, as Placement's reshaper
        does. This moves a resource class from one host to another together with its claims.

        *requested*: by uuid of the provider, a pair of (generation that the client has read, inventories by class).
        *consumer_requests*: the new allocations by the consumer's uuid. Raises the errors of ``set_inventories`` and
        ``Consumers.replace``, except that a missing provider is an ``InvalidRequest``. Raises ``Conflict`` when an
        allocation of a consumer in *consumer_requests*, even an unchanged one, does not fit the new inventories.
        """
        def between(connection: Connection) -> None:
            for id, (generation, fields) in requested.items():
                try:
                    provider = self.placement.read_provider(connection, id, lock=True)
                except NotFound as error:
                    raise InvalidRequest(f"{error} It is named in inventories.") from None
                check_provider_generation(provider, generation)
                self._set_inventories(connection, provider, fields, whole=True)

        def after(connection: Connection) -> None:
            for root in self.placement.read_roots(connection, requested):
                for amounts in (consumer_request.held.get(root.id, {})
                                for consumer_request in consumer_requests.values()):
                    if less := {name: n for name, n in amounts.items() if not root.claims_fit(name, n)}:
                        raise no_room(root.name, less)

        Consumers(self.placement).replace(consumer_requests, requested, between, after)
        self.cloud.hosts.all(fresh=True)

    # Aggregates
    def set_aggregates(self, caller: Caller, id: str, generation: int | None, aggregate_ids: Iterable[str]) -> Provider:
        """Put the host *id* into the aggregates *aggregate_ids* (uuids), remove it from all others, and return the
        provider. Raises ``InvalidRequest`` for an unknown uuid, and the errors of adding or removing a host. After an
        error nothing is changed."""
        with self._changing(id, generation, groups=True) as (connection, provider):
            aggregates.set_host_aggregates(caller, connection, provider.name,
                                           {aggregate_id.lower() for aggregate_id in aggregate_ids})
        return self.placement.provider(id)


def check_provider_generation(provider: Provider, generation: int | None) -> None:
    """Raise ``Conflict`` unless *generation*, which the client has read, is ``None`` or the current generation of
    *provider*."""
    if generation is not None and generation != provider.generation:
        raise Conflict(
            f"Resource provider generation conflict: {provider.name} has generation {provider.generation}, and "
                       f"the request was made for {generation}. Read it again, and ask again.",
                       generation=provider.generation)


def _check_inventories(connection: Connection, requested: Mapping[str, InventoryFields]) -> None:
    """Raise ``InvalidRequest`` or ``InvalidField`` for unknown classes and invalid fields in *requested*, inventory
    fields by resource class."""
    names = {name for name, fields in requested.items() if fields is not None and name not in CLASSES}
    if names and (missing := sorted(names - {*inventories.fetch_resource_classes(connection)} - {*GIVEN_CLASSES})):
        raise InvalidRequest(f"Unknown resource class in inventory: {missing[0][:80]}. Make it first: PUT "
                             "/resource_classes/CUSTOM_…")
    for name, fields in requested.items():
        if fields is None:
            continue
        if "total" not in fields:
            raise InvalidField(f"{name}.total", "is required: no agent tells it")
        if fields.get("reserved", 0) > fields["total"]:
            raise InvalidField(f"{name}.reserved", "must not be more than the total", fields["reserved"])
        ratio = fields.get("allocation_ratio", 1.0)
        if not (math.isfinite(ratio) and ratio > 0) or fields["total"] * ratio > inventories.MOST:
            raise InvalidField(f"{name}.allocation_ratio", f"must be above 0, and the total times it no more than "
                               f"{inventories.MOST}", ratio)


def _set_own_class(connection: Connection, provider: Provider, name: str, fields: InventoryFields) -> None:
    """Set the inventory *fields* of the resource class *name*, which only an operator defines: the agent of *provider*
    does not report it. If *fields* is ``None``, remove the inventory. Raises ``InUse`` when the removed inventory has
    claims."""
    row = provider.classes.get(name)
    if fields is None and row is not None and row.used:
        raise InUse(f"Inventory for {name} on resource provider {provider.name} in use: {row.used} of it are claimed.",
                    in_use=True)
    inventories.save_operator_inventory(connection, provider.id, name,
                                        None if fields is None else Inventory(**fields)._asdict())


def _without_images(provider: Provider, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inventory *fields* of DISK_GB without the disk space of the cached images on *provider*, which
    Placement's API includes in ``reserved``."""
    return {**fields, **({"reserved": max(0, fields["reserved"] - provider.images_gb)} if "reserved" in fields else {})}


def _own_settings(provider: Provider, name: str, fields: InventoryFields, store_equal: bool) -> dict[str, Any]:
    """Return the operator's values to store for the resource class *name*, which the agent reports; {} if *fields* is
    ``None``. Values that equal the values in effect are left out, unless the operator has already set them or
    *store_equal* is true. Raises ``InvalidField``, ``InvalidRequest``."""
    if fields is None:
        return {}
    have, own_values = provider.inventories.get(name), provider.own_inventories.get(name, {})
    if have is None:
        raise InvalidRequest(f"Host {provider.name} has no {name}: its agent tells none.")
    if name == "DISK_GB" and not store_equal:  # the API shows reserved with the share of images
        have, fields = _without_images(provider, have), _without_images(provider, fields)
    for field in ("total", "min_unit", "max_unit", "step_size"):
        if field == "max_unit" and fields.get(field, 0) >= have["total"]:
            continue
        if fields.get(field, have[field]) != have[field]:
            raise InvalidField(f"{name}.{field}", f"is {have[field]}, as the agent of {provider.name} tells; there are "
                               f"{' and '.join(inventories.SETTABLE)} to set", fields[field])
    if COLUMNS.get(name, SHARED[0]) not in SHARED and fields.get("allocation_ratio", 1.0) != 1.0:
        raise InvalidField(f"{name}.allocation_ratio", "must be 1.0: a dedicated CPU is one server's",
                           fields["allocation_ratio"])
    return {key: fields[key] for key in inventories.SETTABLE
            if key in fields and (store_equal or key in own_values or fields[key] != have[key])}
