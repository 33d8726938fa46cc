# SPDX-License-Identifier: GPL-3.0-or-later
"""Resource drivers: one for each resource type, such as server. A driver observes the host, plans the steps from the
current to the requested state without side effects, and applies the plan with a table of verbs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from magnetar_core.errors import InvalidField
from magnetar_core.fields import Kind
from magnetar_core.plan import Step

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Verb
    from magnetar_core.operations import Operation
    from magnetar_core.plan import Result


class Driver(Protocol):
    """A resource driver: the interface between ``reconcile`` and the resources of one type. In its methods, *want* is
    the requested document of a resource, and *have* its current state on the host."""

    @property
    def kind(self) -> type[Kind]:
        """Return the driver's resource type."""

    @property
    def unique_names(self) -> bool:
        """Return whether each name may have at most one resource. False for servers: two that are made by uuid may
        share a name."""

    @property
    def verbs(self) -> Mapping[str, Verb]:
        """Map the name of each verb to ``function(task, **step.args)``. Every verb is idempotent."""

    def locate(self, host: LocalHost, key: str) -> str:
        """Return the uuid or name of the resource that a request names by *key*: *key* itself, except for kinds whose
        key names other resources."""

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the fields to store for *want* (checked, merged, defaults filled in): resolve references to uuids,
        draw random values, and raise an error for what this host cannot do. Changes nothing."""

    def check_replacement(self, host: LocalHost, want: Fields, requested: Fields, document: Document) -> None:
        """Raise an error if *want* (complete) could not be created after the removal of *document* (``on_immutable:
        recreate``). *requested*: the fields that the caller sent. May change *want*."""

    def release(self, host: LocalHost, document: Document) -> None:
        """Raise ``InUse``, naming the users, if the resource *document* must not be removed now."""

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """Return a snapshot of the host for many ``observe`` calls in a row; with *document* only the part that it
        needs. ``None`` if ``observe`` needs no snapshot."""

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the fields of *document* as they are on the host now; ``None`` if no part of the resource exists."""

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps from the current state *have* to the requested fields *want* (``None``: absent). No side
        effects. Storing the document is not a step."""

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the resource as API responses show it: with the fields of its kind that are meant for responses."""

    def sweep(self, host: LocalHost) -> None:
        """Remove leftovers of this kind that no document needs."""

    def left(self, host: LocalHost) -> list[str]:
        """Return files of this kind that no document names and that ``sweep`` keeps, as they may hold users' data.
        Removes nothing."""


@runtime_checkable
class SubresourceDriver(Protocol):
    """A resource driver of resources without documents of their own: each is part of another resource's document."""

    def ensure(self, host: LocalHost, key: str, want: Fields | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """Create or change the resource *key*, or remove it if *want* is ``None``, by a change of the document that
        contains it (``LocalHost.revise``). Return the result. The parameters are those of
        ``reconcile.ensure_resource``."""

    def one(self, host: LocalHost, key: str) -> Fields:
        """Return the resource *key* as API responses show it. Raises ``NotFound``."""

    def every(self, host: LocalHost) -> list[Fields]:
        """Return all resources as API responses show them."""


class Drivers:
    """The host, and the driver of each kind of resource on it."""

    def __init__(self, host: LocalHost, drivers: Iterable[Driver]) -> None:
        self.host = host
        self.by_noun: Mapping[str, Driver] = {driver.kind.noun: driver for driver in drivers}

    def __iter__(self) -> Iterator[Driver]:
        return iter(self.by_noun.values())

    def of(self, kind: type[Kind]) -> Driver:
        """Return the driver of *kind*. Raises ``InvalidField`` for a read-only kind, which has no driver."""
        driver = self.by_noun.get(kind.noun)
        if not driver:
            raise InvalidField(kind.noun, "is read only")
        return driver
