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
    """The directory for volume backups. It is a ``FolderPool`` (a storage pool of files in a directory), so that its
    free space and identity are reported like those of a storage pool."""

    def __init__(self, host: LocalHost, folder: Path) -> None:
        super().__init__(TARGET, folder, host.hypervisor, host.settings.backup_mounted)
        self.kind = KIND

    def prepare(self) -> Path:
        """Return the path of the backup directory, creating it if it is missing. Raises ``Conflict`` if it cannot be
        used."""
        self.check_usable()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Conflict(f"The backup directory {self.folder} cannot be made: {error.strerror}.") from error
        return self.folder

    def check_usable(self) -> None:
        """Raise ``Conflict`` if the settings require a file system to be mounted at the backup directory and none is
        mounted."""
        if self.shared and not self._usable():
            raise Conflict(f"The backup directory cannot be used: nothing is mounted at {self.folder}. Mount it on the "
                           "host, then repeat the call.")


def find_backup_target(host: LocalHost) -> BackupTarget | None:
    """Return the backup directory of this host; ``None`` if the setting ``backup_directory`` is not set."""
    folder = host.settings.backup_directory
    return None if folder is None else BackupTarget(host, folder)


def target_identity(host: LocalHost, target: BackupTarget) -> str:
    """Return the identity of the backup directory *target*, such as ``backup:…``. It is equal on all hosts that share
    the directory."""
    return f"{target.kind}:{target.identity(host.name)}"
