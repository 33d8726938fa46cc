# SPDX-License-Identifier: GPL-3.0-or-later
"""What operators change of resource providers: traits, inventories, aggregates; and custom traits and resource classes.

What an agent tells of its host stays: an operator adds traits and resource classes of its own, and sets what is kept
from servers (``reserved``) and how often it is promised (``allocation_ratio``). It counts from the transaction on that
writes it, for claims, and within seconds for conductors, and stays whatever the agent tells next.
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

from .consumers import Consumers, Wish, no_room
from .placement import Placement
from .provider_tree import CLASSES, COLUMNS, STANDARD, Provider

#: An inventory as it is asked for: fields of ``Inventory``; ``None``: what an operator has set goes.
Wanted = Mapping[str, Any] | None


class Providers:
    """Changes of the providers of *placement*. *generation*: the one that the caller has seen; ``None``: whatever."""

    def __init__(self, placement: Placement) -> None:
        self.placement, self.cloud = placement, placement.cloud
        settings = self.cloud.settings
        self._reserved = {"vcpus": settings.reserved_host_cpus, "memory_mb": settings.reserved_host_memory_mb,
                          "disk_gb": settings.reserved_host_disk_gb, "pcpus": 0}

    @contextmanager
    def _changing(self, id: str, generation: int | None = None, *,
                  groups: bool = False) -> Iterator[tuple[Connection, Provider]]:
        """Within, a transaction with the host locked; *groups*: and all aggregates. Raises ``NotFound``,
        ``Conflict``."""
        with self.cloud.store.api.write() as connection:
            if groups:  # ahead of the host, as whoever changes an aggregate: else the two could wait for each other
                stored_aggregates.every(connection, lock=True)
            found = self.placement.read_provider(connection, id, lock=True)
            check_generation(found, generation)
            yield connection, found
        self.cloud.hosts.all(fresh=True)

    def set_own(self, id: str, names: Iterable[str] | None, own: Mapping[str, Mapping[str, Any]] | None,
                dry_run: bool = False) -> None:
        """Set all that operators say of a provider: its traits, and what they set of inventories by class (of those
        that an agent tells, what may be set only); ``None`` leaves these as they are. Custom traits and classes are
        made. *dry_run* changes nothing, and raises what would be refused: as ``set_traits`` and ``set_inventories``.
        """
        with self._changing(id) as (connection, found):
            if names is not None:
                for name in sorted({*names} - custom_traits.every(connection)):
                    if not traits.check_custom([name]):
                        custom_traits.add(connection, name)
                self._give_traits(connection, found, names)
            if own is not None:
                for name in own:
                    if not traits.check_custom([name]):
                        inventories.add_class(connection, name)
                told = {name: {"total": found.inventories[name]["total"]} for name in found.told_classes}
                wanted = {name: {**told.get(name, {}), **fields} for name, fields in own.items()}
                self._set_inventories(connection, found, wanted, whole=True, sure=True)
            if dry_run:
                connection.rollback()

    # Traits
    def set_traits(self, id: str, generation: int | None, names: Iterable[str]) -> Provider:
        """Have it have these traits, and those that its agent tells. Raises ``InvalidRequest`` for what no host can
        have, ``NotFound``, ``Conflict``."""
        with self._changing(id, generation) as (connection, found):
            self._give_traits(connection, found, names)
        return self.placement.provider(id)

    def _give_traits(self, connection: Connection, found: Provider, names: Iterable[str]) -> None:
        own = frozenset(names) - found.told_traits
        unknown = own - traits.STANDARD - found.own_traits
        if missing := sorted(unknown and unknown - custom_traits.every(connection)):
            raise InvalidRequest(f"No such trait(s): {', '.join(missing)[:255]}. Make custom ones first: PUT "
                                 "/traits/CUSTOM_…")
        if odd := sorted(name for name in own & traits.TOLD if name.startswith("COMPUTE_")):
            raise InvalidRequest(f"{', '.join(odd)[:255]}: what a host can do its agent tells, and {traits.DISABLED} "
                                 "those have that are disabled (`openstack compute service set --disable`).")
        if own != found.own_traits:
            hosts.set_host(connection, found.name, own_traits=hosts.names_text(own))

    def make_trait(self, name: str) -> bool:
        """Make a custom trait; ``False`` where there is one. Raises ``InvalidRequest`` for another name."""
        if name in traits.STANDARD:
            return False
        if wrong := traits.check_custom([name]):
            raise InvalidRequest(f"A trait that is made here is a custom one: {wrong}.")
        with self.cloud.store.api.write() as connection:
            return custom_traits.add(connection, name)

    def drop_trait(self, name: str) -> None:
        """Remove a custom trait. Raises ``InvalidRequest`` for a standard one, ``InUse``, ``NotFound``."""
        if name in traits.STANDARD:
            raise InvalidRequest(f"Cannot delete standard trait {name}.")
        if users := [one.name for one in self.placement.providers() if name in one.traits]:
            raise InUse(f"The trait {name[:255]} is in use by {', '.join(users[:5])}: take it from these providers "
                        "first, or out of their agents' settings.")
        with self.cloud.store.api.write() as connection:
            if not custom_traits.drop(connection, name):
                raise NotFound(f"No such trait(s): {name[:255]}.")

    # Resource classes
    def make_class(self, name: str) -> bool:
        """Make a custom resource class; ``False`` where there is one. Raises ``InvalidRequest`` for another name."""
        if name in STANDARD:
            return False
        if traits.check_custom([name]):
            raise InvalidRequest(f"{name[:80]!r} must be CUSTOM_ and capital letters, digits and _: a resource class "
                                 "that is made here is a custom one.")
        with self.cloud.store.api.write() as connection:
            return inventories.add_class(connection, name)

    def drop_class(self, name: str) -> None:
        """Remove a custom resource class. Raises ``InvalidRequest`` for a standard one, ``InUse``, ``NotFound``."""
        if name in STANDARD:
            raise InvalidRequest(f"Cannot delete standard resource class {name}.")
        with self.cloud.store.api.write() as connection:
            roots = self.placement.read_roots(connection)
            if not any(name in one.inventories for root in roots for one in root.tree) and (
                    inventories.drop_class(connection, name)):
                return
            if name in inventories.classes(connection):
                raise InUse(f"Cannot delete resource class {name} which is in use in inventory: delete the "
                            "inventories, or take it out of the agents' provider.yaml and pci_device_spec, first.")
        raise NotFound(f"No such resource class {name[:80]}.")

    # Inventories
    def set_inventories(self, id: str, generation: int | None, wanted: Mapping[str, Wanted],
                        whole: bool = False) -> Provider:
        """Set inventories by class; *whole*: of the others goes what operators have set. A ratio or reserved amount
        that is as it was, by settings and aggregates, goes on following them. Raises ``InvalidField``,
        ``InvalidRequest``, ``NotFound``, ``Conflict``."""
        with self._changing(id, generation) as (connection, found):
            self._set_inventories(connection, found, wanted, whole)
        return self.placement.provider(id)

    def _set_inventories(self, connection: Connection, found: Provider, wanted: Mapping[str, Wanted], whole: bool,
                         sure: bool = False) -> None:
        """*sure*: what is as it was is set too."""
        if whole:
            wanted = {**dict.fromkeys((*found.inventories, *found.classes)), **wanted}
        _check_known(connection, wanted)
        columns: dict[str, Any] = {}
        for name, fields in sorted(wanted.items()):
            if name not in CLASSES and name not in found.told_classes:
                _set_own_class(connection, found, name, fields)
                continue
            own = _own(found, name, fields, sure)
            if name in CLASSES:
                columns |= self._columns(COLUMNS[name], own)
            else:
                inventories.set_own(connection, found.id, name, own)
        hosts.set_host(connection, found.name, found.ratios, **columns)

    def _columns(self, column: str, own: Mapping[str, Any]) -> dict[str, Any]:
        """Columns of the host for what is set of a standard class."""
        reserved = own.get("reserved")
        found = {f"{column}_own_reserved": reserved,
                 f"{column}_reserved": self._reserved[column] if reserved is None else reserved}
        return found | ({f"{column}_ratio": own.get("allocation_ratio")} if column in SHARED else {})

    # Both together
    def reshape(self, wanted: Mapping[str, tuple[int, Mapping[str, Wanted]]], held: Mapping[str, Wish]) -> None:
        """Set all inventories of providers, by uuid, of the generation that the caller has seen; and have consumers,
        by uuid, hold what is wanted: in one transaction, or nothing. So what is held of a class can go from one host to
        another with its inventory. Raises as ``set_inventories`` and ``Consumers.replace`` do, but ``InvalidRequest``
        for a provider that there is not; and ``Conflict`` where what these consumers hold, be it as before, does not
        fit into these inventories."""
        def between(connection: Connection) -> None:
            for id, (generation, fields) in wanted.items():
                try:
                    found = self.placement.read_provider(connection, id, lock=True)
                except NotFound as error:
                    raise InvalidRequest(f"{error} It is named in inventories.") from None
                check_generation(found, generation)
                self._set_inventories(connection, found, fields, whole=True)

        def after(connection: Connection) -> None:
            for found in self.placement.read_roots(connection, wanted):
                for amounts in (wish.held.get(found.id, {}) for wish in held.values()):
                    if less := {name: n for name, n in amounts.items() if not found.bears(name, n)}:
                        raise no_room(found.name, less)

        Consumers(self.placement).replace(held, wanted, between, after)
        self.cloud.hosts.all(fresh=True)

    # Aggregates
    def set_aggregates(self, caller: Caller, id: str, generation: int | None, wanted: Iterable[str]) -> Provider:
        """Have the host be in the host aggregates of these uuids, and no others. Raises ``InvalidRequest`` for what is
        none, and what refuses the host to go or come; nothing has changed then."""
        with self._changing(id, generation, groups=True) as (connection, found):
            aggregates.set_of_host(caller, connection, found.name, {one.lower() for one in wanted})
        return self.placement.provider(id)


def check_generation(found: Provider, generation: int | None) -> None:
    """Raises ``Conflict`` where the caller has seen another generation."""
    if generation is not None and generation != found.generation:
        raise Conflict(f"Resource provider generation conflict: {found.name} has generation {found.generation}, and "
                       f"the request was made for {generation}. Read it again, and ask again.",
                       generation=found.generation)


def _check_known(connection: Connection, wanted: Mapping[str, Wanted]) -> None:
    """Raises ``InvalidRequest``, ``InvalidField`` for classes and fields that cannot be."""
    names = {name for name, fields in wanted.items() if fields is not None and name not in CLASSES}
    if names and (missing := sorted(names - {*inventories.classes(connection)} - {*GIVEN_CLASSES})):
        raise InvalidRequest(f"Unknown resource class in inventory: {missing[0][:80]}. Make it first: PUT "
                             "/resource_classes/CUSTOM_…")
    for name, fields in wanted.items():
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


def _set_own_class(connection: Connection, found: Provider, name: str, fields: Wanted) -> None:
    """An inventory of a class that its agent does not tell. Raises ``InUse``."""
    row = found.classes.get(name)
    if fields is None and row is not None and row.used:
        raise InUse(f"Inventory for {name} on resource provider {found.name} in use: {row.used} of it are claimed.",
                    in_use=True)
    inventories.set_own(connection, found.id, name, None if fields is None else Inventory(**fields)._asdict())


def _without_images(found: Provider, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an inventory of the disk, with what is reserved besides the content of images."""
    return {**fields, **({"reserved": max(0, fields["reserved"] - found.images_gb)} if "reserved" in fields else {})}


def _own(found: Provider, name: str, fields: Wanted, sure: bool) -> dict[str, Any]:
    """What is set then of a class that its agent tells. Raises ``InvalidField``, ``InvalidRequest``."""
    if fields is None:
        return {}
    have, own = found.inventories.get(name), found.own_inventories.get(name, {})
    if have is None:
        raise InvalidRequest(f"Host {found.name} has no {name}: its agent tells none.")
    if name == "DISK_GB" and not sure:  # what is shown has what images take in it, which comes besides what is set
        have, fields = _without_images(found, have), _without_images(found, fields)
    for field in ("total", "min_unit", "max_unit", "step_size"):
        if field == "max_unit" and fields.get(field, 0) >= have["total"]:
            continue
        if fields.get(field, have[field]) != have[field]:
            raise InvalidField(f"{name}.{field}", f"is {have[field]}, as the agent of {found.name} tells; there are "
                               f"{' and '.join(inventories.SETTABLE)} to set", fields[field])
    if COLUMNS.get(name, SHARED[0]) not in SHARED and fields.get("allocation_ratio", 1.0) != 1.0:
        raise InvalidField(f"{name}.allocation_ratio", "must be 1.0: a dedicated CPU is one server's",
                           fields["allocation_ratio"])
    return {one: fields[one] for one in inventories.SETTABLE
            if one in fields and (sure or one in own or fields[one] != have[one])}
