# SPDX-License-Identifier: GPL-3.0-or-later
"""What a driver's verb works with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict, NoSpace

from .documents import flush, sync_folder

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_core.operations import Operation

    from .documents import Document


@dataclass
class Task:
    """One resource that a verb changes. The verb may change ``document.state`` and must ``keep`` it before it acts on
    the host."""

    host: LocalHost
    document: Document
    operation: Operation
    noted: bool = False
    #: Files that the document is about to mention, and folders with such, whose content or names are not flushed yet.
    files: list[Path] = field(default_factory=list)
    folders: set[Path] = field(default_factory=set)

    def keep(self, durable: bool = True) -> None:
        """Write the document as it is now. Not *durable*: for an agent that is killed, and not a host that loses
        power."""
        if durable:
            self._flush()
        self.host.documents.write(self.document, durable)
        self.noted = False

    def note(self, folder: Path | None = None, *files: Path) -> None:
        """The document has changed and need not be written yet: a crash before the next ``keep`` only has the verb done
        again. It is written with the next change, and before the guest starts (``keep_notes``).

        *folder* is where the verb has made files. It is flushed before the document says that they are there: once,
        however many verbs have made files in it. *files* are those of them that are not flushed yet: the first takes
        as long as all, if nothing is written between."""
        self.noted = True
        self.files.extend(files)
        if folder is not None:
            self.folders.add(folder)

    def keep_notes(self) -> None:
        """Write the document if something was noted, so that an agent that is killed while the guest starts reads it.
        A loss of power brings back the document before it: then the guest is off, nobody was told that it had started,
        and the verbs are done again, as ``note`` says. So nothing is flushed before the next ``keep``.
        """
        if self.noted:
            self.keep(durable=False)

    def _flush(self) -> None:
        """Have what verbs have made outlive a loss of power. Raises ``NoSpace``."""
        try:
            while self.files:
                with suppress(FileNotFoundError):  # another verb removed it
                    flush(self.files[-1])
                self.files.pop()
            while self.folders:
                sync_folder(self.folders.pop())
        except OSError as error:
            raise NoSpace(f"The files of {self.document.kind} {self.document.name} cannot be written: "
                          f"{error.strerror}. Free some room under {self.host.settings.state_dir}.") from error


Verb = Callable[..., None]


class NotRemovable(Conflict):
    """A verb refuses a removal, and nothing of it was done: what was to be removed stays as it was."""
