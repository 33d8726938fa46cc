# SPDX-License-Identifier: GPL-3.0-or-later
"""``Task``, the input of a driver's verb: the resource to change, and when its document is written to disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict, NoSpace

from .documents import flush_file, sync_folder

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_core.operations import Operation

    from .documents import Document


@dataclass
class Task:
    """The input of a driver's verb: one resource to change. The verb may change ``document.state`` and must call
    ``keep`` before it acts on the host."""

    host: LocalHost
    document: Document
    operation: Operation
    noted: bool = False
    #: Files that the document is about to mention, and folders with such files. Their content or names are not flushed
    #: yet.
    files: list[Path] = field(default_factory=list)
    folders: set[Path] = field(default_factory=set)

    def keep(self, durable: bool = True) -> None:
        """Write the document as it is now. Not *durable*: the change survives a killed agent, but not a loss of power.
        """
        if durable:
            self._flush()
        self.host.documents.write(self.document, durable)
        self.noted = False

    def note(self, folder: Path | None = None, *files: Path) -> None:
        """Note that the document has changed but need not be written yet: if the agent crashes before the next
        ``keep``, the verb is only repeated. The document is written with the next change, and before the guest starts
        (``keep_notes``).

        *folder*: a folder in which the verb has made files. It is flushed before the document is written: once for all
        verbs. *files*: the files in it that are not flushed yet. They are flushed together, which takes hardly longer
        than one file.
        """
        self.noted = True
        self.files.extend(files)
        if folder is not None:
            self.folders.add(folder)

    def keep_notes(self) -> None:
        """Write the document if a change was noted, without a flush: if this agent is killed while the guest starts,
        the next agent reads the notes. A loss of power brings back the former document. That is right: the guest is
        then off, no caller has been told that it had started, and the verbs are repeated (``note``)."""
        if self.noted:
            self.keep(durable=False)

    def _flush(self) -> None:
        """Flush the files that verbs have made, to survive a loss of power. Raises ``NoSpace``."""
        try:
            while self.files:
                with suppress(FileNotFoundError):  # another verb removed it
                    flush_file(self.files[-1])
                self.files.pop()
            while self.folders:
                sync_folder(self.folders.pop())
        except OSError as error:
            raise NoSpace(f"The files of {self.document.kind} {self.document.name} cannot be written: "
                          f"{error.strerror}. Free some room under {self.host.settings.state_dir}.") from error


Verb = Callable[..., None]


class NotRemovable(Conflict):
    """A verb refuses a removal before it has removed anything: the resource stays as it was."""
