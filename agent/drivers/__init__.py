# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers: one per kind. Each observes the host, plans purely, and applies with a table of verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from magnetar_core.fields import Kind
from magnetar_core.plan import Step

if TYPE_CHECKING:
    from magnetar_agent.agent import Agent
    from magnetar_agent.documents import Document
    from magnetar_agent.operations import Operation
    from magnetar_core.plan import Result

#: A document's fields, or a view of them as they are on the host.
Fields = dict[str, Any]


@dataclass
class Task:
    """What a verb works with. It may change ``document.state`` and must ``keep`` it before it acts on the host."""

    agent: Agent
    document: Document
    operation: Operation
    noted: bool = False

    def keep(self) -> None:
        """Write the document as it is now."""
        self.agent.documents.write(self.document)
        self.noted = False

    def note(self) -> None:
        """The document says more now. It is kept with the next change, and before a guest runs (``keep_notes``): until
        then what it says could be done again, as nobody has used it."""
        self.noted = True

    def keep_notes(self) -> None:
        """Keep what was noted."""
        if self.noted:
            self.keep()


Verb = Callable[..., None]


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

    def locate(self, agent: Agent, key: str) -> str:
        """The uuid or name that *key* of a request stands for; itself, but for kinds whose key names others."""

    def complete(self, agent: Agent, want: Fields, document: Document | None) -> Fields:
        """Turn *want* (checked, merged, defaults filled in) into what will be kept: resolve references to uuids, draw
        what chance decides, and refuse what this host cannot do. Changes nothing."""

    def anew(self, agent: Agent, want: Fields, given: Fields, document: Document) -> None:
        """*want*, which was completed, is about to take the place of *document*, for the sake of the fields *given*:
        refuse what can be seen to fail once the old one is gone. May change *want*."""

    def release(self, agent: Agent, document: Document) -> None:
        """Raise ``InUse``, naming the users, when the resource may not go."""

    def snapshot(self, agent: Agent, document: Document | None = None) -> Any:
        """One look at the whole host, for many ``observe`` calls in a row; or at what *document* needs."""

    def observe(self, agent: Agent, document: Document, snapshot: Any = None) -> Fields | None:
        """The fields of *document* as they are on the host now; ``None`` when nothing of it is there."""

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps from *have* to *want* (``None``: absent). Pure. Recording the document is not a step here."""

    def show(self, agent: Agent, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """The resource as answers show it: the fields of the kind that are for ``show``."""

    def sweep(self, agent: Agent) -> None:
        """Remove what only this kind leaves behind and no document needs."""

    def left(self, agent: Agent) -> list[str]:
        """Files of this kind that no document knows, and that ``sweep`` leaves: somebody's data may be in them. Removes
        nothing."""


@runtime_checkable
class Part(Protocol):
    """A driver of resources that are part of others' documents, and have none of their own."""

    def ensure(self, agent: Agent, key: str, want: Fields | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """As ``reconcile.ensure``: change the document that it is part of, by ``reconcile.revise``."""

    def one(self, agent: Agent, key: str) -> Fields:
        """The resource *key* as answers show it. Raises ``NotFound``."""

    def every(self, agent: Agent) -> list[Fields]:
        """All resources as answers show them."""
