# SPDX-License-Identifier: GPL-3.0-or-later
"""What a driver's verb works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict

if TYPE_CHECKING:
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

    def keep(self) -> None:
        """Write the document as it is now."""
        self.host.documents.write(self.document)
        self.noted = False

    def note(self) -> None:
        """The document has changed and need not be written yet: a crash before the next ``keep`` only has the verb done
        again. It is written with the next change, and before the guest starts (``keep_notes``)."""
        self.noted = True

    def keep_notes(self) -> None:
        """Write the document if something was noted."""
        if self.noted:
            self.keep()


Verb = Callable[..., None]


class NotRemovable(Conflict):
    """A verb refuses a removal, and nothing of it was done: what was to be removed stays as it was."""
