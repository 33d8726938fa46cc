# SPDX-License-Identifier: GPL-3.0-or-later
"""Modes of files and folders that the agent makes: nothing of a server is readable by the host's other users.

``UMASK`` is the umask of the agent and of the programs that it runs. Code that makes a folder for another user (QEMU's,
as a rule) states the mode, and ``make_folder`` sets it whatever the umask is. ``close_state`` corrects what earlier
versions of the agent left open.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

#: Of the agent's process and its child programs: only the owner may use what they make.
UMASK = 0o077
#: Mode of a folder through which QEMU's user reaches its disks. Nobody but root lists it.
PASSABLE = 0o711
#: Bits by which users who are neither owner nor in the group read and write a file, or use it at all.
READ_WRITE, ANY = 0o006, 0o007
#: Folders in the state folder that the agent makes. Others there, such as the control plane's, have other owners.
FOLDERS = ("documents", "events", "frozen", "images", "servers", "set_functions", "used_devices", "volumes")


def make_folder(path: Path, mode: int = PASSABLE) -> None:
    """Make the folder at *path*, and the missing ones above it, with exactly this *mode*; an existing one is left
    alone. Raises ``OSError``."""
    if path.is_dir():
        return
    make_folder(path.parent, mode)
    path.mkdir(mode=mode, exist_ok=True)
    path.chmod(mode)


def close_file(path: Path) -> None:
    """Take all rights to a file from users who are neither its owner nor in its group. Raises ``OSError``."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & ANY:
        path.chmod(mode & ~ANY)


def close_state(state_dir: Path) -> int:
    """Take from other users the right to read and write in the agent's folders in *state_dir*, and return how many
    files and folders were open. A folder that other users cannot pass is not entered: they reach nothing in it. What
    disappears meanwhile, as logs of running guests do, is passed over; what cannot be closed is logged."""
    count = 0
    for top in (state_dir / name for name in FOLDERS):
        for path, names, files, held in os.fwalk(top) if top.is_dir() else ():
            for entry in (*files, *names, "."):
                try:
                    count += _close(entry, held)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    log.warning("other users of the host may read %s: %s", Path(path) / entry, error.strerror)
            names[:] = [folder for folder in names if _passable(folder, held)]
    return count


def _passable(name: str, folder: int) -> bool:
    try:
        return bool(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode & 0o001)
    except FileNotFoundError:
        return False


def _close(name: str, folder: int) -> bool:
    """Close what has the *name* in the open *folder*. Links, sockets and devices are left alone."""
    seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not (stat.S_ISREG(seen.st_mode) or stat.S_ISDIR(seen.st_mode)) or not seen.st_mode & READ_WRITE:
        return False
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = stat.S_IMODE(os.fstat(held).st_mode)
        bits = READ_WRITE if stat.S_ISDIR(seen.st_mode) else ANY
        Path(f"/proc/self/fd/{held}").chmod(mode & ~bits)
    finally:
        os.close(held)
    return True
