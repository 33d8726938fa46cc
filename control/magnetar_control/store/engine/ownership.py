# SPDX-License-Identifier: GPL-3.0-or-later
"""The owner of files and folders that commands create. An operator may run a command as root; the service, which is
another user, must be able to use what the command has created."""

from __future__ import annotations

import os
from pathlib import Path


def give_to_owner_of_folder(path: Path) -> None:
    """Give the file or folder *path* the owner of the folder that it is in, so that the service can use what root has
    created. Do nothing if another user calls this."""
    if os.geteuid() == 0:
        folder = path.parent.stat()
        os.chown(path, folder.st_uid, folder.st_gid, follow_symlinks=False)


def make_private_folders(folder: Path) -> None:
    """Create *folder* and the missing folders above it, with mode 0700. Each gets the owner of the folder that it is
    in, if root calls this."""
    if folder.is_dir():
        return
    make_private_folders(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    give_to_owner_of_folder(folder)
