# SPDX-License-Identifier: GPL-3.0-or-later
"""Unix sockets: listening sockets for a group only, and safe connections in folders that other users may write to."""

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


def bind_unix_socket(path: Path, gid: int = -1) -> socket.socket:
    """Return a socket bound to *path*, with mode 0660 and the group *gid* (-1: the group of the process). Raises
    ``OSError``. Until the group is set, only the owner may use the socket: the socket gets the mode 0600 before
    ``bind``, and Linux gives the new file this mode (unix(7)). The umask is not used for this, because it would also
    affect files that other threads create meanwhile."""
    unix_socket = socket.socket(socket.AF_UNIX)
    try:
        os.fchmod(unix_socket.fileno(), 0o600)
        unix_socket.bind(str(path))
        os.chown(path, -1, gid)
        path.chmod(0o660)
    except OSError:
        unix_socket.close()
        raise
    return unix_socket


@contextmanager
def pin_socket_path(path: Path) -> Iterator[str]:
    """Yield a path (in /proc/self/fd) at which to connect to the unix socket that is at *path* now, even if *path* is
    replaced meanwhile. Raises ``OSError`` if *path* is a symbolic link: a user with write access to the folder could
    otherwise direct root to any socket."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOTSOCK, "it is no socket")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
