# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of kinds that are documents and nothing else: flavor and keypair."""

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
    """Observe reads the document; nothing else is there to do. Other drivers build on it."""

    verbs: Mapping[str, Verb] = {}
    unique_names = True

    def __init__(self, kind: type[Kind]) -> None:
        self.kind = kind

    def locate(self, host: LocalHost, key: str) -> str:
        """Keys are names or uuids."""
        return key

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Kept as it was asked for."""
        return want

    def check_replacement(self, host: LocalHost, want: Fields, given: Fields, document: Document) -> None:
        """Cannot fail."""

    def release(self, host: LocalHost, document: Document) -> None:
        """May always go."""

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """Nothing to look at."""
        return None

    def sweep(self, host: LocalHost) -> None:
        """Leaves nothing behind."""

    def left(self, host: LocalHost) -> list[str]:
        """Has no files."""
        return []

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """A document is what it says."""
        return document.want

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Nothing beyond the document itself."""
        yield from ()

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """All fields that are for show and known from the document."""
        known = {**document.want, **document.state, "id": document.id, "name": document.name,
                 "created_at": document.created_at, "updated_at": document.updated_at}
        return {f.name: known.get(f.name) for f in self.kind.fields if SHOW in f.on}
