# SPDX-License-Identifier: GPL-3.0-or-later
"""Modes of files and folders that the agent creates: other users of the host cannot read anything that belongs to a
server.

``UMASK`` is the umask of the agent and of the programs that it runs. Code that creates a folder for another user
(usually QEMU's) states the mode, and ``make_state_folder`` sets it regardless of the umask. ``close_state`` corrects
the modes that earlier versions of the agent left open.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

#: The umask of the agent's process and its child programs: only the owner may use their files.
UMASK = 0o077
#: The mode of a folder through which QEMU's user reaches its disks. Only root can list it.
PASSABLE = 0o711
#: Mode bits of other users (neither owner nor group): to read and write, and all three.
READ_WRITE, ANY = 0o006, 0o007
#: Folders in the state folder that the agent makes. Other folders there, such as the control plane's, have other
#: owners.
FOLDERS = ("backups", "documents", "events", "frozen", "guest_runs", "images", "servers", "set_functions",
           "used_devices", "volumes")


def make_state_folder(path: Path, mode: int = PASSABLE) -> None:
    """Create the folder *path* and missing parents with the permissions *mode*, regardless of the umask. Existing
    folders are not changed. Raises ``OSError``."""
    if path.is_dir():
        return
    make_state_folder(path.parent, mode)
    path.mkdir(mode=mode, exist_ok=True)
    path.chmod(mode)


def close_file(path: Path) -> None:
    """Remove all permissions of users other than owner and group from a file. Raises ``OSError``."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & ANY:
        path.chmod(mode & ~ANY)


def close_state(state_dir: Path) -> int:
    """Remove other users' read and write permissions from the agent's folders and files in *state_dir*. Return how many
    had such permissions.

    The content of a folder that other users cannot enter is skipped, because they cannot reach this content. Files that
    disappear meanwhile are ignored. Errors are logged.
    """
    count = 0
    for top in (state_dir / name for name in FOLDERS):
        for path, names, files, folder_descriptor in os.fwalk(top) if top.is_dir() else ():
            for entry in (*files, *names, "."):
                try:
                    count += _close(entry, folder_descriptor)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    log.warning("other users of the host may read %s: %s", Path(path) / entry, error.strerror)
            names[:] = [folder for folder in names if _passable(folder, folder_descriptor)]
    return count


def _passable(name: str, folder: int) -> bool:
    try:
        return bool(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode & 0o001)
    except FileNotFoundError:
        return False


def _close(name: str, folder: int) -> bool:
    """Remove other users' permissions from the entry *name* of the folder with the descriptor *folder*. Return whether
    it had such permissions. Symbolic links, sockets and devices are not changed."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)) or not status.st_mode & READ_WRITE:
        return False
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        bits = READ_WRITE if stat.S_ISDIR(status.st_mode) else ANY
        Path(f"/proc/self/fd/{descriptor}").chmod(mode & ~bits)
    finally:
        os.close(descriptor)
    return True
