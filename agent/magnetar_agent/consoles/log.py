# SPDX-License-Identifier: GPL-3.0-or-later
"""Follows a console log. virtlogd starts a new one now and then: ``console.log`` becomes ``console.log.0``, that one
``console.log.1``, and the oldest goes. So a log is known by its inode."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Logs beside ``console.log`` that are looked at; virtlogd keeps three, unless it is told otherwise.
OLDER = 10


class LogReader:
    """Reads the log at *path* from *size* bytes before its end, then what is added, also in logs that follow it. Only
    plain files are read, and no links are followed."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._log = _opened(path)
        here = 0 if self._log is None else os.fstat(self._log).st_size
        before = _opened(self._older(0)) if size > here else None
        if before is not None:
            os.lseek(before, max(0, os.fstat(before).st_size - (size - here)), os.SEEK_SET)
            self._follow(before)
        elif self._log is not None:
            os.lseek(self._log, max(0, here - size), os.SEEK_SET)

    def close(self) -> None:
        """Nothing more is read."""
        self._follow(None)

    def read(self, most: int) -> bytes:
        """What comes next; empty when nothing more is there yet."""
        if self._log is None:
            self._log = _opened(self.path)
        found = self._read(most)
        if found or self._log is None or (newer := self._newer(os.fstat(self._log))) is None:
            return found
        if found := self._read(most):  # written before the new one was begun
            os.close(newer)
            return found
        self._follow(newer)
        return self._read(most)

    def _read(self, most: int) -> bytes:
        return b"" if self._log is None else os.read(self._log, most)

    def _newer(self, known: os.stat_result) -> int | None:
        """The log that follows the one that is read; of those that are there the oldest when that has gone."""
        newer = None
        for path in (self.path, *map(self._older, range(OLDER))):
            log = _opened(path)
            if log is None:
                if path == self.path:
                    continue  # the new one is not there yet
                break
            if os.path.samestat(os.fstat(log), known):
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
