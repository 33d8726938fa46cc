# SPDX-License-Identifier: GPL-3.0-or-later
"""The fake's state on disk: a line of JSON for each thing that has changed; the last line of a thing holds.

A change of one domain among hundreds costs one line. Nothing is synced: what is imagined outlives its process, as a
host outlives its agent; it need not outlive the machine.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

#: The file is written anew when it has so many lines, and several for each thing.
MANY = 1000


class Journal:
    """*path*: the file. Things have names, and are plain JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: Mapping[str, object] = {}
        self._lines = 0

    def read(self) -> dict[str, Any]:
        """All things. A last line that was cut off in the middle is none."""
        found: dict[str, Any] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    name, thing = json.loads(line)
                    found[name] = thing
        return {name: thing for name, thing in found.items() if thing is not None}

    def write(self, things: Mapping[str, object], plain: Callable[[str], Any]) -> None:
        """Write down which of *things*, by name, are not as they were last time; *plain* makes JSON of one."""
        changed = [name for name, thing in things.items() if self._known.get(name) != thing]
        gone = [name for name in self._known if name not in things]
        anew = self._lines == 0 or self._lines > MANY + 4 * len(things)
        lines = [(name, plain(name)) for name in (things if anew else changed)]
        if not anew:
            lines += [(name, None) for name in gone]
        self._put("".join(json.dumps(line) + "\n" for line in lines).encode(), anew)
        self._known, self._lines = things, len(lines) + (0 if anew else self._lines)

    def _put(self, content: bytes, anew: bool) -> None:
        """In one write, so that whoever is killed meanwhile leaves all of it or nothing."""
        path = self.path.with_name(self.path.name + ".part") if anew else self.path
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if anew else os.O_APPEND), 0o600)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
        if anew:
            path.rename(self.path)
