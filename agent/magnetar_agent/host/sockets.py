# SPDX-License-Identifier: GPL-3.0-or-later
"""Unix sockets: to listen on, which only a group may use; to connect to, in folders that others may write."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
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


@contextmanager
def itself(path: Path) -> Iterator[str]:
    """A name to connect to the socket at *path* by: of that very socket, and never of where a link leads, since who may
    write the folder could send root anywhere. Raises ``OSError``."""
    held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(held).st_mode):
            raise OSError(errno.ENOTSOCK, "it is no socket")
        yield f"/proc/self/fd/{held}"
    finally:
        os.close(held)
