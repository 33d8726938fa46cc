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
    """The interface of a resource driver, which manages the resources of one type on the host. In its methods,
    *document* is the JSON file with a resource's desired state, *want* its requested fields, and *have* its fields as
    they are on the host now."""

    @property
    def kind(self) -> type[Kind]:
        """The class of the driver's resource type, such as ``Server``."""

    @property
    def unique_names(self) -> bool:
        """Whether names of resources are unique. False for servers, because servers that are created by uuid may have
        the same name."""

    @property
    def verbs(self) -> Mapping[str, Verb]:
        """The functions that execute the steps from ``plan``. Each step has the name of its function (its verb), and
        keyword arguments for it (``args``). The first argument is a ``Task``, which has the host, the resource's
        document, and the running operation. The functions must be idempotent."""

    def locate(self, host: LocalHost, key: str) -> str:
        """Return the uuid or name of the resource that a request addresses by *key*. Returns *key* itself, except for
        resource types whose keys consist of names of other resources, such as SERVER:VOLUME."""

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the fields to store for *want*: replace references by uuids, and choose random values. *want*: the
        requested fields, already checked, merged with the stored ones, and with defaults. *document*: the stored
        resource; ``None`` if it is new. Raises an error if this host cannot fulfil the request. Changes nothing."""

    def check_replacement(self, host: LocalHost, want: Fields, requested: Fields, document: Document) -> None:
        """Raise an error if a resource with the fields *want* could not be created after *document* was removed. Called
        for requests with ``on_immutable: recreate``, which replace the resource if a field that cannot be changed
        differs from the request. *requested*: the fields that the caller sent. May change *want*."""

    def release(self, host: LocalHost, document: Document) -> None:
        """Raise ``InUse`` or ``Conflict``, with the reason, if the stored resource *document* must not be removed now.
        """

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """Return data about the host that many ``observe`` calls can share; ``None`` if ``observe`` needs none.
        *document*: return data for this resource only; ``None``: for all resources."""

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the fields of a stored resource as they are on the host now; ``None`` if nothing of the resource
        exists. *snapshot*: the result of ``snapshot``; read the host if it is ``None``."""

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps that change the current fields *have* to the requested fields *want* (``None``: the resource
        does not exist). Has no side effects."""

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the resource's fields as API responses show them. *have*: the result of ``observe``."""

    def sweep(self, host: LocalHost) -> None:
        """Remove files and objects of this resource type that belong to no stored resource."""

    def left(self, host: LocalHost) -> list[str]:
        """Return the paths of files of this resource type that belong to no stored resource, but that ``sweep`` does
        not remove, because they may contain users' data."""


@runtime_checkable
class SubresourceDriver(Protocol):
    """The interface of a driver for resources that are not stored separately: each of these resources is a part of
    another resource."""

    def ensure(self, host: LocalHost, key: str, want: Fields | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """Create or change the resource *key*, or remove it if *want* is ``None``, by changing the stored resource that
        contains it. Return the result. *permissions*: options of the request, such as ``on_immutable``, the policy for
        changes of fixed fields (``fail``, ``recreate``, …). *dry_run*: change nothing, and only return the steps."""

    def one(self, host: LocalHost, key: str) -> Fields:
        """Return the fields of the resource *key* as API responses show them. Raises ``NotFound``."""

    def every(self, host: LocalHost) -> list[Fields]:
        """Return the fields of all resources as API responses show them."""


class Drivers:
    """The drivers of all resource types of a host."""

    def __init__(self, host: LocalHost, drivers: Iterable[Driver]) -> None:
        self.host = host
        self.by_noun: Mapping[str, Driver] = {driver.kind.noun: driver for driver in drivers}

    def __iter__(self) -> Iterator[Driver]:
        return iter(self.by_noun.values())

    def of(self, kind: type[Kind]) -> Driver:
        """Return the driver of the resource type *kind*. Raises ``InvalidField`` for a read-only type, which has no
        driver."""
        driver = self.by_noun.get(kind.noun)
        if not driver:
            raise InvalidField(kind.noun, "is read only")
        return driver
