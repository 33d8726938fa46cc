# SPDX-License-Identifier: GPL-3.0-or-later
"""The task of a driver's verb."""

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
    """One resource that a verb changes. The verb may change ``document.state`` and must ``keep`` it before it acts on
    the host."""

    host: LocalHost
    document: Document
    operation: Operation
    noted: bool = False
    #: Files that the document is about to mention, and folders with such files. Their content or names are not flushed
    #: yet.
    files: list[Path] = field(default_factory=list)
    folders: set[Path] = field(default_factory=set)

    def keep(self, durable: bool = True) -> None:
        """Write the document as it is now. Not *durable*: it survives a killed agent, but not a loss of power."""
        if durable:
            self._flush()
        self.host.documents.write(self.document, durable)
        self.noted = False

    def note(self, folder: Path | None = None, *files: Path) -> None:
        """Note that the document has changed and need not be written yet: after a crash before the next ``keep`` the
        verb is only repeated. It is written with the next change, and before the guest starts (``keep_notes``).

        The verb has made files in *folder*, which is flushed before the document mentions them: once, however many
        verbs have made files in it. *files* are the ones of them that are not flushed yet: the first takes as long as
        all, if nothing is written between.
        """
        self.noted = True
        self.files.extend(files)
        if folder is not None:
            self.folders.add(folder)

    def keep_notes(self) -> None:
        """Write the document if something was noted, so that the next agent reads it if this one is killed while the
        guest starts. A loss of power brings back the former document: then the guest is off, no caller has been told
        that it had started, and the verbs are repeated, as ``note`` says. So nothing is flushed before the next
        ``keep``."""
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
    """A verb refuses a removal, and nothing of it was done: the resource stays as it was."""
