# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource driver of kinds that consist of a document only: flavor and keypair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from magnetar_agent.reconcile.documents import Fields
from magnetar_agent.reconcile.task import Verb
from magnetar_core.fields import SHOW, Kind
from magnetar_core.plan import Step

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document


class DocumentDriver:
    """A driver that only reads and writes the document. Other drivers derive from it."""

    verbs: Mapping[str, Verb] = {}
    unique_names = True

    def __init__(self, kind: type[Kind]) -> None:
        self.kind = kind

    def locate(self, host: LocalHost, key: str) -> str:
        """Return *key*: keys are names or uuids."""
        return key

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested document *want* unchanged."""
        return want

    def check_replacement(self, host: LocalHost, want: Fields, requested: Fields, document: Document) -> None:
        """Permit every replacement."""

    def release(self, host: LocalHost, document: Document) -> None:
        """Permit every removal."""

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """Return ``None``: ``observe`` needs no snapshot of the host for a document."""
        return None

    def sweep(self, host: LocalHost) -> None:
        """Do nothing: there are no leftovers."""

    def left(self, host: LocalHost) -> list[str]:
        """Return an empty list: there are no files."""
        return []

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the fields of the document."""
        return document.want

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield no steps: nothing exists except the document."""
        yield from ()

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the fields of the kind that responses show, as far as the document has them."""
        values = {**document.want, **document.state, "id": document.id, "name": document.name,
                  "created_at": document.created_at, "updated_at": document.updated_at}
        return {f.name: values.get(f.name) for f in self.kind.fields if SHOW in f.on}
