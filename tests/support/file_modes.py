# SPDX-License-Identifier: GPL-3.0-or-later
"""A check for files that other users of the host may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def exposed(top: Path) -> list[str]:
    """Return each file and folder in *top* that users other than owner and group may read or write, with its mode."""
    return sorted(f"{path.relative_to(top)} {stat.S_IMODE(mode):04o}" for path, mode in _modes(top) if mode & 0o006)


def _modes(top: Path) -> list[tuple[Path, int]]:
    paths = [Path(folder, name) for folder, folders, files in os.walk(top) for name in (*folders, *files)]
    found = []
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:  # removed meanwhile
            continue
        if not stat.S_ISLNK(mode) and not stat.S_ISSOCK(mode):
            found.append((path, mode))
    return found
