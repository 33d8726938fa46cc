# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with a full disk, so that its agent cannot write documents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from magnetar_agent.reconcile.documents import Document
from magnetar_core.errors import NoSpace

from .pair import Kvm


class FullDisk:
    """A disk that is full when the agent writes its *number*-th document; *lasting*: also at later writes."""

    def __init__(self, number: int, lasting: bool) -> None:
        self.number, self.lasting, self.count = number, lasting, 0

    @property
    def was_full(self) -> bool:
        """Whether a write has failed."""
        return self.count >= self.number

    @contextmanager
    def of(self, host: Kvm) -> Iterator[None]:
        """Within the context, make this the disk of *host*."""
        documents: Any = host.agent.host.documents
        write = documents.write

        def writes(document: Document, durable: bool = True) -> None:
            self.count += 1
            if self.count == self.number or (self.was_full and self.lasting):
                raise NoSpace(f"{document.kind} {document.name} cannot be written: no space left on device.")
            write(document, durable)

        documents.write = writes
        try:
            yield
        finally:
            del documents.write
