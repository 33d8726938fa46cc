# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads of sysfs. Missing files and folders count as empty: they come and go with devices and drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def sysfs_entries(folder: Path) -> list[Path]:
    """Return the paths in *folder*, sorted by name; empty if the folder does not exist."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def sysfs_text(path: Path) -> str:
    """Return the text of a file without surrounding white space; empty if it does not exist."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
