# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.reconcile.documents import Documents

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_agent.reconcile.documents import Document


class MemoryDocuments(Documents):
    """The documents of a simulated host. They end with the process."""

    def _load(self, root: Path) -> None:
        """Load nothing: a simulated host starts without documents."""

    def _store(self, document: Document, text: str, durable: bool) -> None:
        """Write nothing: ``Documents`` itself has the document in memory."""

    def _discard(self, document: Document) -> None:
        """Remove nothing from disk: ``Documents`` itself forgets the document."""
