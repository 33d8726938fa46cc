# SPDX-License-Identifier: GPL-3.0-or-later
"""Unix sockets to listen on, which only a group may use."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def bound(path: Path, gid: int = -1) -> socket.socket:
    """A socket bound to *path*, mode 0660, of group *gid* (-1: the process's). Raises ``OSError``.

    Until the group is right only the owner may use it. Linux takes the mode from the socket's own inode (unix(7)); by
    the umask it would be every thread's meanwhile, and of two threads that do so at once one might keep the other's.
    """
    found = socket.socket(socket.AF_UNIX)
    try:
        os.fchmod(found.fileno(), 0o600)
        found.bind(str(path))
        os.chown(path, -1, gid)
        path.chmod(0o660)
    except OSError:
        found.close()
        raise
    return found
