# SPDX-License-Identifier: GPL-3.0-or-later
"""The fake's state on disk: a line of JSON for each changed object; the last line of an object is valid.

A change of one domain among hundreds costs one line. Nothing is synced: the file must outlive its process, as a host
outlives its agent; it need not outlive the machine.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

#: The file is rewritten when it has this many lines more than four for each object.
MANY = 1000


class Journal:
    """A file that stores the state of the fake hypervisor's objects, such as domains, by name. Each change appends a
    line, and the last line about an object contains its state, as JSON. The file is rewritten when it has many outdated
    lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Lines of the file now, and after it was last rewritten.
        self._lines = self._least = 0

    def read(self) -> dict[str, Any]:
        """Return the state of all objects by name. An incomplete last line is ignored."""
        state: dict[str, Any] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    name, content = json.loads(line)
                    state[name] = content
        return {name: content for name, content in state.items() if content is not None}

    def write(self, changed: Iterable[str], plain: Callable[[str], Any], every: Callable[[], Iterable[str]]) -> None:
        """Write the current state of the objects named in *changed*. *plain*: returns the state of an object as JSON by
        its name, ``None`` for a removed object. *every*: returns the names of all objects; called to rewrite the file.
        """
        whole = self._lines == 0 or self._lines > MANY + 4 * self._least
        lines = [(name, plain(name)) for name in (every() if whole else changed)]
        self._put("".join(json.dumps(line) + "\n" for line in lines).encode(), whole)
        self._lines = len(lines) + (0 if whole else self._lines)
        self._least = len(lines) if whole else self._least

    def _put(self, content: bytes, whole: bool) -> None:
        """Append *content* to the file in one write, so that a killed process leaves all of it or nothing. *whole*:
        replace the file's content instead."""
        path = self.path.with_name(self.path.name + ".part") if whole else self.path
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if whole else os.O_APPEND), 0o600)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
        if whole:
            path.rename(self.path)
