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
    """The input of a driver's verb, a function that performs one step: the resource's document to apply, and the
    operation for progress and cancelling. A verb may change ``document.state``, and must call ``keep`` before it acts
    on the host."""

    host: LocalHost
    document: Document
    operation: Operation
    noted: bool = False
    #: Files that the document is about to mention, and folders with such files. Their content or names are not flushed
    #: yet.
    files: list[Path] = field(default_factory=list)
    folders: set[Path] = field(default_factory=set)

    def keep(self, durable: bool = True) -> None:
        """Write the document to disk in its current state. *durable*: flush it; otherwise the change survives a crash
        of the agent, but not a loss of power."""
        if durable:
            self._flush()
        self.host.documents.write(self.document, durable)
        self.noted = False

    def note(self, folder: Path | None = None, *files: Path) -> None:
        """Record that the document has changed, without writing it now. If the agent crashes before the write, the only
        effect is that the verb (a function that performs one step) is repeated. The next ``keep`` or ``keep_notes``
        writes the document.

        *folder*: a folder in which the verb has created files. *files*: the files in *folder* that are not flushed yet.
        The next durable ``keep`` flushes *folder* and *files* to disk before it writes the document. Flushing the files
        of several verbs together takes hardly longer than one file.
        """
        self.noted = True
        self.files.extend(files)
        if folder is not None:
            self.folders.add(folder)

    def keep_notes(self) -> None:
        """Write the document without flushing it, if ``note`` has recorded a change. Called before the guest starts:
        after a crash of the agent, its next start reads the changed document. After a loss of power, the former
        document may be back. That is correct: the guest is off too, and the verbs (functions that perform the steps)
        run again."""
        if self.noted:
            self.keep(durable=False)

    def _flush(self) -> None:
        """Flush to disk the files and folders that ``note`` has recorded. Raises ``NoSpace``."""
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
    """The error of a verb that refuses a removal before anything was removed. The resource stays unchanged."""
