# SPDX-License-Identifier: GPL-3.0-or-later
"""The mounted file systems of the host, from ``/proc/self/mountinfo`` (proc(5))."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
#: The kernel writes spaces and some other characters as octal numbers.
_OCTAL = re.compile(r"\\([0-7]{3})")


def mount_source(folder: Path, mountinfo: Path = MOUNTINFO) -> str:
    """Return the source of the file system that is mounted at *folder*, such as ``SERVER:EXPORT``; "" if none is
    mounted there. With several mounts at the same folder, the last one counts. Only *mountinfo* is read, so a hanging
    file server does not block the call."""
    source = ""
    for line in mountinfo.read_text().splitlines():
        before, _dash, after = line.partition(" - ")
        if _plain(before.split(" ")[4]) == str(folder):
            source = _plain(after.split(" ")[1])
    return source


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
