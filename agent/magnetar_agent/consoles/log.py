# SPDX-License-Identifier: GPL-3.0-or-later
"""A reader that follows a console log. virtlogd rotates logs: it renames ``console.log.0`` to ``console.log.1`` and
``console.log`` to ``console.log.0``, and removes the oldest. So a log is identified by its inode."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: The number of older logs that are searched; virtlogd keeps three by default.
OLDER = 10


class LogReader:
    """A reader that follows a server's console log at *path*, across log rotations. It returns first the last *size*
    bytes, then new text. Only regular files are read, and symbolic links are not followed."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._log = _opened(path)
        log_size = 0 if self._log is None else os.fstat(self._log).st_size
        predecessor = _opened(self._older(0)) if size > log_size else None
        if predecessor is not None:
            os.lseek(predecessor, max(0, os.fstat(predecessor).st_size - (size - log_size)), os.SEEK_SET)
            self._follow(predecessor)
        elif self._log is not None:
            os.lseek(self._log, max(0, log_size - size), os.SEEK_SET)

    def close(self) -> None:
        """Close the open log file."""
        self._follow(None)

    def read(self, most: int) -> bytes:
        """Return the next bytes of the log, at most *most*; empty if there is no new text yet."""
        if self._log is None:
            self._log = _opened(self.path)
        content = self._read(most)
        if content or self._log is None or (newer := self._newer(os.fstat(self._log))) is None:
            return content
        if content := self._read(most):  # written before the new log was started
            os.close(newer)
            return content
        self._follow(newer)
        return self._read(most)

    def _read(self, most: int) -> bytes:
        return b"" if self._log is None else os.read(self._log, most)

    def _newer(self, current: os.stat_result) -> int | None:
        """Return a file descriptor of the log file that follows *current* after a rotation; of the oldest log file if
        *current* was removed. Return ``None`` if *current* is the newest."""
        newer = None
        for path in (self.path, *map(self._older, range(OLDER))):
            log = _opened(path)
            if log is None:
                if path == self.path:
                    continue  # the new log does not exist yet
                break
            if os.path.samestat(os.fstat(log), current):
                os.close(log)
                break
            if newer is not None:
                os.close(newer)
            newer = log
        return newer

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _follow(self, log: int | None) -> None:
        if self._log is not None:
            os.close(self._log)
        self._log = log


def _opened(path: Path) -> int | None:
    try:
        log = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(log).st_mode):
        return log
    os.close(log)
    return None
