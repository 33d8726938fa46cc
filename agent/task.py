# SPDX-License-Identifier: GPL-3.0-or-later
"""What a driver's verb works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from magnetar_agent.documents import sync_folder
from magnetar_core.errors import Conflict

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_agent.documents import Document
    from magnetar_agent.host import LocalHost
    from magnetar_core.operations import Operation


@dataclass
class Task:
    """One resource that a verb changes. The verb may change ``document.state`` and must ``keep`` it before it acts on
    the host."""

    host: LocalHost
    document: Document
    operation: Operation
    noted: bool = False
    #: Folders with files that the document is about to mention, whose names are not flushed yet.
    folders: set[Path] = field(default_factory=set)

    def keep(self) -> None:
        """Write the document as it is now."""
        self._write(durable=True)

    def note(self, folder: Path | None = None) -> None:
        """The document has changed and need not be written yet: a crash before the next ``keep`` only has the verb done
        again. It is written with the next change, and before the guest starts (``keep_notes``).

        *folder* is where the verb has made files. It is flushed before the document says that they are there: once,
        however many verbs have made files in it."""
        self.noted = True
        if folder is not None:
            self.folders.add(folder)

    def keep_notes(self) -> None:
        """Write the document if something was noted, so that an agent that is killed while the guest starts reads it.
        A loss of power brings back the document before it: then the guest is off, nobody was told that it had started,
        and the verbs are done again, as ``note`` says. So nothing is flushed before the next ``keep``.
        """
        if self.noted:
            self._write(durable=False)

    def _write(self, durable: bool) -> None:
        while durable and self.folders:
            sync_folder(self.folders.pop())
        self.host.documents.write(self.document, durable)
        self.noted = False


Verb = Callable[..., None]


class NotRemovable(Conflict):
    """A verb refuses a removal, and nothing of it was done: what was to be removed stays as it was."""
