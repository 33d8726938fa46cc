# SPDX-License-Identifier: GPL-3.0-or-later
"""The mounted file systems of the host, from ``/proc/self/mountinfo`` (proc(5))."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
#: The kernel writes spaces and some other characters as octal numbers.
_OCTAL = re.compile(r"\\([0-7]{3})")


def mount_source(folder: Path, mountinfo: Path = MOUNTINFO) -> str:
    """Return what is mounted at *folder*, such as SERVER:EXPORT; "" if nothing is. Nothing there is opened, so the
    server of the file system need not answer. Of several mounts at one place, the last one counts."""
    source = ""
    for line in mountinfo.read_text().splitlines():
        before, _dash, after = line.partition(" - ")
        if _plain(before.split(" ")[4]) == str(folder):
            source = _plain(after.split(" ")[1])
    return source


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
