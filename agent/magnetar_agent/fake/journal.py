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
    from collections.abc import Callable, Iterable
    from pathlib import Path

#: The file is written again as a whole when it has so many lines more than four for each thing.
MANY = 1000


class Journal:
    """*path*: the file. Things have names, and are plain JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Lines of the file now, and when it was last written as a whole.
        self._lines = self._least = 0

    def read(self) -> dict[str, Any]:
        """All things. A last line that was cut off in the middle is none."""
        found: dict[str, Any] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    name, thing = json.loads(line)
                    found[name] = thing
        return {name: thing for name, thing in found.items() if thing is not None}

    def write(self, changed: Iterable[str], plain: Callable[[str], Any], every: Callable[[], Iterable[str]]) -> None:
        """Write down how the things *changed* are now. *plain* makes JSON of one by its name, ``None`` of one that is
        gone; *every*: the names of all."""
        whole = self._lines == 0 or self._lines > MANY + 4 * self._least
        lines = [(name, plain(name)) for name in (every() if whole else changed)]
        self._put("".join(json.dumps(line) + "\n" for line in lines).encode(), whole)
        self._lines = len(lines) + (0 if whole else self._lines)
        self._least = len(lines) if whole else self._least

    def _put(self, content: bytes, whole: bool) -> None:
        """In one write, so that whoever is killed meanwhile leaves all of it or nothing."""
        path = self.path.with_name(self.path.name + ".part") if whole else self.path
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if whole else os.O_APPEND), 0o600)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
        if whole:
            path.rename(self.path)
