# SPDX-License-Identifier: GPL-3.0-or-later
"""The cursor files of the event source ``magnetar.compute.events``: what was passed on to the rule engine."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import Any, Optional

log = logging.getLogger(__name__)
#: The form of the files; the operations or events that they remember; seconds between two writes.
VERSION = 1
REMEMBERED = 500
WRITE_SECONDS = 0.5


class CursorFile:
    """The base class of cursor files. A cursor file records what an event source has passed on to the rule engine.
    *path*: the file; ``None``: the record ends together with the event source. Subclasses define the content."""

    def __init__(self, path: Optional[str]) -> None:
        self._path = None if path is None else Path(path)
        #: The time of the last sign of life.
        self.time: Optional[str] = None
        #: Why the file could not be used.
        self.problem: Optional[str] = None
        self._written_at = 0.0
        self._read()

    def _load(self, content: Any) -> None:
        """Set the attributes of this object from *content*, the parsed JSON of the cursor file. Raises ``ValueError``,
        ``KeyError`` or ``TypeError`` if *content* does not have the expected form."""
        raise NotImplementedError

    def _content(self) -> dict[str, Any]:
        """Return the mapping that ``write`` stores in the cursor file, in addition to version and time."""
        raise NotImplementedError

    def _read(self) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            if content["version"] != VERSION:
                raise ValueError
            self._load(content)
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.problem = f"the cursor file {self._path} cannot be used ({type(error).__name__})"
            log.warning("magnetar.compute.events: %s; what happened before is not known", self.problem)

    def write(self, now: bool = False) -> None:
        """Write the cursor file. Do nothing if the last write was less than ``WRITE_SECONDS`` ago, unless *now* is
        true. After a crash, the file has either the old or the new content."""
        if self._path is None or (not now and time.monotonic() - self._written_at < WRITE_SECONDS):
            return
        part = self._path.with_name(self._path.name + ".part")
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"version": VERSION, "time": self.time, **self._content()}, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
        except OSError as error:
            log.warning("magnetar.compute.events: the cursor file %s cannot be written: %s. After a restart, events "
                        "may come again", self._path, error.strerror)
        self._written_at = time.monotonic()


class HostCursor(CursorFile):
    """The cursor file for the events of a host. It contains the servers as they were last seen, and the last operations
    that were passed on to the rule engine."""

    def __init__(self, path: Optional[str]) -> None:
        self.host: Optional[str] = None
        self.servers: dict[str, dict[str, Any]] = {}
        self.operations: deque[str] = deque(maxlen=REMEMBERED)
        super().__init__(path)

    def _load(self, content: Any) -> None:
        host, seen_at, servers, operations = (content[name] for name in ("host", "time", "servers", "operations"))
        if not isinstance(servers, dict) or not all(isinstance(server, dict) for server in servers.values()):
            raise TypeError
        seconds_of(seen_at)
        self.operations.extend(map(str, operations))
        self.host, self.time, self.servers = host, seen_at, servers

    def _content(self) -> dict[str, Any]:
        return {"host": self.host, "servers": self.servers, "operations": list(self.operations)}


class CloudCursor(CursorFile):
    """The cursor file for the events of a cloud. It contains the cursor of the API, and the last events that were
    passed on to the rule engine. The API may send these events again."""

    def __init__(self, path: Optional[str]) -> None:
        self.cursor: Optional[str] = None
        self.events: deque[str] = deque(maxlen=REMEMBERED)
        super().__init__(path)

    def _load(self, content: Any) -> None:
        cursor, seen_at, events = (content[name] for name in ("cursor", "time", "events"))
        if not isinstance(cursor, str) or not cursor:
            raise TypeError
        seconds_of(seen_at)
        self.events.extend(map(str, events))
        self.cursor, self.time = cursor, seen_at

    def _content(self) -> dict[str, Any]:
        return {"cursor": self.cursor, "events": list(self.events)}


def seconds_of(moment: Any) -> float:
    """Convert *moment*, an ISO 8601 timestamp from an agent or cloud, to seconds since the epoch, and return them; 0
    for ``None``."""
    return 0.0 if moment is None else datetime.fromisoformat(str(moment)).timestamp()
