# SPDX-License-Identifier: GPL-3.0-or-later
"""A host whose disk is full: documents of its agent cannot be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from magnetar_agent.reconcile.documents import Document
from magnetar_core.errors import NoSpace

from .pair import Kvm


class FullDisk:
    """The *number*-th document cannot be written; *lasting*: nor can any after it."""

    def __init__(self, number: int, lasting: bool) -> None:
        self.number, self.lasting, self.count = number, lasting, 0

    @property
    def was_full(self) -> bool:
        """Whether it came to that."""
        return self.count >= self.number

    @contextmanager
    def of(self, host: Kvm) -> Iterator[None]:
        """Within, the disk of *host* is such a one."""
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
