# SPDX-License-Identifier: GPL-3.0-or-later
"""The backup directory of the host (setting ``backup_directory``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict

from .pools import FolderPool

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost

#: Name of the backup directory in the reports of pools; no pool may have it.
TARGET = "backup_directory"
#: Its kind in the reports of pools.
KIND = "backup"


class BackupTarget(FolderPool):
    """The backup directory. It is a ``FolderPool`` because its space and identity are reported like those of a pool."""

    def __init__(self, host: LocalHost, folder: Path) -> None:
        super().__init__(TARGET, folder, host.hypervisor, host.settings.backup_mounted)
        self.kind = KIND

    def prepare(self) -> Path:
        """Return the folder; create it if it is missing. Raises ``Conflict`` if it cannot be used."""
        self.check_usable()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Conflict(f"The backup directory {self.folder} cannot be made: {error.strerror}.") from error
        return self.folder

    def check_usable(self) -> None:
        """Raise ``Conflict`` if a file system must be mounted at the folder and none is."""
        if self.shared and not self._usable():
            raise Conflict(f"The backup directory cannot be used: nothing is mounted at {self.folder}. Mount it on the "
                           "host, then repeat the call.")


def find_backup_target(host: LocalHost) -> BackupTarget | None:
    """Return the host's backup directory; ``None`` if the settings name none."""
    folder = host.settings.backup_directory
    return None if folder is None else BackupTarget(host, folder)


def target_identity(host: LocalHost, target: BackupTarget) -> str:
    """Return the identity of the backup directory *target*, in the form in which the host reports it
    (``pool_reports``)."""
    return f"{target.kind}:{target.identity(host.name)}"
