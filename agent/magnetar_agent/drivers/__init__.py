# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers: one per kind. Each observes the host, plans purely, and applies with a table of verbs."""

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
    """How resources of one kind are made so."""

    @property
    def kind(self) -> type[Kind]:
        """The kind that it drives."""

    @property
    def unique_names(self) -> bool:
        """Whether two resources may not share a name (servers made by uuid may)."""

    @property
    def verbs(self) -> Mapping[str, Verb]:
        """Verb name to ``function(task, **step.args)``. Each is repeatable: done twice is done once."""

    def locate(self, host: LocalHost, key: str) -> str:
        """The uuid or name that *key* of a request stands for; itself, but for kinds whose key names others."""

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Turn *want* (checked, merged, defaults filled in) into what will be kept: resolve references to uuids, draw
        what chance decides, and refuse what this host cannot do. Changes nothing."""

    def check_replacement(self, host: LocalHost, want: Fields, given: Fields, document: Document) -> None:
        """``on_immutable: recreate`` is about to remove *document* and make *want*, which was completed, in its place.
        The caller asked for the fields *given*. Refuse what would fail once the old one is gone. May change *want*."""

    def release(self, host: LocalHost, document: Document) -> None:
        """Raise ``InUse``, naming the users, when the resource may not go."""

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """One look at the whole host, for many ``observe`` calls in a row; or at what *document* needs."""

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """The fields of *document* as they are on the host now; ``None`` when nothing of it is there."""

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps from *have* to *want* (``None``: absent). Pure. Recording the document is not a step here."""

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """The resource as answers show it: the fields of the kind that are for ``show``."""

    def sweep(self, host: LocalHost) -> None:
        """Remove what only this kind leaves behind and no document needs."""

    def left(self, host: LocalHost) -> list[str]:
        """Files of this kind that no document knows, and that ``sweep`` leaves: somebody's data may be in them. Removes
        nothing."""


@runtime_checkable
class SubresourceDriver(Protocol):
    """A driver of resources that are part of another resource's document, and have none of their own."""

    def ensure(self, host: LocalHost, key: str, want: Fields | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """As ``reconcile.ensure``: change the document that it is part of, by ``LocalHost.revise``."""

    def one(self, host: LocalHost, key: str) -> Fields:
        """The resource *key* as answers show it. Raises ``NotFound``."""

    def every(self, host: LocalHost) -> list[Fields]:
        """All resources as answers show them."""


class Drivers:
    """The host, and the driver of each kind of resource on it."""

    def __init__(self, host: LocalHost, drivers: Iterable[Driver]) -> None:
        self.host = host
        self.by_noun: Mapping[str, Driver] = {driver.kind.noun: driver for driver in drivers}

    def __iter__(self) -> Iterator[Driver]:
        return iter(self.by_noun.values())

    def of(self, kind: type[Kind]) -> Driver:
        """The driver of *kind*. Raises ``InvalidField`` for a kind without one, which is read only."""
        found = self.by_noun.get(kind.noun)
        if not found:
            raise InvalidField(kind.noun, "is read only")
        return found
