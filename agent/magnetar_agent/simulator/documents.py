# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents of simulated hosts, kept in memory only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.reconcile.documents import Documents

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_agent.reconcile.documents import Document


class MemoryDocuments(Documents):
    """The documents (JSON resources) of a simulated host, stored only in memory."""

    def _load(self, root: Path) -> None:
        """Override ``Documents._load``: load nothing, since a simulated host starts without documents."""

    def _store(self, document: Document, text: str, durable: bool) -> None:
        """Override ``Documents._store``: write nothing to disk; the document stays in memory."""

    def _discard(self, document: Document) -> None:
        """Override ``Documents._discard``: remove nothing from disk."""
