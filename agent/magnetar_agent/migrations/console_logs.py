# SPDX-License-Identifier: GPL-3.0-or-later
"""Console logs of a migrating server. virtlogd rotates them, also while the server migrates.

The guest writes to ``console.log``. A full log becomes ``console.log.0``, the former ``console.log.0`` becomes
``console.log.1``, and the oldest is removed. So a log is identified by its inode, and kept open while it may still be
read.
"""

from __future__ import annotations

import os
from pathlib import Path

from magnetar_agent.link.rpc import Rpc

from .transfer import send_file_frames

LOG = "console.log"


class Logs:
    """The console log files in a server's *folder*, and their transfer to the target of a migration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: list[int] = []
        #: The newest log that was sent, and how many bytes of it.
        self._last: int | None = None
        self._sent = 0

    def close(self) -> None:
        """Close all log files."""
        while self._open:
            os.close(self._open.pop())

    def send(self, talk: Rpc) -> None:
        """Send all log files over the connection *talk*."""
        logs = self._open_log_files()
        for number, log in reversed(list(enumerate(logs))):
            self._file(talk, f"{LOG}.{number - 1}" if number else LOG, log, 0, False)

    def send_rest(self, talk: Rpc) -> None:
        """Send the output that was logged since ``send`` over *talk*. The target appends this output to its own log
        file before the guest runs on the target. Log files that were rotated meanwhile are sent as parts of one file.
        """
        last_inode = None if self._last is None else os.fstat(self._last).st_ino
        newer = []
        for log in self._open_log_files():
            if os.fstat(log).st_ino == last_inode:
                break
            newer.append(log)
        if self._last is not None and os.fstat(self._last).st_size > self._sent:  # it may be gone from the folder
            self._file(talk, LOG, self._last, self._sent, True)
        for log in reversed(newer):
            self._file(talk, LOG, log, 0, True)

    def _open_log_files(self) -> list[int]:
        """Return open descriptors of the log files, the newest first. Each file is opened once, even if it is renamed
        meanwhile."""
        by_inode: dict[int, int] = {}
        first = self._opened(self.folder / LOG)
        numbers = [int(path.suffix[1:]) for path in self.folder.glob(f"{LOG}.*") if path.suffix[1:].isdecimal()]
        rotated = [self._opened(self.folder / f"{LOG}.{number}") for number in range(max(numbers, default=-1) + 2)]
        for log in (first, *rotated):
            if log is not None:
                by_inode.setdefault(os.fstat(log).st_ino, log)
        return list(by_inode.values())

    def _opened(self, path: Path) -> int | None:
        try:
            self._open.append(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
        except OSError:
            return None
        return self._open[-1]

    def _file(self, talk: Rpc, name: str, log: int, offset: int, append: bool) -> None:
        talk.send({"op": "file", "name": name, "offset": offset, "append": append, "mode": 0o600})
        size = send_file_frames(talk, Path(f"/proc/self/fd/{log}"), offset, lambda _count: None)
        talk.result()
        self._last, self._sent = log, size
