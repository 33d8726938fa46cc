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
    """A driver for resources that exist only as a document, the JSON file with their desired state, and not on the
    host. It is also the base class of other drivers."""

    verbs: Mapping[str, Verb] = {}
    unique_names = True

    def __init__(self, kind: type[Kind]) -> None:
        self.kind = kind

    def locate(self, host: LocalHost, key: str) -> str:
        """Return *key* unchanged, because keys of this resource type are names or uuids."""
        return key

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* unchanged."""
        return want

    def check_replacement(self, host: LocalHost, want: Fields, requested: Fields, document: Document) -> None:
        """Do nothing, because every replacement is allowed."""

    def release(self, host: LocalHost, document: Document) -> None:
        """Do nothing, because every removal is allowed."""

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """Return ``None``, because ``observe`` needs no data about the host."""
        return None

    def sweep(self, host: LocalHost) -> None:
        """Do nothing, because this resource type has no files or objects on the host."""

    def left(self, host: LocalHost) -> list[str]:
        """Return an empty list, because this resource type has no files."""
        return []

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the stored fields, because the resource exists only as a document."""
        return document.want

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield no steps, because nothing on the host must change."""
        yield from ()

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the fields of the stored resource *document* as API responses show them. *have* and *snapshot*, data
        about the host, are not used, because the resource exists only as a document."""
        values = {**document.want, **document.state, "id": document.id, "name": document.name,
                  "created_at": document.created_at, "updated_at": document.updated_at}
        return {f.name: values.get(f.name) for f in self.kind.fields if SHOW in f.on}
