# SPDX-License-Identifier: GPL-3.0-or-later
"""Console logs of a migrating server: virtlogd starts a new one now and then, also while the server migrates.

``console.log`` is what the guest writes to; a full one becomes ``console.log.0``, that one ``console.log.1``, and the
oldest goes. So a log is known by its inode, and held open while it may still be read.
"""

from __future__ import annotations

import os
from pathlib import Path

from magnetar_agent.link.rpc import Rpc

from .transfer import send

LOG = "console.log"


class Logs:
    """The logs of the server in *place*, as one attempt sends them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._open: list[int] = []
        #: The newest log that was sent, and how many bytes of it.
        self._last: int | None = None
        self._sent = 0

    def close(self) -> None:
        """Nothing of them is read any more."""
        while self._open:
            os.close(self._open.pop())

    def send(self, talk: Rpc) -> None:
        """All that there are, each as a file of its own."""
        found = self._look()
        for number, log in reversed(list(enumerate(found))):
            self._file(talk, f"{LOG}.{number - 1}" if number else LOG, log, 0, False)

    def send_rest(self, talk: Rpc) -> None:
        """What the guest wrote since, behind what the target has; it goes before the guest runs there, so that all is
        in its order. What was rotated meanwhile gets into one file there."""
        known = None if self._last is None else os.fstat(self._last).st_ino
        newer = []
        for log in self._look():
            if os.fstat(log).st_ino == known:
                break
            newer.append(log)
        if self._last is not None and os.fstat(self._last).st_size > self._sent:  # it may be gone from the folder
            self._file(talk, LOG, self._last, self._sent, True)
        for log in reversed(newer):
            self._file(talk, LOG, log, 0, True)

    def _look(self) -> list[int]:
        """The logs, newest first, each once, though they may change their names meanwhile."""
        found: dict[int, int] = {}
        first = self._opened(self.place / LOG)
        numbers = [int(path.suffix[1:]) for path in self.place.glob(f"{LOG}.*") if path.suffix[1:].isdecimal()]
        rotated = [self._opened(self.place / f"{LOG}.{number}") for number in range(max(numbers, default=-1) + 2)]
        for log in (first, *rotated):
            if log is not None:
                found.setdefault(os.fstat(log).st_ino, log)
        return list(found.values())

    def _opened(self, path: Path) -> int | None:
        try:
            self._open.append(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
        except OSError:
            return None
        return self._open[-1]

    def _file(self, talk: Rpc, name: str, log: int, offset: int, append: bool) -> None:
        talk.send({"op": "file", "name": name, "offset": offset, "append": append, "mode": 0o600})
        size = send(talk, Path(f"/proc/self/fd/{log}"), offset, lambda _count: None)
        talk.result()
        self._last, self._sent = log, size
